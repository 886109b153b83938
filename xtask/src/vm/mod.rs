//! Boots Debian kernels in QEMU and runs the guest's tests on each: older kernels have other verifiers, and RDMA devices in
//! software that the machine's own kernel may lack. Nothing is installed: packages are unpacked below the target folder.

mod apt;
mod cpio;
mod initramfs;
mod kernel;
mod qemu;

use std::process::Command;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::{build, paths, run};
use kernel::Series;

#[derive(clap::Args)]
pub struct Options {
    /// Only this kernel; all of them where the option is left out
    #[arg(long, value_enum)]
    kernel: Option<Series>,
    /// Download packages again, for a newer point release
    #[arg(long)]
    refresh: bool,
    /// Take what was built before as it is
    #[arg(long)]
    no_build: bool,
    /// Seconds that a guest may take
    #[arg(long, default_value_t = LIMIT_S)]
    limit: u64,
}

/// A guest takes about three minutes on two free processors; what is far beyond that has gone wrong.
const LIMIT_S: u64 = 600;

pub fn run(options: &Options) -> Result<()> {
    supported()?;
    if !options.no_build {
        build::run(&build::Options::default())?;
        guest_program()?;
    }
    let series = options.kernel.map_or_else(|| Series::ALL.to_vec(), |one| vec![one]);
    boot_all(&series, options.refresh, options.limit)
}

/// All kernels, with the program that was built before.
pub fn matrix() -> Result<()> {
    supported()?;
    guest_program()?;
    boot_all(&Series::ALL, false, LIMIT_S)
}

fn supported() -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!(
            "the kernels of the matrix are for x86-64; this machine is {}: run `cargo xtask test` without --vm",
            std::env::consts::ARCH
        );
    }
    Ok(())
}

fn boot_all(series: &[Series], refresh: bool, limit_s: u64) -> Result<()> {
    let (tools, qemu) = (apt::tools(refresh)?, apt::qemu(refresh)?);
    let mut open: Vec<Series> = series.iter().rev().copied().collect();
    let guests = guests_at_once().min(open.len());
    // What cannot be fetched is known before anything boots.
    for series in &open {
        kernel::fetch(*series, refresh)?;
    }
    let next = Mutex::new(&mut open);
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..guests {
            scope.spawn(|| {
                while let Some(series) = taken(&next) {
                    let outcome = one(series, &tools, &qemu, limit_s);
                    if let Err(error) = outcome {
                        eprintln!("vm: kernel {}: {error:#}", series.name());
                        failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(series.name());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !failed.is_empty() {
        bail!("vm: failed on {}", failed.join(", "));
    }
    Ok(())
}

fn taken(next: &Mutex<&mut Vec<Series>>) -> Option<Series> {
    next.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop()
}

/// Each guest has two emulated processors, and the tests in it measure waits: guests do not share the machine's.
fn guests_at_once() -> usize {
    thread::available_parallelism().map_or(1, |processors| (processors.get() / 2).max(1))
}

fn one(series: Series, tools: &apt::Unpacked, qemu: &apt::Unpacked, limit_s: u64) -> Result<()> {
    let kernel = kernel::prepare(series, tools)?;
    let initramfs = initramfs::make(&kernel, tools)?;
    let passed = qemu::boot(&kernel, &initramfs, qemu, limit_s)?;
    println!("vm: {passed} assertions passed on {}", kernel.release);
    Ok(())
}

/// The program that asserts, in the guest: as the tests are built, so that they share what they are made of.
fn guest_program() -> Result<()> {
    let mut command = Command::new("cargo");
    command
        .args(["build", "--locked", "--quiet", "--package", "stallscope-tests", "--bin", "vm-guest"])
        .current_dir(paths::root());
    run::run(paths::with_bpf_object(&mut command)).context("cannot build the guest's tests")
}
