//! `net.peer_silent`: a thread that waited for data of one peer for the whole recording, and got none.

use serde_json::{Value, json};

use super::far_side::dump;
use super::text::{ip_of, time};
use super::{Scene, Weight, finding, nanos};
use crate::analysis::report::{Finding, Severity, SocketRow};
use crate::model::cause::Cause;

const SLOW_PEER: &str = "net.slow_peer";
/// Share of a thread's time that one wait has to take.
const WHOLE: f64 = 0.95;
/// Processes that compute less than this share of the recording stand still.
const AT_REST: f64 = 0.05;

/// Silent peers. What `findings` say of the same thread and peer is taken out.
pub(super) fn find(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let mut found = Vec::new();
    for row in scene.report.sockets.iter().filter(|row| is_silent(scene, row)) {
        findings.retain(|finding| !is_same(finding, row));
        found.push(silent(scene, row));
    }
    findings.extend(found);
}

/// Says less of the same: this thread alone, the same peer by its address, nothing known of the other end.
fn is_same(finding: &Finding, row: &SocketRow) -> bool {
    let proof = |name: &str| finding.proof.get(name);
    let peer = proof("peer").and_then(Value::as_str).and_then(ip_of);
    finding.id == SLOW_PEER
        && proof("pid").and_then(Value::as_u64) == Some(u64::from(row.pid))
        && proof("tids") == Some(&json!([row.tid]))
        && peer.is_some()
        && peer == ip_of(&row.peer)
        && proof("far_end").is_none_or(Value::is_null)
}

/// One wait takes all of the thread's time, and had not ended.
fn is_silent(scene: &Scene<'_>, row: &SocketRow) -> bool {
    let of_thread = |wall: u64| row.duration.max_ns as f64 >= WHOLE * wall as f64;
    let mut threads = scene.report.threads.iter();
    row.direction == "recv"
        && row.in_flight > 0
        && row.longest_ns >= nanos(scene.thresholds.general.stuck_for)
        && ip_of(&row.peer).is_some()
        && threads.any(|thread| thread.tid == row.tid && thread.pid == row.pid && of_thread(thread.wall_ns))
}

/// Whether the whole process computes nothing meanwhile; a thread that waits for commands beside one that works is
/// no hang.
fn is_at_rest(scene: &Scene<'_>, pid: u32) -> bool {
    let threads = scene.report.threads.iter().filter(|row| row.pid == pid);
    let running_ns = threads.map(|row| row.running_ns).fold(0, u64::saturating_add);
    scene.share(running_ns) < AT_REST
}

fn silent(scene: &Scene<'_>, row: &SocketRow) -> Finding {
    let queue = scene.surroundings.socket_queues.get(row.pid, &row.peer);
    let end = scene.surroundings.far_ends.get(row.pid, &row.peer);
    let rank =
        |pid: u32| scene.report.target.ranks.iter().find(|row| row.pid == pid).and_then(|row| row.rank);
    let named = |pid: u32, comm: &str| match rank(pid) {
        Some(rank) => format!("rank {rank} ({comm}, pid {pid})"),
        None => format!("{comm} (pid {pid})"),
    };
    let comm = scene.report.threads.iter().find(|thread| thread.tid == row.tid).map_or("", |row| &row.name);
    let bound = if row.began_earlier { "at least " } else { "" };
    let mut summary = format!(
        "{} has waited {bound}{} for data from {} and got none in the whole recording",
        named(row.pid, comm),
        time(row.longest_ns),
        row.peer
    );
    if let Some(queue) = queue {
        summary.push_str(&format!(
            ". The connection held {} B unread and {} B that the peer has not acknowledged",
            queue.receive_queue, queue.send_queue
        ));
        if queue.last_receive_age_ns > 0 {
            summary
                .push_str(&format!("; the peer's last data came {} before", time(queue.last_receive_age_ns)));
        }
    }
    let back = end.and_then(|end| waits_back(scene, end.pid, row.pid));
    match (end, back) {
        (Some(end), Some(ns)) => summary.push_str(&format!(
            ". The other end is {}, recorded too: it waits for data of this one in turn, {}: both wait for each other",
            named(end.pid, &end.comm),
            time(ns)
        )),
        (Some(end), None) => {
            summary.push_str(&format!(". The other end is {}, recorded too", named(end.pid, &end.comm)));
        }
        (None, _) => summary.push_str(". The other end was not recorded: whether it hangs, or has nothing to say, is to be seen there"),
    }
    let at_rest = is_at_rest(scene, row.pid);
    let lost_ns = row.stalled_ns;
    let severity = if at_rest || back.is_some() {
        scene.severity(Weight { lost_ns, failing: true, in_flight_ns: row.longest_ns })
    } else {
        // Others of its threads work: it may wait for commands.
        Severity::Info
    };
    // That it never answers is not known.
    let severity = if back.is_some() { severity } else { severity.max(Severity::Warning) };
    let proof = json!({
        "peer": row.peer,
        "direction": row.direction,
        "age_ns": row.longest_ns,
        "began_earlier": row.began_earlier,
        "evidence": if end.is_some() { "derived" } else { "inferred" },
        "process_at_rest": at_rest,
        "receive_queue": queue.map(|queue| queue.receive_queue),
        "send_queue": queue.map(|queue| queue.send_queue),
        "last_receive_age_ns": queue.map(|queue| queue.last_receive_age_ns),
        "far_end": end.map(|end| json!({"pid": end.pid, "comm": end.comm, "rank": rank(end.pid), "waits_back_ns": back})),
        "rank": rank(row.pid),
        "pid": row.pid,
        "tid": row.tid,
        "stalled_ns": row.stalled_ns,
    });
    finding(
        "net.peer_silent",
        severity,
        Cause::SockRecv,
        row.stalled_ns,
        summary,
        proof,
        &advice(scene, row, end.map(|end| end.pid)),
    )
}

/// The wait of the other process for this one that had not ended either.
fn waits_back(scene: &Scene<'_>, end: u32, pid: u32) -> Option<u64> {
    let rows = scene.report.sockets.iter().filter(|row| {
        row.pid == end
            && row.in_flight > 0
            && row.direction == "recv"
            && scene.surroundings.far_ends.get(end, &row.peer).is_some_and(|other| other.pid == pid)
    });
    rows.filter(|row| is_silent(scene, row)).map(|row| row.longest_ns).max()
}

fn advice(scene: &Scene<'_>, row: &SocketRow, end: Option<u32>) -> Vec<String> {
    let (pid, tid) = (row.pid, row.tid);
    let ip = ip_of(&row.peer).map_or_else(|| row.peer.clone(), |ip| ip.to_string());
    let mut lines = vec![
        dump(scene, pid, tid, "what asked for the data"),
        format!(
            "nsenter -t {pid} -n ss -tnpoi dst {ip}    # lastrcv, Recv-Q, timers: does the peer's host still acknowledge?"
        ),
    ];
    match end {
        Some(end) => lines.push(dump(scene, end, end, "the other end: what keeps it from sending")),
        None => lines.push(format!("on {ip}: ss -tnpo; stallscope record --pid PID -d 10s -o peer.stall    # is the process there, and what does it wait for?")),
    }
    lines
}
