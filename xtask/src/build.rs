//! Builds the eBPF programs and the agent, then the program that embeds them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{agent, paths, run, setup};

#[derive(clap::Args, Default)]
pub struct Options {
    /// Only what the program embeds: the eBPF object and the agent
    #[arg(long)]
    ebpf_only: bool,
}

pub fn run(options: &Options) -> Result<()> {
    setup::run(&setup::Options::default())?;
    ebpf()?;
    agent::build()?;
    if options.ebpf_only {
        return Ok(());
    }
    let mut command = Command::new("cargo");
    command
        .args(["build", "--release", "--locked", "--package", "stallscope", "--bin", "stallscope"])
        .current_dir(paths::root());
    run::run(paths::with_bpf_object(&mut command))?;
    println!("built {}", paths::stallscope().display());
    Ok(())
}

/// Builds the object; leaves it untouched where nothing changed, so that cargo does not rebuild its users.
fn ebpf() -> Result<()> {
    let Some(compiler) = setup::compiler() else {
        bail!("no compiler for the BPF target; run `cargo xtask setup`");
    };
    let linker = setup::linker(&compiler, &setup::Options::default())?;
    let flags = [
        format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        format!("-Clinker={}", linker.display()),
    ];
    let folder = paths::target().join("bpf-build");
    run::run(
        Command::new("cargo")
            .args(["build", "--release", "--locked", "--quiet"])
            .args(["--target", "bpfel-unknown-none", "-Zbuild-std=core"])
            .current_dir(paths::root().join("profiler-ebpf"))
            .env("RUSTC", &compiler.rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("LD_LIBRARY_PATH", &compiler.llvm_folder)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .env("CARGO_TARGET_DIR", &folder)
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_WRAPPER"),
    )?;
    let built = folder.join("bpfel-unknown-none/release/stallscope");
    renew(&built, &paths::bpf_object())
}

/// Copies what was built to where it is embedded from; leaves it untouched where nothing changed, so that cargo does not
/// rebuild its users.
pub fn renew(built: &Path, object: &Path) -> Result<()> {
    let bytes = fs::read(built).with_context(|| format!("cannot read {}", built.display()))?;
    if fs::read(object).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(parent) = object.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::write(object, &bytes).with_context(|| format!("cannot write {}", object.display()))?;
    println!("built {} ({} KB)", object.display(), bytes.len() / 1024);
    Ok(())
}
