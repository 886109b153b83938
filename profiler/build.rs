//! Embeds what `cargo xtask build` made: the eBPF object and the agent. Without them the crate still builds, so that
//! editors and unit tests need no BPF toolchain; `record` then says what is missing.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    embed("STALLSCOPE_BPF_OBJECT", "bpf/stallscope.o", "stallscope.o");
    embed("STALLSCOPE_AGENT", "agent/libstallscope_agent.so", "agent.so");
}

/// Copies a file of the target folder, or the one that `variable` names, to where `include_bytes!` finds it.
fn embed(variable: &str, default: &str, name: &str) {
    println!("cargo::rerun-if-env-changed={variable}");
    // Where the package lies now, not where this script was compiled: target folders are copied.
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let file = env::var_os(variable).map_or_else(|| package.join("../target").join(default), PathBuf::from);
    println!("cargo::rerun-if-changed={}", file.display());
    let bytes = fs::read(&file).unwrap_or_default();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join(name), bytes).expect("OUT_DIR is writable");
}
