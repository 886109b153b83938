//! Births, program changes and ends of the targets' processes and threads.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_current_comm, bpf_ktime_get_ns};
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use profiler_common::config::{NO_OFFSET, TARGET_FOLLOW};
use profiler_common::record::{
    Header, LIFE_EXEC, LIFE_EXIT, LIFE_FORK, LIFE_THREAD, RecordKind, ThreadTimeRecord,
};
use profiler_common::{LifeRecord, Loss, Target};

use crate::maps::{SETS, TARGETS, THREADS, mark};
use crate::mem::{kernel_bytes, member};
use crate::{emit, offset, thread};

#[btf_tracepoint(function = "sched_process_fork")]
pub fn life_fork(ctx: BtfTracePointContext) -> i32 {
    let parent = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: entries of targets are replaced as a whole.
    let Some(target) = (unsafe { TARGETS.get(parent) }).copied() else { return 0 };
    let child: u64 = ctx.arg(1);
    let tgid: u32 = member(child, offset!(task_tgid));
    let tid: u32 = member(child, offset!(task_pid));
    if tgid != parent {
        if target.flags & TARGET_FOLLOW == 0 {
            return 0;
        }
        let followed = Target { flags: target.flags, open_nonblocking: 0 };
        mark(tgid);
        if TARGETS.insert(tgid, followed, 0).is_err() {
            emit::lost(Loss::TargetTable);
            return 0;
        }
    }
    let event = if tgid == parent { LIFE_THREAD } else { LIFE_FORK };
    let mut record = new_record(event, tgid, tid);
    record.parent_tgid = parent;
    kernel_bytes((&raw mut record.comm).cast(), 16, child + u64::from(offset!(task_comm)));
    emit::record(&record, Loss::OtherRing);
    0
}

#[btf_tracepoint(function = "sched_process_exec")]
pub fn life_exec(ctx: BtfTracePointContext) -> i32 {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if TARGETS.get_ptr(tgid).is_none() {
        return 0;
    }
    // A thread that calls exec takes over the id of the first one.
    let old: u32 = ctx.arg(1);
    if old != id as u32 {
        forget(old);
    }
    if let Some(thread) = thread::find(id as u32) {
        thread.call = 0;
        thread.api = 0;
    }
    emit_current(LIFE_EXEC, id);
    0
}

#[btf_tracepoint(function = "sched_process_exit")]
pub fn life_exit(ctx: BtfTracePointContext) -> i32 {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if TARGETS.get_ptr(tgid).is_none() {
        return 0;
    }
    forget(id as u32);
    let task: u64 = ctx.arg(0);
    emit_times(task, id);
    emit_current(LIFE_EXIT, id);
    let signal: u64 = member(task, offset!(task_signal));
    // The count is down already when the last thread comes here.
    if signal != 0 && member::<u32>(signal, offset!(signal_live)) == 0 {
        let _ = TARGETS.remove(tgid);
    }
    0
}

#[inline(always)]
fn forget(tid: u32) {
    // A thread of which nothing was kept is forgotten already.
    let _ = THREADS.remove(tid);
    let _ = SETS.remove(tid);
}

/// Userspace reads the account of a thread once a second; of one that ends this is the last chance.
#[inline(always)]
fn emit_times(task: u64, id: u64) {
    if offset!(task_sum_exec) == NO_OFFSET || offset!(task_run_delay) == NO_OFFSET {
        return;
    }
    let record = ThreadTimeRecord {
        header: Header { kind: RecordKind::ThreadTime as u32, len: size_of::<ThreadTimeRecord>() as u32 },
        // SAFETY: no preconditions.
        time_ns: unsafe { bpf_ktime_get_ns() },
        tgid: (id >> 32) as u32,
        tid: id as u32,
        running_ns: member(task, offset!(task_sum_exec)),
        runnable_ns: member(task, offset!(task_run_delay)),
    };
    emit::record(&record, Loss::OtherRing);
}

#[inline(always)]
fn emit_current(event: u32, id: u64) {
    let mut record = new_record(event, (id >> 32) as u32, id as u32);
    // SAFETY: the field has 16 bytes.
    unsafe { bpf_get_current_comm((&raw mut record.comm).cast(), 16) };
    emit::record(&record, Loss::OtherRing);
}

#[inline(always)]
fn new_record(event: u32, tgid: u32, tid: u32) -> LifeRecord {
    LifeRecord {
        header: Header { kind: RecordKind::Life as u32, len: size_of::<LifeRecord>() as u32 },
        // SAFETY: no preconditions.
        time_ns: unsafe { bpf_ktime_get_ns() },
        event,
        tgid,
        tid,
        parent_tgid: 0,
        comm: [0; 16],
    }
}
