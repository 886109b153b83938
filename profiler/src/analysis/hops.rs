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

/// The address whose round-trip time a sample is.
pub(super) fn sampled_peer(sample: &SocketSample) -> Option<IpAddr> {
    let (_, peer) = ends(&sample.socket)?;
    (sample.socket.state != state::SYN_SENT).then(|| peer.ip())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{AnalysisOptions, analyse, report::TraceState};
    use crate::model::fixture::{Trace, connecting, listener, sample, tcp, udp};
    use crate::trace::record::{Host, Record};

    fn rows(trace: &Trace, topology: Option<&str>) -> Vec<HopRow> {
        let topology = topology.map(|text| Topology::parse(text).unwrap());
        let records = trace.0.iter().cloned();
        analyse(records, TraceState::default(), &AnalysisOptions { topology, ..AnalysisOptions::default() })
            .report
            .hops
    }

    fn place(row: &HopRow) -> (&str, Option<&str>, &str, &str) {
        (&row.peer, row.rack.as_deref(), &row.relation, &row.relation_evidence)
    }

    #[test]
    fn samples_make_round_trip_times_and_bytes() {
        let mut trace = Trace::new();
        trace
            // Known when the recording began: only what came since.
            .add(sample(1000, 100, 5000, true, tcp(1, "10.0.1.1:80")))
            .add(sample(1500, 300, 5600, false, tcp(1, "10.0.1.1:80")))
            // Born meanwhile: all of it; no time measured at first.
            .add(sample(1500, 0, 100, false, tcp(2, "10.0.1.1:81")))
            .add(sample(1900, 200, 300, false, tcp(2, "10.0.1.1:81")))
            .add(sample(1900, 50, 100, false, tcp(3, "10.0.1.2:80")));
        let rows = rows(&trace, None);
        let first = &rows[0];
        assert_eq!((first.peer.as_str(), first.bytes, first.share_of_bytes), ("10.0.1.1", 900, 0.9));
        assert_eq!(
            (first.rtt.count, first.rtt.min_ns, first.rtt.p50_ns, first.rtt.max_ns),
            (3, 100, 200, 300)
        );
        assert_eq!(first.jitter_ns, 82);
        assert_eq!((rows[1].peer.as_str(), rows[1].bytes, rows[1].share_of_bytes), ("10.0.1.2", 100, 0.1));
        assert_eq!((rows[1].transport.as_str(), rows.len()), ("tcp", 2));
    }

    #[test]
    fn sockets_that_are_not_connected_are_no_hops() {
        let mut trace = Trace::new();
        trace
            .add(sample(1500, 0, 0, false, listener(1)))
            .add(sample(1500, 0, 0, false, connecting(tcp(2, "10.0.1.1:80"))))
            .add(sample(1500, 9, 9, false, udp(3, "10.0.1.2:80")))
            .retransmit(1500, connecting(tcp(2, "10.0.1.1:80")));
        assert_eq!(rows(&trace, None), []);
    }

    #[test]
    fn retransmissions_are_those_seen_or_those_counted_whichever_is_more() {
        let counted =
            |total_retransmits, time, at_start, ino, peer| match sample(time, 9, 0, at_start, tcp(ino, peer))
            {
                Record::Socket(sample) => Record::Socket(SocketSample { total_retransmits, ..sample }),
                other => other,
            };
        let mut trace = Trace::new();
        trace
            .add(counted(7, 1000, true, 1, "10.0.1.1:80"))
            .add(counted(12, 1900, false, 1, "10.0.1.1:80"))
            .retransmit(1100, tcp(1, "10.0.1.1:80"))
            .add(counted(0, 1000, true, 2, "10.0.1.2:80"))
            .retransmit(1100, tcp(2, "10.0.1.2:80"))
            .retransmit(1200, tcp(2, "10.0.1.2:80"));
        let retransmits: Vec<u64> = rows(&trace, None).iter().map(|row| row.retransmits).collect();
        assert_eq!(retransmits, [5, 2]);
    }

    #[test]
    fn without_a_topology_only_the_same_host_is_known() {
        let mut trace = Trace::new();
        trace
            .add(sample(1500, 9, 3, false, tcp(1, "10.0.1.1:80")))
            .add(sample(1500, 9, 2, false, tcp(2, "127.0.0.1:80")))
            .add(sample(1500, 9, 1, false, tcp(3, "10.0.0.1:80")));
        let rows = rows(&trace, None);
        assert_eq!(
            rows.iter().map(place).collect::<Vec<_>>(),
            [
                ("10.0.1.1", None, "unknown", "none"),
                ("127.0.0.1", None, "same-host", "address"),
                ("10.0.0.1", None, "same-host", "address"),
            ]
        );
    }

    #[test]
    fn the_topology_places_peers_in_racks() {
        const FILE: &str = "[[rack]]\nname = \"A\"\nhosts = [\"node01\"]\ncidrs = [\"10.0.1.0/24\"]\n\
            [[rack]]\nname = \"B\"\nhosts = [\"10.0.2.9\"]\ncidrs = [\"10.0.2.0/24\"]\n";
        let mut trace = Trace::new();
        trace
            .add(Record::Host(Host { name: "node01.example".into(), ..Host::default() }))
            .add(sample(1500, 9, 4, false, tcp(1, "10.0.1.1:80")))
            .add(sample(1500, 9, 3, false, tcp(2, "10.0.2.9:80")))
            .add(sample(1500, 9, 2, false, tcp(3, "10.0.3.1:80")))
            .add(sample(1500, 9, 1, false, tcp(4, "127.0.0.1:80")));
        let rows = rows(&trace, Some(FILE));
        assert_eq!(
            rows.iter().map(place).collect::<Vec<_>>(),
            [
                ("10.0.1.1", Some("A"), "same-rack", "topology"),
                ("10.0.2.9", Some("B"), "cross-rack", "topology"),
                ("10.0.3.1", None, "unknown", "none"),
                ("127.0.0.1", None, "same-host", "address"),
            ]
        );
        assert_eq!(rows[1].host.as_deref(), Some("10.0.2.9"));
    }
}
