//! Project tasks: `cargo xtask <verb>`.

mod agent;
mod bench;
mod build;
mod check;
mod demo;
mod failures;
mod paths;
mod run;
mod setup;
mod test;
mod vm;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Set-up, builds, tests and the demo of stallscope")]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install what building and testing needs (says what before it does)
    Setup(setup::Options),
    /// Build the eBPF programs and target/release/stallscope
    Build(build::Options),
    /// Formatting, lints, licences, unit tests and the live tests (root)
    Test(test::Options),
    /// Boot Debian kernels in QEMU and test on each
    Vm(vm::Options),
    /// Build, run a workload that stalls, record it, leave the results in demo/
    Demo(demo::Options),
    /// Measure what recording costs, or what a diff finds; writes bench/*.md
    Bench(bench::Options),
    /// The loop that `bench` measures
    #[command(hide = true)]
    BenchLoop(bench::looper::Options),
}

fn main() {
    let outcome = match Args::parse().verb {
        Verb::Setup(options) => setup::run(&options),
        Verb::Build(options) => build::run(&options),
        Verb::Test(options) => test::run(&options),
        Verb::Vm(options) => vm::run(&options),
        Verb::Demo(options) => demo::run(&options),
        Verb::Bench(options) => bench::run(&options),
        Verb::BenchLoop(options) => bench::looper::run(&options),
    };
    if let Err(error) = outcome {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}
