//! The table of peers by address: round-trip times, retransmissions, bytes, and how far away they are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use super::report::{Distribution, HopRow};
use crate::model::Model;
use crate::model::socket::{Transport, known_peer, plain_address, state, transport};
use crate::model::topology::{Rack, Topology};
use crate::trace::record::{Ends, Socket, SocketSample};

/// The peer's address, and our own where it is known.
fn ends(socket: &Socket) -> Option<(SocketAddr, SocketAddr)> {
    let Ends::Inet { local, peer } = &socket.ends else { return None };
    let connected = transport(socket) == Transport::Tcp && socket.state != state::LISTEN;
    known_peer(*peer).filter(|_| connected).map(|peer| (plain_address(*local), peer))
}

/// Counters of one connection at its first and last sample.
struct Connection {
    first: Counters,
    last: Counters,
}

#[derive(Clone, Copy, Default)]
struct Counters {
    bytes: u64,
    retransmits: u64,
}

impl Counters {
    fn of(sample: &SocketSample) -> Counters {
        Counters {
            bytes: sample.bytes_acked.saturating_add(sample.bytes_received),
            retransmits: u64::from(sample.total_retransmits),
        }
    }
}

#[derive(Default)]
struct Hop {
    local: Option<IpAddr>,
    rtts: Vec<u64>,
    /// Retransmissions seen one by one.
    events: u64,
    counted: u64,
    bytes: u64,
}

/// Rows by peer address, the most bytes first. `jitter_ns` is the deviation of the smoothed times that the
/// kernel keeps, so it is a lower bound of that of single packets.
pub fn hop_rows(model: &Model, topology: Option<&Topology>) -> Vec<HopRow> {
    let hops = collect(model);
    let own = own_addresses(model);
    let total: u64 = hops.values().map(|hop| hop.bytes).fold(0, u64::saturating_add);
    let mut rows: Vec<HopRow> = hops
        .into_iter()
        .map(|(peer, hop)| {
            let place = Place::of(model, topology, &own, peer, hop.local);
            let rtt = Distribution::of(hop.rtts);
            HopRow {
                peer: peer.to_string(),
                host: place.host,
                rack: place.rack,
                relation: place.relation.to_owned(),
                relation_evidence: place.evidence.to_owned(),
                transport: "tcp".to_owned(),
                device: None,
                rtt,
                jitter_ns: rtt.stddev_ns,
                retransmits: hop.events.max(hop.counted),
                bytes: hop.bytes,
                share_of_bytes: if total == 0 { 0.0 } else { hop.bytes as f64 / total as f64 },
            }
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

fn collect(model: &Model) -> BTreeMap<IpAddr, Hop> {
    let mut hops: BTreeMap<IpAddr, Hop> = BTreeMap::new();
    // By inode and ends: one that is connected anew counts from 0 again.
    let mut connections: HashMap<(u64, SocketAddr, SocketAddr), Connection> = HashMap::new();
    for sample in &model.samples {
        let Some((local, peer)) = ends(&sample.socket) else { continue };
        if sample.socket.state == state::SYN_SENT {
            continue;
        }
        let hop = hops.entry(peer.ip()).or_default();
        hop.local.get_or_insert(local.ip());
        if sample.rtt_ns != 0 {
            hop.rtts.push(sample.rtt_ns);
        }
        let last = Counters::of(sample);
        let first = if sample.at_start { last } else { Counters::default() };
        connections
            .entry((sample.socket.ino, local, peer))
            .and_modify(|connection| connection.last = last)
            .or_insert(Connection { first, last });
    }
    for ((_, _, peer), Connection { first, last }) in connections {
        let hop = hops.entry(peer.ip()).or_default();
        hop.bytes = hop.bytes.saturating_add(last.bytes.saturating_sub(first.bytes));
        let retransmits = last.retransmits.saturating_sub(first.retransmits);
        hop.counted = hop.counted.saturating_add(retransmits);
    }
    for retransmit in &model.retransmits {
        // The retransmission of a SYN is no property of a hop that was never reached.
        if let Some((local, peer)) =
            ends(&retransmit.socket).filter(|_| retransmit.socket.state != state::SYN_SENT)
        {
            let hop = hops.entry(peer.ip()).or_default();
            hop.local.get_or_insert(local.ip());
            hop.events += 1;
        }
    }
    hops
}

/// Addresses that the target's sockets are bound to.
fn own_addresses(model: &Model) -> HashSet<IpAddr> {
    let of_waits = model.sockets.iter().filter_map(|info| info.local);
    let of_samples = model.samples.iter().filter_map(|sample| match &sample.socket.ends {
        Ends::Inet { local, .. } => Some(plain_address(*local)),
        _ => None,
    });
    of_waits.chain(of_samples).map(|local| local.ip()).filter(|ip| !ip.is_unspecified()).collect()
}

/// Where a peer is, seen from this host.
struct Place {
    host: Option<String>,
    rack: Option<String>,
    relation: &'static str,
    evidence: &'static str,
}

impl Place {
    /// The connection's own two addresses come first, then what the topology says of both, then whether the
    /// peer's address is one of the target's own: namespaces that stand for hosts have addresses that
    /// are all the target's own, and the file that places them in racks is meant.
    fn of(
        model: &Model,
        topology: Option<&Topology>,
        own: &HashSet<IpAddr>,
        peer: IpAddr,
        local: Option<IpAddr>,
    ) -> Place {
        let here = topology.and_then(|topology| {
            let by_address = local.and_then(|local| topology.rack_of_address(local));
            by_address.or_else(|| topology.rack_of_host(&model.host.name))
        });
        let there = topology.and_then(|topology| topology.rack_of_address(peer));
        let (relation, evidence) = if peer.is_loopback() || local == Some(peer) {
            ("same-host", "address")
        } else if let (Some(here), Some(there)) = (here, there) {
            (if here.name == there.name { "same-rack" } else { "cross-rack" }, "topology")
        } else if own.contains(&peer) {
            ("same-host", "address")
        } else {
            ("unknown", "none")
        };
        Place {
            host: there.and_then(|rack| host_of(rack, peer)),
            rack: there.map(|rack| rack.name.clone()),
            relation,
            evidence,
        }
    }
}

/// The host's name, where the topology lists its address as a host.
fn host_of(rack: &Rack, peer: IpAddr) -> Option<String> {
    let peer = peer.to_string();
    rack.hosts.iter().find(|host| **host == peer).cloned()
}
