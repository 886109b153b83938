//! Linker options that belong to this code, whoever builds it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The linker's default leaves every memset and memmove a call to a loop over bytes: slow in the system-call probes,
    // and slow to verify.
    println!("cargo::rustc-link-arg-bins=--disable-expand-memcpy-in-order");
}
