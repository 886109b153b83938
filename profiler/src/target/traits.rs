//! What is special about a process, as far as it decides how, and whether, it can be watched.

use std::fs::File;

use super::maps;
use super::process::process_info;
use super::root::{ProcRoot, ReadError, read_file_bounded, read_link};

/// Descriptors of one process looked at, at most.
const DESCRIPTORS: usize = 1 << 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    #[default]
    Unknown,
    Off,
    Strict,
    Filter,
}

impl Seccomp {
    pub fn name(self) -> &'static str {
        match self {
            Seccomp::Unknown => "unknown",
            Seccomp::Off => "off",
            Seccomp::Strict => "strict",
            Seccomp::Filter => "filter",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    pub seccomp: Seccomp,
    /// `None` where the executable cannot be read.
    pub is_32_bit: Option<bool>,
    /// Whether the process is in another namespace than we; `None` where that cannot be told.
    pub other_pid_namespace: Option<bool>,
    pub other_mount_namespace: Option<bool>,
    pub other_net_namespace: Option<bool>,
    /// Has a ring of io_uring, whose operations are no system calls.
    pub uses_io_uring: bool,
    /// Has a device of `/dev/infiniband` open.
    pub uses_rdma: bool,
    /// Has a device of the NVIDIA driver open, or `libcuda` mapped.
    pub uses_cuda: bool,
}

/// Reads the traits of a process. What is not permitted to be read stays at its default.
///
/// # Errors
///
/// Only when the process is gone or is none.
pub fn traits(root: &ProcRoot, pid: u32) -> Result<Traits, ReadError> {
    let info = process_info(root, pid)?;
    let mut traits = Traits {
        seccomp: match info.seccomp {
            Some(0) => Seccomp::Off,
            Some(1) => Seccomp::Strict,
            Some(2) => Seccomp::Filter,
            _ => Seccomp::Unknown,
        },
        is_32_bit: is_32_bit(root, pid),
        other_pid_namespace: differs(root, pid, "pid"),
        other_mount_namespace: differs(root, pid, "mnt"),
        other_net_namespace: differs(root, pid, "net"),
        ..Traits::default()
    };
    for fd in root.fds(pid).unwrap_or_default().into_iter().take(DESCRIPTORS) {
        let link = read_link(&root.process_path(pid, &format!("fd/{fd}"))).unwrap_or_default();
        traits.uses_io_uring |= link == RING;
        traits.uses_rdma |= link.starts_with("/dev/infiniband/");
        traits.uses_cuda |= link.starts_with("/dev/nvidia");
    }
    if !traits.uses_cuda {
        let maps = maps::mappings(root, pid).unwrap_or_default();
        traits.uses_cuda = maps.iter().any(|mapping| mapping.file_name().starts_with("libcuda.so"));
    }
    Ok(traits)
}

/// The link of a descriptor that is a ring.
const RING: &str = "anon_inode:[io_uring]";

/// Whether the process has a ring of `io_uring` open.
pub fn has_io_uring(root: &ProcRoot, pid: u32) -> bool {
    let fds = root.fds(pid).unwrap_or_default().into_iter().take(DESCRIPTORS);
    let mut links = fds.filter_map(|fd| read_link(&root.process_path(pid, &format!("fd/{fd}"))).ok());
    links.any(|link| link == RING)
}

fn differs(root: &ProcRoot, pid: u32, kind: &str) -> Option<bool> {
    let (theirs, ours) = (root.namespace(pid, kind).ok()?, root.own_namespace(kind).ok()?);
    Some(theirs != ours)
}

fn is_32_bit(root: &ProcRoot, pid: u32) -> Option<bool> {
    let file = File::open(root.process_path(pid, "exe")).ok()?;
    let ident = read_file_bounded(file, 5).ok()?.bytes;
    match ident.as_slice() {
        [0x7f, b'E', b'L', b'F', class] => Some(*class == object::elf::ELFCLASS32),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn fake(fds: &[&str], exe: &[u8]) -> (tempfile::TempDir, ProcRoot) {
        let directory = tempfile::tempdir().unwrap();
        let process = directory.path().join("8");
        for part in ["fd", "ns", "../self/ns"] {
            std::fs::create_dir_all(process.join(part)).unwrap();
        }
        for (number, target) in fds.iter().enumerate() {
            symlink(target, process.join(format!("fd/{number}"))).unwrap();
        }
        symlink("net:[1]", process.join("ns/net")).unwrap();
        symlink("net:[2]", directory.path().join("self/ns/net")).unwrap();
        std::fs::write(process.join("exe"), exe).unwrap();
        std::fs::write(process.join("stat"), format!("8 (job) S 1 1 1 0 -1 0{}", " 0".repeat(43))).unwrap();
        std::fs::write(process.join("status"), "Tgid:\t8\nSeccomp:\t2\n").unwrap();
        let root = ProcRoot::new(directory.path());
        (directory, root)
    }

    #[test]
    fn recognises_devices_by_what_the_descriptors_lead_to() {
        let (_directory, root) = fake(&["/dev/null", "/dev/infiniband/uverbs0"], b"\x7fELF\x02");
        let found = traits(&root, 8).unwrap();
        assert!(found.uses_rdma && !found.uses_cuda && !found.uses_io_uring);
        let (_directory, root) = fake(&["/dev/nvidia-uvm", "anon_inode:[io_uring]"], b"\x7fELF\x02");
        let found = traits(&root, 8).unwrap();
        assert!(!found.uses_rdma && found.uses_cuda && found.uses_io_uring);
        assert!(has_io_uring(&root, 8) && !has_io_uring(&root, 9));
    }

    #[test]
    fn tells_class_namespaces_and_seccomp_and_what_cannot_be_told() {
        let (_directory, root) = fake(&[], b"\x7fELF\x01");
        let found = traits(&root, 8).unwrap();
        assert_eq!(found.is_32_bit, Some(true));
        assert_eq!(found.seccomp, Seccomp::Filter);
        assert_eq!((found.other_net_namespace, found.other_pid_namespace), (Some(true), None));
        let (_directory, root) = fake(&[], b"#!/b");
        assert_eq!(traits(&root, 8).unwrap().is_32_bit, None);
    }

    #[test]
    fn cuda_is_seen_in_the_memory_map_too() {
        let (directory, root) = fake(&[], b"\x7fELF\x02");
        std::fs::write(
            directory.path().join("8/maps"),
            "1000-2000 r-xp 0 08:01 9 /usr/lib/libcuda.so.580.1\n",
        )
        .unwrap();
        assert!(traits(&root, 8).unwrap().uses_cuda);
    }

    #[test]
    fn its_own_process_shares_all_namespaces_with_itself() {
        let root = ProcRoot::default();
        let found = traits(&root, root.own_pid()).unwrap();
        assert_eq!(found.other_pid_namespace, Some(false));
        assert_eq!(found.other_net_namespace, Some(false));
        assert_eq!(found.is_32_bit, Some(cfg!(target_pointer_width = "32")));
        assert!(traits(&root, u32::MAX).unwrap_err().is_gone());
    }
}
