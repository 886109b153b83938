//! What the recorder itself needs while 200 000 spans a second come in, and how fast it attaches.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::cost::{Loop, Tracer, report};
use super::stats;

const ITERATIONS_A_SECOND: u64 = 100_000;
const SECONDS: u64 = 10;

pub fn run() -> Result<String> {
    let folder = std::env::temp_dir().join(format!("stallscope-bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let trace = folder.join("rate.stall");
    let mut measured = Loop::start(ITERATIONS_A_SECOND * SECONDS, ITERATIONS_A_SECOND)?;
    let pid = measured.pid().to_string();
    let mut tracer = Tracer::stallscope_with(&pid, &trace, &["--min-stall", "0us"])?;
    let before = cpu_ns(tracer.pid())?;
    let started = Instant::now();
    measured.go()?;
    let elapsed = started.elapsed().as_nanos() as f64;
    let used = cpu_ns(tracer.pid())?.saturating_sub(before) as f64;
    let resident = peak_resident_kib(tracer.pid())?;
    tracer.stop()?;
    let size = fs::metadata(&trace).context("no trace")?.len() as f64;
    let report = report(&trace)?;
    let spans = 2 * ITERATIONS_A_SECOND * SECONDS;
    let lost = report["coverage"]["lost_events"].as_u64().context("no loss figure")?;
    let seen = super::cost::calls_seen(&trace)?;
    ensure!(seen >= spans, "the probes saw {seen} of {spans} calls");
    let folded =
        report["coverage"]["below_min_stall"]["count"].as_u64().context("no count of short calls")?;
    ensure!(folded + spans / 100 < spans, "{folded} of {spans} calls were counted, not recorded");
    let table = format!(
        "## The recorder at 200 000 spans a second\n\n\
         A loop of {ITERATIONS_A_SECOND} `sendto` and `recvfrom` a second for {SECONDS} s, every call a span (`--min-stall 0us`).\n\n\
         | what | figure |\n|---|---|\n\
         | spans | {spans} in {:.2} s |\n| lost, as reported | {lost} |\n\
         | processor time of the recorder | {:.1} % of one CPU |\n| peak resident memory | {:.1} MiB |\n\
         | on disk | {:.1} bytes a span |\n\n",
        elapsed / 1e9,
        100.0 * used / elapsed,
        resident as f64 / 1024.0,
        size / spans as f64,
    );
    Ok(table + &attach(&folder)?)
}

/// Attaching and detaching.
fn attach(folder: &std::path::Path) -> Result<String> {
    let (mut sample, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..11 {
        let measured = Loop::start(1, 0)?;
        let started = Instant::now();
        let mut tracer = Tracer::stallscope(&measured.pid().to_string(), &folder.join("attach.stall"))?;
        sample.push(started.elapsed().as_secs_f64() * 1e3);
        let asked = Instant::now();
        tracer.stop()?;
        ends.push(asked.elapsed().as_secs_f64() * 1e3);
    }
    let mut table = String::from("## Attaching\n\n| what | ms, median | middle half |\n|---|---|---|\n");
    for (what, sample) in [
        ("from the start of `stallscope record --pid` to the opening of its window", &sample),
        ("from Ctrl-C to its end", &ends),
    ] {
        let spread = stats::spread(sample).context("no samples")?;
        table += &format!("| {what} | {:.0} | {:.0} to {:.0} |\n", spread.median, spread.low, spread.high);
    }
    Ok(table + &format!("\n{} runs.\n", sample.len()))
}

/// User and system time of a process, nanoseconds.
fn cpu_ns(pid: u32) -> Result<u64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("the tracer is gone")? {
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        total += text.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(total)
}

fn peak_resident_kib(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).context("the tracer is gone")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    line.trim().trim_end_matches(" kB").parse().context("VmHWM is no number")
}
