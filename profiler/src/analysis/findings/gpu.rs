//! `gpu.launch_bound`, `gpu.underused`, and `nccl.late_rank` as the kernels of all ranks tell it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::text::time;
use super::{Scene, Weight, finding, nanos};
use crate::analysis::gpu::{of_process, span_ns};
use crate::analysis::gpu_kernels::gaps;
use crate::analysis::gpu_ranks::RankTimes;
use crate::analysis::report::{Finding, GpuRow, Severity, ThreadRow};
use crate::model::cause::Cause;
use crate::trace::gpu::{GpuActivity, GpuWhat};

const LATE_RANK: &str = "nccl.late_rank";
/// Losses after which a GPU may have been busy where it seems not to.
const LOSSES: [&str; 3] = ["gpu_ring_full", "gpu_cupti_dropped", "gpu_damaged"];
/// Parts of the time in each of which a device has to do something, to count as one that is in use.
const PARTS: u64 = 10;

pub(super) fn find(scene: &Scene<'_>, known: &[Finding]) -> Vec<Finding> {
    let mut found = late_ranks(scene, known);
    let losses = &scene.report.coverage.losses;
    if LOSSES.iter().any(|what| losses.get(*what).is_some_and(|count| *count > 0)) {
        return found;
    }
    let rows = &scene.report.gpus;
    for row in rows {
        // Processes number devices by themselves: another one's device of this number may be this one.
        if rows.iter().any(|other| other.pid != row.pid && other.device == row.device) {
            continue;
        }
        found.extend(launch_bound(scene, row).or_else(|| underused(scene, row)));
    }
    found
}

/// Most of the process's kernels start as soon as they are launched, the GPU waits for the launches, and a thread has no
/// time left.
fn launch_bound(scene: &Scene<'_>, row: &GpuRow) -> Option<Finding> {
    let limits = &scene.thresholds.gpu;
    let activities = || of_process(scene.surroundings.gpu, row.pid, row.device);
    let is_kernel = |one: &&GpuActivity| matches!(one.what, GpuWhat::Kernel(_));
    let mut queues: Vec<u64> = activities().filter(is_kernel).filter_map(|one| one.queue_ns).collect();
    let launches = queues.len() as u64;
    if launches < limits.launch_kernels || launches.saturating_mul(10) < row.kernels.saturating_mul(9) {
        return None;
    }
    queues.sort_unstable();
    // What a launch takes when nothing is before it.
    let latency_ns = *queues.get(queues.len() / 10)?;
    let prompt_ns = latency_ns.saturating_mul(2);
    let prompt = queues.partition_point(|queue| *queue <= prompt_ns) as u64;
    let prompt_share = prompt as f64 / launches as f64;
    if latency_ns > nanos(limits.launch_latency) || prompt_share < limits.launch_prompt {
        return None;
    }
    let is_launch = |ns: u64| ns <= nanos(limits.launch_gap);
    let waited: Vec<u64> = gaps(activities())
        .into_iter()
        .filter(|gap| is_launch(gap.ns) && gap.queue_ns.is_some_and(|queue| queue <= prompt_ns))
        .map(|gap| gap.ns)
        .collect();
    let waited_ns: u64 = waited.iter().sum();
    let span_ns = span_ns(activities());
    let share = waited_ns as f64 / span_ns.max(1) as f64;
    let thread = busiest(scene, row.pid)?;
    let busy_ns = thread.running_ns.saturating_sub(looked_ns(scene, thread));
    let busy = busy_ns as f64 / thread.wall_ns.max(1) as f64;
    if share < limits.launch_share
        || busy < limits.launch_busy
        || !scene.counts(waited_ns, limits.launch_least)
    {
        return None;
    }
    let summary = format!(
        "GPU {} of pid {} waits for launches: nothing runs there for {} of {} ({}) in {} short gaps, and {} of {launches} kernels start as soon as they are launched, while thread {} (tid {}) is busy for {}",
        row.device,
        row.pid,
        time(waited_ns),
        time(span_ns),
        percent(share),
        waited.len(),
        percent(prompt_share),
        thread.name,
        thread.tid,
        percent(busy),
    );
    let proof = json!({
        "evidence": "measured.gpu",
        "pid": row.pid, "device": row.device, "tid": thread.tid,
        "waited_ns": waited_ns, "gaps": waited.len(), "span_ns": span_ns,
        "kernels": launches, "prompt_kernels": prompt, "launch_latency_ns": latency_ns,
        "busy_ns": row.busy_ns, "thread_busy_ns": busy_ns, "thread_wall_ns": thread.wall_ns,
    });
    let advice = [
        "Fewer and larger kernels: torch.compile, CUDA graphs, fused optimizers, a larger batch.".to_owned(),
        "Recording itself takes some microseconds of each launch: compare steps a second without it; a loop just below the limit is pushed over it.".to_owned(),
    ];
    let severity = scene.severity(Weight { lost_ns: waited_ns, ..Weight::default() });
    Some(finding("gpu.launch_bound", severity, Cause::GpuQueue, 0, summary, proof, &advice))
}

/// The process uses the GPU all the time, and it does nothing for the most part.
fn underused(scene: &Scene<'_>, row: &GpuRow) -> Option<Finding> {
    let limits = &scene.thresholds.gpu;
    let activities = || of_process(scene.surroundings.gpu, row.pid, row.device);
    let begin_ns = activities().map(|one| one.start_ns).min()?;
    let span_ns = span_ns(activities());
    let share = row.busy_ns as f64 / span_ns.max(1) as f64;
    let part_ns = (span_ns / PARTS).max(1);
    let parts: BTreeSet<u64> = activities().map(|one| (one.start_ns - begin_ns) / part_ns).collect();
    let is_used = row.kernels >= limits.underused_kernels && parts.len() as u64 >= PARTS;
    if span_ns < nanos(limits.underused_span) || share > limits.underused_busy || !is_used {
        return None;
    }
    let thread = busiest(scene, row.pid);
    let did = thread.map_or_else(String::new, |thread| {
        format!(
            ". Its busiest thread {} (tid {}) ran for {}, was stalled for {} and slept or waited for work for {} of {}",
            thread.name,
            thread.tid,
            time(thread.running_ns),
            time(thread.stalled_ns),
            time(thread.idle_ns.saturating_add(thread.other_ns)),
            time(thread.wall_ns)
        )
    });
    let summary = format!(
        "GPU {} of pid {} is busy for {} of {} ({}); the longest of {} gaps is {}{did}",
        row.device,
        row.pid,
        time(row.busy_ns),
        time(span_ns),
        percent(share),
        row.gaps.count,
        time(row.gaps.max_ns),
    );
    let proof = json!({
        "evidence": "measured.gpu",
        "pid": row.pid, "device": row.device, "busy_ns": row.busy_ns, "span_ns": span_ns,
        "kernels": row.kernels, "gaps": row.gaps.count, "gap_p50_ns": row.gaps.p50_ns, "gap_max_ns": row.gaps.max_ns,
        "thread": thread.map(|thread| json!({
            "tid": thread.tid, "running_ns": thread.running_ns, "stalled_ns": thread.stalled_ns,
            "idle_ns": thread.idle_ns, "wall_ns": thread.wall_ns,
        })),
    });
    let advice = [
        "Look for what the process does between the kernels: its stalls above, loading of data, or work on the processor (`py-spy dump`, several times).".to_owned(),
    ];
    Some(finding("gpu.underused", Severity::Info, Cause::GpuQueue, 0, summary, proof, &advice))
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// The thread of the process that runs most.
fn busiest<'a>(scene: &Scene<'a>, pid: u32) -> Option<&'a ThreadRow> {
    scene.report.threads.iter().filter(|row| row.pid == pid).max_by_key(|row| row.running_ns)
}

/// Running time that the thread spent looking whether the GPU is done, beside its stalls.
fn looked_ns(scene: &Scene<'_>, thread: &ThreadRow) -> u64 {
    let rows = scene.report.cuda_waits.iter().filter(|row| (row.pid, row.tid) == (thread.pid, thread.tid));
    rows.map(|row| row.spin_ns.saturating_sub(row.nccl_ns + row.copy_ns + row.queue_ns)).sum()
}

/// Ranks whose kernels begin after those of all others, so that these wait.
fn late_ranks(scene: &Scene<'_>, known: &[Finding]) -> Vec<Finding> {
    let mut by_pid: BTreeMap<u32, RankTimes> = BTreeMap::new();
    for ((pid, _), times) in scene.surroundings.gpu_ranks {
        let sum = by_pid.entry(*pid).or_default();
        sum.peer_late_ns += times.peer_late_ns;
        sum.network_ns += times.network_ns;
        sum.late_ns += times.late_ns;
        sum.last += times.last;
        sum.collectives += times.collectives;
    }
    let mut found = Vec::new();
    for (&pid, &times) in &by_pid {
        let said = known.iter().any(|one| {
            one.id == LATE_RANK
                && one.proof.get("late_pid").and_then(serde_json::Value::as_u64) == Some(u64::from(pid))
        });
        let others = || by_pid.iter().filter(|(other, _)| **other != pid);
        let next_ns = others().map(|(_, times)| times.late_ns).max().unwrap_or(0);
        if !said && is_late(scene, times, next_ns) {
            let waited_ns = others().map(|(_, times)| times.peer_late_ns).max().unwrap_or(0);
            let pids: Vec<u32> = others().map(|(pid, _)| *pid).collect();
            found.push(late_rank(scene, pid, times, waited_ns, next_ns, &pids));
        }
    }
    found
}

fn is_late(scene: &Scene<'_>, times: RankTimes, next_ns: u64) -> bool {
    let limits = &scene.thresholds.gpu;
    scene.share(times.late_ns) >= limits.late_share
        && times.late_ns as f64 >= limits.late_lead * next_ns as f64
        && times.last as f64 >= limits.late_part * times.collectives as f64
        && times.last > 0
}

fn late_rank(
    scene: &Scene<'_>,
    pid: u32,
    times: RankTimes,
    waited_ns: u64,
    next_ns: u64,
    waiting: &[u32],
) -> Finding {
    let rank_of =
        |pid: u32| scene.report.target.ranks.iter().find(|row| row.pid == pid).and_then(|row| row.rank);
    let rank = rank_of(pid).unwrap_or(0);
    let summary = format!(
        "rank {rank} (pid {pid}) is late: in {} of {} collectives its NCCL kernel began after those of all other ranks, {} later in all; the others' kernels waited for up to {}",
        times.last,
        times.collectives,
        time(times.late_ns),
        time(waited_ns),
    );
    let proof = json!({
        "evidence": "measured.gpu",
        "rank": rank, "late_pid": pid, "late_ns": times.late_ns, "last_in": times.last, "collectives": times.collectives,
        "waited_ns": waited_ns, "next_late_ns": next_ns, "network_ns": times.network_ns,
        "waiting_pids": waiting, "waiting_ranks": waiting.iter().map(|pid| rank_of(*pid)).collect::<Vec<_>>(),
    });
    let tid = busiest(scene, pid).map_or(pid, |row| row.tid);
    let advice = [
        super::far_side::dump(scene, pid, tid, "what it does before it launches; several times"),
        "Look for what this rank does and the others do not: loading data, logging, a checkpoint, a slower GPU, other programs on its CPUs; several recordings tell whether it is always the same rank.".to_owned(),
    ];
    let severity = scene.severity(Weight { lost_ns: times.late_ns, ..Weight::default() });
    finding(LATE_RANK, severity, Cause::NcclKernel, 0, summary, proof, &advice)
}

#[cfg(test)]
mod tests;
