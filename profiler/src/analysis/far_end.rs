//! Which recorded process is at the other end of a connection: on one machine, and with several processes in the
//! recording, the rank that another one waits for can be looked at too.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use crate::model::Model;
use crate::model::socket::known_peer;
use crate::trace::record::Ends;

/// Connections that are kept at most.
const CONNECTIONS: usize = 100_000;

/// The other end of a process's connections to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarEnd {
    pub pid: u32,
    /// Name of the process.
    pub comm: String,
    /// How it sees the first process: `ip:port`, of one of the connections.
    pub sees: String,
}

/// By process and peer, `ip:port` and address alone.
#[derive(Clone, Debug, Default)]
pub struct FarEnds {
    /// `None` where several processes are behind one peer.
    ends: BTreeMap<(u32, String), Option<FarEnd>>,
}

impl FarEnds {
    /// Joins the sockets of the recorded processes by both addresses, so that equal addresses in different
    /// networks are not taken for each other.
    pub fn new(model: &Model) -> FarEnds {
        let mut owners: HashMap<(SocketAddr, SocketAddr), u32> = HashMap::new();
        for sample in &model.samples {
            if let Ends::Inet { local, peer } = &sample.socket.ends
                && let (Some(local), Some(peer)) = (known_peer(*local), known_peer(*peer))
                && owners.len() < CONNECTIONS
            {
                owners.insert((local, peer), sample.pid);
            }
        }
        let mut ends = FarEnds::default();
        for ((local, peer), pid) in &owners {
            if let Some(far) = owners.get(&(*peer, *local)).filter(|far| *far != pid) {
                let comm = model.processes.get(far).map_or_else(String::new, |process| process.comm.clone());
                let end = FarEnd { pid: *far, comm, sees: local.to_string() };
                ends.add(*pid, peer.to_string(), &end);
                ends.add(*pid, peer.ip().to_string(), &end);
            }
        }
        ends
    }

    fn add(&mut self, pid: u32, peer: String, end: &FarEnd) {
        self.ends
            .entry((pid, peer))
            .and_modify(|known| {
                if known.as_ref().is_some_and(|known| known.pid != end.pid) {
                    *known = None;
                }
                // Whichever connection comes first out of the map, the smallest name is kept.
                if let Some(known) = known
                    && end.sees < known.sees
                {
                    known.sees.clone_from(&end.sees);
                }
            })
            .or_insert_with(|| Some(end.clone()));
    }

    /// No two recorded processes are connected.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The process behind `peer` (`ip:port` or an address) of the process `pid`, if it is recorded and the only one.
    pub fn get(&self, pid: u32, peer: &str) -> Option<&FarEnd> {
        self.ends.get(&(pid, peer.to_owned()))?.as_ref()
    }

    /// The process `end` as the process `pid` is connected to it.
    pub fn of_process(&self, pid: u32, end: u32) -> Option<&FarEnd> {
        let ours = self.ends.range((pid, String::new())..).take_while(|((of, _), _)| *of == pid);
        ours.filter_map(|(_, known)| known.as_ref()).find(|known| known.pid == end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture::{sample_of, tcp};
    use crate::trace::record::{Process, SocketSample};

    fn sample(pid: u32, local: &str, peer: &str) -> SocketSample {
        sample_of(pid, local, tcp(1, peer))
    }

    fn far_ends(samples: Vec<SocketSample>) -> FarEnds {
        let named = |pid| Process { pid, comm: format!("rank{pid}"), ..Process::default() };
        let processes = [7, 8, 9].into_iter().map(|pid| (pid, named(pid))).collect();
        FarEnds::new(&Model { processes, samples, ..Model::default() })
    }

    #[test]
    fn the_two_ends_of_a_connection_find_each_other() {
        let ends = far_ends(vec![
            sample(7, "10.0.0.1:4000", "10.0.0.2:29500"),
            sample(8, "10.0.0.2:29500", "10.0.0.1:4000"),
        ]);
        let far = ends.get(7, "10.0.0.2:29500").unwrap();
        assert_eq!((far.pid, far.comm.as_str(), far.sees.as_str()), (8, "rank8", "10.0.0.1:4000"));
        assert_eq!(ends.get(7, "10.0.0.2"), Some(far));
        assert_eq!(ends.get(8, "10.0.0.1:4000").unwrap().pid, 7);
        assert_eq!(ends.get(9, "10.0.0.2:29500"), None);
    }

    #[test]
    fn an_address_that_only_looks_alike_is_nobody_s_other_end() {
        let ends = far_ends(vec![
            sample(7, "10.0.0.1:4000", "10.0.0.2:29500"),
            // Listens on the same address in another network.
            sample(8, "10.0.0.2:29500", "10.0.0.3:4000"),
        ]);
        assert_eq!(ends.get(7, "10.0.0.2:29500"), None);
    }

    #[test]
    fn two_processes_behind_one_address_are_told_apart_by_port_only() {
        let ends = far_ends(vec![
            sample(7, "10.0.0.1:4000", "10.0.0.2:29500"),
            sample(8, "10.0.0.2:29500", "10.0.0.1:4000"),
            sample(7, "10.0.0.1:4001", "10.0.0.2:29501"),
            sample(9, "10.0.0.2:29501", "10.0.0.1:4001"),
        ]);
        assert_eq!(ends.get(7, "10.0.0.2:29501").unwrap().pid, 9);
        assert_eq!(ends.get(7, "10.0.0.2"), None);
    }
}
