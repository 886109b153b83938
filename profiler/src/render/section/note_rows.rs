//! What was recorded, what was not, and the environment: pairs of a word and a text.

use std::time::{Duration, UNIX_EPOCH};

use crate::analysis::report::{ProbeRow, PythonCoverage, Report};
use crate::render::name::escape_controls;
use crate::render::note;
use crate::render::unit::{count, duration, plural, share};
use crate::trace::record::FamilyState;

/// Rows of the environment, and kinds of system calls, that are shown.
const MOST: usize = 20;
/// Not lost: kernels and copies that ran, or waited to run, when the recording stopped.
const IN_FLIGHT: &str = "gpu_unfinished";

/// Lines that say what this is a report of.
pub(in crate::render) fn header(report: &Report) -> Vec<String> {
    let host = &report.host;
    let name = if host.name.is_empty() { "an unnamed host" } else { &host.name };
    let kernel = if host.kernel.is_empty() { "unknown" } else { &host.kernel };
    let start = UNIX_EPOCH + Duration::from_nanos(report.target.start_unix_ns);
    let totals = &report.totals;
    vec![
        format!(
            "{} on {}, Linux {}, {}",
            note::target(report),
            escape_controls(name),
            escape_controls(kernel),
            plural(u64::from(host.cpus), "CPU")
        ),
        format!(
            "{} from {}, {}",
            duration(report.target.duration_ns),
            humantime::format_rfc3339_seconds(start),
            plural(report.threads.len() as u64, "thread")
        ),
        format!(
            "{}, idle {} ({})",
            note::stalled(report),
            duration(totals.idle_ns),
            share(totals.idle_ns, totals.thread_wall_ns)
        ),
    ]
}

/// What was watched, what was lost and what was not seen.
pub(in crate::render) fn coverage(report: &Report) -> Vec<(&'static str, String)> {
    let coverage = &report.coverage;
    let below = coverage.below_min_stall;
    let mut rows = vec![
        ("watched", watched(&coverage.probes)),
        ("not seen", or(note::blind_spots(report).join("; "), "nothing that is known of")),
        ("lost", or(note::losses(report).join(", "), "nothing that is known of")),
    ];
    rows.extend(super::gpu::lines(report).into_iter().map(|line| ("GPU", line)));
    if let Some(open) = coverage.losses.get(IN_FLIGHT).filter(|open| **open > 0) {
        rows.push(("GPU at the end", format!("{} or copies had not ended", plural(*open, "kernel"))));
    }
    let losses: Vec<String> = coverage
        .losses
        .iter()
        .filter(|(what, lost)| **lost > 0 && what.as_str() != IN_FLIGHT)
        .map(|(what, lost)| format!("{} {}", escape_controls(what), count(*lost)))
        .collect();
    if !losses.is_empty() {
        rows.push(("loss by kind", losses.join(", ")));
    }
    rows.push((
        "too short",
        format!("{} below --min-stall, {} in all", plural(below.count, "wait"), duration(below.sum_ns)),
    ));
    if let Some(python) = &coverage.python {
        rows.push(("Python", python_functions(python)));
    }
    rows.push(("calls", note::calls_seen(report, MOST)));
    if report.clock.aligned {
        let error = duration(report.clock.offset_error_ns);
        rows.push(("clock", format!("hosts aligned, error up to {error}")));
    }
    let elsewhere = elsewhere(report);
    if !elsewhere.is_empty() {
        rows.push(("in the JSON", elsewhere));
    }
    rows
}

/// How much of the stalls shows the functions of Python programs.
fn python_functions(python: &PythonCoverage) -> String {
    let all = python.with.count + python.without.count;
    let all_ns = python.with.stalled_ns.saturating_add(python.without.stalled_ns);
    let mut text = format!(
        "{} of {} with their functions, {} of the time",
        count(python.with.count),
        plural(all, "stall"),
        share(python.with.stalled_ns, all_ns)
    );
    if python.unmatched.count > 0 {
        text.push_str(&format!(", {} in one block", count(python.unmatched.count)));
    }
    text
}

fn or(text: String, otherwise: &str) -> String {
    if text.is_empty() { otherwise.to_owned() } else { text }
}

fn watched(probes: &[ProbeRow]) -> String {
    let names = probes.iter().filter(|row| row.state != FamilyState::Off);
    let names: Vec<String> = names.map(|row| escape_controls(&row.family)).collect();
    or(names.join(", "), "nothing")
}

/// Sections that have no table here.
fn elsewhere(report: &Report) -> String {
    let sections = [
        (report.queues.len(), "queue"),
        (report.init.len(), "initialisation"),
        (report.counters.len(), "counter"),
        (usize::from(report.steps.is_some()), "summary of steps"),
    ];
    let parts: Vec<String> = sections
        .into_iter()
        .filter(|(rows, _)| *rows > 0)
        .map(|(rows, noun)| plural(rows as u64, noun))
        .collect();
    parts.join(", ")
}

/// Settings and versions that were recorded.
pub(in crate::render) fn environment(report: &Report) -> Vec<(String, String)> {
    let rows = report.environment.iter().take(MOST);
    let mut rows: Vec<(String, String)> =
        rows.map(|row| (escape_controls(&row.what), escape_controls(row.value.trim()))).collect();
    let more = report.environment.len().saturating_sub(MOST);
    if more > 0 {
        rows.push(("..".to_owned(), format!("{} more in the JSON report", count(more as u64))));
    }
    rows
}
