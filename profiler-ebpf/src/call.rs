//! Watched system calls: entry is noted, return is where everything is decided.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use profiler_common::Call;
use profiler_common::call::RESTART_CALL;

use crate::call_class::{ACCEPT, ANY_FILE, ON_SET, ON_SOCKET, POLL, RECEIVE, SEND};
use crate::mem::user_bytes;
use crate::regs::{Regs, UserRegs};
use crate::sched::{back_unseen, run_delay_ns};
use crate::socket::AF_UNIX;
use crate::thread::{self, NO_DEST, NO_SOCK, Thread};
use crate::user_memory::{Current, UserMemory};
use crate::wait::End;
use crate::{dns, emit, maps, nonblocking, sample, settings, socket, stack, tcp, wait};

const EINTR: u32 = 4;
const EAGAIN: u32 = 11;
const EALREADY: u32 = 114;
const EINPROGRESS: u32 = 115;
const EISCONN: u32 = 106;
/// The kernel's own: goes on by `restart_syscall`.
const ERESTART_RESTARTBLOCK: u32 = 516;
const ERESTARTSYS: u32 = 512;

/// Errors by which the network, not the program, ends a transfer; one bit each. EPERM is what a packet filter says.
const NETWORK_ERRORS: u128 = bits([
    1,   // EPERM
    32,  // EPIPE
    100, // ENETDOWN
    101, // ENETUNREACH
    103, // ECONNABORTED
    104, // ECONNRESET
    105, // ENOBUFS
    110, // ETIMEDOUT
    111, // ECONNREFUSED
    112, // EHOSTDOWN
    113, // EHOSTUNREACH
]);

const fn bits<const N: usize>(numbers: [u32; N]) -> u128 {
    let mut bits = 0;
    let mut index = 0;
    while index < N {
        bits |= 1 << numbers[index];
        index += 1;
    }
    bits
}

#[btf_tracepoint(function = "sys_enter")]
pub fn call_enter(ctx: BtfTracePointContext) -> i32 {
    enter(&ctx);
    0
}

#[inline(always)]
fn enter(ctx: &BtfTracePointContext) -> Option<()> {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if !maps::is_marked(tgid) {
        return None;
    }
    let number: u64 = ctx.arg(1);
    let mut call = u32::from(*maps::CALLS.get(number as u32)?);
    if call == 0 {
        return None;
    }
    let regs: *const Regs = ctx.arg(0);
    // SAFETY: the tracepoint's first argument.
    let regs = unsafe { &*regs };
    if regs.is_foreign() {
        return None;
    }
    let thread = thread::of_target(tgid, id as u32)?;
    if call == u32::from(RESTART_CALL) {
        call = thread.restart;
        if call == 0 {
            return None;
        }
    }
    // SAFETY: no preconditions.
    thread.enter(call, number as u32, regs.args(), unsafe { bpf_ktime_get_ns() });
    thread.run_delay_ns = run_delay_ns();
    if call == Call::Connect as u32 {
        note_dest(thread);
    } else if call == Call::Close as u32 {
        // The descriptor is free before the kernel waits for the peer.
        thread.closing = socket::own_file(thread.args[0] as u32);
    }
    Some(())
}

/// Keeps the address that `connect` was given.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn note_dest(thread: *mut Thread) -> u32 {
    // SAFETY: callers pass a thread's entry.
    let Some(thread) = (unsafe { thread.as_mut() }) else { return 0 };
    let from = thread.args[1];
    dns::read_address(from, &mut thread.dest);
    if thread.dest.family != 0 || Current.read::<u16>(from) != Some(AF_UNIX) {
        return 0;
    }
    thread.dest = NO_DEST;
    thread.dest.family = AF_UNIX;
    // Two bytes of family come first, and a path need not end in a zero.
    let len = thread.args[2].saturating_sub(2);
    let len = if len > 40 { 40 } else { len as u32 };
    user_bytes((&raw mut thread.dest.addr).cast(), len, from + 2);
    let mut index = 1;
    let mut ended = false;
    while index < 40 {
        // What follows a path's end is left over in the program's buffer.
        ended |= thread.dest.addr[index] == 0;
        if ended {
            thread.dest.addr[index] = 0;
        }
        index += 1;
    }
    0
}

#[btf_tracepoint(function = "sys_exit")]
pub fn call_exit(ctx: BtfTracePointContext) -> i32 {
    let id = bpf_get_current_pid_tgid();
    if !maps::is_marked((id >> 32) as u32) {
        return 0;
    }
    let Some(thread) = thread::find(id as u32) else { return 0 };
    if thread.call == 0 {
        return 0;
    }
    exit(&ctx, thread, id);
    thread.call = 0;
    0
}

#[inline(always)]
fn exit(ctx: &BtfTracePointContext, thread: &mut Thread, id: u64) -> Option<()> {
    let regs: *const Regs = ctx.arg(0);
    // SAFETY: the tracepoint's first argument.
    let regs = unsafe { &*regs };
    if regs.number() != thread.number {
        return None;
    }
    back_unseen(thread);
    // SAFETY: no preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let lasted_ns = now_ns.saturating_sub(thread.start_ns);
    let ret: i64 = ctx.arg(1);
    let error = if (-4095..0).contains(&ret) { -ret as u32 } else { 0 };
    let call = thread.call;
    let totals = emit::totals(call)?;
    totals.seen += 1;
    thread.restart = if error == ERESTART_RESTARTBLOCK { call } else { 0 };
    let ended = Ended { ret, now_ns, regs: UserRegs::from(regs), error, reserved: 0 };
    let min_ns = settings::min_stall_ns();
    // Who asks for every call gets those without a sleep too.
    let is_no_wait = lasted_ns < min_ns || (min_ns > 0 && thread.stayed_awake());
    if fold(thread, id, &ended) != 0 || (is_no_wait && !has_failed(thread, error)) {
        totals.below += 1;
        totals.below_ns += lasted_ns;
        return None;
    }
    record(thread, id, &ended);
    Some(())
}

/// How a call came back.
#[repr(C)]
pub struct Ended {
    pub ret: i64,
    pub now_ns: u64,
    pub regs: UserRegs,
    /// errno, or one of the kernel's own above 511; 0: none.
    pub error: u32,
    pub reserved: u32,
}

impl Ended {
    #[inline(always)]
    fn is_interrupted(&self) -> bool {
        self.error == EINTR || (self.error >= ERESTARTSYS && self.error <= ERESTART_RESTARTBLOCK)
    }
}

/// What a transfer means beside its duration: looks at non-blocking descriptors, progress on them, DNS messages. Not
/// 0 where the call is folded into a wait that lasts on.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn fold(thread: *mut Thread, id: u64, ended: *const Ended) -> u32 {
    // SAFETY: callers pass a thread's entry and how its call ended, on their stack.
    let (Some(thread), Some(back)) = (unsafe { (thread.as_mut(), ended.as_ref()) }) else { return 0 };
    let call = thread.call;
    let tid = id as u32;
    let fd = thread.args[0] as u32;
    let receive = RECEIVE.has(call);
    if receive || SEND.has(call) {
        if back.error == EAGAIN {
            // A time-out is no look. An empty error queue is not what anybody waits for.
            if thread.has_slept() || dns::reads_errors(thread) {
                return 0;
            }
            nonblocking::look(thread, &nonblocking::key(tid, fd, receive), &back.regs, back.now_ns);
            return 1;
        }
        if back.is_interrupted() {
            return 0;
        }
        if thread.open_nonblocking > 0 {
            nonblocking::progress(thread, &nonblocking::key(tid, fd, receive), back.now_ns, back.ret);
        }
        if ACCEPT.has(call) {
            own_accepted(thread, back.ret);
        } else if dns::carries(call) {
            dns::messages(thread, tid, back);
        }
    } else if ON_SET.has(call) {
        if POLL.has(call) {
            dns::poll_errors(thread, tid, back);
        }
        if back.ret == 0 && thread.stayed_awake() {
            sample::looked(thread, tid, back.now_ns);
        }
    } else if call == Call::Close as u32 && thread.open_nonblocking > 0 {
        nonblocking::progress(thread, &nonblocking::key(tid, fd, true), back.now_ns, back.ret);
        nonblocking::progress(thread, &nonblocking::key(tid, fd, false), back.now_ns, back.ret);
    }
    0
}

/// Remembers a connection that was accepted, for its retransmits.
#[inline(always)]
fn own_accepted(thread: &Thread, ret: i64) {
    if ret < 0 {
        return;
    }
    let mut record = NO_SOCK;
    let file = socket::file_of(Current.task(), ret as u32);
    let sock = socket::describe(file, ret as u32, &raw mut record);
    tcp::own(sock, &record, thread.tgid);
}

/// Whether the error is worth a record however short the call was.
#[inline(always)]
fn has_failed(thread: &Thread, error: u32) -> bool {
    if error == 0 || error == EINTR || error >= ERESTARTSYS {
        return false;
    }
    let call = thread.call;
    if call == Call::Connect as u32 {
        // After a sleep the first two are time-outs.
        return error != EISCONN && (thread.has_slept() || (error != EINPROGRESS && error != EALREADY));
    }
    if !ON_SOCKET.has(call) {
        return false;
    }
    let half = if error < 64 { NETWORK_ERRORS as u64 } else { (NETWORK_ERRORS >> 64) as u64 };
    error < 128 && half >> (error & 63) & 1 != 0
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn record(thread: *mut Thread, id: u64, ended: *const Ended) -> u32 {
    // SAFETY: as above.
    let (Some(thread), Some(back)) = (unsafe { (thread.as_mut(), ended.as_ref()) }) else { return 0 };
    let tid = id as u32;
    wait::resolve(thread, tid, Current);
    if ANY_FILE.has(thread.call) && thread.sock.family == 0 {
        return 0;
    }
    let user_stack = stack::user(&back.regs, id);
    let runq_ns = run_delay_ns().saturating_sub(thread.run_delay_ns);
    let end = End { now_ns: back.now_ns, ret: back.ret, runq_ns, flags: 0, user_stack, regs: back.regs };
    wait::emit(thread, tid, &end, Current);
    0
}
