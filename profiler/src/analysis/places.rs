//! Where peers are: host, rack, and how far that is from the process that talks to them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::report::{HopRow, ProbeRow};
use crate::model::Model;
use crate::model::socket::{known_peer, plain_address};
use crate::model::topology::Topology;
use crate::trace::record::{Ends, FamilyState, Socket};

/// How far the two ends of a connection are apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Relation {
    SameHost,
    SameRack,
    CrossRack,
    #[default]
    Unknown,
}

impl Relation {
    /// As reports name it.
    pub const fn name(self) -> &'static str {
        match self {
            Relation::SameHost => "same-host",
            Relation::SameRack => "same-rack",
            Relation::CrossRack => "cross-rack",
            Relation::Unknown => "unknown",
        }
    }
}

/// Where a peer is, seen from one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// As the topology names it.
    pub host: Option<String>,
    pub rack: Option<String>,
    pub relation: Relation,
    /// `topology`, `address` (same host), `none`.
    pub evidence: &'static str,
}

/// Places of the peers of all recorded processes.
#[derive(Clone, Debug, Default)]
pub struct Places {
    topology: Option<Topology>,
    host: String,
    /// Addresses that the targets' sockets are bound to.
    own: HashSet<IpAddr>,
    /// Own address of the connections of a process to a peer.
    locals: HashMap<(u32, IpAddr), IpAddr>,
    /// Own address of any connection of a process.
    processes: HashMap<u32, IpAddr>,
}

impl Places {
    pub fn new(model: &Model, topology: Option<Topology>) -> Places {
        let mut places = Places { topology, host: model.host.name.clone(), ..Places::default() };
        let sockets = (model.samples.iter().map(|sample| (sample.pid, &sample.socket)))
            .chain(model.handshakes.iter().map(|handshake| (handshake.pid, &handshake.socket)))
            .chain(model.retransmits.iter().map(|retransmit| (retransmit.pid, &retransmit.socket)));
        for (pid, socket) in sockets {
            places.see(pid, socket);
        }
        // Those of waits have no process at hand.
        let waits = model.sockets.iter().filter_map(|info| info.local);
        places.own.extend(waits.map(|local| local.ip()).filter(|local| !local.is_unspecified()));
        places
    }

    fn see(&mut self, pid: u32, socket: &Socket) {
        let Ends::Inet { local, peer } = &socket.ends else { return };
        let local = plain_address(*local).ip();
        if local.is_unspecified() {
            return;
        }
        self.own.insert(local);
        if let Some(peer) = known_peer(*peer) {
            self.locals.entry((pid, peer.ip())).or_insert(local);
            if !local.is_loopback() {
                self.processes.entry(pid).or_insert(local);
            }
        }
    }

    /// Whether racks are known at all.
    pub fn has_racks(&self) -> bool {
        self.topology.as_ref().is_some_and(|topology| !topology.racks().is_empty())
    }

    /// What the topology leaves open: peers that it places in no rack. `None` where there are none, or no racks.
    pub fn gaps(&self, hops: &[HopRow]) -> Option<ProbeRow> {
        let open: BTreeSet<&str> =
            hops.iter().filter(|hop| hop.relation == "unknown").map(|hop| hop.peer.as_str()).collect();
        if open.is_empty() || !self.has_racks() {
            return None;
        }
        let all: BTreeSet<&str> = hops.iter().map(|hop| hop.peer.as_str()).collect();
        let first: Vec<&str> = open.iter().take(3).copied().collect();
        let reason = format!(
            "the topology does not tell how far {} of {} TCP peers are ({}{}); it needs their addresses and ours",
            open.len(),
            all.len(),
            first.join(", "),
            if open.len() > first.len() { " .." } else { "" }
        );
        Some(ProbeRow { family: "racks".to_owned(), state: FamilyState::Partial, reason })
    }

    /// Where the peer of a process is; `peer` is `ip:port` or an address. `None` where it is neither.
    pub fn of_peer(&self, pid: u32, peer: &str) -> Option<Place> {
        let address =
            peer.parse::<SocketAddr>().map(|address| address.ip()).or_else(|_| peer.parse()).ok()?;
        let local = self.locals.get(&(pid, address)).or_else(|| self.processes.get(&pid));
        Some(self.of_connection(local.copied(), address))
    }

    /// The connection's own two addresses come first, then what the topology says of both, then whether the
    /// peer's address is one of the target's own: namespaces that stand for hosts have addresses that
    /// are all the target's own, and the file that places them in racks is meant.
    pub fn of_connection(&self, local: Option<IpAddr>, peer: IpAddr) -> Place {
        let topology = self.topology.as_ref();
        let here = topology.and_then(|topology| {
            let by_address = local.and_then(|local| topology.rack_of_address(local));
            by_address.or_else(|| topology.rack_of_host(&self.host))
        });
        let there = topology.and_then(|topology| topology.rack_of_address(peer));
        let (relation, evidence) = if peer.is_loopback() || local == Some(peer) {
            (Relation::SameHost, "address")
        } else if let (Some(here), Some(there)) = (here, there) {
            let same = here.name == there.name;
            (if same { Relation::SameRack } else { Relation::CrossRack }, "topology")
        } else if self.own.contains(&peer) {
            (Relation::SameHost, "address")
        } else {
            (Relation::Unknown, "none")
        };
        // Loopback is on every host: the rack is that of this one.
        let rack = if peer.is_loopback() { here } else { there };
        Place {
            host: topology.and_then(|topology| topology.host_of_address(peer)).map(str::to_owned),
            rack: rack.map(|rack| rack.name.clone()),
            relation,
            evidence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture::{sample_of, shake, tcp};
    use crate::trace::record::Host;

    const FILE: &str = "[[rack]]\nname = \"A\"\ncidrs = [\"10.0.1.0/24\"]\n\
        [[rack]]\nname = \"B\"\ncidrs = [\"10.0.2.0/24\"]\naddresses = { node07 = [\"10.0.2.7\"] }\n";

    fn places(model: &Model) -> Places {
        Places::new(model, Some(Topology::parse(FILE).unwrap()))
    }

    #[test]
    fn one_peer_is_near_for_one_process_and_far_for_another() {
        let samples = vec![
            sample_of(7, "10.0.1.1:4000", tcp(1, "10.0.2.7:80")),
            sample_of(8, "10.0.2.1:4000", tcp(1, "10.0.2.7:80")),
        ];
        let places = places(&Model { samples, ..Model::default() });
        let of = |pid| {
            let place = places.of_peer(pid, "10.0.2.7:80").unwrap();
            (place.relation, place.rack.unwrap(), place.host.unwrap())
        };
        assert_eq!(of(7), (Relation::CrossRack, "B".to_owned(), "node07".to_owned()));
        assert_eq!(of(8), (Relation::SameRack, "B".to_owned(), "node07".to_owned()));
    }

    #[test]
    fn a_peer_that_was_only_waited_for_is_seen_from_the_process_s_other_connections() {
        let samples = vec![sample_of(7, "10.0.1.1:4000", tcp(1, "10.0.1.2:80"))];
        let places = places(&Model { samples, ..Model::default() });
        assert_eq!(places.of_peer(7, "10.0.2.9:80").unwrap().relation, Relation::CrossRack);
        assert_eq!(places.of_peer(9, "10.0.2.9:80").unwrap().relation, Relation::Unknown);
        assert_eq!(places.of_peer(7, "/run/socket"), None);
    }

    #[test]
    fn a_connect_tells_the_own_address_too() {
        let mut handshake = shake(1, 2, 0, tcp(1, "10.0.2.9:80"));
        handshake.socket.ends =
            Ends::Inet { local: "10.0.2.3:4000".parse().unwrap(), peer: "10.0.2.9:80".parse().unwrap() };
        let pid = handshake.pid;
        let places = places(&Model { handshakes: vec![handshake], ..Model::default() });
        assert_eq!(places.of_peer(pid, "10.0.2.9:80").unwrap().relation, Relation::SameRack);
    }

    #[test]
    fn loopback_is_this_host_in_its_own_rack() {
        let host = Host { name: "node07.cluster".into(), ..Host::default() };
        let place = places(&Model { host, ..Model::default() }).of_peer(7, "127.0.0.1:80").unwrap();
        assert_eq!((place.relation, place.rack.as_deref()), (Relation::SameHost, Some("B")));
    }

    #[test]
    fn without_a_topology_there_are_no_racks() {
        let places = Places::new(&Model::default(), None);
        assert!(!places.has_racks());
        assert_eq!(places.of_peer(7, "10.0.2.9:80").unwrap().relation, Relation::Unknown);
    }
}
