//! `net.*`: one peer that is waited for more than others, and hops between racks ([`super::net_racks`]).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::far_side::FarSide;
use super::text::{ip_of, list, time};
use super::{Scene, Weight, finding, late_rank, nanos, net_hosts, net_racks, net_silent};
use crate::analysis::report::{Finding, Severity};
use crate::model::cause::Cause;

pub(super) fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let mut findings = slow_peers(scene);
    late_rank::find(scene, &mut findings);
    net_silent::find(scene, &mut findings);
    net_hosts::add_slow_hosts(scene, &mut findings);
    findings.extend(net_racks::find(scene));
    findings
}

/// Waiting of one thread for data of one peer.
#[derive(Clone, Copy, Default)]
struct Wait {
    stalled_ns: u64,
    waits: u64,
    in_flight: u64,
}

/// What the threads that wait mostly for one peer have in common.
#[derive(Default)]
struct SlowPeer {
    stalled_ns: u64,
    /// Waiting of the same threads for data of other peers.
    others_ns: u64,
    next_ns: u64,
    peers: usize,
    in_flight: u64,
    waits: u64,
    threads: Vec<(u32, u32)>,
    wall_ns: u64,
}

fn slow_peers(scene: &Scene<'_>) -> Vec<Finding> {
    let mut threads: BTreeMap<(u32, u32), Vec<(&str, Wait)>> = BTreeMap::new();
    for row in scene.report.sockets.iter().filter(|row| row.direction == "recv") {
        // Local sockets have no far end that could be slow.
        if ip_of(&row.peer).is_some() {
            let wait = Wait { stalled_ns: row.stalled_ns, waits: row.waits, in_flight: row.in_flight };
            threads.entry((row.pid, row.tid)).or_default().push((&row.peer, wait));
        }
    }
    let walls: BTreeMap<(u32, u32), u64> =
        scene.report.threads.iter().map(|row| ((row.pid, row.tid), row.wall_ns)).collect();
    let mut found: BTreeMap<Peer, SlowPeer> = BTreeMap::new();
    for (thread, rows) in threads {
        let wall_ns = walls.get(&thread).copied().unwrap_or(scene.window_ns());
        let Some((peers, worst)) = worst_peer(scene, thread.0, wall_ns, &rows) else { continue };
        let Wait { stalled_ns, waits, in_flight } = peers.get(&worst.peer).copied().unwrap_or_default();
        let total: u64 = peers.values().map(|wait| wait.stalled_ns).sum();
        let slow = found.entry(worst.peer).or_default();
        slow.stalled_ns += stalled_ns;
        slow.others_ns += total - stalled_ns;
        slow.next_ns = slow.next_ns.max(worst.next_ns);
        slow.peers = slow.peers.max(peers.len());
        slow.in_flight += in_flight;
        slow.waits += waits;
        slow.wall_ns += wall_ns;
        slow.threads.push(thread);
    }
    found.iter().filter_map(|(peer, slow)| slow_peer(scene, peer, slow)).collect()
}

/// What a thread waits for: a connection, or all those that lead to one host or one recorded process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Peer {
    /// `ip:port`, or the address alone.
    name: String,
    /// The process, where it is recorded.
    end: Option<u32>,
}

struct Worst {
    peer: Peer,
    next_ns: u64,
}

/// The peer that stands out, among the peers that it was compared with.
fn worst_peer(
    scene: &Scene<'_>,
    pid: u32,
    wall_ns: u64,
    rows: &[(&str, Wait)],
) -> Option<(BTreeMap<Peer, Wait>, Worst)> {
    let host = |peer: &str| ip_of(peer).map_or_else(String::new, |ip| ip.to_string());
    let end = |peer: &str| scene.surroundings.far_ends.get(pid, peer).map(|end| end.pid);
    // Several connections to one recorded process are one peer; its connection, if there is one alone, names it.
    let mut connections: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    for (peer, _) in rows {
        connections.entry(end(peer).unwrap_or(0)).or_default().insert(peer);
    }
    let by_end = sum(rows, |peer| {
        let end = end(peer);
        let many = end.and_then(|end| connections.get(&end)).is_some_and(|peers| peers.len() > 1);
        Peer { name: if many { host(peer) } else { peer.to_owned() }, end }
    });
    // Connections to one host may be many.
    let by_host = sum(rows, |peer| Peer { name: host(peer), end: None });
    // With one host alone there is nothing to compare with; several processes there are several peers.
    let hosts_count = by_host.len() > 1 || by_end.keys().all(|peer| peer.end.is_none());
    let alternatives = [Some(by_end), Some(by_host).filter(|_| hosts_count)];
    alternatives.into_iter().flatten().find_map(|peers| {
        let worst = stands_out(scene, wall_ns, &peers)?;
        Some((peers, worst))
    })
}

fn sum(rows: &[(&str, Wait)], key: impl Fn(&str) -> Peer) -> BTreeMap<Peer, Wait> {
    let mut sums: BTreeMap<Peer, Wait> = BTreeMap::new();
    for (peer, wait) in rows {
        let sum = sums.entry(key(peer)).or_default();
        sum.stalled_ns += wait.stalled_ns;
        sum.waits += wait.waits;
        sum.in_flight += wait.in_flight;
    }
    sums
}

/// The peer that a thread present for `wall_ns` waits for far more than for any other, and the time for the next
/// one.
fn stands_out(scene: &Scene<'_>, wall_ns: u64, peers: &BTreeMap<Peer, Wait>) -> Option<Worst> {
    let limits = &scene.thresholds.net;
    let mut ordered: Vec<(&Peer, u64)> = peers.iter().map(|(peer, wait)| (peer, wait.stalled_ns)).collect();
    ordered.sort_by_key(|(peer, stalled)| (std::cmp::Reverse(*stalled), *peer));
    let (worst, stalled_ns) = ordered.first().copied()?;
    let next_ns = ordered.get(1).map_or(0, |(_, stalled)| *stalled);
    let total: u64 = ordered.iter().map(|(_, stalled)| *stalled).sum();
    let large = stalled_ns >= nanos(limits.slow_peer_stall)
        && stalled_ns as f64 >= limits.slow_peer_share * wall_ns as f64
        && stalled_ns as f64 >= limits.slow_peer_part * total as f64;
    let leads = stalled_ns as f64 >= limits.slow_peer_lead * next_ns as f64;
    (large && leads).then(|| Worst { peer: worst.clone(), next_ns })
}

/// `rank1, rank2 (pid 7, 8) wait`.
fn who_waits(scene: &Scene<'_>, threads: &[(u32, u32)]) -> String {
    let rows = scene.report.threads.iter().filter(|row| threads.contains(&(row.pid, row.tid)));
    let names: BTreeSet<&str> = rows.map(|row| row.name.as_str()).filter(|name| !name.is_empty()).collect();
    let pids: BTreeSet<u32> = threads.iter().map(|(pid, _)| *pid).collect();
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let many = threads.len() > 1;
    let who = match (names.is_empty(), many) {
        (false, _) => list(names),
        (true, false) => "one thread".to_string(),
        (true, true) => format!("{} threads", threads.len()),
    };
    let pids = list(pids.iter().map(String::as_str));
    format!("{who} (pid {pids}) {}", if many { "wait" } else { "waits" })
}

/// The other end, if it is the same recorded process for all threads.
fn far_side<'a>(scene: &Scene<'a>, peer: &Peer, slow: &SlowPeer) -> Option<FarSide<'a>> {
    let (pid, _) = slow.threads.first()?;
    let ends = &scene.surroundings.far_ends;
    let same = || {
        let end = |pid: u32| ends.get(pid, &peer.name).map(|end| end.pid);
        slow.threads.iter().all(|(other, _)| end(*other) == end(*pid))
    };
    let end = match peer.end {
        Some(end) => ends.of_process(*pid, end)?,
        None => ends.get(*pid, &peer.name).filter(|_| same())?,
    };
    let each = slow.stalled_ns / slow.threads.len().max(1) as u64;
    FarSide::of(scene, *pid, end, each)
}

/// From this side a late sender and a slow wire look the same, and with a single peer there is nothing to
/// compare with: the finding says no more than that, unless the peer is in the recording too.
fn slow_peer(scene: &Scene<'_>, peer: &Peer, slow: &SlowPeer) -> Option<Finding> {
    let compared = slow.peers > 1;
    let far = far_side(scene, peer, slow);
    if !compared && far.as_ref().is_some_and(FarSide::is_mutual) {
        return None;
    }
    let peer = peer.name.as_str();
    let mut summary = format!(
        "{} for data from {peer}: {} of {}",
        who_waits(scene, &slow.threads),
        time(slow.stalled_ns),
        time(slow.wall_ns)
    );
    if compared {
        summary.push_str(&format!(", at most {} for any other peer", time(slow.next_ns)));
    } else {
        summary.push_str(", the only peer");
        if far.is_none() {
            summary.push_str(" (nothing to compare with; it may have nothing to say)");
        }
    }
    if slow.in_flight > 0 {
        summary.push_str("; still waiting when the recording stopped");
    }
    match &far {
        Some(far) => summary.push_str(&far.describe()),
        None => summary.push_str(". Whether it sends late or the way is slow cannot be told from this side"),
    }
    let severity = if far.as_ref().map_or(compared, |far| compared || far.is_late()) {
        scene.severity(Weight { lost_ns: slow.stalled_ns, ..Weight::default() })
    } else {
        Severity::Info
    };
    let ip = ip_of(peer).map_or_else(|| peer.to_string(), |ip| ip.to_string());
    let pid = slow.threads.first().map_or(0, |(pid, _)| *pid);
    let beyond = [
        format!("on {ip}: stallscope record --pid PID -d 10s -o peer.stall    # what does it wait for, or is it busy?"),
        format!("nsenter -t {pid} -n ss -tnpi dst {ip}    # rtt, retrans, Recv-Q 0 and a growing lastrcv: the peer sends nothing"),
        "If the peer is idle or waits itself, follow the chain to the rank that computes, loads data or logs while others wait; if it has sent, look at the way between (tcp.retransmits, hops).".to_string(),
    ];
    let advice = far.as_ref().map_or_else(|| beyond.to_vec(), |far| vec![far.advice(scene)]);
    let tids: Vec<u32> = slow.threads.iter().map(|(_, tid)| *tid).take(super::text::LISTED).collect();
    let proof = json!({
        "peer": peer,
        "evidence": if far.is_some() { "derived" } else { "inferred" },
        "far_end": far.as_ref().map(FarSide::proof),
        "stalled_ns": slow.stalled_ns,
        "thread_wall_ns": slow.wall_ns,
        "other_peers_ns": slow.others_ns,
        "next_peer_ns": slow.next_ns,
        "peers": slow.peers,
        "waits": slow.waits,
        "in_flight": slow.in_flight,
        "pid": pid,
        "tids": tids,
    });
    Some(finding("net.slow_peer", severity, Cause::SockRecv, slow.stalled_ns, summary, proof, &advice))
}
