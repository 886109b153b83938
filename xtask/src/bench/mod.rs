//! `cargo xtask bench`: what recording costs, measured inside one run on one machine.
//!
//! Every figure is the median over rounds in which all modes take turns, with the middle half beside it;
//! the loop runs on CPU 0, everything else on the other CPUs. That the probes were on is proved by counts:
//! the report must have seen at least as many calls as the loop made.

mod cost;
pub mod looper;
mod rate;
mod stats;

use std::fs;

use anyhow::{Context as _, Result};

use crate::{build, paths};

#[derive(clap::Args)]
pub struct Options {
    /// Rounds of the cost comparison
    #[arg(long, default_value_t = 11)]
    rounds: usize,
}

pub fn run(options: &Options) -> Result<()> {
    build::run(&build::Options::default())?;
    let mut table = machine();
    table += &cost::run(options.rounds)?;
    table += &rate::run()?;
    let folder = paths::root().join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let file = folder.join("record.md");
    fs::write(&file, &table).with_context(|| format!("cannot write {}", file.display()))?;
    print!("{table}");
    println!("written to {}", file.display());
    Ok(())
}

fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "# What recording costs\n\nkernel {}, {cpus} CPUs,{}\n\n",
        read("/proc/sys/kernel/osrelease").trim(),
        model
            .trim_start_matches([' ', '\t', ':'])
            .split_whitespace()
            .fold(String::new(), |text, word| text + " " + word)
    )
}
