//! Debian packages, fetched by apt with lists and a status of our own: the machine's are neither read nor changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{paths, run};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What the guests run, and what unpacks their kernels.
const TOOLS: &[&str] = &[
    "busybox-static",
    "iproute2",
    "kmod",
    "ibverbs-providers",
    "perftest",
    "rdmacm-utils",
    "xz-utils",
    "zstd",
];

/// Packages that only come along as dependencies, and whose files nothing here needs.
const LEFT_OUT: &[&str] = &["linux-image-", "iso-codes_", "debconf_", "pci.ids_"];

/// A folder with unpacked packages.
pub struct Unpacked {
    pub root: PathBuf,
}

impl Unpacked {
    /// Folders of its shared libraries.
    pub fn libraries(&self) -> [PathBuf; 2] {
        ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|folder| self.root.join(folder))
    }

    /// A program of it under a name, run by its own loader with its own libraries, whatever the machine has.
    pub fn command(&self, name: &str, program: &str) -> Command {
        let [first, second] = self.libraries();
        let loaders = [&first, &second].map(|folder| folder.join("ld-linux-x86-64.so.2"));
        let loader = loaders.iter().find(|loader| loader.is_file()).unwrap_or(&loaders[1]);
        let mut command = Command::new(loader);
        command
            .args(["--argv0", name, "--library-path"])
            .arg(format!("{}:{}", first.display(), second.display()))
            .arg(self.root.join(program));
        command
    }

    /// A program of it that unpacks what it reads, `xz` or `zstd`.
    pub fn decompressor(&self, name: &str) -> Command {
        let mut command = self.command(name, &format!("usr/bin/{name}"));
        command.arg("-dc");
        command
    }
}

/// Where everything of the VMs is kept.
pub fn cache() -> PathBuf {
    paths::target().join("vm")
}

/// QEMU of Debian 13. That of Debian 12 (7.2) may go on with code that the other processor has just replaced, as the kernel
/// does where a tracepoint is turned on or off: a guest died of it now and then.
pub fn qemu(refresh: bool) -> Result<Unpacked> {
    fetch("qemu", &["trixie"], &["qemu-system-x86"], refresh, &wanted_of_tools)
}

/// The guests' programs, of Debian 12.
pub fn tools(refresh: bool) -> Result<Unpacked> {
    fetch("tools", &["bookworm"], TOOLS, refresh, &wanted_of_tools)
}

fn wanted_of_tools(name: &str) -> bool {
    !LEFT_OUT.iter().any(|prefix| name.starts_with(prefix))
}

/// Downloads packages with what they depend on and unpacks those whose file name is `wanted`; does nothing where that was done.
pub fn fetch(
    name: &str,
    suites: &[&str],
    packages: &[&str],
    refresh: bool,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Unpacked> {
    let folder = cache().join(name);
    let unpacked = Unpacked { root: folder.join("root") };
    let done = folder.join("done");
    let list = format!("{} from {}\n", packages.join(" "), suites.join(" "));
    if !refresh && fs::read_to_string(&done).is_ok_and(|have| have == list) {
        return Ok(unpacked);
    }
    for program in ["apt-get", "dpkg-deb"] {
        if !run::exists(program) {
            bail!(
                "no {program} on this machine: the VMs' packages are fetched by apt; run this on Debian or Ubuntu, or leave \
                 --vm out"
            );
        }
    }
    if !Path::new(KEYRING).is_file() {
        bail!("{KEYRING} is missing: install the package debian-archive-keyring");
    }
    remove(&folder.join("archives"))?;
    download(&folder, suites, packages)?;
    // What is there stays where nothing could be downloaded.
    let _ = fs::remove_file(&done);
    remove(&unpacked.root)?;
    unpack(&folder, &unpacked.root, wanted)?;
    fs::write(&done, list).with_context(|| format!("cannot write {}", done.display()))?;
    Ok(unpacked)
}

fn remove(stale: &Path) -> Result<()> {
    if stale.exists() {
        fs::remove_dir_all(stale).with_context(|| format!("cannot remove {}", stale.display()))?;
    }
    Ok(())
}

fn download(folder: &Path, suites: &[&str], packages: &[&str]) -> Result<()> {
    for part in ["lists/partial", "archives/partial"] {
        let part = folder.join(part);
        fs::create_dir_all(&part).with_context(|| format!("cannot create {}", part.display()))?;
    }
    let mut sources = String::new();
    for suite in suites {
        sources.push_str(&format!("deb [signed-by={KEYRING}] http://deb.debian.org/debian {suite} main\n"));
        if !suite.contains('-') {
            sources.push_str(&format!(
                "deb [signed-by={KEYRING}] http://deb.debian.org/debian-security {suite}-security main\n"
            ));
        }
    }
    // No status: what the machine has installed must not decide what is fetched.
    for (file, text) in [("sources.list", sources.as_str()), ("status", "")] {
        let path = folder.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("vm: fetching {} from Debian {}", packages.join(" "), suites.join(" "));
    let help = "cannot fetch packages for the VMs: deb.debian.org must be reachable (a proxy goes into http_proxy or apt's configuration)";
    run::run(apt(folder).args(["update", "-q", "-q", "--error-on=any"])).context(help)?;
    let mut install = apt(folder);
    install.args(["install", "-y", "-q", "-q", "--download-only", "--no-install-recommends"]);
    if let Some(suite) = suites.iter().find(|suite| suite.contains("backports")) {
        install.args(["-t", suite]);
    }
    run::run(install.args(packages)).context(help)
}

fn apt(folder: &Path) -> Command {
    let mut command = Command::new("apt-get");
    let at = |name: &str| folder.join(name).display().to_string();
    for (option, value) in [
        ("Dir::State", at("")),
        ("Dir::State::status", at("status")),
        ("Dir::Cache", at("")),
        ("Dir::Etc::sourcelist", at("sources.list")),
        ("Dir::Etc::sourceparts", "/dev/null".to_owned()),
        ("Dir::Etc::preferences", "/dev/null".to_owned()),
        ("Dir::Etc::preferencesparts", "/dev/null".to_owned()),
        ("APT::Architecture", "amd64".to_owned()),
        ("APT::Architectures", "amd64".to_owned()),
        ("APT::Default-Release", String::new()),
        ("Acquire::Languages", "none".to_owned()),
        // The checkout may be unreadable for apt's own user.
        ("APT::Sandbox::User", "root".to_owned()),
        ("Debug::NoLocking", "1".to_owned()),
    ] {
        command.arg("-o").arg(format!("{option}={value}"));
    }
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    command
}

fn unpack(folder: &Path, root: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    fs::create_dir_all(root).with_context(|| format!("cannot create {}", root.display()))?;
    let archives = folder.join("archives");
    let mut count = 0;
    for entry in fs::read_dir(&archives).with_context(|| format!("cannot read {}", archives.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().extension().is_some_and(|extension| extension == "deb") && wanted(&name) {
            run::run(Command::new("dpkg-deb").arg("-x").arg(entry.path()).arg(root))?;
            count += 1;
        }
    }
    if count == 0 {
        bail!("apt fetched no package that is needed into {}", archives.display());
    }
    // What is unpacked is all that is used.
    fs::remove_dir_all(&archives).with_context(|| format!("cannot remove {}", archives.display()))
}
