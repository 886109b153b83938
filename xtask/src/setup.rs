//! Installs what the build and the tests need: Debian packages, and a linker for BPF.
//!
//! Rust for the BPF target needs the standard library's sources and unstable flags. A rustup nightly with
//! `rust-src` has both; where there is none, Debian's `rustc-web` with `rust-web-src` does, run with
//! `RUSTC_BOOTSTRAP=1`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{paths, run};

const BPF_LINKER: &str = "0.13.0";

#[derive(clap::Args, Default)]
pub struct Options {
    /// Only say what is missing
    #[arg(long)]
    dry_run: bool,
}

/// A compiler that can build for the BPF target.
pub struct Compiler {
    pub rustc: PathBuf,
    /// Folder of the libLLVM that the compiler uses, for the linker at run time.
    pub llvm_folder: PathBuf,
    llvm_library: PathBuf,
    llvm_major: u32,
    name: String,
}

/// Programs that the build and the tests call, with the Debian package that has them.
const PROGRAMS: &[(&str, &str)] = &[
    ("cc", "gcc libc6-dev"),
    ("g++", "g++"),
    ("objcopy", "binutils"),
    ("xz", "xz-utils"),
    ("musl-gcc", "musl-tools"),
    ("chroot", "coreutils"),
    ("ip", "iproute2"),
    ("strace", "strace"),
    ("python3", "python3"),
    ("unshare", "util-linux"),
];

/// Files of libraries that the tests need, below a folder of the compiler's or the linker's, with their packages.
const LIBRARIES: &[(&str, &str)] =
    &[("include/infiniband/mlx5dv.h", "libibverbs-dev"), ("libmlx5.so.1", "ibverbs-providers")];

fn is_installed(file: &str) -> bool {
    let libraries = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    ["/usr", libraries.as_str(), "/usr/lib64"].iter().any(|folder| Path::new(folder).join(file).exists())
}

pub fn run(options: &Options) -> Result<()> {
    let mut packages: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| !run::exists(program))
        .flat_map(|(_, package)| package.split(' '))
        .collect();
    packages.extend(LIBRARIES.iter().filter(|(file, _)| !is_installed(file)).map(|(_, package)| *package));
    if compiler().is_none() {
        println!("no rustup nightly with rust-src, nor Debian's rustc-web with its sources");
        packages.extend(["rustc-web", "rust-web-src"]);
    }
    if !packages.is_empty() {
        install(&packages, options)?;
    }
    let Some(compiler) = compiler() else {
        if options.dry_run {
            return Ok(());
        }
        bail!(
            "no compiler for the BPF target after installing rustc-web and rust-web-src; \
             `rustup component add rust-src --toolchain nightly` is the other way"
        );
    };
    println!("compiler for eBPF: {}", compiler.name);
    linker(&compiler, options)?;
    Ok(())
}

fn install(packages: &[&str], options: &Options) -> Result<()> {
    println!("missing Debian packages: {}", packages.join(" "));
    if options.dry_run {
        return Ok(());
    }
    if !run::exists("apt-get") {
        bail!("no apt-get on this machine: install the equivalents of these packages by hand");
    }
    println!("installing them with apt-get");
    // SAFETY: geteuid has no preconditions and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let apt = || {
        let mut command = if root {
            Command::new("apt-get")
        } else {
            let mut sudo = Command::new("sudo");
            sudo.arg("apt-get");
            sudo
        };
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run::run(apt().args(["update", "-q"]))?;
    run::run(apt().args(["install", "-y", "-q", "--no-install-recommends"]).args(packages))
}

/// The compiler for the BPF target on this machine, if there is one.
pub fn compiler() -> Option<Compiler> {
    nightly().or_else(debian)
}

fn nightly() -> Option<Compiler> {
    let sysroot = run::output("rustc", &["+nightly", "--print", "sysroot"])?;
    let sysroot = Path::new(sysroot.trim());
    if !sysroot.join("lib/rustlib/src/rust/library/core").is_dir() {
        return None;
    }
    let folder = sysroot.join("lib");
    let library = fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.path()).find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libLLVM") && name.contains(".so")
    })?;
    describe(sysroot.join("bin/rustc"), folder, library, "rustup nightly")
}

fn debian() -> Option<Compiler> {
    let rustc = PathBuf::from("/usr/bin/rustc");
    let sysroot = run::output("/usr/bin/rustc", &["--print", "sysroot"])?;
    if !Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core").is_dir() {
        return None;
    }
    let major = llvm_major(&rustc)?;
    let folder = PathBuf::from(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let library = fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.path()).find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(&format!("libLLVM.so.{major}.")) || name.starts_with(&format!("libLLVM-{major}.so"))
    })?;
    describe(rustc, folder, library, "Debian rustc-web")
}

fn describe(rustc: PathBuf, folder: PathBuf, library: PathBuf, name: &str) -> Option<Compiler> {
    let llvm_major = llvm_major(&rustc)?;
    let version = run::output(rustc.to_str()?, &["--version"])?;
    let name = format!("{name} ({}, LLVM {llvm_major})", version.trim());
    Some(Compiler { rustc, llvm_folder: folder, llvm_library: library, llvm_major, name })
}

fn llvm_major(rustc: &Path) -> Option<u32> {
    let text = run::output(rustc.to_str()?, &["-vV"])?;
    let version = text.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    version.split('.').next()?.parse().ok()
}

/// Path of the BPF linker; builds it where it is not there or fits another LLVM.
pub fn linker(compiler: &Compiler, options: &Options) -> Result<PathBuf> {
    let folder = paths::toolchain();
    let linker = folder.join("tools/bin/bpf-linker");
    let stamp = folder.join("stamp");
    let wanted = format!("bpf-linker {BPF_LINKER}, {}\n", compiler.llvm_library.display());
    if linker.is_file() && fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(linker);
    }
    println!("building bpf-linker {BPF_LINKER} for LLVM {} into {}", compiler.llvm_major, folder.display());
    if options.dry_run {
        return Ok(linker);
    }
    // The linker's build script takes the first library folder of a prefix: give it one with one library.
    let lib = folder.join("llvm/lib");
    fs::create_dir_all(&lib).with_context(|| format!("cannot create {}", lib.display()))?;
    let link = lib.join("libLLVM.so");
    let _ = fs::remove_file(&link);
    symlink(&compiler.llvm_library, &link).with_context(|| format!("cannot link {}", link.display()))?;
    run::run(
        Command::new("cargo")
            .args(["install", "bpf-linker", "--version", BPF_LINKER, "--locked", "--force", "--quiet"])
            .args(["--no-default-features", "--features", &format!("llvm-{}", compiler.llvm_major)])
            .arg("--root")
            .arg(folder.join("tools"))
            .current_dir(paths::root())
            .env("LLVM_PREFIX", folder.join("llvm"))
            .env("LD_LIBRARY_PATH", &compiler.llvm_folder)
            // Only the link is slow to optimise; the tool runs for a second.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env_remove("CARGO_TARGET_DIR"),
    )?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(linker)
}
