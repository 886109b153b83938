//! Where GPUs and network adapters sit: PCI Express links and bridges, NUMA nodes, ports and their addresses. All of it
//! is read from sysfs below a root that tests can set.

use std::collections::BTreeMap;

use super::root::ProcRoot;
use crate::trace::place::{PciDevice, PciRole, RdmaPort};

pub mod config;
pub mod ethtool;
mod pci;
mod rdma;
#[cfg(test)]
mod tests;
mod tree;
mod used;

pub use config::ACS_REDIRECT;
pub use tree::SysRoot;
pub use used::open_devices;

/// Processors of a machine, at most.
const CPUS_MAX: usize = 8192;
/// NUMA nodes of a machine, at most.
const NODES_MAX: usize = 256;

/// The machine's GPUs, RDMA devices and what is between them and the processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Bridges before what is below them.
    pub pci: Vec<PciDevice>,
    pub ports: Vec<RdmaPort>,
    /// Which DCQCN switches are on, where a network device shows them: name and text.
    pub congestion: Vec<(String, String)>,
}

/// Looks at the machine. What cannot be read is left out, or unknown.
pub fn machine(proc: &ProcRoot, sys: &SysRoot) -> Machine {
    let mut named: BTreeMap<String, (PciRole, String)> = BTreeMap::new();
    let names = used::nvidia_names(proc);
    for address in pci::gpus(sys) {
        let name = names.get(&address).cloned().unwrap_or_default();
        named.insert(address, (PciRole::Gpu, name));
    }
    let mut ports = Vec::new();
    for device in rdma::devices(sys) {
        if let Some(address) = rdma::address(sys, &device) {
            named.insert(address, (PciRole::Nic, device.clone()));
        }
        ports.extend(rdma::ports(sys, &device));
    }
    let of_port = |port: &RdmaPort| match port.netdev.as_str() {
        netdev if rdma::is_of(sys, &port.device, netdev) => rdma::congestion_switches(sys, netdev),
        _ => Vec::new(),
    };
    let congestion = ports.iter().flat_map(of_port).collect();
    Machine { pci: pci::devices(sys, &named), ports, congestion }
}

/// Whether we see the port's network device: it can be in another network namespace, and one of ours have its name.
pub fn has_netdev(sys: &SysRoot, port: &RdmaPort) -> bool {
    rdma::is_of(sys, &port.device, &port.netdev)
}

/// NUMA node of each processor.
pub fn nodes(sys: &SysRoot) -> BTreeMap<u32, i32> {
    let mut nodes = BTreeMap::new();
    let names = sys.names("devices/system/node");
    let number = |name: &String| name.strip_prefix("node")?.parse::<i32>().ok();
    for node in names.iter().filter_map(number).take(NODES_MAX) {
        let list = sys.text(&format!("devices/system/node/node{node}/cpulist")).unwrap_or_default();
        for part in list.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else { continue };
            let room = CPUS_MAX.saturating_sub(nodes.len());
            nodes.extend((first..=last).take(room).map(|cpu| (cpu, node)));
        }
    }
    nodes
}

/// The processor on which a thread ran last.
pub fn last_cpu(proc: &ProcRoot, pid: u32, tid: u32) -> Option<u32> {
    let contents = super::root::read_bounded(&proc.task_path(pid, tid, "stat"), super::root::SMALL).ok()?;
    let text = String::from_utf8_lossy(&contents.bytes);
    // The name before can have spaces and parentheses; the processor is the 39th field, the state the third.
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(36)?.parse().ok()
}
