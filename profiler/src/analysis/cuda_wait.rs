//! Threads that wait for a GPU, asleep or looking again and again: such a wait is what ran on the GPU meanwhile.
//!
//! A wait is one for the GPU where the CUDA runtime recorded the call, or where the stack of a sleep has a function of
//! CUDA that waits, by its exported name. It is cut where the GPU's line of time changes ([`super::gpu_timeline`]):
//!
//! - While a kernel of NCCL ran and none that computes, it is a stall, `nccl.kernel`; while a copy ran alone `gpu.copy`;
//!   while something was launched and nothing ran `gpu.queue`.
//! - While a kernel computed it is no stall.
//! - While nothing is known of the GPU it stays what it was.
//!
//! The time of a call outside of its sleeps is spent looking. Of it a thread that had no processor all the time looked as
//! large a share as it had one; when that was is not known, so it is taken evenly.

use std::collections::BTreeMap;

use super::classify::{Slot, Verdict};
use super::context::Context;
use super::gpu_timeline::{GpuState, Timeline};
use super::partition::{Piece, ThreadPartition};
use super::report::CudaWaitRow;
use super::thread_rows::cpu_times;
use crate::hash::FastMap;
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::cuda::{CudaStack, stack_says};
use crate::model::thread::{Interval, ThreadTrack};
use crate::model::wait::WaitSpan;
use profiler_common::Call;

/// What stacks say, and what the GPU did for each process that has such stacks.
#[derive(Debug, Default)]
pub struct CudaWaits {
    stacks: FastMap<u64, CudaStack>,
    timelines: FastMap<u32, Timeline>,
}

/// What the waits of one thread in one function add up to, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaSum {
    pub waits: u64,
    pub waited_ns: u64,
    pub compute_ns: u64,
    pub nccl_ns: u64,
    pub copy_ns: u64,
    pub queue_ns: u64,
    /// Part of `waited_ns` in which the thread looked again and again.
    pub spin_ns: u64,
}

/// By function.
pub type CudaSums = BTreeMap<&'static str, CudaSum>;

impl CudaWaits {
    pub fn new(model: &Model) -> CudaWaits {
        if model.gpu.activities.is_empty() {
            return CudaWaits::default();
        }
        let stacks: FastMap<u64, CudaStack> =
            model.stacks.iter().filter_map(|(id, stack)| Some((*id, stack_says(stack)?))).collect();
        let mut timelines = FastMap::default();
        if stacks.values().any(|says| matches!(says, CudaStack::Sync(_))) {
            let mut pids: Vec<u32> = model.gpu.activities.iter().map(|one| one.pid).collect();
            pids.dedup();
            for pid in pids {
                timelines.insert(pid, Timeline::new(&model.gpu, &model.names, pid));
            }
        }
        CudaWaits { stacks, timelines }
    }

    /// The function in which `wait` waits for the GPU, where that is known. `within` is the stack of the recorded call
    /// around it, 0: none.
    pub fn function(&self, wait: &WaitSpan, within: u64) -> Option<&'static str> {
        let of = |stack: u64| match self.stacks.get(&stack) {
            Some(CudaStack::Sync(function)) => Some(*function),
            _ => None,
        };
        if self.stacks.get(&wait.user_stack) == Some(&CudaStack::Lock) {
            return None;
        }
        of(within).or_else(|| of(wait.user_stack))
    }
}

/// Whether the wait is a call that the CUDA runtime recorded, in which the thread is awake where it does not sleep in
/// another wait.
pub fn is_recorded(wait: &WaitSpan) -> bool {
    wait.call == Call::None && !wait.flags.nonblocking
}

/// Divides a part of a wait for the GPU among what ran there. `verdict` is what it is otherwise; `is_own` is false of a
/// sleep within a recorded call, which counts as a wait already.
pub(super) fn share_out(
    context: &Context,
    track: &ThreadTrack,
    (index, wait): (u32, &WaitSpan),
    (span, verdict, is_own): (Interval, Verdict, bool),
    function: &'static str,
    result: &mut ThreadPartition,
) {
    let spins = is_recorded(wait);
    let part = span.clip(wait.asleep());
    let ratio = if spins { on_cpu(track) } else { (1, 1) };
    let waited = |part: Interval| scale(wait.waited_ns(part), ratio);
    let mut states: Vec<(GpuState, Interval, u64)> = Vec::new();
    let mut known_ns = 0;
    if let Some(timeline) = context.cuda.timelines.get(&track.pid) {
        for segment in timeline.within(part) {
            let waited_ns = waited(segment.span);
            known_ns += waited_ns;
            match states.iter_mut().find(|(state, ..)| *state == segment.state) {
                Some((_, hull, sum)) => {
                    hull.end_ns = segment.span.end_ns;
                    *sum += waited_ns;
                }
                None => states.push((segment.state, segment.span, waited_ns)),
            }
        }
    }
    let all_ns = waited(part).max(known_ns);
    let mut stalled_ns = 0;
    let sum = result.cuda.entry(function).or_default();
    // A call that others interrupt comes in several parts.
    sum.waits += u64::from(is_own && span.start_ns <= wait.start_ns.max(track.presence.start_ns));
    sum.waited_ns += all_ns;
    sum.spin_ns += if spins { all_ns } else { 0 };
    for (state, hull, waited_ns) in states {
        let (cause, peer) = match state {
            GpuState::Compute => {
                sum.compute_ns += waited_ns;
                continue;
            }
            GpuState::Nccl(name) => (Cause::NcclKernel, name),
            GpuState::Copy(name) => (Cause::GpuCopy, name),
            GpuState::Queue(name) => (Cause::GpuQueue, name),
        };
        *match cause {
            Cause::NcclKernel => &mut sum.nccl_ns,
            Cause::GpuCopy => &mut sum.copy_ns,
            _ => &mut sum.queue_ns,
        } += waited_ns;
        stalled_ns += waited_ns;
        let Slot { socket, interest, .. } = Slot::of_none(cause);
        if waited_ns > 0 {
            result.pieces.push(Piece {
                wait: index,
                socket,
                peer,
                cause,
                interest,
                span: hull,
                weight_ns: waited_ns,
            });
        }
    }
    result.stalled_ns += stalled_ns;
    if spins {
        result.spin_ns += stalled_ns;
    } else if matches!(verdict, Verdict::Idle | Verdict::Sleep) {
        result.idle_ns += all_ns - known_ns;
    }
}

/// As a share, how much of its time awake the thread had a processor.
fn on_cpu(track: &ThreadTrack) -> (u64, u64) {
    let (running_ns, runnable_ns) = cpu_times(track);
    let awake_ns = running_ns.saturating_add(runnable_ns);
    if awake_ns == 0 { (1, 1) } else { (running_ns, awake_ns) }
}

fn scale(ns: u64, (share, of): (u64, u64)) -> u64 {
    let scaled = (u128::from(ns) * u128::from(share)).checked_div(u128::from(of));
    scaled.and_then(|ns| u64::try_from(ns).ok()).unwrap_or(ns)
}

/// Whether the call was spent asleep for the most part, in waits that stand for it: then it is no wait of its own.
pub(super) fn is_asleep(track: &ThreadTrack, index: u32) -> bool {
    let index = index as usize;
    let Some(call) = track.waits.get(index).filter(|wait| is_recorded(wait)) else { return false };
    let whole = Interval { start_ns: call.start_ns, end_ns: call.end_ns };
    let inside = track.waits.iter().skip(index + 1).take_while(|wait| wait.start_ns < call.end_ns);
    let asleep_ns = inside.map(|wait| wait.waited_ns(wait.asleep().clip(whole))).fold(0, u64::saturating_add);
    asleep_ns.saturating_mul(2) > whole.len()
}

/// A row for each thread and function, most time first.
pub fn rows(model: &Model, partitions: &[ThreadPartition]) -> Vec<CudaWaitRow> {
    let threads = model.threads.iter().zip(partitions);
    let mut rows: Vec<CudaWaitRow> = threads
        .flat_map(|(thread, partition)| {
            let (pid, tid) = (thread.track.pid, thread.track.tid);
            partition.cuda.iter().map(move |(function, sum)| CudaWaitRow {
                pid,
                tid,
                function: (*function).to_owned(),
                count: sum.waits,
                waited_ns: sum.waited_ns,
                compute_ns: sum.compute_ns,
                nccl_ns: sum.nccl_ns,
                copy_ns: sum.copy_ns,
                queue_ns: sum.queue_ns,
                unknown_ns: sum
                    .waited_ns
                    .saturating_sub(sum.compute_ns + sum.nccl_ns + sum.copy_ns + sum.queue_ns),
                spin_ns: sum.spin_ns,
            })
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.waited_ns));
    rows
}

/// Adds the sums of another portion of the same thread.
pub fn append(into: &mut CudaSums, other: CudaSums) {
    for (function, other) in other {
        let sum = into.entry(function).or_default();
        sum.waits += other.waits;
        sum.waited_ns += other.waited_ns;
        sum.compute_ns += other.compute_ns;
        sum.nccl_ns += other.nccl_ns;
        sum.copy_ns += other.copy_ns;
        sum.queue_ns += other.queue_ns;
        sum.spin_ns += other.spin_ns;
    }
}

#[cfg(test)]
mod tests;
