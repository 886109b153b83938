//! Probes on functions of the kernel's RDMA modules. The same four programs serve all of them: how one is reached (`fentry`, a
//! kprobe, a tracepoint) is chosen by userspace, and what it is in the probe's cookie.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_attach_cookie, bpf_get_func_arg, bpf_get_func_ret, bpf_get_smp_processor_id,
};
use aya_ebpf::macros::{fentry, fexit, kprobe, kretprobe, map, raw_tracepoint};
use aya_ebpf::maps::{Array, LruHashMap};
use aya_ebpf::programs::{FEntryContext, FExitContext, ProbeContext, RawTracePointContext, RetProbeContext};
use profiler_common::Loss;
use profiler_common::rdma_kernel::{AsyncEventRecord, EVENT_HEALTH, Role, SetupOp};
use profiler_common::record::{Header, RecordKind};

use crate::mem::{kernel, member};
use crate::rdma_call::{self, RDMA_WAITING, field, latency, now_ns};
use crate::{emit, maps, offset};

/// A channel for completions that a target has read from, by its queue's address.
#[map]
static RDMA_CHANNELS: LruHashMap<u64, Channel> = LruHashMap::with_max_entries(4096, 0);

#[derive(Clone, Copy)]
#[repr(C)]
struct Channel {
    /// The oldest event that was not read, 0: none.
    event_ns: u64,
}

/// Threads that read from a channel.
#[map]
static RDMA_READS: LruHashMap<u32, Read> = LruHashMap::with_max_entries(4096, 0);

#[derive(Clone, Copy)]
#[repr(C)]
struct Read {
    queue: u64,
    start_ns: u64,
}

/// Of each processor: beginning of the completion interrupt that it is in, 0: none.
#[map]
static RDMA_INTERRUPTS: Array<u64> = Array::with_max_entries(4096, 0);

/// Kernel threads that hand a command over: its entry and head.
#[map]
static RDMA_WORKERS: LruHashMap<u32, Work> = LruHashMap::with_max_entries(1024, 0);

#[derive(Clone, Copy)]
#[repr(C)]
struct Work {
    entry: u64,
    head: [u64; 2],
}

/// What the connection manager was asked, by its identifier's address.
#[map]
static RDMA_ASKED: LruHashMap<u64, Asked> = LruHashMap::with_max_entries(4096, 0);

#[derive(Clone, Copy)]
#[repr(C)]
struct Asked {
    id: u64,
    start_ns: u64,
    op: u64,
}

#[fentry]
pub fn rdma_fentry(ctx: FEntryContext) -> i32 {
    // SAFETY: the program's own context.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let argument = |place: u64| {
        let mut value = 0;
        // SAFETY: as above; the helper fails where the function has no such argument.
        unsafe { bpf_get_func_arg(ctx.as_ptr(), (cookie >> place) as u8 as u32, &raw mut value) };
        value
    };
    rdma_enter(cookie, argument(16), argument(24), argument(32));
    0
}

#[fexit]
pub fn rdma_fexit(ctx: FExitContext) -> i32 {
    // SAFETY: the program's own context.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let mut value = 0;
    // SAFETY: as above.
    unsafe { bpf_get_func_ret(ctx.as_ptr(), &raw mut value) };
    rdma_exit(cookie, value as i64);
    0
}

#[kprobe]
pub fn rdma_kprobe(ctx: ProbeContext) -> u32 {
    // SAFETY: the program's own context.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let arguments = [ctx.arg(0), ctx.arg(1), ctx.arg(2), ctx.arg(3), ctx.arg(4), ctx.arg(5)];
    let argument = |place: u64| {
        let wanted = (cookie >> place) as u8;
        let mut value = 0;
        for (number, known) in (0..).zip(arguments) {
            if number == wanted {
                value = known.unwrap_or(0);
            }
        }
        value
    };
    rdma_enter(cookie, argument(16), argument(24), argument(32));
    0
}

#[kretprobe]
pub fn rdma_kret(ctx: RetProbeContext) -> u32 {
    // SAFETY: the program's own context.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    rdma_exit(cookie, ctx.ret::<u64>() as i64);
    0
}

/// The connection manager's tracepoint, where its function cannot be probed.
#[raw_tracepoint]
pub fn rdma_point(ctx: RawTracePointContext) -> i32 {
    manager_event(ctx.arg(0), ctx.arg(1));
    0
}

#[inline(always)]
fn is_target(id: u64) -> bool {
    let tgid = (id >> 32) as u32;
    maps::is_marked(tgid) && maps::TARGETS.get_ptr(tgid).is_some()
}

const OUTER: u8 = Role::Outer as u8;
const OPERATION: u8 = Role::Operation as u8;
const PIN: u8 = Role::Pin as u8;
const DRIVER: u8 = Role::Driver as u8;
const COMMAND: u8 = Role::Command as u8;
const COMMAND_WORK: u8 = Role::CommandWork as u8;
const CHANNEL_EVENT: u8 = Role::ChannelEvent as u8;
const CHANNEL_READ: u8 = Role::ChannelRead as u8;
const ASYNC_EVENT: u8 = Role::AsyncEvent as u8;
const INTERRUPT: u8 = Role::Interrupt as u8;
const MANAGER_EVENT: u8 = Role::ManagerEvent as u8;
const HEALTH: u8 = Role::Health as u8;

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn rdma_enter(cookie: u64, first: u64, second: u64, third: u64) -> u32 {
    let role = cookie as u8;
    let id = bpf_get_current_pid_tgid();
    if matches!(role, OUTER..=COMMAND | CHANNEL_READ) {
        if is_target(id) {
            enter_target(cookie, id, [first, second, third]);
        }
        return 0;
    }
    match role {
        INTERRUPT => interrupt(now_ns()),
        CHANNEL_EVENT => channel_event(first),
        COMMAND_WORK => work(id as u32, first),
        ASYNC_EVENT => async_event(second as u32, first as u32),
        HEALTH => async_event(EVENT_HEALTH, 0),
        MANAGER_EVENT => manager_event(first, second),
        _ => {}
    }
    0
}

#[inline(always)]
fn enter_target(cookie: u64, id: u64, arguments: [u64; 3]) {
    let (role, op) = (cookie as u8, u32::from((cookie >> 8) as u8));
    let tid = id as u32;
    if role == CHANNEL_READ {
        return read(tid, arguments[0]);
    }
    if role == OUTER {
        rdma_call::begin(id);
        return;
    }
    if role == OPERATION {
        if op >= SetupOp::ResolveAddress as u32 && op <= SetupOp::Connect as u32 {
            ask(id, op, arguments[0]);
        }
        let call = match rdma_call::find(tid) {
            Some(call) => {
                call.depth += 1;
                Some(call)
            }
            None => rdma_call::begin(id),
        };
        if let Some(call) = call {
            rdma_call::operation(call, op, arguments);
        }
        return;
    }
    let Some(call) = rdma_call::find(tid) else { return };
    match role {
        PIN => rdma_call::pin(call, arguments[0]),
        DRIVER => rdma_call::driver(call, arguments[0]),
        COMMAND => rdma_call::command(call, arguments[0]),
        _ => {}
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn rdma_exit(cookie: u64, ret: i64) -> u32 {
    let role = cookie as u8;
    let id = bpf_get_current_pid_tgid();
    if matches!(role, OUTER..=COMMAND | CHANNEL_READ) {
        if is_target(id) {
            exit_target(role, id, ret);
        }
        return 0;
    }
    match role {
        INTERRUPT => interrupt(0),
        COMMAND_WORK => work_end(id as u32),
        _ => {}
    }
    0
}

#[inline(always)]
fn exit_target(role: u8, id: u64, ret: i64) {
    let tid = id as u32;
    if role == CHANNEL_READ {
        return read_end(id, ret);
    }
    let Some(call) = rdma_call::find(tid) else { return };
    match role {
        PIN => rdma_call::pin_end(call),
        DRIVER => rdma_call::driver_end(call),
        COMMAND => rdma_call::command_end(call),
        _ => {
            if role == OPERATION {
                rdma_call::operation_end(call, ret);
            }
            call.depth -= 1;
            if call.depth == 0 {
                // Functions that return an `int` leave the upper half as it is.
                let narrow = i64::from(ret as i32);
                let ret = if role == OUTER || !rdma_call::is_error(narrow) { ret } else { narrow };
                rdma_call::finish(call, if rdma_call::is_error(ret) || role == OUTER { ret } else { 0 });
            }
        }
    }
}

#[inline(always)]
fn interrupt(now_ns: u64) {
    // SAFETY: no preconditions.
    if let Some(begin) = RDMA_INTERRUPTS.get_ptr_mut(unsafe { bpf_get_smp_processor_id() }) {
        // SAFETY: only this processor writes its slot.
        unsafe { *begin = now_ns };
    }
}

/// Events of channels that no target has read from are of no interest.
#[inline(always)]
fn channel_event(queue: u64) {
    let Some(channel) = RDMA_CHANNELS.get_ptr_mut(queue) else { return };
    // SAFETY: an entry of the map; the oldest event may be missed where two come at a time.
    let channel = unsafe { &mut *channel };
    let now_ns = now_ns();
    if channel.event_ns == 0 {
        channel.event_ns = now_ns;
    }
    // SAFETY: no preconditions.
    let processor = unsafe { bpf_get_smp_processor_id() };
    let began_ns = RDMA_INTERRUPTS.get(processor).copied().unwrap_or(0);
    if began_ns != 0 && began_ns <= now_ns {
        // Of no thread: totals are kept by processor.
        latency(SetupOp::InterruptToChannel, began_ns, now_ns, u64::from(processor), 0);
    }
}

#[inline(always)]
fn read(tid: u32, file: u64) {
    let offset = rdma_call::RDMA_OFFSETS.get(0).map_or(u32::MAX, |offsets| offsets.channel_queue);
    let private: u64 = member(file, offset!(file_private_data));
    if private == 0 || offset == u32::MAX {
        return;
    }
    let queue = private + u64::from(offset);
    if RDMA_CHANNELS.get_ptr(queue).is_none() {
        // Without a place its wake-ups are not seen.
        let _ = RDMA_CHANNELS.insert(queue, Channel { event_ns: 0 }, 1);
    }
    // The read of longest ago makes room; without a place this wake-up is not seen.
    let _ = RDMA_READS.insert(tid, Read { queue, start_ns: now_ns() }, 0);
}

/// A thread that slept when the event came was woken up for it; one that came later was elsewhere.
#[inline(always)]
fn read_end(id: u64, ret: i64) {
    let Some(read) = RDMA_READS.get_ptr(id as u32) else { return };
    // SAFETY: copied at once.
    let read = unsafe { *read };
    let _ = RDMA_READS.remove(id as u32);
    if ret <= 0 {
        return;
    }
    let Some(channel) = RDMA_CHANNELS.get_ptr_mut(read.queue) else { return };
    // SAFETY: as above.
    let channel = unsafe { &mut *channel };
    let event_ns = channel.event_ns;
    channel.event_ns = 0;
    if event_ns > read.start_ns {
        latency(SetupOp::ChannelWake, event_ns, now_ns(), id, 0);
    }
}

/// A worker takes a command from the queue: whose it is tells its head.
#[inline(always)]
fn work(tid: u32, item: u64) {
    let Some(offsets) = rdma_call::RDMA_OFFSETS.get(0) else { return };
    if offsets.entry_work == u32::MAX {
        return;
    }
    let entry = item.wrapping_sub(u64::from(offsets.entry_work));
    let message: u64 = field(entry, |offsets| offsets.entry_in);
    let head: [u64; 2] = field(message, |offsets| offsets.message_data);
    if RDMA_WAITING.get_ptr(head).is_some() {
        // Without a place the command has no time in the queue of its own.
        let _ = RDMA_WORKERS.insert(tid, Work { entry, head }, 0);
    }
}

/// The device has the command.
#[inline(always)]
fn work_end(tid: u32) {
    let Some(work) = RDMA_WORKERS.get_ptr(tid) else { return };
    // SAFETY: copied at once.
    let work = unsafe { *work };
    let _ = RDMA_WORKERS.remove(tid);
    let Some(waiting) = RDMA_WAITING.get_ptr_mut(work.head) else { return };
    // SAFETY: an entry of the map; its thread reads it when the answer has come.
    let waiting = unsafe { &mut *waiting };
    let handed_ns: u64 = field(work.entry, |offsets| offsets.entry_ts1);
    if handed_ns > waiting.start_ns {
        waiting.queued_ns = handed_ns - waiting.start_ns;
    }
}

/// `IB_EVENT_DEVICE_FATAL`, those of ports, and `IB_EVENT_GID_CHANGE`: what the queue pairs of all others go through is not told.
#[inline(always)]
fn async_event(event: u32, port: u32) {
    if !matches!(event, 8..=13 | 18 | EVENT_HEALTH) {
        return;
    }
    let header = Header { kind: RecordKind::AsyncEvent as u32, len: size_of::<AsyncEventRecord>() as u32 };
    let record = AsyncEventRecord { header, time_ns: now_ns(), event, port };
    emit::record(&record, Loss::OtherRing);
}

#[inline(always)]
fn ask(id: u64, op: u32, identifier: u64) {
    // Without a place the answer's time is not known.
    let _ = RDMA_ASKED.insert(identifier, Asked { id, start_ns: now_ns(), op: u64::from(op) }, 0);
}

#[inline(always)]
fn manager_event(identifier: u64, event: u64) {
    let Some(asked) = RDMA_ASKED.get_ptr(identifier) else { return };
    // SAFETY: copied at once.
    let asked = unsafe { *asked };
    // `rdma_cm_event.event`, its first member.
    let event: u32 = kernel(event);
    let (op, answer) = match event {
        0 | 1 => (SetupOp::ResolveAddress, SetupOp::AddressAnswer),
        2 | 3 => (SetupOp::ResolveRoute, SetupOp::RouteAnswer),
        5..=9 => (SetupOp::Connect, SetupOp::ConnectAnswer),
        _ => return,
    };
    if asked.op != op as u64 {
        return;
    }
    // What is gone already has made room for another.
    let _ = RDMA_ASKED.remove(identifier);
    // Address, route and connection errors, unreachable and rejected peers.
    let failed = matches!(event, 1 | 3 | 6..=8);
    latency(answer, asked.start_ns, now_ns(), asked.id, if failed { -1 } else { 0 });
}
