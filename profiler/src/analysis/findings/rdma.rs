//! Queue pairs whose requests wait for each other, and requests that failed.

use serde_json::json;

use super::{Scene, Weight, finding, nanos};
use crate::analysis::queues::QueueRow;
use crate::analysis::report::Finding;
use crate::model::cause::Cause;
use crate::render::unit::duration;

pub(super) fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let rows = scene.report.queues.iter();
    rows.flat_map(|row| [queue_bound(scene, row), failed(scene, row, &RETRY), failed(scene, row, &RNR)])
        .flatten()
        .collect()
}

fn name(row: &QueueRow) -> String {
    let device = if row.device.is_empty() { "an unknown device" } else { &row.device };
    format!("queue pair {} of {device} (pid {})", row.qp, row.pid)
}

/// Most of a request's time is waiting behind others of its queue pair.
fn queue_bound(scene: &Scene<'_>, row: &QueueRow) -> Option<Finding> {
    let limits = &scene.thresholds.rdma;
    let wire_ns = row.wire_ns?;
    let queued_ns = scene
        .surroundings
        .queues
        .iter()
        .filter(|queue| queue.pid == row.pid && queue.row.qp == row.qp)
        .flat_map(|queue| &queue.times)
        .filter(|time| time.cause == Cause::RdmaQueue)
        .map(|time| time.ns)
        .fold(0, u64::saturating_add);
    let long = row.queue.p50_ns as f64 >= limits.queue_ratio * wire_ns as f64;
    if !long || row.queue.count < limits.queue_requests || !scene.counts(queued_ns, limits.queue_stall) {
        return None;
    }
    let summary = format!(
        "{}: half of the requests waited {} or longer behind others before they left, where the wire and the peer take \
         {}; up to {} were outstanding.",
        name(row),
        duration(row.queue.p50_ns),
        duration(wire_ns),
        row.max_depth
    );
    let proof = json!({
        "device": row.device, "qp": row.qp, "pid": row.pid, "queue_p50_ns": row.queue.p50_ns,
        "queue_p99_ns": row.queue.p99_ns, "transmit_p50_ns": row.transmit.p50_ns, "wire_ns": wire_ns,
        "max_depth": row.max_depth, "requests": row.queue.count, "queued_ns": queued_ns,
    });
    let advice = [
        "Spread the load over more queue pairs or rails (NCCL: NCCL_IB_QPS_PER_CONNECTION, NCCL_IB_HCA), or make \
         requests fewer and larger."
            .to_owned(),
        "If transmit is well above size / link rate, the link itself is the limit: look at the counters \
         port_xmit_wait and np_cnp_sent of the port."
            .to_owned(),
    ];
    let severity = scene.severity(Weight { lost_ns: queued_ns, ..Weight::default() });
    Some(finding("rdma.queue_bound", severity, Cause::RdmaQueue, queued_ns, summary, proof, &advice))
}

/// An error by which the adapter gives up on the peer.
struct GivenUp {
    id: &'static str,
    status: &'static str,
    what: &'static str,
    advice: &'static str,
}

const RETRY: GivenUp = GivenUp {
    id: "rdma.retry",
    status: "RETRY_EXC_ERR",
    what: "the peer did not answer within all retries",
    advice: "See whether the peer's process and port are alive (ibstat, ibping there), and whether packets are lost on \
             the way: local_ack_timeout_err, packet_seq_err, out_of_sequence in the port's hw_counters.",
};

const RNR: GivenUp = GivenUp {
    id: "rdma.rnr",
    status: "RNR_RETRY_EXC_ERR",
    what: "the peer had no receive posted",
    advice: "Look at the receiving process: it posts too few receives, or stands still.",
};

fn failed(scene: &Scene<'_>, row: &QueueRow, kind: &GivenUp) -> Option<Finding> {
    let count = *row.errors.get(kind.status)?;
    let summary = format!(
        "{}: {count} request{} failed with {}: {}; {} more were flushed with {}.",
        name(row),
        if count == 1 { "" } else { "s" },
        kind.status,
        kind.what,
        row.flushed,
        if count == 1 { "it" } else { "them" },
    );
    let proof = json!({
        "device": row.device, "qp": row.qp, "pid": row.pid, "status": kind.status, "count": count,
        "flushed": row.flushed,
    });
    // The queue pair can do nothing any more until the program sets it up again.
    let weight = Weight {
        failing: true,
        in_flight_ns: nanos(scene.thresholds.general.stuck_for),
        ..Weight::default()
    };
    Some(finding(
        kind.id,
        scene.severity(weight),
        Cause::RdmaRetry,
        0,
        summary,
        proof,
        &[kind.advice.to_owned()],
    ))
}
