//! What a process runs in, as far as it explains stalls: its resolver's configuration, variables of its
//! environment from an allow-list, library versions and kernel settings.

use std::collections::BTreeMap;

use super::elf;
use super::maps::{self, Mapping};
use super::netns;
use super::resolv_conf::{CONFIGURATION, ResolvConf};
use super::root::{ProcRoot, ReadError, SMALL, printable, read_bounded};
use super::rooted;
use crate::trace::record::Environment;

/// Bytes of `/proc/PID/environ` read at most.
const ENVIRON: usize = 4 << 20;
/// Bytes of one value kept at most.
const VALUE: usize = 1024;
/// Values kept for one process at most.
const VALUES: usize = 512;

const PREFIXES: [&str; 4] = ["NCCL_", "GLOO_", "UCX_", "TORCH_NCCL_"];
const NAMES: [&str; 23] = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "RES_OPTIONS",
    "LOCALDOMAIN",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_NODEID",
    "SLURM_LOCALID",
    "SLURM_JOB_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMI_RANK",
    "PMI_SIZE",
];
/// A name with one of these in it may hold a secret, whatever the allow-list says.
const SECRETS: [&str; 6] = ["TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH"];
/// Libraries whose version is worth knowing: prefix of the file name, name in the trace.
const LIBRARIES: [(&str, &str); 6] = [
    ("libnccl.so", "libnccl"),
    ("libcuda.so", "libcuda"),
    ("libcudart.so", "libcudart"),
    ("libibverbs.so", "libibverbs"),
    ("libmlx5.so", "libmlx5"),
    ("libucp.so", "libucp"),
];
/// Settings of the kernel that bound how long a connection hangs.
const SYSCTLS: [&str; 4] =
    ["tcp_syn_retries", "tcp_syn_linear_timeouts", "tcp_synack_retries", "tcp_retries2"];

/// Allowed variables by name.
pub type Variables = BTreeMap<String, String>;

/// Place of a process in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    pub rank: u32,
    /// Number of ranks; `None` where the environment does not say.
    pub nranks: Option<u32>,
}

/// Everything known of the environment of one process. What is missing or not permitted is left out.
pub fn environment(root: &ProcRoot, pid: u32) -> Vec<Environment> {
    let variables = variables(root, pid).unwrap_or_default();
    let mut values: Vec<(String, String)> = Vec::new();
    if let Ok(conf) = resolv_conf(root, pid, &variables) {
        values.push(("resolv.conf".into(), conf.summary()));
    }
    values.extend(nsswitch_hosts(root, pid).map(|hosts| ("nsswitch.hosts".into(), hosts)));
    if let Some(rank) = rank_of(|name| variables.get(name).map(String::as_str)) {
        values.push(("rank".into(), rank.rank.to_string()));
        values.extend(rank.nranks.map(|count| ("nranks".into(), count.to_string())));
    }
    values.extend(libraries(root, pid));
    values.extend(sysctls(root, pid));
    values.extend(variables);
    let record = |(what, value): (String, String)| Environment { what, value: shorten(value), pid };
    values.into_iter().take(VALUES).map(record).collect()
}

/// The resolver's configuration with the options of the process's own environment.
pub fn resolv_conf(root: &ProcRoot, pid: u32, variables: &Variables) -> Result<ResolvConf, ReadError> {
    let mut conf = match ResolvConf::read(root, pid) {
        Err(error) if error.is_gone() && root.process_path(pid, "root").exists() => ResolvConf::default(),
        other => other?,
    };
    if let Some(options) = variables.get("RES_OPTIONS") {
        conf.apply_options(options);
    }
    Ok(conf)
}

/// Variables of the allow-list. The kernel shows them as they were when the program was started; what
/// the program set later is not seen.
pub fn variables(root: &ProcRoot, pid: u32) -> Result<Variables, ReadError> {
    let contents = read_bounded(&root.process_path(pid, "environ"), ENVIRON)?;
    Ok(parse_variables(&contents.bytes))
}

fn parse_variables(bytes: &[u8]) -> Variables {
    let mut found = Variables::new();
    for entry in bytes.split(|byte| *byte == 0) {
        let Some(equals) = entry.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = entry.split_at(equals);
        let Ok(name) = std::str::from_utf8(name) else { continue };
        if is_allowed(name) && found.len() < VALUES {
            // The first of several is the one that getenv gives.
            let value = value.get(1..).unwrap_or_default();
            found.entry(name.to_owned()).or_insert_with(|| shorten(printable(value)));
        }
    }
    found
}

fn is_allowed(name: &str) -> bool {
    let listed = NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let plain = name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let upper = name.to_ascii_uppercase();
    listed && plain && !SECRETS.iter().any(|part| upper.contains(part))
}

/// Rank and number of ranks from the variables that `torchrun`, Open MPI, MPICH and Slurm set, in this
/// order. `get` gives the value of a variable.
pub fn rank_of<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Option<Rank> {
    let number = |name: &str| get(name).and_then(|value| value.trim().parse::<u32>().ok());
    let sources = [
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ];
    sources.into_iter().find_map(|(rank, size)| {
        let rank = number(rank)?;
        let nranks = number(size).or_else(|| number("WORLD_SIZE")).filter(|count| *count > rank);
        Some(Rank { rank, nranks })
    })
}

/// Sources of host names in their order, from `nsswitch.conf`.
fn nsswitch_hosts(root: &ProcRoot, pid: u32) -> Option<String> {
    let contents = rooted::read(root, pid, "/etc/nsswitch.conf", CONFIGURATION).ok()?;
    parse_hosts(&contents.bytes)
}

fn parse_hosts(text: &[u8]) -> Option<String> {
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let sources = line.trim_start().strip_prefix("hosts:")?;
        let words: Vec<String> = sources.split_whitespace().map(|word| printable(word.as_bytes())).collect();
        Some(words.join(" "))
    })
}

/// Versions of libc and of the communication libraries, with the path of each.
fn libraries(root: &ProcRoot, pid: u32) -> Vec<(String, String)> {
    let mut found: BTreeMap<&str, String> = BTreeMap::new();
    for mapping in maps::mappings(root, pid).unwrap_or_default() {
        let name = mapping.file_name();
        let path = || printable(mapping.path.as_os_str().as_encoded_bytes());
        if let Some((prefix, what)) = LIBRARIES.iter().find(|(prefix, _)| name.starts_with(prefix)) {
            let version = version_in_name(name, prefix).or_else(|| version_of_wheel(root, pid, &mapping));
            found
                .entry(what)
                .or_insert_with(|| version.map_or_else(path, |version| format!("{version} ({})", path())));
        } else if name.starts_with("libc.so.6") || name.starts_with("libc-2.") {
            found
                .entry("libc")
                .or_insert_with(|| format!("glibc {} ({})", glibc_version(root, pid, &mapping), path()));
        } else if name.starts_with("ld-musl-") || name.starts_with("libc.musl-") || name == "libc.so" {
            found.entry("libc").or_insert_with(|| format!("musl ({})", path()));
        }
    }
    found.into_iter().map(|(what, value)| (what.to_owned(), value)).collect()
}

/// `libnccl.so.2.28.9` gives `2.28.9`; a mere `.2` is the interface's number, not the version.
fn version_in_name(name: &str, prefix: &str) -> Option<String> {
    let version = name.strip_prefix(prefix)?.strip_prefix('.')?;
    let numeric =
        version.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    (numeric && version.contains('.')).then(|| version.to_owned())
}

/// Libraries from Python wheels are named without a version; the wheel's own directory beside them has
/// it: `site-packages/nvidia/nccl/lib/libnccl.so.2`, `site-packages/nvidia_nccl_cu12-2.28.9.dist-info`.
fn version_of_wheel(root: &ProcRoot, pid: u32, mapping: &Mapping) -> Option<String> {
    let package = mapping.path.parent()?.parent()?;
    let name = package.file_name()?.to_str()?;
    let site = package.parent()?.parent()?;
    let start = format!("nvidia_{name}");
    rooted::list(root, pid, site).ok()?.into_iter().find_map(|entry| {
        let rest = entry.strip_prefix(&start)?.strip_suffix(".dist-info")?;
        let (suffix, version) = rest.split_once('-')?;
        (suffix.is_empty() || suffix.starts_with("_cu")).then(|| printable(version.as_bytes()))
    })
}

fn glibc_version(root: &ProcRoot, pid: u32, mapping: &Mapping) -> String {
    let in_name = mapping.file_name().strip_prefix("libc-").and_then(|rest| rest.strip_suffix(".so"));
    let in_file = || elf::read_image(&maps::open(root, pid, mapping).ok()?, &[]).ok()?.glibc;
    in_name.map(str::to_owned).or_else(in_file).unwrap_or_else(|| "of unknown version".into())
}

/// The settings belong to the network namespace and are read inside of the process's own one.
fn sysctls(root: &ProcRoot, pid: u32) -> Vec<(String, String)> {
    let root = root.clone();
    let read = move |root: &ProcRoot| -> Vec<(String, String)> {
        SYSCTLS
            .iter()
            .filter_map(|name| {
                let contents = read_bounded(&root.path(&format!("sys/net/ipv4/{name}")), SMALL).ok()?;
                Some((format!("net.ipv4.{name}"), printable(&contents.bytes)))
            })
            .collect()
    };
    let foreign = root.namespace(pid, "net").ok() != root.own_namespace("net").ok();
    if foreign {
        netns::inside(&root.clone(), pid, move || read(&root)).unwrap_or_default()
    } else {
        read(&root)
    }
}

fn shorten(mut value: String) -> String {
    if value.len() > VALUE {
        let end = (0..=VALUE).rev().find(|end| value.is_char_boundary(*end)).unwrap_or(0);
        value.truncate(end);
        value.push('…');
    }
    value
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::super::blocked::{Activity, ThreadActivity, thread_activity};
    use super::super::process::executable;
    use super::*;

    #[test]
    fn only_listed_variables_are_taken_and_never_a_secret() {
        let found = parse_variables(
            b"NCCL_SOCKET_IFNAME=eth0\0HOME=/root\0NCCL_API_KEY=s1\0UCX_AUTH_TOKEN=s2\0GLOO_PASSWORD=s3\0\
              AWS_SECRET_ACCESS_KEY=s4\0RANK=3\0RANK=4\0novalue\0=x\0TORCH_NCCL_BLOCKING_WAIT=1\0\
              NCCL_\xff=1\0NCCL_X;Y=1\0WORLD_SIZE=",
        );
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["NCCL_SOCKET_IFNAME", "RANK", "TORCH_NCCL_BLOCKING_WAIT", "WORLD_SIZE"]);
        assert_eq!(found["RANK"], "3");
    }

    #[test]
    fn values_are_cut_and_cleaned() {
        let long = [b"NCCL_DEBUG_FILE=\x1b[2J".to_vec(), "ä".repeat(VALUE).into_bytes()].concat();
        let value = &parse_variables(&long)["NCCL_DEBUG_FILE"];
        assert!(value.starts_with("\u{fffd}[2J") && value.ends_with('…'));
        assert!(value.len() <= VALUE + '…'.len_utf8());
    }

    #[test]
    fn a_rank_comes_from_the_launcher_that_set_it() {
        let rank = |pairs: &[(&str, &'static str)]| {
            rank_of(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| *value))
        };
        assert_eq!(rank(&[("RANK", "3"), ("WORLD_SIZE", "8")]), Some(Rank { rank: 3, nranks: Some(8) }));
        assert_eq!(
            rank(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("SLURM_PROCID", "9")]),
            Some(Rank { rank: 1, nranks: Some(2) })
        );
        assert_eq!(rank(&[("SLURM_PROCID", "9"), ("WORLD_SIZE", "4")]), Some(Rank { rank: 9, nranks: None }));
        assert_eq!(rank(&[("RANK", "first"), ("WORLD_SIZE", "8")]), None);
    }

    #[test]
    fn the_hosts_line_is_taken_without_comments() {
        let text =
            b"passwd: files\n  hosts:   files\tmdns4_minimal [NOTFOUND=return] dns # x\nhosts: later\n";
        assert_eq!(parse_hosts(text).as_deref(), Some("files mdns4_minimal [NOTFOUND=return] dns"));
        assert_eq!(parse_hosts(b"#hosts: files\n"), None);
    }

    #[test]
    fn a_library_version_is_more_than_the_number_of_its_interface() {
        assert_eq!(version_in_name("libnccl.so.2.28.9", "libnccl.so").as_deref(), Some("2.28.9"));
        assert_eq!(version_in_name("libnccl.so.2", "libnccl.so"), None);
        assert_eq!(version_in_name("libnccl.so.2.x", "libnccl.so"), None);
    }

    /// A made-up process 9 whose root holds the given files.
    fn fake(files: &[(&str, &str)]) -> (tempfile::TempDir, ProcRoot) {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            write(&directory.path().join(name), text);
        }
        let root = ProcRoot::new(directory.path());
        (directory, root)
    }

    /// A file that process 9 sees.
    fn write_seen(root: &ProcRoot, name: &str, text: &str) {
        write(&root.process_path(9, "root").join(name), text);
    }

    fn write(path: &std::path::Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn value<'a>(records: &'a [Environment], what: &str) -> Option<&'a str> {
        records.iter().find(|record| record.what == what).map(|record| record.value.as_str())
    }

    #[test]
    fn collects_configuration_versions_and_settings_of_a_process() {
        let (_directory, root) = fake(&[
            ("9/environ", "RES_OPTIONS=timeout:1\0RANK=1\0WORLD_SIZE=2\0"),
            (
                "9/maps",
                "1000-2000 r-xp 0 08:01 9 /opt/sp/nvidia/nccl/lib/libnccl.so.2\n\
                 2000-3000 r-xp 0 08:01 8 /usr/lib/libcuda.so.580.65.06\n\
                 3000-4000 r-xp 0 08:01 7 /lib/libc-2.31.so\n",
            ),
            ("sys/net/ipv4/tcp_syn_retries", "6\n"),
        ]);
        write_seen(&root, "etc/resolv.conf", "nameserver 10.0.0.2\n");
        write_seen(&root, "etc/nsswitch.conf", "hosts: files dns\n");
        write_seen(&root, "opt/sp/nvidia/nccl/lib/libnccl.so.2", "");
        write_seen(&root, "opt/sp/nvidia_nccl_cu12-2.27.3.dist-info/METADATA", "");
        let records = environment(&root, 9);
        assert_eq!(
            value(&records, "resolv.conf"),
            Some("nameserver 10.0.0.2; timeout 1s; attempts 2; ndots 1")
        );
        assert_eq!(value(&records, "nsswitch.hosts"), Some("files dns"));
        assert_eq!(value(&records, "libnccl"), Some("2.27.3 (/opt/sp/nvidia/nccl/lib/libnccl.so.2)"));
        assert_eq!(value(&records, "libcuda"), Some("580.65.06 (/usr/lib/libcuda.so.580.65.06)"));
        assert_eq!(value(&records, "libc"), Some("glibc 2.31 (/lib/libc-2.31.so)"));
        assert_eq!(value(&records, "net.ipv4.tcp_syn_retries"), Some("6"));
        assert_eq!((value(&records, "rank"), value(&records, "nranks")), (Some("1"), Some("2")));
        assert!(records.iter().all(|record| record.pid == 9));
    }

    #[test]
    fn without_resolv_conf_the_defaults_hold_and_without_a_process_there_is_nothing() {
        let (directory, root) = fake(&[("9/environ", "")]);
        std::fs::create_dir(directory.path().join("9/root")).unwrap();
        let records = environment(&root, 9);
        let expected = "nameserver 127.0.0.1 (default); timeout 5s; attempts 2; ndots 1";
        assert_eq!(value(&records, "resolv.conf"), Some(expected));
        assert_eq!(value(&environment(&root, 10), "resolv.conf"), None);
    }

    #[test]
    fn reads_the_environment_of_a_running_child() {
        let mut command = Command::new("cat");
        command
            .env_clear()
            .env("NCCL_DEBUG", "INFO")
            .env("RANK", "0")
            .env("WORLD_SIZE", "1")
            .env("PGPASSWORD", "x");
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let root = ProcRoot::default();
        // Its own program runs and waits for its input.
        let waits = |look: &ThreadActivity| {
            let reads =
                matches!(look.activity, Some(Activity::InCall(call)) if call.number == libc::SYS_read as u64);
            reads && look.state == 'S'
        };
        while !executable(&root, child.id()).unwrap().ends_with("/cat")
            || !waits(&thread_activity(&root, child.id(), child.id()).unwrap())
        {
            std::thread::yield_now();
        }
        let records = environment(&root, child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(value(&records, "NCCL_DEBUG"), Some("INFO"));
        assert_eq!(value(&records, "PGPASSWORD"), None);
        assert_eq!(value(&records, "rank"), Some("0"));
    }
}
