//! `cargo xtask bench traces`: how long `report`, `flame` and `diff` take on large recordings, and how much memory.
//!
//! The recordings are made with the trace writer by an example of the profiler's, from fixed seeds: the same on every
//! machine. Wall time stands beside the time of all processors: on a machine that does something else, only the second
//! one says much.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::stats;
use crate::{paths, run};

#[derive(clap::Args)]
pub struct Options {
    /// Waits of a recording
    #[arg(long, default_value_t = 10_000_000)]
    waits: u64,
    /// Times that each command runs
    #[arg(long, default_value_t = 3)]
    times: usize,
}

/// Peers of the ordinary recordings, and of the one that shows what peers cost.
const PEERS: u64 = 400;
const MANY_PEERS: u64 = 100_000;

/// One run of a command.
struct Run {
    wall: f64,
    cpu: f64,
    resident_mib: f64,
}

pub fn run(options: &Options) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("stallscope-bench-traces-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let measured = measure(options, &folder);
    // What is left of it is of no use to anybody, and removing it is no part of the figures.
    let _ = fs::remove_dir_all(&folder);
    let table = measured?;
    let file = paths::root().join("bench/traces.md");
    fs::write(&file, &table).with_context(|| format!("cannot write {}", file.display()))?;
    print!("{table}");
    println!("written to {}", file.display());
    Ok(())
}

fn measure(options: &Options, folder: &Path) -> Result<String> {
    let path = |name: &str| folder.join(name).display().to_string();
    let (before, after, peers) = (path("before.stall"), path("after.stall"), path("peers.stall"));
    for (waits, peers, seed, file) in [
        (options.waits, PEERS, "1", &before),
        (options.waits, PEERS, "2", &after),
        (options.waits / 50, MANY_PEERS, "3", &peers),
    ] {
        generate(&[&waits.to_string(), &peers.to_string(), seed, file])?;
    }
    let before_runs = super::load();
    let mut rows = String::new();
    for (what, arguments) in [
        (format!("`report`, {} waits", options.waits), vec!["report", &before]),
        (format!("`flame`, {} waits", options.waits), vec!["flame", &before]),
        (format!("`diff`, two recordings of {} waits", options.waits), vec!["diff", &before, &after]),
        (
            format!("`report`, {} waits for {MANY_PEERS} peers", options.waits / 50),
            vec!["report", peers.as_str()],
        ),
    ] {
        let runs = (0..options.times).map(|_| stallscope(&arguments)).collect::<Result<Vec<_>>>()?;
        let median = |of: fn(&Run) -> f64| -> Result<f64> {
            Ok(stats::spread(&runs.iter().map(of).collect::<Vec<_>>()).context("no runs")?.median)
        };
        let most = runs.iter().map(|run| run.resident_mib).fold(0.0, f64::max);
        rows += &format!(
            "| {what} | {:.1} s | {:.1} s | {most:.0} MiB |\n",
            median(|run| run.wall)?,
            median(|run| run.cpu)?
        );
    }
    Ok(format!(
        "# Large recordings\n\n{}Load average of the machine before: {before_runs}; after: {} (1, 5, 15 minutes).\n\n\
         Eight processes of eight threads, 2,000 call sites, {PEERS} peers, {:.0} bytes a wait on disk \
         (`profiler/examples/synthetic_trace.rs`).\n\
         Medians of {} runs; memory is the most of them. Processor time is that of all threads. The goal is 5 s on two\n\
         processors and 512 MiB.\n\n\
         | command | time | processor time | peak resident memory |\n|---|---|---|---|\n{rows}",
        super::machine(),
        super::load(),
        fs::metadata(&before)?.len() as f64 / options.waits.max(1) as f64,
        options.times,
    ))
}

fn generate(arguments: &[&str]) -> Result<()> {
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
            "synthetic_trace",
            "--",
        ])
        .args(arguments)
        .current_dir(paths::root());
    run::run(paths::with_bpf_object(&mut command))
}

fn stallscope(arguments: &[&str]) -> Result<Run> {
    let started = Instant::now();
    let mut child = Command::new(paths::stallscope())
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start stallscope")?;
    let usage = wait(&mut child)?;
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(Run {
        wall: started.elapsed().as_secs_f64(),
        cpu: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        resident_mib: usage.ru_maxrss as f64 / 1024.0,
    })
}

/// Waits for the child to end, and says what it used.
fn wait(child: &mut Child) -> Result<libc::rusage> {
    // SAFETY: an all-zero rusage is valid, and is filled in by the call.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: both pointers are to locals; the child is ours and was not waited for.
    let ended = unsafe { libc::wait4(child.id().cast_signed(), &raw mut status, 0, &raw mut usage) };
    ensure!(ended == child.id().cast_signed() && status == 0, "stallscope failed: {status}");
    Ok(usage)
}
