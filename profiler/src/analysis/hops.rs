//! The table of peers by address: round-trip times, retransmissions, bytes, and how far away they are.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use super::places::{Place, Places, Relation};
use super::report::{Distribution, HopRow};
use crate::model::Model;
use crate::model::socket::{Transport, known_peer, plain_address, state, transport};
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
    rtts: Vec<u64>,
    /// Retransmissions seen one by one.
    events: u64,
    counted: u64,
    bytes: u64,
}

impl Hop {
    fn add(&mut self, other: Hop) {
        self.rtts.extend(other.rtts);
        self.events = self.events.saturating_add(other.events);
        self.counted = self.counted.saturating_add(other.counted);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Rows by peer address, the most bytes first; where the recorded processes sit in several racks, by relation
/// too, since a peer is near for some of them and far for others. `jitter_ns` is the deviation of the smoothed
/// times that the kernel keeps, so it is a lower bound of that of single packets.
pub fn hop_rows(model: &Model, places: &Places) -> Vec<HopRow> {
    let mut merged: BTreeMap<(IpAddr, Relation), (Place, Hop)> = BTreeMap::new();
    for ((peer, local), hop) in collect(model) {
        let place = places.of_connection(Some(local), peer);
        merged.entry((peer, place.relation)).or_insert_with(|| (place, Hop::default())).1.add(hop);
    }
    let total: u64 = merged.values().map(|(_, hop)| hop.bytes).fold(0, u64::saturating_add);
    let mut rows: Vec<HopRow> = merged
        .into_iter()
        .map(|((peer, relation), (place, hop))| {
            let rtt = Distribution::of(hop.rtts);
            HopRow {
                peer: peer.to_string(),
                host: place.host,
                rack: place.rack,
                relation: relation.name().to_owned(),
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

/// By the peer's address and our own.
fn collect(model: &Model) -> BTreeMap<(IpAddr, IpAddr), Hop> {
    let mut hops: BTreeMap<(IpAddr, IpAddr), Hop> = BTreeMap::new();
    // By inode and ends: one that is connected anew counts from 0 again.
    let mut connections: HashMap<(u64, SocketAddr, SocketAddr), Connection> = HashMap::new();
    for sample in &model.samples {
        let Some((local, peer)) = ends(&sample.socket) else { continue };
        if sample.socket.state == state::SYN_SENT {
            continue;
        }
        let hop = hops.entry((peer.ip(), local.ip())).or_default();
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
    for ((_, local, peer), Connection { first, last }) in connections {
        let hop = hops.entry((peer.ip(), local.ip())).or_default();
        hop.bytes = hop.bytes.saturating_add(last.bytes.saturating_sub(first.bytes));
        let retransmits = last.retransmits.saturating_sub(first.retransmits);
        hop.counted = hop.counted.saturating_add(retransmits);
    }
    for retransmit in &model.retransmits {
        // The retransmission of a SYN is no property of a hop that was never reached.
        if let Some((local, peer)) =
            ends(&retransmit.socket).filter(|_| retransmit.socket.state != state::SYN_SENT)
        {
            hops.entry((peer.ip(), local.ip())).or_default().events += 1;
        }
    }
    hops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{AnalysisOptions, analyse, report::TraceState};
    use crate::model::fixture::{Trace, connecting, listener, sample, sample_of, tcp, udp};
    use crate::model::topology::Topology;
    use crate::trace::record::{Host, Record, TopologyFile};

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
                ("127.0.0.1", Some("A"), "same-host", "address"),
            ]
        );
        assert_eq!(rows[1].host.as_deref(), Some("10.0.2.9"));
    }

    #[test]
    fn a_peer_that_is_near_for_one_process_and_far_for_another_has_two_rows() {
        const FILE: &str = "10.0.1.1 A\n10.0.1.2 A\n10.0.2.1 B\n10.0.2.2 B\n";
        let mut trace = Trace::new();
        for (pid, local, rtt_ns) in
            [(7, "10.0.1.1:40", 100), (8, "10.0.2.1:40", 900), (9, "10.0.2.2:40", 700)]
        {
            let sample = sample_of(pid, local, tcp(1, "10.0.1.2:80"));
            let bytes_acked = rtt_ns;
            trace.add(Record::Socket(SocketSample {
                rtt_ns,
                bytes_acked,
                at_start: false,
                time_ns: 1500,
                ..sample
            }));
        }
        let rows = rows(&trace, Some(FILE));
        let far = (rows[0].relation.as_str(), rows[0].rtt.count, rows[0].rtt.max_ns, rows[0].bytes);
        assert_eq!(far, ("cross-rack", 2, 900, 1600));
        let near = (rows[1].relation.as_str(), rows[1].rtt.count, rows[1].rtt.max_ns, rows[1].bytes);
        assert_eq!(near, ("same-rack", 1, 100, 100));
    }

    #[test]
    fn the_topology_of_the_trace_is_used_unless_another_is_given() {
        let mut trace = Trace::new();
        let file = |text: &str| TopologyFile { path: "racks".into(), text: text.into() };
        trace.add(Record::Topology(file("10.0.0.1 A\n10.0.1.1 B\n"))).add(sample(
            1500,
            9,
            4,
            false,
            tcp(1, "10.0.1.1:80"),
        ));
        assert_eq!(place(&rows(&trace, None)[0]), ("10.0.1.1", Some("B"), "cross-rack", "topology"));
        let other = "10.0.0.1 A\n10.0.1.1 A\n";
        assert_eq!(place(&rows(&trace, Some(other))[0]), ("10.0.1.1", Some("A"), "same-rack", "topology"));
    }

    #[test]
    fn peers_that_the_topology_does_not_place_are_told() {
        let mut trace = Trace::new();
        trace.add(sample(1500, 9, 4, false, tcp(1, "10.0.1.1:80"))).add(sample(
            1500,
            9,
            3,
            false,
            tcp(2, "10.0.2.9:80"),
        ));
        let topology = Topology::parse("10.0.0.1 A\n10.0.1.1 B\n").unwrap();
        let options = AnalysisOptions { topology: Some(topology), ..AnalysisOptions::default() };
        let report = analyse(trace.0.iter().cloned(), TraceState::default(), &options).report;
        let rows: Vec<_> = report.coverage.probes.iter().map(|row| (&*row.family, &*row.reason)).collect();
        let reason = "the topology does not tell how far 1 of 2 TCP peers are (10.0.2.9); it needs their addresses and ours";
        assert_eq!(rows, [("racks", reason)]);
        assert_eq!(trace.analyse().report.coverage.probes, [], "nobody asked for racks");
    }

    #[test]
    fn a_stored_topology_that_cannot_be_read_is_counted_and_not_used() {
        let mut trace = Trace::new();
        let file = TopologyFile { path: "racks".into(), text: "10.0.1.1 A B\n[[".into() };
        trace.add(Record::Topology(file)).add(sample(1500, 9, 4, false, tcp(1, "10.0.1.1:80")));
        let report = trace.analyse().report;
        assert_eq!(place(&report.hops[0]), ("10.0.1.1", None, "unknown", "none"));
        assert_eq!(report.coverage.losses["unreadable_topology"], 1);
    }
}
