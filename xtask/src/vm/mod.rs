//! Boots Debian kernels in QEMU and runs the guest's tests on each: older kernels have other verifiers, and RDMA devices in
//! software that the machine's own kernel may lack. Nothing is installed: packages are unpacked below the target folder.

mod apt;
mod cpio;
mod initramfs;
mod kernel;
mod qemu;

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{build, paths, run};

#[derive(clap::Args)]
pub struct Options {
    /// Only this kernel; all of them where the option is left out
    #[arg(long, value_enum)]
    kernel: Option<kernel::Series>,
    /// Download packages again, for a newer point release
    #[arg(long)]
    refresh: bool,
    /// Take target/release as it is
    #[arg(long)]
    no_build: bool,
    /// Seconds that a guest may take
    #[arg(long, default_value_t = 280)]
    limit: u64,
}

pub fn run(options: &Options) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("the kernels of the matrix are for x86-64; this machine is {}", std::env::consts::ARCH);
    }
    if !options.no_build {
        build::run(&build::Options::default())?;
        guest_program()?;
    }
    let tools = apt::tools(options.refresh)?;
    let mut failed = Vec::new();
    for series in options.kernel.map_or_else(|| kernel::Series::ALL.to_vec(), |one| vec![one]) {
        let outcome = one(series, &tools, options).with_context(|| format!("vm: kernel {}", series.name()));
        if let Err(error) = outcome {
            eprintln!("{error:#}");
            failed.push(series.name());
        }
    }
    if !failed.is_empty() {
        bail!("vm: failed on {}", failed.join(", "));
    }
    Ok(())
}

fn one(series: kernel::Series, tools: &apt::Unpacked, options: &Options) -> Result<()> {
    let kernel = kernel::prepare(series, tools, options.refresh)?;
    let initramfs = initramfs::make(&kernel, tools)?;
    let passed = qemu::boot(&kernel, &initramfs, tools, options.limit)?;
    println!("vm: {passed} assertions passed on {}", kernel.release);
    Ok(())
}

/// The program that asserts, in the guest.
fn guest_program() -> Result<()> {
    run::run(
        Command::new("cargo")
            .args([
                "build",
                "--release",
                "--locked",
                "--quiet",
                "--package",
                "stallscope-tests",
                "--bin",
                "vm-guest",
            ])
            .current_dir(paths::root()),
    )
}
