//! A thread's call into `ib_uverbs` or the connection manager, from its beginning to its end: what it was for, and where its
//! time went. Everything is added up in the kernel; a record is made only of a call that lasted.

use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_get_current_task_btf, bpf_ktime_get_ns, bpf_task_pt_regs,
};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap};
use profiler_common::config::NO_OFFSET;
use profiler_common::rdma_kernel::{
    CommandKey, CommandTotals, HISTOGRAM, RdmaOffsets, SetupCall, SetupOp, SetupRecord, SetupTotals,
    TotalsKey, histogram_place,
};
use profiler_common::record::{Header, RecordKind, WAIT_SLEPT, WAIT_TIMED};
use profiler_common::{Call, Loss, WaitRecord};

use crate::mem::{kernel, member};
use crate::regs::{Regs, UserRegs};
use crate::sched::run_delay_ns;
use crate::wait::EMPTY_WAIT;
use crate::{emit, offset, settings, stack};

/// Calls that last, by thread.
#[map]
pub static RDMA_CALLS: LruHashMap<u32, SetupCall> = LruHashMap::with_max_entries(8192, 0);

/// What all calls of a thread and kind add up to: nobody else adds to a thread's.
#[map]
pub static RDMA_TOTALS: HashMap<TotalsKey, SetupTotals> = HashMap::with_max_entries(2048, 0);

/// What all commands of a thread and opcode add up to.
#[map]
pub static RDMA_COMMANDS: HashMap<CommandKey, CommandTotals> = HashMap::with_max_entries(2048, 0);

#[map]
pub static RDMA_OFFSETS: Array<RdmaOffsets> = Array::with_max_entries(1, 0);

/// Commands whose answer is waited for, by their first 16 bytes. Of two with the same only one has its time in the queue.
#[map]
pub static RDMA_WAITING: LruHashMap<[u64; 2], Waiting> = LruHashMap::with_max_entries(4096, 0);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Waiting {
    pub tid: u32,
    pub reserved: u32,
    pub start_ns: u64,
    /// Before the device had it; 0: it has not, or that was not seen.
    pub queued_ns: u64,
}

const NO_RECORD: SetupRecord = SetupRecord {
    header: Header { kind: RecordKind::Setup as u32, len: size_of::<SetupRecord>() as u32 },
    start_ns: 0,
    end_ns: 0,
    tgid: 0,
    tid: 0,
    pin_start_ns: 0,
    pin_end_ns: 0,
    pin_ns: 0,
    driver_ns: 0,
    command_ns: 0,
    queued_ns: 0,
    running_ns: 0,
    runq_ns: 0,
    bytes: 0,
    ret: 0,
    op: 0,
    commands: 0,
    opcode: 0,
    qp_num: 0,
    in_flight: 0,
    reserved: 0,
};

/// Too large to be built on the stack.
static NEW: SetupCall = SetupCall {
    record: NO_RECORD,
    depth: 0,
    pin_depth: 0,
    driver_depth: 0,
    command_depth: 0,
    pin_begin_ns: 0,
    driver_begin_ns: 0,
    command_begin_ns: 0,
    command_longest_ns: 0,
    command_head: [0; 2],
    operation_depth: 0,
    command_opcode: 0,
    ran_ns: 0,
    delayed_ns: 0,
    ip: 0,
    sp: 0,
    bp: 0,
    wait: EMPTY_WAIT,
};

static NO_TOTALS: SetupTotals = SetupTotals {
    calls: 0,
    failed: 0,
    ns: 0,
    pin_ns: 0,
    driver_ns: 0,
    command_ns: 0,
    queued_ns: 0,
    running_ns: 0,
    runq_ns: 0,
    commands: 0,
    bytes: 0,
    below: 0,
    below_ns: 0,
    histogram: [0; HISTOGRAM],
};

#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: no preconditions.
    unsafe { bpf_ktime_get_ns() }
}

/// Time that the current thread has run, ever, as of the last tick or switch.
#[inline(always)]
fn ran_ns() -> u64 {
    // SAFETY: no preconditions.
    member(unsafe { bpf_get_current_task() }, offset!(task_sum_exec))
}

#[inline(always)]
fn least(one: u64, other: u64) -> u64 {
    if one < other { one } else { other }
}

/// A member of the kernel's structure at `base`, whose offset userspace has found.
#[inline(always)]
pub fn field<T: Copy + Default>(base: u64, offset: fn(&RdmaOffsets) -> u32) -> T {
    let offset = RDMA_OFFSETS.get(0).map_or(NO_OFFSET, offset);
    member(base, offset)
}

/// The thread's call; none where it is in none.
#[inline(always)]
pub fn find(tid: u32) -> Option<&'static mut SetupCall> {
    // SAFETY: only the thread's own probes use its entry.
    let call = RDMA_CALLS.get_ptr_mut(tid).map(|call| unsafe { &mut *call })?;
    if call.depth == 0 { None } else { Some(call) }
}

/// A call begins. What is left of an earlier one whose end was not seen is given up.
#[inline(always)]
pub fn begin(id: u64) -> Option<&'static mut SetupCall> {
    let tid = id as u32;
    if RDMA_CALLS.insert(tid, &NEW, 0).is_err() {
        emit::lost(Loss::CallTable);
        return None;
    }
    // SAFETY: as above.
    let call = RDMA_CALLS.get_ptr_mut(tid).map(|call| unsafe { &mut *call })?;
    call.record.start_ns = now_ns();
    call.record.tgid = (id >> 32) as u32;
    call.record.tid = tid;
    // SAFETY: the current task's registers, of which the verifier knows the members.
    let regs = UserRegs::from(unsafe { &*(bpf_task_pt_regs(bpf_get_current_task_btf()) as *const Regs) });
    (call.ip, call.sp, call.bp) = (regs.ip, regs.sp, regs.bp);
    (call.ran_ns, call.delayed_ns) = (ran_ns(), run_delay_ns());
    call.depth = 1;
    Some(call)
}

/// `IB_QP_STATE`: the modification says a state.
const HAS_STATE: u32 = 1;

/// The outermost function that says what the call is for counts.
#[inline(always)]
pub fn operation(call: &mut SetupCall, op: u32, [first, attributes, mask]: [u64; 3]) {
    call.operation_depth += 1;
    if call.operation_depth != 1 || call.record.op != 0 {
        return;
    }
    call.record.op = op;
    if op != SetupOp::Modify as u32 {
        return;
    }
    call.record.qp_num = field(first, |offsets| offsets.qp_num);
    if mask as u32 & HAS_STATE == 0 {
        return;
    }
    let state: u32 = field(attributes, |offsets| offsets.attr_state);
    call.record.op = match state {
        1 => SetupOp::ToInit,
        2 => SetupOp::ToRtr,
        3 => SetupOp::ToRts,
        _ => SetupOp::ToOther,
    } as u32;
}

/// Errors as pointers and results have them.
#[inline(always)]
pub fn is_error(ret: i64) -> bool {
    (-4095..0).contains(&ret)
}

/// Addresses of the kernel's own memory, as against numbers and errors.
const KERNEL_MEMORY: u64 = 0xff00_0000_0000_0000;

#[inline(always)]
pub fn operation_end(call: &mut SetupCall, ret: i64) {
    call.operation_depth = call.operation_depth.saturating_sub(1);
    if call.record.op == SetupOp::CreateQp as u32
        && call.record.qp_num == 0
        && ret as u64 >= KERNEL_MEMORY
        && !is_error(ret)
        && ret < -(1 << 16)
    {
        call.record.qp_num = field(ret as u64, |offsets| offsets.qp_num);
    }
}

#[inline(always)]
pub fn pin(call: &mut SetupCall, bytes: u64) {
    call.pin_depth += 1;
    if call.pin_depth != 1 {
        return;
    }
    call.pin_begin_ns = now_ns();
    if call.record.pin_start_ns == 0 {
        call.record.pin_start_ns = call.pin_begin_ns;
    }
    registered(call, bytes);
}

#[inline(always)]
pub fn pin_end(call: &mut SetupCall) {
    call.pin_depth = call.pin_depth.saturating_sub(1);
    if call.pin_depth == 0 && call.pin_begin_ns != 0 {
        call.record.pin_end_ns = now_ns();
        call.record.pin_ns += call.record.pin_end_ns.saturating_sub(call.pin_begin_ns);
        call.pin_begin_ns = 0;
    }
}

#[inline(always)]
pub fn driver(call: &mut SetupCall, bytes: u64) {
    call.driver_depth += 1;
    if call.driver_depth == 1 {
        call.driver_begin_ns = now_ns();
        registered(call, bytes);
    }
}

#[inline(always)]
pub fn driver_end(call: &mut SetupCall) {
    call.driver_depth = call.driver_depth.saturating_sub(1);
    if call.driver_depth == 0 && call.driver_begin_ns != 0 {
        call.record.driver_ns += now_ns().saturating_sub(call.driver_begin_ns);
        call.driver_begin_ns = 0;
    }
}

/// Memory of other operations is the driver's own, for its queues.
#[inline(always)]
fn registered(call: &mut SetupCall, bytes: u64) {
    let op = call.record.op;
    if call.record.bytes == 0
        && (op == SetupOp::RegisterMemory as u32 || op == SetupOp::RegisterDmabuf as u32)
    {
        call.record.bytes = bytes;
    }
}

/// A command is issued; `message` is what the device gets.
#[inline(always)]
pub fn command(call: &mut SetupCall, message: u64) {
    call.command_depth += 1;
    if call.command_depth != 1 {
        return;
    }
    call.record.commands += 1;
    call.command_begin_ns = now_ns();
    call.command_head = kernel(message);
    call.command_opcode = u32::from(u16::from_be(call.command_head[0] as u16));
    let waiting =
        Waiting { tid: call.record.tid, reserved: 0, start_ns: call.command_begin_ns, queued_ns: 0 };
    // Without a place its time in the queue is not told apart.
    let _ = RDMA_WAITING.insert(call.command_head, &waiting, 0);
}

#[inline(always)]
pub fn command_end(call: &mut SetupCall) {
    call.command_depth = call.command_depth.saturating_sub(1);
    if call.command_depth != 0 || call.command_begin_ns == 0 {
        return;
    }
    let lasted_ns = now_ns().saturating_sub(call.command_begin_ns);
    call.command_begin_ns = 0;
    let mut queued_ns = 0;
    if let Some(waiting) = RDMA_WAITING.get_ptr(call.command_head) {
        // SAFETY: copied at once.
        let waiting = unsafe { *waiting };
        if waiting.tid == call.record.tid {
            queued_ns = if waiting.queued_ns > lasted_ns { lasted_ns } else { waiting.queued_ns };
            // Another event of the same command may have taken it out.
            let _ = RDMA_WAITING.remove(call.command_head);
        }
    }
    call.record.command_ns += lasted_ns;
    call.record.queued_ns += queued_ns;
    if lasted_ns >= call.command_longest_ns {
        call.command_longest_ns = lasted_ns;
        call.record.opcode = call.command_opcode;
    }
    let key = CommandKey { tid: call.record.tid, opcode: call.command_opcode };
    count_command(key, lasted_ns, queued_ns);
}

#[inline(always)]
fn count_command(key: CommandKey, ns: u64, queued_ns: u64) {
    let known = RDMA_COMMANDS.get_ptr_mut(key).or_else(|| {
        let none = CommandTotals { commands: 0, ns: 0, queued_ns: 0 };
        // Whether there is a place is seen by the second look.
        let _ = RDMA_COMMANDS.insert(key, &none, 0);
        RDMA_COMMANDS.get_ptr_mut(key)
    });
    let Some(totals) = known else { return };
    // SAFETY: entries are never removed, and only one thread, or interrupts of one processor, use each.
    let totals = unsafe { &mut *totals };
    totals.commands += 1;
    totals.ns += ns;
    totals.queued_ns += queued_ns;
}

/// The call is over.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn rdma_finish(call: *mut SetupCall, ret: i64) -> u32 {
    // SAFETY: callers pass a thread's entry.
    let Some(call) = (unsafe { call.as_mut() }) else { return 0 };
    call.depth = 0;
    call.record.end_ns = now_ns();
    call.record.ret = ret;
    let lasted_ns = call.record.end_ns.saturating_sub(call.record.start_ns);
    call.record.runq_ns = least(run_delay_ns().saturating_sub(call.delayed_ns), lasted_ns);
    // Counted at ticks and switches: part of a call may be in the next one's.
    let most_ns = lasted_ns - call.record.runq_ns;
    call.record.running_ns = least(ran_ns().saturating_sub(call.ran_ns), most_ns);
    if !told(&call.record) {
        return 0;
    }
    let id = u64::from(call.record.tgid) << 32 | u64::from(call.record.tid);
    let regs = UserRegs { ip: call.ip, sp: call.sp, bp: call.bp };
    let user_stack = stack::user(&regs, id);
    wait(call, user_stack);
    emit::record(&call.record, Loss::OtherRing);
    0
}

#[inline(always)]
pub fn finish(call: &mut SetupCall, ret: i64) {
    rdma_finish(call, ret);
}

/// The wait that the views by stacks show. The whole call is one, as if it slept all the time but that in which it waited for a
/// processor: what the thread works in it, for instance on the pages that are pinned, keeps it from its own work all the same.
#[inline(always)]
fn wait(call: &mut SetupCall, user_stack: u64) {
    let lasted_ns = call.record.end_ns.saturating_sub(call.record.start_ns);
    call.wait = WaitRecord {
        header: Header { kind: RecordKind::Wait as u32, len: size_of::<WaitRecord>() as u32 },
        start_ns: call.record.start_ns,
        end_ns: call.record.end_ns,
        tgid: call.record.tgid,
        tid: call.record.tid,
        call: Call::Uverbs as u16,
        flags: WAIT_TIMED | WAIT_SLEPT,
        nsocks: 0,
        nfds: 0,
        fd: -1,
        polls: 0,
        ret: call.record.ret,
        off_cpu_ns: lasted_ns.saturating_sub(call.record.runq_ns),
        user_stack,
        kernel_stack: 0,
        ip: call.ip,
        sp: call.sp,
        bp: call.bp,
        api_start_ns: 0,
        api: 0,
        arg: 0,
        sleep_ns: call.record.start_ns,
        wake_ns: call.record.end_ns,
        runq_ns: call.record.runq_ns,
        owner: 0,
        reserved: 0,
    };
    emit::record(&call.wait, Loss::WaitRing);
}

/// Adds it to the totals; true where it is long enough for a record.
#[inline(always)]
pub fn told(record: &SetupRecord) -> bool {
    let lasted_ns = record.end_ns.saturating_sub(record.start_ns);
    let is_long = lasted_ns >= settings::min_stall_ns();
    count(record, u64::from(!is_long));
    is_long
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn count(record: *const SetupRecord, below: u64) -> u32 {
    // SAFETY: callers pass a record in a map or on their stack.
    let Some(record) = (unsafe { record.as_ref() }) else { return 0 };
    let key = TotalsKey { tgid: record.tgid, tid: record.tid, op: record.op, reserved: 0 };
    let known = RDMA_TOTALS.get_ptr_mut(key).or_else(|| {
        // See above.
        let _ = RDMA_TOTALS.insert(key, &NO_TOTALS, 0);
        RDMA_TOTALS.get_ptr_mut(key)
    });
    let Some(totals) = known else {
        emit::lost(Loss::CallTable);
        return 0;
    };
    // SAFETY: entries are never removed, and only one thread, or interrupts of one processor, use each.
    let totals = unsafe { &mut *totals };
    let lasted_ns = record.end_ns.saturating_sub(record.start_ns);
    totals.calls += 1;
    totals.failed += u64::from(is_error(record.ret));
    totals.ns += lasted_ns;
    totals.pin_ns += record.pin_ns;
    totals.driver_ns += record.driver_ns;
    totals.command_ns += record.command_ns;
    totals.queued_ns += record.queued_ns;
    totals.running_ns += record.running_ns;
    totals.runq_ns += record.runq_ns;
    totals.commands += u64::from(record.commands);
    totals.bytes += record.bytes;
    totals.below += below;
    totals.below_ns += below * lasted_ns;
    let place = crate::mem::unknown(u64::from(histogram_place(lasted_ns))) as usize;
    if place < HISTOGRAM {
        totals.histogram[place] += 1;
    }
    0
}

/// An answer or a wake-up, which is no call. Apart from what ends calls, whose way down has little of the stack left.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn rdma_latency(op: u64, start_ns: u64, end_ns: u64, id: u64, ret: i64) -> u32 {
    let mut record = NO_RECORD;
    (record.start_ns, record.end_ns) = (start_ns, end_ns);
    (record.tgid, record.tid) = ((id >> 32) as u32, id as u32);
    (record.op, record.ret) = (op as u32, ret);
    if told(&record) {
        emit::record(&record, Loss::OtherRing);
    }
    0
}

#[inline(always)]
pub fn latency(op: SetupOp, start_ns: u64, end_ns: u64, id: u64, ret: i64) {
    rdma_latency(op as u64, start_ns, end_ns, id, ret);
}
