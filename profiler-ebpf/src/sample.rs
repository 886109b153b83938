//! Which threads are on a processor, by a clock on each processor, and whether they work there or look again and again
//! for something to receive.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::perf_event;
use aya_ebpf::programs::PerfEventContext;
use profiler_common::{Loss, SampleCounts, SampleKey};

use crate::call_class::{ON_SET, RECEIVE, SEND};
use crate::maps::{SAMPLES, TARGETS, is_marked};
use crate::sched::run_delay_ns;
use crate::thread::{self, Thread};
use crate::{emit, settings};

/// A thread that has not looked for so long is about something else.
const BETWEEN_LOOKS_NS: u64 = 50_000;

static NONE: SampleCounts = SampleCounts { samples: 0, looking: 0, waiting: 0, working: 0 };

#[perf_event]
pub fn cpu_sample(_: PerfEventContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    let (tgid, tid) = ((id >> 32) as u32, id as u32);
    // 0 is the idle task.
    if tid != 0 && is_marked(tgid) && TARGETS.get_ptr(tgid).is_some() {
        sample(tgid, tid);
    }
    0
}

#[inline(always)]
fn sample(tgid: u32, tid: u32) {
    let Some(counts) = counts(tgid, tid) else {
        emit::lost(Loss::SampleTable);
        return;
    };
    counts.samples += 1;
    let Some(thread) = thread::find(tid) else { return };
    let is_waiting = thread.open_nonblocking > 0;
    if is_looking(thread) {
        counts.looking += 1;
        counts.waiting += u64::from(is_waiting);
    } else if is_waiting {
        // Whether this is inside of a wait is known when it looks again.
        thread.unlooked += 1;
    }
}

#[inline(always)]
fn is_looking(thread: &Thread) -> bool {
    if thread.looked_ns == 0 {
        return false;
    }
    let call = thread.call;
    if call != 0 && (RECEIVE.has(call) || ON_SET.has(call) || SEND.has(call)) {
        return true;
    }
    let since_ns = if thread.resumed_ns > thread.looked_ns { thread.resumed_ns } else { thread.looked_ns };
    // SAFETY: no preconditions.
    unsafe { bpf_ktime_get_ns() }.saturating_sub(since_ns) < BETWEEN_LOOKS_NS
}

#[inline(always)]
fn counts(tgid: u32, tid: u32) -> Option<&'static mut SampleCounts> {
    let key = SampleKey { tgid, tid };
    if SAMPLES.get_ptr(&key).is_none() {
        // Where it fails the next look-up does too.
        let _ = SAMPLES.insert(&key, &NONE, 0);
    }
    // SAFETY: entries are never removed; a thread is on one processor at a time.
    SAMPLES.get_ptr_mut(&key).map(|counts| unsafe { &mut *counts })
}

/// The thread looks. What it did since the look before was inside of the same wait, unless that was too long ago, apart
/// from the time in which it had no processor to look with.
#[inline(always)]
pub fn looked(thread: &mut Thread, tid: u32, now_ns: u64) {
    let delay_ns = run_delay_ns();
    if thread.unlooked != 0 {
        let kept_ns = delay_ns.saturating_sub(thread.looked_delay_ns);
        take_unlooked(thread, tid, now_ns.saturating_sub(kept_ns));
    }
    thread.looked_ns = now_ns;
    thread.looked_delay_ns = delay_ns;
}

/// `until_ns`: when it would have looked had it never waited for a processor.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn take_unlooked(thread: *mut Thread, tid: u32, until_ns: u64) -> u32 {
    // SAFETY: callers pass a thread's entry.
    let Some(thread) = (unsafe { thread.as_mut() }) else { return 0 };
    let count = u64::from(thread.unlooked);
    thread.unlooked = 0;
    if until_ns.saturating_sub(thread.looked_ns) <= settings::spin_gap_ns()
        && let Some(counts) = counts(thread.tgid, tid)
    {
        counts.waiting += count;
        counts.working += count;
    }
    0
}
