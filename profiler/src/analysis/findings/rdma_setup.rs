//! Registrations of memory that take long, and ports that went down.

use serde_json::json;

use super::{Scene, Weight, finding};
use crate::analysis::rdma_setup::{OperationRow, RdmaSetupSection};
use crate::analysis::report::{Finding, Severity};
use crate::model::cause::Cause;
use crate::render::unit::{bytes, duration, percent, plural};

pub(super) fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let Some(section) = &scene.report.rdma_setup else { return Vec::new() };
    let rows = section.operations.iter().filter(|row| row.op.starts_with("register"));
    let slow = rows.filter_map(|row| registration_slow(scene, section, row));
    slow.chain(port_event(section)).collect()
}

/// What takes most of the time, and what to do about it.
fn part_of(scene: &Scene<'_>, row: &OperationRow) -> (&'static str, Cause, &'static str) {
    let least = scene.thresholds.rdma.registration_part;
    if row.pin_share >= least {
        (
            "pinning pages",
            Cause::DmaMap,
            "Register fewer and larger regions once and keep them (NCCL: NCCL_LOCAL_REGISTER, UCX: its registration cache), \
             back them by huge pages, and touch them before: pages that are not there yet are made while they are pinned.",
        )
    } else if row.command_share >= least {
        (
            "the device's commands",
            Cause::RdmaSetup,
            "See whether the firmware is busy with the set-up of others at the same time (rdma_setup.commands: queued_ns), and \
             register larger regions with fewer calls.",
        )
    } else {
        (
            "neither pinning nor the device alone",
            Cause::RdmaSetup,
            "Look at the rows of rdma_setup for this process, and at running_ns and runq_ns: a thread that gets no processor \
             registers slowly.",
        )
    }
}

/// A process that spends its time on making memory known to the adapter.
fn registration_slow(scene: &Scene<'_>, section: &RdmaSetupSection, row: &OperationRow) -> Option<Finding> {
    if !scene.counts(row.total_ns, scene.thresholds.rdma.registration_stall) {
        return None;
    }
    let (what, cause, advice) = part_of(scene, row);
    let calls = row.calls.saturating_add(row.in_flight);
    let largest =
        section.slowest.iter().filter(|one| one.pid == row.pid).map(|one| one.bytes).max().unwrap_or(0);
    let summary = format!(
        "Process {} waited {} for {} of memory ({} in all): {} of it is pinning and {} the device; most is {what}.",
        row.pid,
        duration(row.total_ns),
        plural(calls, "registration"),
        bytes(row.bytes),
        percent(row.pin_share),
        percent(row.command_share),
    );
    let proof = json!({
        "pid": row.pid, "op": row.op, "registrations": calls, "failed": row.failed, "in_flight": row.in_flight,
        "bytes": row.bytes, "largest_bytes": largest, "total_ns": row.total_ns, "p50_ns": row.duration.p50_ns,
        "p99_ns": row.duration.p99_ns, "pin_ns": row.pin_ns, "pin_share": row.pin_share, "command_ns": row.command_ns,
        "command_share": row.command_share, "queued_ns": row.queued_ns, "running_ns": row.running_ns,
        "runq_ns": row.runq_ns, "evidence": "measured.kernel",
    });
    let weight = Weight { lost_ns: row.total_ns, ..Weight::default() };
    let id = "rdma.registration_slow";
    Some(finding(id, scene.severity(weight), cause, row.total_ns, summary, proof, &[advice.to_owned()]))
}

/// A port or device of the machine that went away or came back.
fn port_event(section: &RdmaSetupSection) -> Option<Finding> {
    let down: Vec<_> = section
        .events
        .iter()
        .filter(|event| matches!(event.event.as_str(), "PORT_ERR" | "DEVICE_FATAL" | "HEALTH"))
        .collect();
    let first = down.first()?;
    let came_back = section.events.iter().filter(|event| event.event == "PORT_ACTIVE").count();
    let summary = format!(
        "{} of RDMA devices or ports of this machine during the recording, the first {} of port {}; ports came back {}.",
        plural(down.len() as u64, "failure"),
        first.event,
        first.port,
        plural(came_back as u64, "time"),
    );
    let proof = json!({ "events": section.events, "evidence": "measured.kernel" });
    let advice = "Look at the kernel's log of that time (dmesg -T | grep -iE 'mlx5|infiniband|link'), at the cable, and at the \
                  switch's port.";
    let severity = if came_back == 0 { Severity::Critical } else { Severity::Warning };
    Some(finding("rdma.port_event", severity, Cause::RdmaRetry, 0, summary, proof, &[advice.to_owned()]))
}
