//! Where threads go to sleep, what it is on while it still can be seen, the kernel stack that explains it, and when
//! they are woken up. What is between the wake-up and the processor is no wait for a peer any longer.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_get_current_task_btf, bpf_get_smp_processor_id, bpf_ktime_get_ns,
};
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use profiler_common::config::NO_OFFSET;
use profiler_common::record::WAIT_SLEPT;

use crate::maps::CLOCK_LEADS;
use crate::mem::member;
use crate::thread::{self, Thread};
use crate::user_memory::Current;
use crate::{maps, offset, settings, stack, wait};

/// Within one call the stacks of this many sleeps are taken, then of every 16th: walking a stack costs more than the
/// rest of the probe.
const ALL_SLEEPS: u32 = 8;

#[btf_tracepoint(function = "sched_switch")]
pub fn sleep_switch(ctx: BtfTracePointContext) -> i32 {
    let id = bpf_get_current_pid_tgid();
    let tid = id as u32;
    // 0 is the idle task.
    if tid != 0 {
        if (id >> 32) as u32 == settings::own_tgid() {
            note_clock();
        }
        if maps::is_marked((id >> 32) as u32)
            && let Some(thread) = thread::find(tid)
            && thread.call != 0
        {
            leave(&ctx, thread, id);
        }
    }
    let (tgid, tid) = task_ids(ctx.arg(2));
    if tid != 0
        && maps::is_marked(tgid)
        && let Some(thread) = thread::find(tid)
    {
        come_back(thread);
    }
    0
}

/// The current thread, in a watched call, leaves the processor.
#[inline(always)]
fn leave(ctx: &BtfTracePointContext, thread: &mut Thread, id: u64) {
    let preempted: u64 = ctx.arg(0);
    // SAFETY: no preconditions.
    let state: u32 = member(unsafe { bpf_get_current_task() }, offset!(task_state));
    if preempted as u8 != 0 || state == 0 {
        return;
    }
    back_unseen(thread);
    thread.flags |= u32::from(WAIT_SLEPT);
    wait::resolve(thread, id as u32, Current);
    thread.sleeps += 1;
    thread.wake_ns = 0;
    thread.sleep_stack = if thread.sleeps <= ALL_SLEEPS || thread.sleeps & 15 == 0 {
        stack::kernel(ctx.as_ptr(), id)
    } else {
        0
    };
    // SAFETY: no preconditions.
    thread.sleep_ns = unsafe { bpf_ktime_get_ns() };
    if thread.first_sleep_ns == 0 {
        thread.first_sleep_ns = thread.sleep_ns;
    }
}

/// A thread is put on a run queue.
#[btf_tracepoint(function = "sched_wakeup")]
pub fn sleep_wakeup(ctx: BtfTracePointContext) -> i32 {
    let (tgid, tid) = task_ids(ctx.arg(0));
    if maps::is_marked(tgid)
        && let Some(thread) = thread::find(tid)
        && thread.sleep_ns != 0
        && thread.wake_ns == 0
    {
        // SAFETY: no preconditions.
        thread.wake_ns = unsafe { bpf_ktime_get_ns() };
    }
    0
}

/// Process and thread id of a tracepoint's argument.
#[inline(always)]
fn task_ids(task: *const u8) -> (u32, u32) {
    let (tgid, tid) = (offset!(task_tgid) as usize, offset!(task_pid) as usize);
    // SAFETY: the tracepoint's argument, a task; the verifier knows where its members are.
    unsafe { (*task.add(tgid).cast::<u32>(), *task.add(tid).cast::<u32>()) }
}

/// The thread runs. Now and then a kernel switches to a thread without telling (seen on 6.18, once in some thousand times on a
/// busy machine, by its own trace too): what it slept before has ended all the same.
#[inline(always)]
pub fn back_unseen(thread: &mut Thread) {
    if thread.sleep_ns != 0 {
        come_back(thread);
    }
}

#[inline(always)]
fn come_back(thread: &mut Thread) {
    if thread.looked_ns != 0 {
        // SAFETY: no preconditions.
        thread.resumed_ns = unsafe { bpf_ktime_get_ns() };
    }
    if thread.sleep_ns == 0 {
        return;
    }
    // SAFETY: no preconditions.
    let slept = thread.end_sleep(unsafe { bpf_ktime_get_ns() });
    if slept >= thread.longest_ns {
        thread.longest_ns = slept;
        if thread.sleep_stack != 0 {
            thread.kernel_stack = thread.sleep_stack;
        }
    }
}

/// Time that the current thread has waited for a processor, ever.
#[inline(always)]
pub fn run_delay_ns() -> u64 {
    let delay = offset!(task_run_delay);
    if delay == NO_OFFSET {
        return 0;
    }
    // SAFETY: the verifier knows the task and the member.
    unsafe { *bpf_get_current_task_btf().cast::<u8>().add(delay as usize).cast::<u64>() }
}

/// The scheduler has just stamped the current thread with its clock.
#[inline(always)]
fn note_clock() {
    // SAFETY: no preconditions.
    let (task, cpu, now) =
        unsafe { (bpf_get_current_task(), bpf_get_smp_processor_id(), bpf_ktime_get_ns()) };
    let stamp: u64 = member(task, offset!(task_exec_start));
    if stamp != 0
        && let Some(lead) = CLOCK_LEADS.get_ptr_mut(cpu)
    {
        // SAFETY: only this processor writes its slot.
        unsafe { *lead = now.wrapping_sub(stamp).wrapping_add(1) };
    }
}
