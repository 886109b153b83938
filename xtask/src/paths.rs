//! Where things are in the checkout.

use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Cargo's target folder of the workspace.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The object with the eBPF programs that the binary embeds.
pub fn bpf_object() -> PathBuf {
    target().join("bpf/stallscope.o")
}

/// The agent that the binary embeds.
pub fn agent() -> PathBuf {
    target().join("agent/libstallscope_agent.so")
}

/// Folder of the tools that `setup` builds.
pub fn toolchain() -> PathBuf {
    target().join("bpf-toolchain")
}

/// The finished program.
pub fn stallscope() -> PathBuf {
    target().join("release/stallscope")
}

/// Tells `profiler/build.rs` where the object and the agent are, where that is not their default: a variable that is always
/// set would make a plain `cargo build` rebuild everything.
pub fn with_bpf_object(command: &mut std::process::Command) -> &mut std::process::Command {
    if std::env::var_os("CARGO_TARGET_DIR").is_some() {
        command.env("STALLSCOPE_BPF_OBJECT", bpf_object()).env("STALLSCOPE_AGENT", agent());
    }
    command
}
