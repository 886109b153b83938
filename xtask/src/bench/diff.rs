//! `cargo xtask bench diff`: how often `diff` is right, on pairs of made-up recordings whose truth is known, and how
//! long it takes for ten million spans.
//!
//! The recordings are made with the trace writer by an example of the profiler's, from fixed seeds: the table is
//! the same on every machine, apart from the times.

use std::fs;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::{paths, run};

const SPANS: u64 = 10_000_000;

pub fn run() -> Result<()> {
    let experiment = experiment()?;
    let table = experiment + &speed()?;
    let file = paths::root().join("bench/diff.md");
    fs::write(&file, &table).with_context(|| format!("cannot write {}", file.display()))?;
    print!("{table}");
    println!("written to {}", file.display());
    Ok(())
}

fn example(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command
        .args([
            "run",
            "--release",
            "--quiet",
            "--locked",
            "-p",
            "stallscope",
            "--example",
            "diff_experiment",
            "--",
        ])
        .args(arguments)
        .current_dir(paths::root());
    paths::with_bpf_object(&mut command);
    command
}

fn experiment() -> Result<String> {
    let output = example(&["table"]).output().context("cannot start the experiment")?;
    ensure!(output.status.success(), "the experiment failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).context("the experiment printed no UTF-8")
}

fn speed() -> Result<String> {
    let folder = std::env::temp_dir().join(format!("stallscope-bench-diff-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let result = measure(&folder);
    let _ = fs::remove_dir_all(&folder);
    result
}

fn measure(folder: &std::path::Path) -> Result<String> {
    let path = |name: &str| folder.join(name).display().to_string();
    let (before, after, out) = (path("before.stall"), path("after.stall"), path("diff.json"));
    for (seed, file) in [("1", &before), ("2", &after)] {
        run::run(&mut example(&["spans", &SPANS.to_string(), seed, file]))?;
    }
    let mut seconds = Vec::new();
    let mut resident = 0;
    for _ in 0..5 {
        let started = Instant::now();
        let mut child = Command::new(paths::stallscope())
            .args(["diff", &before, &after, "--format", "json", "-o", &out])
            .spawn()
            .context("cannot start stallscope")?;
        resident = resident.max(peak_resident_kib(&mut child)?);
        seconds.push(started.elapsed().as_secs_f64());
    }
    let size = fs::metadata(&before)?.len() + fs::metadata(&after)?.len();
    let spread = super::stats::spread(&seconds).context("no samples")?;
    Ok(format!(
        "## Speed\n\n{}| what | figure |\n|---|---|\n| spans | {} a side, {:.0} MB in both files |\n\
         | time, median of {} (middle half) | {:.2} s ({:.2} to {:.2}) |\n| peak resident memory | {:.0} MiB |\n",
        super::machine(),
        SPANS,
        size as f64 / 1e6,
        seconds.len(),
        spread.median,
        spread.low,
        spread.high,
        resident as f64 / 1024.0,
    ))
}

/// Waits for the child to end; its peak resident memory.
fn peak_resident_kib(child: &mut std::process::Child) -> Result<u64> {
    // SAFETY: an all-zero rusage is valid, and is filled in by the call.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: both pointers are to locals; the child is ours and was not waited for.
    let ended = unsafe { libc::wait4(child.id().cast_signed(), &raw mut status, 0, &raw mut usage) };
    ensure!(ended == child.id().cast_signed() && status == 0, "stallscope diff failed: {status}");
    u64::try_from(usage.ru_maxrss).context("negative memory")
}
