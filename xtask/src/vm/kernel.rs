//! The kernels: image, modules, and the order in which modules are loaded.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use super::apt::{self, Unpacked};
use crate::run;

/// A line of Debian's kernels.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Series {
    #[value(name = "6.1")]
    V6_1,
    #[value(name = "6.12")]
    V6_12,
    #[value(name = "newest")]
    Newest,
}

impl Series {
    pub const ALL: [Series; 3] = [Series::V6_1, Series::V6_12, Series::Newest];

    pub fn name(self) -> &'static str {
        match self {
            Series::V6_1 => "6.1",
            Series::V6_12 => "6.12",
            Series::Newest => "newest",
        }
    }

    fn suites(self) -> &'static [&'static str] {
        match self {
            Series::V6_1 => &["bookworm"],
            Series::V6_12 => &["trixie"],
            Series::Newest => &["trixie", "trixie-backports"],
        }
    }
}

/// Modules that the guest's tests use; what they depend on comes along.
const MODULES: &[&str] = &["veth", "sch_netem", "ib_uverbs", "rdma_rxe", "rdma_ucm", "mlx5_ib"];
/// What `rdma_rxe` asks for by another name, and newer kernels have built in.
const WHERE_THERE: &[&str] = &["crc32_generic"];

/// A kernel that can be booted.
pub struct Kernel {
    pub series: Series,
    /// What `uname -r` says.
    pub release: String,
    /// The image that QEMU starts.
    pub image: PathBuf,
    /// Files of modules, dependencies first.
    pub modules: Vec<PathBuf>,
}

/// Unpacks a kernel of this series unless that was done.
pub fn fetch(series: Series, refresh: bool) -> Result<Unpacked> {
    let name = format!("linux-{}", series.name());
    apt::fetch(&name, series.suites(), &["linux-image-amd64"], refresh, &|file| {
        ["linux-image-", "linux-binary-", "linux-modules-"].iter().any(|prefix| file.starts_with(prefix))
    })
}

pub fn prepare(series: Series, tools: &Unpacked) -> Result<Kernel> {
    let unpacked = fetch(series, false)?;
    let (vmlinuz, release) = image_of(&unpacked.root)?;
    let modules = modules(&unpacked.root, &release, tools)?;
    Ok(Kernel { series, image: bare_image(&vmlinuz, tools)?, release, modules })
}

/// The image and what its kernel is called: in `boot`, or, since Debian packages it apart, beside its modules.
fn image_of(root: &Path) -> Result<(PathBuf, String)> {
    for folder in ["boot", "usr/lib/modules"] {
        let Ok(entries) = fs::read_dir(root.join(folder)) else { continue };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Some(release) = name.strip_prefix("vmlinuz-") {
                let release = release.to_owned();
                return Ok((path, release));
            }
            let beside = path.join("vmlinuz");
            if beside.is_file() {
                return Ok((beside, name.to_owned()));
            }
        }
    }
    bail!("no vmlinuz below {}", root.display())
}

/// The ELF image inside of a compressed one: emulated, decompression takes longer than all the rest of the start.
fn bare_image(vmlinuz: &Path, tools: &Unpacked) -> Result<PathBuf> {
    let bare = vmlinuz.with_extension("elf");
    if bare.is_file() {
        return Ok(bare);
    }
    let bytes = fs::read(vmlinuz).with_context(|| format!("cannot read {}", vmlinuz.display()))?;
    let magics: [(&str, &[u8]); 2] = [("xz", b"\xfd7zXZ\0"), ("zstd", b"\x28\xb5\x2f\xfd")];
    for (program, magic) in magics {
        let Some(at) = bytes.windows(magic.len()).position(|window| window == magic) else { continue };
        let image = decompress(tools, program, &bytes[at..])?;
        if image.starts_with(b"\x7fELF") {
            fs::write(&bare, image).with_context(|| format!("cannot write {}", bare.display()))?;
            return Ok(bare);
        }
    }
    println!("vm: the image inside of {} was not found; it starts slower as it is", vmlinuz.display());
    Ok(vmlinuz.to_path_buf())
}

/// What `program -dc` makes of it. What follows the stream makes the program fail after it wrote everything.
fn decompress(tools: &Unpacked, program: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut child = tools
        .decompressor(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let mut input = child.stdin.take().context("no pipe")?;
    std::thread::scope(|scope| {
        // The program may stop reading at the end of its stream.
        scope.spawn(move || drop(input.write_all(bytes)));
        Ok(child.wait_with_output().with_context(|| format!("cannot read from {program}"))?.stdout)
    })
}

/// The wanted modules after what they depend on.
fn modules(root: &Path, release: &str, tools: &Unpacked) -> Result<Vec<PathBuf>> {
    let folder = ["usr/lib/modules", "lib/modules"].map(|path| root.join(path).join(release));
    let Some(folder) = folder.into_iter().find(|folder| folder.is_dir()) else {
        bail!("no modules of {release} in {}", root.display());
    };
    let table = folder.join("modules.dep");
    if !table.is_file() {
        // depmod looks below lib/modules of its base.
        if !root.join("lib").exists() {
            std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
        }
        run::run(tools.command("depmod", "bin/kmod").arg("-b").arg(root).arg(release))?;
    }
    let text = fs::read_to_string(&table).with_context(|| format!("cannot read {}", table.display()))?;
    let there = WHERE_THERE.iter().filter(|name| {
        text.lines().filter_map(|line| line.split_once(':')).any(|(module, _)| module_name(module) == **name)
    });
    let wanted: Vec<&str> = there.chain(MODULES).copied().collect();
    order(&text, &wanted, &folder)
}

/// Name of a module, from its file's.
pub fn module_name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file)
}

/// Reads `modules.dep`: each line names a module and all that it needs, what is needed last first.
fn order(table: &str, wanted: &[&str], folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = Vec::new();
    for name in wanted {
        let line = table.lines().filter_map(|line| line.split_once(':'));
        let Some((module, needed)) = line.into_iter().find(|(module, _)| module_name(module) == *name) else {
            bail!("this kernel has no module {name}");
        };
        for path in needed.split_whitespace().rev().chain([module]) {
            let path = folder.join(path);
            if !found.contains(&path) {
                found.push(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need_and_once() {
        let table = "kernel/a.ko.xz: kernel/b.ko.xz kernel/c.ko.xz\nkernel/c.ko.xz:\nkernel/b.ko.xz: kernel/c.ko.xz\n";
        let order = order(table, &["a", "b"], Path::new("/m")).unwrap();
        let names: Vec<_> = order.iter().map(|path| module_name(path.to_str().unwrap())).collect();
        assert_eq!(names, ["c", "b", "a"]);
    }

    #[test]
    fn a_module_that_a_kernel_lacks_is_an_error_with_its_name() {
        let error = order("kernel/a.ko:\n", &["siw"], Path::new("/m")).unwrap_err();
        assert!(error.to_string().contains("siw"), "{error}");
    }
}
