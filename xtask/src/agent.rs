//! Builds the agent, which the program embeds: without std, without libc, for any glibc.

use std::process::Command;

use anyhow::Result;

use crate::{paths, run};

/// The agent knows this architecture only.
const ARCH: &str = "x86_64";

/// Builds it.
pub fn build() -> Result<()> {
    if std::env::consts::ARCH != ARCH {
        return Ok(());
    }
    let flags = [
        // Nothing of libc but the memory functions, without a version: any glibc has them.
        "-Clink-arg=-nostdlib",
        // What it exports is its own: no name is looked up when it is mapped.
        "-Clink-arg=-Wl,--hash-style=gnu,-z,now,-z,noexecstack,-Bsymbolic",
        "-Crelocation-model=pic",
    ];
    let folder = paths::target().join("agent-build");
    run::run(
        Command::new("cargo")
            .args(["build", "--release", "--locked", "--quiet"])
            .current_dir(paths::root().join("profiler-agent"))
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .env("CARGO_TARGET_DIR", &folder)
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_WRAPPER"),
    )?;
    let built = folder.join("release/libstallscope_agent.so");
    crate::build::renew(&built, &paths::agent())
}
