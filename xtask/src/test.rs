//! The whole test suite, in the order in which failures are cheapest to see.

use std::process::Command;

use anyhow::{Result, bail};

use crate::failures::Failures;
use crate::{build, check, paths, run, vm};

#[derive(clap::Args)]
pub struct Options {
    /// Leave out the live tests, which need root and load the real eBPF programs
    #[arg(long)]
    no_live: bool,
    /// Then the virtual machines, for which Debian's kernels and QEMU are downloaded
    #[arg(long)]
    vm: bool,
    /// Only tests whose name contains this
    filter: Option<String>,
}

pub fn run(options: &Options) -> Result<()> {
    build::run(&build::Options::default())?;
    if options.filter.is_none() {
        check::run()?;
    }
    cargo_test(options, &["--workspace", "--exclude", "stallscope-tests"], &[])?;
    if !options.no_live {
        // Live tests measure waits: more of them at once than cores would measure each other.
        cargo_test(options, &["--package", "stallscope-tests", "--no-fail-fast"], &["--test-threads=2"])?;
    }
    if options.filter.is_none() && options.vm {
        vm::matrix()?;
    }
    Ok(())
}

fn cargo_test(options: &Options, selection: &[&str], harness: &[&str]) -> Result<()> {
    let mut command = Command::new("cargo");
    command
        .args(["test", "--locked"])
        .args(selection)
        .current_dir(paths::root())
        .env("STALLSCOPE_BIN", paths::stallscope());
    command.arg("--").args(harness).args(&options.filter);
    let mut failures = Failures::default();
    let result = run::tee(paths::with_bpf_object(&mut command), |line| failures.take(line));
    let Err(error) = result else { return Ok(()) };
    // Where nobody reads it, nothing is lost.
    let _ = failures.write(&mut std::io::stdout());
    match failures.summary() {
        // It was not a test that failed.
        summary if summary.is_empty() => Err(error),
        summary => bail!("{summary}"),
    }
}
