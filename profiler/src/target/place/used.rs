//! Which GPUs and RDMA devices a process has open.

use std::collections::{BTreeMap, BTreeSet};

use super::pci::is_address;
use super::rdma::of_uverbs;
use super::tree::{ENTRIES_MAX, SysRoot};
use crate::target::ProcRoot;
use crate::target::root::{SMALL, read_bounded};

/// Descriptors of one process that are looked at, at most.
const DESCRIPTORS_MAX: usize = 1 << 16;
const UVERBS: &str = "/dev/infiniband/uverbs";
const NVIDIA: &str = "/dev/nvidia";

/// Names of the devices that are open: `mlx5_0`, `nvidia3`. None where the process is gone.
pub fn open_devices(proc: &ProcRoot, sys: &SysRoot, pid: u32) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for fd in proc.fds(pid).unwrap_or_default().into_iter().take(DESCRIPTORS_MAX) {
        let Ok(link) = std::fs::read_link(proc.process_path(pid, "fd").join(fd.to_string())) else {
            continue;
        };
        let Some(link) = link.to_str() else { continue };
        if let Some(number) = link.strip_prefix(UVERBS).and_then(|rest| rest.parse().ok()) {
            found.extend(of_uverbs(sys, number));
        } else if let Some(number) = link.strip_prefix(NVIDIA).and_then(|rest| rest.parse::<u32>().ok()) {
            found.insert(format!("nvidia{number}"));
        }
    }
    found
}

/// Names of NVIDIA's devices by PCI address, as the driver tells them.
pub(super) fn nvidia_names(proc: &ProcRoot) -> BTreeMap<String, String> {
    let Ok(entries) = std::fs::read_dir(proc.path("driver/nvidia/gpus")) else { return BTreeMap::new() };
    let name = |entry: std::fs::DirEntry| {
        let address = entry.file_name().into_string().ok()?.to_ascii_lowercase();
        let contents = read_bounded(&entry.path().join("information"), SMALL).ok()?;
        let text = String::from_utf8_lossy(&contents.bytes);
        let minor = text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
        let minor: u32 = minor.trim().parse().ok()?;
        is_address(&address).then(|| (address, format!("nvidia{minor}")))
    };
    entries.take(ENTRIES_MAX).flatten().filter_map(name).collect()
}
