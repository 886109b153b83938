//! What the programs on `sched_switch` and `sched_wakeup` add to a context switch of a process that is not recorded.
//!
//! A switch without system calls cannot be had often enough, so two loops make the same calls, one with a switch and a
//! wake-up for each pair of them and one without: what a recording adds to the first and not to the second is of the
//! scheduler's programs.

use anyhow::{Context as _, Result, ensure};

use super::cost::{Loop, Tracer, report};
use super::looper::Kind;
use super::stats::{self, Spread};

const ITERATIONS: u64 = 100_000;
/// Switches, and pairs of a write and a read, of one iteration.
const IN_ONE: f64 = 2.0;

/// Nanoseconds a switch, or a pair of calls.
#[derive(Clone, Copy)]
struct Round {
    switches: f64,
    bytes: f64,
}

pub fn run(rounds: usize) -> Result<String> {
    ensure!(rounds >= 3, "at least three rounds are needed for a spread");
    let (mut plain, mut watched) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        // Who comes first changes, so that a machine that gets slower favours nobody.
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                plain.push(measure()?);
            } else {
                watched.push(beside_a_recording()?);
            }
        }
    }
    let of = |rounds: &[Round], figure: fn(&Round) -> f64| -> Result<Spread> {
        stats::spread(&rounds.iter().map(figure).collect::<Vec<_>>()).context("no samples")
    };
    let added = |figure: fn(&Round) -> f64| -> Result<Spread> {
        let pairs = watched.iter().zip(&plain);
        stats::spread(&pairs.map(|(more, less)| figure(more) - figure(less)).collect::<Vec<_>>())
            .context("no samples")
    };
    let line = |what: &str, figure: fn(&Round) -> f64| -> Result<String> {
        let (before, after, added) = (of(&plain, figure)?, of(&watched, figure)?, added(figure)?);
        Ok(format!("| {what} | {} | {} | {} |\n", show(before), show(after), show_signed(added)))
    };
    Ok(format!(
        "Two threads of one process on one CPU wake each other by a byte through a pipe; another process is recorded \
         meanwhile (`stallscope record`), on the other CPUs. Nanoseconds, medians with the middle half; what is added is \
         the median of the differences within a round.\n\n\
         | | no recording | another process is recorded | added |\n|---|---|---|---|\n{}{}{}\n\
         {rounds} rounds of {ITERATIONS} times two switches, by turns.\n",
        line("`write`, wake-up, `read`, switch", |round| round.switches)?,
        line("`write` and `read` alone", |round| round.bytes)?,
        line("a wake-up and a switch: the difference", |round| round.switches - round.bytes)?,
    ))
}

fn show(spread: Spread) -> String {
    format!("{:.0} ({:.0} to {:.0})", spread.median, spread.low, spread.high)
}

fn show_signed(spread: Spread) -> String {
    format!("{:+.0} ({:+.0} to {:+.0})", spread.median, spread.low, spread.high)
}

fn measure() -> Result<Round> {
    let one = |kind| -> Result<f64> { Ok(Loop::start_kind(kind, ITERATIONS, 0)?.go()? / IN_ONE) };
    Ok(Round { switches: one(Kind::Switches)?, bytes: one(Kind::Bytes)? })
}

fn beside_a_recording() -> Result<Round> {
    let other = Loop::start(1, 0)?;
    let folder = std::env::temp_dir().join(format!("stallscope-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let trace = folder.join("switch.stall");
    let mut tracer = Tracer::stallscope(&other.pid().to_string(), &trace)?;
    let round = measure()?;
    tracer.stop()?;
    let families = &report(&trace)?["coverage"]["probes"];
    let sched = families.as_array().and_then(|all| all.iter().find(|family| family["family"] == "sched"));
    let state =
        sched.map(|family| &family["state"]).context("the report has no word on the scheduler's probes")?;
    ensure!(state == "on", "the scheduler's probes are {state}: the figure would be worthless");
    Ok(round)
}
