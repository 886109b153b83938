//! The guest's whole file system: stallscope, the program that asserts, RDMA tools and libraries, and the kernel's modules.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::apt::{self, Unpacked};
use super::cpio::Tree;
use super::kernel::{Kernel, module_name};
use crate::{paths, run};

const INIT: &str = include_str!("../../../tests/vm/init");
/// What shell programs in the guest count their assertions with.
const CHECK: &str = include_str!("../../../tests/vm/check.sh");
/// Every file here is a program that the guest runs, in the order of their names.
const JOBS: &str = "tests/vm/jobs";
/// Before the path, in the unpacked packages, of a program that a job needs beside [`PROGRAMS`].
const NEEDS: &str = "# needs ";

/// Programs of the unpacked packages.
const PROGRAMS: &[&str] = &[
    "bin/ip",
    "sbin/tc",
    "usr/bin/ib_send_bw",
    "usr/bin/ib_write_bw",
    "usr/bin/ib_read_lat",
    "usr/bin/ib_send_lat",
    "usr/bin/rping",
];

/// Where Debian puts `rdma` moved between releases.
const RDMA: [&str; 3] = ["usr/bin/rdma", "sbin/rdma", "bin/rdma"];

/// Providers of RDMA devices. Others would only be loaded and not used.
const PROVIDERS: [&str; 2] = ["rxe", "mlx5"];

/// Makes the archive of a kernel, not compressed: the guest would spend longer on that than on all the rest of its start.
pub fn make(kernel: &Kernel, tools: &Unpacked) -> Result<PathBuf> {
    let mut tree = Tree::default();
    for folder in ["proc", "sys", "dev", "tmp", "root", "run"] {
        tree.folder(folder);
    }
    tree.program("init", INIT.as_bytes().to_vec());
    tree.program("bin/busybox", read(&tools.root.join("bin/busybox"))?);
    tree.link("bin/sh", "busybox");
    tree.file("lib/check.sh", CHECK.as_bytes().to_vec());
    tree.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n".to_vec());
    tree.file("etc/hosts", b"127.0.0.1 localhost guest\n".to_vec());
    tree.file("etc/nsswitch.conf", b"hosts: files dns\n".to_vec());
    // What was built here takes the C library of this machine; the packages' programs run on a newer one too.
    let mut libraries = Libraries::of_this_machine()?;
    for (name, path) in
        [("stallscope", paths::stallscope()), ("vm-guest", paths::target().join("debug/vm-guest"))]
    {
        if !path.is_file() {
            bail!("{} is not there: run without --no-build", path.display());
        }
        libraries.add_for(&path, &mut tree)?;
        tree.program(&format!("bin/{name}"), stripped(&path, kernel.series.name())?);
    }
    libraries.folders.splice(0..0, tools.libraries());
    let rdma =
        RDMA.into_iter().find(|path| tools.root.join(path).is_file()).context("iproute2 has no rdma")?;
    let needed = jobs(&mut tree)?;
    for path in PROGRAMS.iter().copied().chain([rdma]).chain(needed.iter().map(String::as_str)) {
        let file = tools.root.join(path);
        libraries.add_for(&file, &mut tree)?;
        tree.program(&format!("bin/{}", path.rsplit('/').next().unwrap_or(path)), read(&file)?);
    }
    for provider in PROVIDERS {
        provider_files(provider, tools, &mut libraries, &mut tree)?;
    }
    modules(kernel, tools, &mut tree)?;
    let path = apt::cache().join(format!("initramfs-{}.cpio", kernel.series.name()));
    fs::write(&path, tree.archive()).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Adds the jobs. Returns the programs that they need.
fn jobs(tree: &mut Tree) -> Result<Vec<String>> {
    let folder = paths::root().join(JOBS);
    let mut needed = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let bytes = read(&path)?;
        let text = String::from_utf8_lossy(&bytes);
        needed.extend(text.lines().filter_map(|line| line.strip_prefix(NEEDS)).map(str::to_owned));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        tree.program(&format!("jobs/{name}"), bytes);
    }
    Ok(needed)
}

fn provider_files(
    provider: &str,
    tools: &Unpacked,
    libraries: &mut Libraries,
    tree: &mut Tree,
) -> Result<()> {
    let driver = format!("etc/libibverbs.d/{provider}.driver");
    tree.file(&driver, read(&tools.root.join(&driver))?);
    let [_, folder] = tools.libraries();
    let folder = folder.join("libibverbs");
    let prefix = format!("lib{provider}-");
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(&prefix) {
            libraries.add_for(&path, tree)?;
            tree.file(&format!("usr/lib/x86_64-linux-gnu/libibverbs/{name}"), read(&path)?);
        }
    }
    Ok(())
}

/// Modules without compression, and the order to load them in.
fn modules(kernel: &Kernel, tools: &Unpacked, tree: &mut Tree) -> Result<()> {
    let mut order = String::new();
    for path in &kernel.modules {
        let text = path.to_string_lossy();
        let name = module_name(&text);
        let bytes = match path.extension().and_then(|extension| extension.to_str()) {
            Some("xz") => unpacked(tools, "xz", path)?,
            Some("zst") => unpacked(tools, "zstd", path)?,
            _ => read(path)?,
        };
        tree.file(&format!("modules/{name}.ko"), bytes);
        order.push_str(name);
        order.push('\n');
    }
    tree.file("modules/order", order.into_bytes());
    Ok(())
}

fn unpacked(tools: &Unpacked, program: &str, path: &Path) -> Result<Vec<u8>> {
    let output =
        tools.decompressor(program).arg(path).output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        bail!("{program} cannot unpack {}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

fn stripped(path: &Path, name: &str) -> Result<Vec<u8>> {
    let out = apt::cache().join(format!("stripped-{name}"));
    run::run(Command::new("objcopy").arg("--strip-debug").arg(path).arg(&out))?;
    read(&out)
}

/// Shared libraries, as the loader would find them in these folders.
struct Libraries {
    folders: Vec<PathBuf>,
}

impl Libraries {
    fn of_this_machine() -> Result<Libraries> {
        let folders: Vec<PathBuf> =
            ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"]
                .map(PathBuf::from)
                .into();
        let folders: Vec<PathBuf> = folders.into_iter().filter(|folder| folder.is_dir()).collect();
        if folders.is_empty() {
            bail!("no folder of shared libraries on this machine");
        }
        Ok(Libraries { folders })
    }

    /// Puts all that a file needs to run into the tree, unless something of that name is there.
    fn add_for(&self, file: &Path, tree: &mut Tree) -> Result<()> {
        let mut open: VecDeque<PathBuf> = VecDeque::from([file.to_path_buf()]);
        while let Some(file) = open.pop_front() {
            for name in needed(&file)? {
                let path = if name.starts_with("ld-linux") {
                    format!("lib64/{name}")
                } else {
                    format!("usr/lib/x86_64-linux-gnu/{name}")
                };
                if tree.has(&path) {
                    continue;
                }
                let found = self.folders.iter().map(|folder| folder.join(&name)).find(|path| path.is_file());
                let Some(found) = found else {
                    bail!("{} needs {name}, which was not found", file.display())
                };
                tree.program(&path, read(&found)?);
                open.push_back(found);
            }
        }
        Ok(())
    }
}

/// Names of the libraries that an ELF file asks for.
fn needed(file: &Path) -> Result<Vec<String>> {
    let output = Command::new("readelf")
        .arg("-dW")
        .arg(file)
        .env("LC_ALL", "C")
        .output()
        .context("cannot start readelf; `cargo xtask setup` installs binutils")?;
    if !output.status.success() {
        bail!("readelf cannot read {}", file.display());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter(|line| line.contains("(NEEDED)"));
    Ok(names.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())).collect())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
