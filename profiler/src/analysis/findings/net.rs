//! `net.*`: one peer that is waited for more than others, and hops between racks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::json;

use super::far_side::FarSide;
use super::text::{ip_of, list, time};
use super::{Scene, Weight, finding, nanos};
use crate::analysis::report::{Finding, HopRow, Severity};
use crate::model::cause::Cause;

pub(super) fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let mut findings = slow_peers(scene);
    findings
        .extend(cross_rack_time(scene, "net.cross_rack_latency", "round-trip time", |hop| hop.rtt.p50_ns));
    findings.extend(cross_rack_time(scene, "net.cross_rack_jitter", "jitter", |hop| hop.jitter_ns));
    findings.extend(cross_rack_share(scene));
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
    let mut found: BTreeMap<String, SlowPeer> = BTreeMap::new();
    for (thread, rows) in threads {
        let wall_ns = walls.get(&thread).copied().unwrap_or(scene.window_ns());
        let by_port = sum(&rows, ToString::to_string);
        let by_host = sum(&rows, |peer| ip_of(peer).map_or_else(String::new, |ip| ip.to_string()));
        // Connections to one host may be many.
        let worst = stands_out(scene, wall_ns, &by_port)
            .or_else(|| stands_out(scene, wall_ns, &by_host).filter(|_| by_host.len() > 1));
        if let Some((peer, next_ns, peers)) = worst {
            let all = if by_port.contains_key(&peer) { &by_port } else { &by_host };
            let Wait { stalled_ns, waits, in_flight } = all.get(&peer).copied().unwrap_or_default();
            let total: u64 = all.values().map(|wait| wait.stalled_ns).sum();
            let slow = found.entry(peer).or_default();
            slow.stalled_ns += stalled_ns;
            slow.others_ns += total - stalled_ns;
            slow.next_ns = slow.next_ns.max(next_ns);
            slow.peers = slow.peers.max(peers);
            slow.in_flight += in_flight;
            slow.waits += waits;
            slow.wall_ns += wall_ns;
            slow.threads.push(thread);
        }
    }
    found.iter().map(|(peer, slow)| slow_peer(scene, peer, slow)).collect()
}

fn sum(rows: &[(&str, Wait)], key: impl Fn(&str) -> String) -> BTreeMap<String, Wait> {
    let mut sums: BTreeMap<String, Wait> = BTreeMap::new();
    for (peer, wait) in rows {
        let sum = sums.entry(key(peer)).or_default();
        sum.stalled_ns += wait.stalled_ns;
        sum.waits += wait.waits;
        sum.in_flight += wait.in_flight;
    }
    sums
}

/// The peer that a thread present for `wall_ns` waits for far more than for any other, the time for the next
/// one, and the number of peers.
fn stands_out(
    scene: &Scene<'_>,
    wall_ns: u64,
    peers: &BTreeMap<String, Wait>,
) -> Option<(String, u64, usize)> {
    let limits = &scene.thresholds.net;
    let mut ordered: Vec<(&String, u64)> = peers.iter().map(|(peer, wait)| (peer, wait.stalled_ns)).collect();
    ordered.sort_by_key(|(peer, stalled)| (std::cmp::Reverse(*stalled), *peer));
    let (worst, stalled_ns) = ordered.first().copied()?;
    let next_ns = ordered.get(1).map_or(0, |(_, stalled)| *stalled);
    let total: u64 = ordered.iter().map(|(_, stalled)| *stalled).sum();
    let large = stalled_ns >= nanos(limits.slow_peer_stall)
        && stalled_ns as f64 >= limits.slow_peer_share * wall_ns as f64
        && stalled_ns as f64 >= limits.slow_peer_part * total as f64;
    let leads = stalled_ns as f64 >= limits.slow_peer_lead * next_ns as f64;
    (large && leads).then(|| (worst.clone(), next_ns, ordered.len()))
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
fn far_side<'a>(scene: &Scene<'a>, peer: &str, slow: &SlowPeer) -> Option<FarSide<'a>> {
    let (pid, _) = slow.threads.first()?;
    let ends = &scene.surroundings.far_ends;
    let end = |pid: u32| ends.get(pid, peer).map(|end| end.pid);
    let same = slow.threads.iter().all(|(other, _)| end(*other) == end(*pid));
    let each = slow.stalled_ns / slow.threads.len().max(1) as u64;
    FarSide::of(scene, *pid, peer, each).filter(|_| same)
}

/// From this side a late sender and a slow wire look the same, and with a single peer there is nothing to
/// compare with: the finding says no more than that, unless the peer is in the recording too.
fn slow_peer(scene: &Scene<'_>, peer: &str, slow: &SlowPeer) -> Finding {
    let compared = slow.peers > 1;
    let far = far_side(scene, peer, slow);
    let mut summary = format!(
        "{} for data from {peer}: {} of {}",
        who_waits(scene, &slow.threads),
        time(slow.stalled_ns),
        time(slow.wall_ns)
    );
    if compared {
        let _ = write!(summary, ", at most {} for any other peer", time(slow.next_ns));
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
    let advice = far.as_ref().map_or_else(|| beyond.to_vec(), |far| vec![far.advice()]);
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
    finding("net.slow_peer", severity, Cause::SockRecv, slow.stalled_ns, summary, proof, &advice)
}

/// Time that threads waited for data of these hosts.
fn waited_for(scene: &Scene<'_>, hops: &[&HopRow]) -> u64 {
    let hosts: BTreeSet<&str> = hops.iter().map(|hop| hop.peer.as_str()).collect();
    let rows = scene.report.sockets.iter().filter(|row| row.direction == "recv");
    rows.filter(|row| ip_of(&row.peer).is_some_and(|ip| hosts.contains(ip.to_string().as_str())))
        .map(|row| row.stalled_ns)
        .sum()
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// Hops across racks against hops inside the rack, where threads wait for the former.
fn cross_rack_time(
    scene: &Scene<'_>,
    id: &str,
    what: &str,
    value: impl Fn(&HopRow) -> u64,
) -> Option<Finding> {
    let limits = &scene.thresholds.net;
    let of = |relation: &str| -> Vec<&HopRow> {
        let hops = scene.report.hops.iter();
        hops.filter(|hop| hop.relation == relation && hop.rtt.count >= limits.cross_rack_samples).collect()
    };
    let (far, near) = (of("cross-rack"), of("same-rack"));
    if far.is_empty() || near.is_empty() {
        return None;
    }
    let far_ns = median(far.iter().map(|hop| value(hop)).collect());
    let near_ns = median(near.iter().map(|hop| value(hop)).collect());
    let stalled_ns = waited_for(scene, &far);
    let apart = far_ns as f64 >= limits.cross_rack_ratio * near_ns as f64
        && far_ns.saturating_sub(near_ns) >= nanos(limits.cross_rack_rtt);
    if !apart || !scene.counts(stalled_ns, limits.slow_peer_stall) {
        return None;
    }
    let peers: Vec<&str> = far.iter().map(|hop| hop.peer.as_str()).collect();
    let summary = format!(
        "{what} across racks is {} against {} inside the rack ({}); {} waited for those peers",
        time(far_ns),
        time(near_ns),
        list(peers.iter().copied()),
        time(stalled_ns)
    );
    let evidence = far.first().map_or("", |hop| hop.relation_evidence.as_str());
    let proof = json!({
        "cross_rack_ns": far_ns,
        "same_rack_ns": near_ns,
        "cross_rack_peers": peers.iter().take(super::text::LISTED).collect::<Vec<_>>(),
        "cross_rack_hops": far.len(),
        "same_rack_hops": near.len(),
        "relation_evidence": evidence,
        "stalled_ns": stalled_ns,
    });
    let example = peers.first().copied().unwrap_or("PEER");
    let advice = [
        format!("mtr -n -c 20 --report {example}    # at which hop it grows; the same for a peer of the own rack"),
        "Under load only: the uplinks between the racks are full or overflow (ECN, PFC and drop counters of the spine ports). Idle too: the way is long; check the routing.".to_string(),
        "Order the ranks so that neighbours in the ring share a rack (hostfile or Slurm topology), so that few links cross.".to_string(),
    ];
    let severity = scene.severity(Weight { lost_ns: stalled_ns, ..Weight::default() });
    Some(finding(id, severity, Cause::SockRecv, stalled_ns, summary, proof, &advice))
}

/// Most bytes cross racks, and threads wait for those peers.
fn cross_rack_share(scene: &Scene<'_>) -> Option<Finding> {
    let limits = &scene.thresholds.net;
    let known: Vec<&HopRow> =
        scene.report.hops.iter().filter(|hop| hop.relation.ends_with("-rack")).collect();
    let far: Vec<&HopRow> = known.iter().copied().filter(|hop| hop.relation == "cross-rack").collect();
    let bytes = |hops: &[&HopRow]| hops.iter().map(|hop| hop.bytes).fold(0, u64::saturating_add);
    let (total, crossing) = (bytes(&known), bytes(&far));
    let share = if total == 0 { 0.0 } else { crossing as f64 / total as f64 };
    let stalled_ns = waited_for(scene, &far);
    // With no peer in the own rack there is no other way.
    let choice = known.len() > far.len();
    if !choice
        || crossing < limits.cross_rack_bytes
        || share < limits.cross_rack_share
        || !scene.counts(stalled_ns, limits.slow_peer_stall)
    {
        return None;
    }
    let summary = format!(
        "{:.0} % of the bytes to hosts in known racks cross racks ({} of {} peers); {} waited for those peers",
        share * 100.0,
        far.len(),
        known.len(),
        time(stalled_ns)
    );
    let proof = json!({
        "cross_rack_bytes": crossing,
        "bytes": total,
        "share": share,
        "cross_rack_hops": far.len(),
        "hops": known.len(),
        "stalled_ns": stalled_ns,
    });
    let advice = [
        "Order the ranks by rack (hostfile, Slurm --switches or topology plugin) and compare two recordings: stallscope diff BEFORE AFTER.".to_string(),
        "The share depends on the rings and trees that NCCL builds: NCCL_TOPO_DUMP_FILE and NCCL_DEBUG=INFO,GRAPH show them.".to_string(),
    ];
    let severity = scene.severity(Weight { lost_ns: stalled_ns, ..Weight::default() });
    Some(finding("net.cross_rack_share", severity, Cause::SockRecv, stalled_ns, summary, proof, &advice))
}
