//! The topology as it goes into the trace: with the addresses that the target's machine knows of its hosts.

use crate::model::topology::Topology;
use crate::target::{ProcRoot, rooted};
use crate::trace::record::TopologyFile;

/// Bytes of `/etc/hosts` read at most.
const HOSTS: usize = 1 << 20;
/// Bytes of a topology that are kept at most; a record of a trace has a limit.
const STORED: usize = 3 << 20;

/// A topology that the user named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenTopology {
    /// As the user named it.
    pub path: String,
    pub topology: Topology,
}

impl ChosenTopology {
    /// Bytes that it would take beyond what a trace keeps; `None` where it fits.
    pub fn excess(&self) -> Option<usize> {
        self.topology.to_toml().len().checked_sub(STORED).filter(|excess| *excess > 0)
    }
}

/// The record for the trace. The hosts file that the process `pid` sees places hosts that the topology names without
/// an address; nothing is asked of any resolver.
pub(super) fn stored(root: &ProcRoot, chosen: &ChosenTopology, pid: Option<u32>) -> TopologyFile {
    let mut topology = chosen.topology.clone();
    if let Some(pid) = pid
        && let Ok(hosts) = rooted::read(root, pid, "/etc/hosts", HOSTS)
    {
        topology.learn_addresses(&String::from_utf8_lossy(&hosts.bytes));
    }
    let mut text = topology.to_toml();
    if text.len() > STORED {
        text = chosen.topology.to_toml();
    }
    TopologyFile { path: chosen.path.clone(), text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_get_the_addresses_that_the_target_sees() {
        let folder = tempfile::tempdir().unwrap();
        let etc = ProcRoot::new(folder.path()).process_path(7, "root").join("etc");
        std::fs::create_dir_all(&etc).unwrap();
        std::fs::write(etc.join("hosts"), "10.0.0.2 node02\n").unwrap();
        let topology = Topology::parse("node01 A\nnode02 B\n").unwrap();
        let chosen = ChosenTopology { path: "racks.txt".into(), topology };
        let root = ProcRoot::new(folder.path());
        let file = stored(&root, &chosen, Some(7));
        assert_eq!(file.path, "racks.txt");
        let read = Topology::parse(&file.text).unwrap();
        assert_eq!(read.rack_of_address("10.0.0.2".parse().unwrap()).unwrap().name, "B");
        // Without a hosts file the topology stays as it is.
        let plain = stored(&root, &chosen, Some(8));
        assert_eq!(Topology::parse(&plain.text).unwrap(), chosen.topology);
    }

    #[test]
    fn a_topology_larger_than_a_record_is_told_beforehand() {
        let of = |hosts: u32| {
            let name = "n".repeat(100);
            let lines: String =
                (0..hosts).map(|number| format!("{name}{number} A\n")).collect::<Vec<_>>().concat();
            ChosenTopology { path: String::new(), topology: Topology::parse(&lines).unwrap() }.excess()
        };
        assert_eq!(of(1000), None);
        assert!(of(40_000).is_some());
    }
}
