//! `nccl.late_rank`: a recorded process that others wait for while it waits for nobody. Where ranks are not known it is
//! `net.slow_peer`.

use serde_json::{Value, json};

use super::text::{LISTED, time};
use super::{Scene, Weight, finding, nanos};
use crate::analysis::late::Lateness;
use crate::analysis::report::{Finding, ThreadRow};
use crate::model::cause::Cause;

const LATE_RANK: &str = "nccl.late_rank";
const SLOW_PEER: &str = "net.slow_peer";

/// One who waits.
struct Waiter {
    pid: u32,
    lateness: Lateness,
    /// The same in the other direction.
    back: Lateness,
}

/// Every process that is late. What `findings` say of the same waiting is taken out: this one knows more.
pub(super) fn find(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let late = scene.surroundings.late;
    let mut found = Vec::new();
    for (pid, waiters) in late.by_late() {
        let waiters: Vec<Waiter> = waiters
            .into_iter()
            .map(|(waits, lateness)| Waiter { pid: waits, lateness, back: late.get(pid, waits) })
            .filter(|waiter| is_late(scene, waiter))
            .collect();
        if waiters.is_empty() {
            continue;
        }
        let mut late = late_process(scene, pid, &waiters);
        let about = findings.iter().find(|finding| is_about(finding, pid, &waiters));
        if let Some(peer) = about.and_then(|one| one.proof.get("peer")) {
            late.proof.insert("peer".to_owned(), peer.clone());
        }
        findings.retain(|finding| !is_about(finding, pid, &waiters));
        found.push(late);
    }
    findings.extend(found);
}

/// The waiting is long, most of it was the other's to end, and the other one did not wait for as long in turn.
fn is_late(scene: &Scene<'_>, waiter: &Waiter) -> bool {
    let limits = &scene.thresholds.net;
    let Lateness { waited_ns, late_ns } = waiter.lateness;
    late_ns >= nanos(limits.slow_peer_stall)
        && scene.share(late_ns) >= limits.slow_peer_share
        && late_ns as f64 >= limits.slow_peer_part * waited_ns as f64
        && late_ns as f64 >= limits.slow_peer_lead * waiter.back.late_ns as f64
        && late_ns as f64 >= limits.slow_peer_lead / 2.0 * waiter.back.waited_ns as f64
}

fn is_about(finding: &Finding, late: u32, waiters: &[Waiter]) -> bool {
    let number = |value: Option<&Value>| value.and_then(Value::as_u64);
    let far = finding.proof.get("far_end").and_then(|end| end.get("pid"));
    let of = number(finding.proof.get("pid"));
    finding.id == SLOW_PEER
        && number(far) == Some(u64::from(late))
        && waiters.iter().any(|waiter| of == Some(u64::from(waiter.pid)))
}

fn rank_of(scene: &Scene<'_>, pid: u32) -> Option<u32> {
    scene.report.target.ranks.iter().find(|row| row.pid == pid).and_then(|row| row.rank)
}

fn uses_nccl(scene: &Scene<'_>, pid: u32) -> bool {
    scene
        .surroundings
        .environment
        .iter()
        .any(|entry| entry.what == "libnccl" && (entry.pid == 0 || entry.pid == pid))
}

/// `rank 1 (pid 537)`, `python3 (pid 537)`.
fn name(scene: &Scene<'_>, pid: u32) -> String {
    if let Some(rank) = rank_of(scene, pid) {
        return format!("rank {rank} (pid {pid})");
    }
    let row = scene.report.threads.iter().find(|row| row.pid == pid && row.tid == pid);
    match row.map(|row| row.name.as_str()).filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} (pid {pid})"),
        None => format!("pid {pid}"),
    }
}

fn late_process(scene: &Scene<'_>, pid: u32, waiters: &[Waiter]) -> Finding {
    let ranks_known =
        rank_of(scene, pid).is_some() && waiters.iter().all(|w| rank_of(scene, w.pid).is_some());
    let id = if ranks_known && uses_nccl(scene, pid) { LATE_RANK } else { SLOW_PEER };
    let most = waiters.iter().max_by_key(|waiter| waiter.lateness.late_ns);
    let (late_ns, waited_ns) =
        most.map_or((0, 0), |waiter| (waiter.lateness.late_ns, waiter.lateness.waited_ns));
    let back_ns = waiters.iter().map(|waiter| waiter.back.waited_ns).max().unwrap_or(0);
    let stalled_ns = waiters.iter().map(|waiter| waiter.lateness.late_ns).fold(0, u64::saturating_add);
    let mut who: Vec<String> = waiters.iter().take(LISTED).map(|waiter| name(scene, waiter.pid)).collect();
    if waiters.len() > LISTED {
        who.push(format!("{} more", waiters.len() - LISTED));
    }
    let main = busiest(scene, pid);
    let did = main.map_or_else(String::new, |row| {
        format!(
            ". Its busiest thread {} (tid {}) ran for {} and slept or waited for work for {} of {}",
            row.name,
            row.tid,
            time(row.running_ns),
            time(row.idle_ns.saturating_add(row.other_ns)),
            time(row.wall_ns)
        )
    });
    let summary = format!(
        "{} is late: {} waited {} for its data, in {} of which it waited for nobody; it waited {} for them{did}",
        name(scene, pid),
        who.join(", "),
        time(waited_ns),
        time(late_ns),
        time(back_ns),
    );
    let advice = advice(scene, pid, main);
    let pids: Vec<u32> = waiters.iter().map(|waiter| waiter.pid).take(LISTED).collect();
    let proof = json!({
        "evidence": "derived",
        "rank": rank_of(scene, pid),
        "late_pid": pid,
        "late_ns": late_ns,
        "waited_ns": waited_ns,
        "waited_back_ns": back_ns,
        "waiting_pids": pids,
        "waiting_ranks": pids.iter().map(|pid| rank_of(scene, *pid)).collect::<Vec<_>>(),
        "pid": waiters.first().map(|waiter| waiter.pid),
        "far_end": main.map(|row| json!({
            "pid": pid, "tid": row.tid, "comm": row.name, "running_ns": row.running_ns, "idle_ns": row.idle_ns,
        })),
    });
    let severity = scene.severity(Weight { lost_ns: late_ns, ..Weight::default() });
    finding(id, severity, Cause::SockRecv, stalled_ns, summary, proof, &advice)
}

/// The thread that does the work.
fn busiest<'a>(scene: &Scene<'a>, pid: u32) -> Option<&'a ThreadRow> {
    let threads = scene.report.threads.iter().filter(|row| row.pid == pid);
    threads.max_by_key(|row| (row.running_ns, row.tid == pid))
}

fn advice(scene: &Scene<'_>, pid: u32, main: Option<&ThreadRow>) -> Vec<String> {
    let tid = main.map_or(pid, |row| row.tid);
    vec![
        super::far_side::dump(scene, pid, tid, "what it does before it sends; several times"),
        "Look for what this rank does and the others do not: loading data, logging, a checkpoint, a slower GPU, other programs on its CPUs; several recordings tell whether it is always the same rank.".to_owned(),
    ]
}
