//! `cargo xtask bench`: what recording costs, measured inside one run on one machine.
//!
//! Every figure is the median over rounds in which all modes take turns, with the middle half beside it, and what a
//! tracer adds is the median of its differences from the untraced loop of the same round;
//! the loop runs on CPU 0, everything else on the other CPUs. That the probes were on is proved by counts:
//! the report must have seen at least as many calls as the loop made.

mod cost;
mod diff;
mod empty;
pub mod looper;
mod rate;
mod stats;
mod switch;
mod symbols;
mod traces;

use std::fs;

use anyhow::{Context as _, Result};

use crate::{build, paths};

#[derive(clap::Args)]
pub struct Options {
    /// Rounds in which all modes take turns
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(clap::Subcommand)]
enum Part {
    /// What recording costs; writes bench/record.md (the default)
    Record,
    /// How often `diff` finds a change that is there, and one that is not; writes bench/diff.md
    Diff,
    /// What a context switch of a process that is not recorded takes more; writes bench/switch.md
    Switch,
    /// How long naming addresses of a library takes the first time and from the cache; writes bench/symbols.md
    Symbols(symbols::Options),
    /// How long report, flame and diff take on ten million waits; writes bench/traces.md
    Traces(traces::Options),
}

pub fn run(options: &Options) -> Result<()> {
    if let Some(Part::Symbols(options)) = &options.part {
        return symbols::run(options);
    }
    build::run(&build::Options::default())?;
    if matches!(options.part, Some(Part::Diff)) {
        return diff::run();
    }
    if let Some(Part::Traces(options)) = &options.part {
        return traces::run(options);
    }
    let before = load();
    let (title, name, figures) = if matches!(options.part, Some(Part::Switch)) {
        ("What recording adds to a context switch", "switch.md", switch::run(options.rounds)?)
    } else {
        ("What recording costs", "record.md", cost::run(options.rounds)? + &rate::run()?)
    };
    let load =
        format!("Load average of the machine before: {before}; after: {} (1, 5, 15 minutes).\n\n", load());
    let table = format!("# {title}\n\n{}{load}{figures}", machine());
    let folder = paths::root().join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let file = folder.join(name);
    fs::write(&file, &table).with_context(|| format!("cannot write {}", file.display()))?;
    print!("{table}");
    println!("written to {}", file.display());
    Ok(())
}

/// The kernel's load averages: other work on the machine makes the figures worse, this one itself adds two.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Kernel and processors, a paragraph.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "kernel {}, {cpus} CPUs,{}\n\n",
        read("/proc/sys/kernel/osrelease").trim(),
        model
            .trim_start_matches([' ', '\t', ':'])
            .split_whitespace()
            .fold(String::new(), |text, word| text + " " + word)
    )
}
