//! Embeds the eBPF object that `cargo xtask build` made. Without one the crate still builds, so that
//! editors and unit tests need no BPF toolchain; `record` then says what is missing.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-env-changed=STALLSCOPE_BPF_OBJECT");
    let object = env::var_os("STALLSCOPE_BPF_OBJECT").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bpf/stallscope.o"),
        PathBuf::from,
    );
    println!("cargo::rerun-if-changed={}", object.display());
    let bytes = fs::read(&object).unwrap_or_default();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("stallscope.o"), bytes).expect("OUT_DIR is writable");
}
