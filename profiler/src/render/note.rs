//! What was recorded, and what was not: short notes that several views show.

use crate::analysis::Analysis;
use crate::analysis::report::Report;
use crate::render::name::escape_controls;
use crate::render::unit::{count, duration, plural, share};
use crate::trace::UNENDED;
use crate::trace::record::FamilyState;

/// What was recorded: the target's name and its process, `python3 (pid 4242)`, `python3 (8 processes)`.
pub(super) fn target(report: &Report) -> String {
    let name = if report.target.comm.is_empty() { "unnamed" } else { &report.target.comm };
    let name = escape_controls(name);
    match report.target.pids.as_slice() {
        [] => name,
        [pid] => format!("{name} (pid {pid})"),
        pids => format!("{name} ({})", format_args!("{} processes", count(pids.len() as u64))),
    }
}

/// `stalled 8.30 s of 40.0 s thread time (20.8%)`.
pub(super) fn stalled(report: &Report) -> String {
    let totals = &report.totals;
    format!(
        "stalled {} of {} thread time ({})",
        duration(totals.stalled_ns),
        duration(totals.thread_wall_ns),
        share(totals.stalled_ns, totals.thread_wall_ns)
    )
}

/// Why the trace is not whole; empty where it is.
pub(super) fn damage(report: &Report) -> Vec<String> {
    let trace = &report.trace;
    let mut notes: Vec<String> = trace.damage.iter().map(|text| escape_controls(text)).collect();
    if trace.bytes_unread > 0 {
        notes.push(format!("{} bytes of the trace could not be read", count(trace.bytes_unread)));
    }
    if !trace.complete && notes.is_empty() {
        notes.push(UNENDED.to_owned());
    }
    notes
}

/// What to say where there is no stall. A trace without its end lacks the waits that were open then, which are the
/// longest.
pub(super) fn no_stall(report: &Report) -> &'static str {
    if report.trace.complete && !report.findings.is_empty() {
        "No wait was long enough to be recorded; the findings say what failed all the same"
    } else if report.trace.complete {
        "Nothing stalled"
    } else {
        "No stall was read; waits that were still open are not known"
    }
}

/// Losses that make figures too small or stacks too short; empty where nothing was lost.
pub(super) fn losses(report: &Report) -> Vec<String> {
    let coverage = &report.coverage;
    let mut notes = Vec::new();
    if coverage.lost_events > 0 {
        notes.push(format!("{} lost", plural(coverage.lost_events, "event")));
    }
    if coverage.unmatched_completions > 0 {
        notes.push(plural(coverage.unmatched_completions, "unmatched completion"));
    }
    if coverage.truncated_stacks > 0 {
        notes.push(plural(coverage.truncated_stacks, "truncated stack"));
    }
    if coverage.unresolved_frames > 0 {
        let places = if coverage.unresolved_frames == 1 { "place in code" } else { "places in code" };
        notes.push(format!("{} {places} without a name", coverage.unresolved_frames));
    }
    notes
}

/// Probe families that were not or only partly on: `dns off: no uprobes (EPERM)`.
pub(super) fn blind_spots(report: &Report) -> Vec<String> {
    let rows = report.coverage.probes.iter();
    rows.filter_map(|row| {
        let state = match row.state {
            FamilyState::On => return None,
            FamilyState::Off => "off",
            FamilyState::Partial => "partial",
        };
        let reason = if row.reason.is_empty() { "no reason given" } else { &row.reason };
        Some(format!("{} {state}: {}", escape_controls(&row.family), escape_controls(reason)))
    })
    .collect()
}

/// `12,345 system calls seen: recvfrom 10,000, sendto 2,345`, most frequent first, `most` of them by name.
pub(super) fn calls_seen(report: &Report, most: usize) -> String {
    let seen = &report.coverage.syscalls_seen;
    let mut calls: Vec<(&String, u64)> = seen.iter().map(|(name, seen)| (name, *seen)).collect();
    calls.retain(|(_, seen)| *seen > 0);
    calls.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let total = calls.iter().fold(0_u64, |sum, (_, seen)| sum.saturating_add(*seen));
    let mut text = format!("{} seen", plural(total, "system call"));
    for (index, (name, seen)) in calls.iter().take(most).enumerate() {
        let before = if index == 0 { ": " } else { ", " };
        text.push_str(&format!("{before}{} {}", escape_controls(name), count(*seen)));
    }
    if calls.len() > most {
        text.push_str(&format!(", {} more kinds", calls.len() - most));
    }
    text
}

/// What the threads did in all, for views that have no stall to show.
pub(super) fn presence(analysis: &Analysis) -> String {
    let report = &analysis.report;
    let sum = |of: fn(&crate::analysis::report::ThreadRow) -> u64| {
        report.threads.iter().fold(0_u64, |sum, row| sum.saturating_add(of(row)))
    };
    format!(
        "{} watched for {}: running {}, runnable {}, idle {}, other waits {}",
        plural(report.threads.len() as u64, "thread"),
        duration(report.target.duration_ns),
        duration(sum(|row| row.running_ns)),
        duration(sum(|row| row.runnable_ns)),
        duration(report.totals.idle_ns),
        duration(sum(|row| row.other_ns))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_without_its_end_does_not_say_that_nothing_stalled() {
        let mut report = Report::default();
        assert_eq!(damage(&report), [UNENDED]);
        assert!(UNENDED.contains("waits open then are not known"));
        assert_eq!(no_stall(&report), "No stall was read; waits that were still open are not known");
        report.trace.complete = true;
        assert_eq!((damage(&report).as_slice(), no_stall(&report)), ([].as_slice(), "Nothing stalled"));
        // Refusals fail a program without making it wait.
        report.findings.push(crate::analysis::report::Finding {
            id: "dns.resolver_unreachable".to_owned(),
            severity: crate::analysis::report::Severity::Critical,
            summary: String::new(),
            cause: crate::model::cause::Cause::DnsResolve,
            stalled_ns: 0,
            proof: serde_json::Map::new(),
            advice: String::new(),
        });
        assert!(no_stall(&report).starts_with("No wait was long enough"));
    }
}
