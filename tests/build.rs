//! Compiles the C program of the guests' tests, which takes it along.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=vm/ring.c");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("ring");
    let built = Command::new("cc")
        .args(["-O2", "-s", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&out)
        .args(["vm/ring.c", "-libverbs"])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        // The guest says that it is missing; everything else can be built without libibverbs.
        println!("cargo::warning=vm/ring.c cannot be compiled: `cargo xtask setup` installs libibverbs-dev");
        std::fs::write(out, []).expect("is writable");
    }
}
