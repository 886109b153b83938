//! `cargo xtask bench diff`: how often `diff` is right, on pairs of made-up recordings whose truth is known.
//!
//! The recordings are made with the trace writer by an example of the profiler's, from fixed seeds: the table is
//! the same on every machine.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::paths;

pub fn run() -> Result<()> {
    let table = experiment()?;
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
