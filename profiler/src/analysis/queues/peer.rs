//! Where queue pairs lead to, and how far that is: rows of the table of peers.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

use super::Queue;
use crate::analysis::places::{Place, Places, Relation};
use crate::analysis::report::{Distribution, HopRow};
use crate::model::queue::Unit;
use crate::trace::rdma::RdmaPeer;

/// What is known of where one queue pair leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    pub qp: Option<u32>,
    pub gid: Option<Ipv6Addr>,
    local: Option<Ipv6Addr>,
    place: Place,
}

/// Peers by process and queue pair. Each record says a part; of two that say the same part the latest counts.
pub(super) fn peers(records: &[RdmaPeer], places: &Places) -> HashMap<(u32, u32), Peer> {
    let mut ordered: Vec<&RdmaPeer> = records.iter().collect();
    ordered.sort_by_key(|record| record.time_ns);
    let mut peers: HashMap<(u32, u32), Peer> = HashMap::new();
    for record in ordered {
        let peer = peers.entry((record.pid, record.qp)).or_default();
        peer.qp = record.peer_qp.or(peer.qp);
        peer.gid = record.peer_gid.or(peer.gid);
        peer.local = record.local_gid.or(peer.local);
    }
    for peer in peers.values_mut() {
        if let Some(gid) = peer.gid {
            peer.place = places.of_connection(peer.local.map(address), address(gid));
        }
    }
    peers
}

/// The IP address in a GID of RoCE; of others the GID itself.
fn address(gid: Ipv6Addr) -> IpAddr {
    gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4)
}

pub(super) fn fill(queue: &mut Queue, peer: &Peer) {
    let row = &mut queue.row;
    row.peer_qp = peer.qp;
    row.peer_gid = peer.gid.map(|gid| gid.to_string());
    if peer.gid.is_some() {
        row.rack.clone_from(&peer.place.rack);
        peer.place.relation.name().clone_into(&mut row.relation);
    }
    queue.peer = peer.clone();
}

/// Times of requests of depth one, the smallest size alone: what the wire and the peer take.
pub(super) fn depth_one(units: &[Unit]) -> Vec<u64> {
    let alone = |unit: &&Unit| unit.requests == 1 && unit.idle && !unit.lead;
    let Some(least) = units.iter().filter(alone).map(|unit| unit.bytes).min() else { return Vec::new() };
    let of_least = units.iter().filter(alone).filter(|unit| unit.bytes == least);
    of_least.map(|unit| unit.done_ns.saturating_sub(unit.post_ns)).collect()
}

#[derive(Default)]
struct Hop {
    place: Place,
    rtts: Vec<u64>,
    bytes: u64,
}

/// Rows by peer address, device and relation, the most bytes first. `jitter_ns` is the deviation of single requests.
pub(super) fn hops(queues: &[Queue]) -> Vec<HopRow> {
    let mut merged: BTreeMap<(IpAddr, &str, Relation), Hop> = BTreeMap::new();
    for queue in queues {
        let Some(gid) = queue.peer.gid else { continue };
        let place = &queue.peer.place;
        let hop = merged.entry((address(gid), &queue.row.device, place.relation)).or_default();
        hop.place = place.clone();
        hop.rtts.extend(&queue.alone);
        hop.bytes = hop.bytes.saturating_add(queue.row.bytes);
    }
    let total: u64 = merged.values().map(|hop| hop.bytes).fold(0, u64::saturating_add);
    let row = |((peer, device, relation), hop): ((IpAddr, &str, Relation), Hop)| {
        let rtt = Distribution::of(hop.rtts);
        HopRow {
            peer: peer.to_string(),
            host: hop.place.host,
            rack: hop.place.rack,
            relation: relation.name().to_owned(),
            relation_evidence: hop.place.evidence.to_owned(),
            transport: "rdma".to_owned(),
            device: (!device.is_empty()).then(|| device.to_owned()),
            rtt,
            jitter_ns: rtt.stddev_ns,
            retransmits: 0,
            bytes: hop.bytes,
            share_of_bytes: if total == 0 { 0.0 } else { hop.bytes as f64 / total as f64 },
        }
    };
    let mut rows: Vec<HopRow> = merged.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::queues::Queues;
    use crate::model::Model;
    use crate::model::topology::Topology;
    use crate::trace::rdma::{RdmaBirth, RdmaEntry, RdmaPost};
    use crate::trace::record::{Record, Window};

    const FILE: &str = "[[rack]]\nname = \"A\"\ncidrs = [\"10.0.1.0/24\"]\n\
        [[rack]]\nname = \"B\"\ncidrs = [\"10.0.2.0/24\"]\n";

    /// Queue pair 5 leads to 10.0.2.9, number 6 to 10.0.1.9, each with three single requests of 100 ns and a pair at once.
    fn records() -> Vec<Record> {
        let mut records = vec![Record::Window(Window { start_ns: 1000, end_ns: 10_000, min_stall_ns: 0 })];
        for (qp, peer) in [(5, "::ffff:10.0.2.9"), (6, "::ffff:10.0.1.9")] {
            records.push(Record::RdmaBirth(RdmaBirth { time_ns: 1000, pid: 1, qp }));
            let part = RdmaPeer { time_ns: 1, pid: 1, qp, ..RdmaPeer::default() };
            let local_gid = Some("::ffff:10.0.1.1".parse().unwrap());
            let peer_gid = Some(peer.parse().unwrap());
            records.push(Record::RdmaPeer(RdmaPeer { peer_gid, local_gid, ..part.clone() }));
            records.push(Record::RdmaPeer(RdmaPeer { time_ns: 2, peer_qp: Some(70 + qp), ..part }));
            for (post_ns, done_ns) in [(2000, 2100), (3000, 3100), (4000, 4100), (5000, 5300), (5000, 5400)] {
                let post =
                    RdmaPost { time_ns: post_ns, pid: 1, qp, bytes: 64, flags: 2, ..RdmaPost::default() };
                let done = RdmaEntry { time_ns: done_ns, pid: 1, qp, ..RdmaEntry::default() };
                records.extend([Record::RdmaPost(post), Record::RdmaEntry(done)]);
            }
        }
        records
    }

    fn queues(topology: Option<&str>) -> Queues {
        let model = Model::from_records(records());
        let places = Places::new(&model, topology.map(|text| Topology::parse(text).unwrap()));
        Queues::new(&model, &places)
    }

    #[test]
    fn a_queue_pair_has_its_peer_and_with_a_topology_its_rack() {
        let place = |topology| -> Vec<_> {
            let rows = queues(topology).rows();
            rows.into_iter().map(|row| (row.peer_gid.unwrap(), row.peer_qp, row.rack, row.relation)).collect()
        };
        let (far, near) = ("::ffff:10.0.2.9".to_owned(), "::ffff:10.0.1.9".to_owned());
        let rack = |name: &str| Some(name.to_owned());
        assert_eq!(
            place(Some(FILE)),
            [
                (far.clone(), Some(75), rack("B"), "cross-rack".to_owned()),
                (near.clone(), Some(76), rack("A"), "same-rack".to_owned())
            ]
        );
        let unknown = || "unknown".to_owned();
        assert_eq!(place(None), [(far, Some(75), None, unknown()), (near, Some(76), None, unknown())]);
    }

    #[test]
    fn hops_have_times_of_single_requests_and_all_bytes() {
        let hops = queues(Some(FILE)).hops();
        let row = |hop: &HopRow| (hop.peer.clone(), hop.relation.clone(), hop.rtt.count, hop.bytes);
        assert_eq!(
            hops.iter().map(row).collect::<Vec<_>>(),
            [
                ("10.0.1.9".to_owned(), "same-rack".to_owned(), 4, 320),
                ("10.0.2.9".to_owned(), "cross-rack".to_owned(), 4, 320)
            ]
        );
        let hop = &hops[0];
        assert_eq!((hop.rtt.p50_ns, hop.rtt.max_ns, hop.share_of_bytes), (100, 300, 0.5));
        assert_eq!((hop.transport.as_str(), hop.relation_evidence.as_str()), ("rdma", "topology"));
    }
}
