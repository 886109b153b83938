//! What is kept of each thread of a target, from one probe to the next.

use profiler_common::record::{WAIT_SLEPT, WAIT_TIMED};
use profiler_common::{Loss, SockRecord};

use crate::emit;
use crate::maps::{TARGETS, THREADS, are_sleeps_seen};

/// Written by its own thread's probes, and at the thread's switches; read by the iterators.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Thread {
    pub tgid: u32,
    /// System-call number of the call it is in.
    pub number: u32,
    /// The `Call` it is in, 0: none.
    pub call: u32,
    /// The `Call` that a signal interrupted and `restart_syscall` would go on with.
    pub restart: u32,
    /// `WAIT_BEGAN_EARLIER`, `WAIT_SLEPT`, `WAIT_TIMED`.
    pub flags: u32,
    /// Whether `sock`, or the thread's entry in `SETS`, describes this call.
    pub resolved: u32,
    pub start_ns: u64,
    pub args: [u64; 6],
    /// Beginning of the present sleep, 0: on a processor.
    pub sleep_ns: u64,
    /// Its wake-up, 0: asleep, or none was seen.
    pub wake_ns: u64,
    /// Of the call: beginning of the first sleep, wake-up of the last one, time of all.
    pub first_sleep_ns: u64,
    pub last_wake_ns: u64,
    pub off_cpu_ns: u64,
    /// Time that the thread had waited for a processor when the call began, ever.
    pub run_delay_ns: u64,
    pub longest_ns: u64,
    /// Kernel stacks of the longest and of the present sleep.
    pub kernel_stack: u64,
    pub sleep_stack: u64,
    pub sleeps: u32,
    /// Entries in `NONBLOCKING`, so that calls of threads without one need no look-up.
    pub open_nonblocking: u32,
    /// Time-out or operation, see `WaitRecord::arg`.
    pub arg: i32,
    /// See `WaitRecord::owner`.
    pub owner: u32,
    /// Samples since the last look in which the thread did not look, while it had open waits.
    pub unlooked: u32,
    /// When it looked the last time and found nothing, 0: it has not, or found something since.
    pub looked_ns: u64,
    /// Time that it had waited for a processor then, ever.
    pub looked_delay_ns: u64,
    /// When it was given a processor after that.
    pub resumed_ns: u64,
    /// The resolver function that it is in, 0: none.
    pub api: u32,
    pub api_start_ns: u64,
    /// Stack pointer at its entry, and the return address that lay there.
    pub api_sp: u64,
    pub api_return: u64,
    /// The file that `close` was given.
    pub closing: u64,
    /// The address that `connect` was given: in failure the socket no longer has it.
    pub dest: Dest,
    /// The message of the call that is being recorded.
    pub message: Message,
    pub sock: SockRecord,
}

/// Where a message lies in the program's memory. In the thread's entry, since all calls together have 512 bytes of stack, on
/// older kernels counted along every way.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Message {
    pub file: u64,
    pub fd: u32,
    /// 1 received, 0 sent.
    pub receive: u32,
    /// An array of `iovec`, or the bytes themselves where `pieces` is 0.
    pub base: u64,
    pub pieces: u64,
    /// Bytes that were or would have been transferred.
    pub len: u64,
    /// A socket address, 0: none.
    pub name: u64,
    /// What the record says.
    pub ret: i64,
    pub now_ns: u64,
    pub sp: u64,
}

pub const NO_MESSAGE: Message =
    Message { file: 0, fd: 0, receive: 0, base: 0, pieces: 0, len: 0, name: 0, ret: 0, now_ns: 0, sp: 0 };

/// A socket address, as `SockRecord` has it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Dest {
    pub addr: [u8; 40],
    pub family: u16,
    /// Host byte order.
    pub port: u16,
    pub reserved: u32,
}

pub const NO_DEST: Dest = Dest { addr: [0; 40], family: 0, port: 0, reserved: 0 };

pub const NO_SOCK: SockRecord = SockRecord {
    ino: 0,
    fd: -1,
    family: 0,
    sock_type: 0,
    state: 0,
    local_port: 0,
    peer_port: 0,
    events: 0,
    revents: 0,
    addr: [0; 40],
};

/// A new thread's entry: too large to be built on the stack.
static NEW: Thread = Thread {
    tgid: 0,
    number: 0,
    call: 0,
    restart: 0,
    flags: 0,
    resolved: 0,
    start_ns: 0,
    args: [0; 6],
    sleep_ns: 0,
    wake_ns: 0,
    first_sleep_ns: 0,
    last_wake_ns: 0,
    off_cpu_ns: 0,
    run_delay_ns: 0,
    longest_ns: 0,
    kernel_stack: 0,
    sleep_stack: 0,
    sleeps: 0,
    open_nonblocking: 0,
    arg: 0,
    owner: 0,
    unlooked: 0,
    looked_ns: 0,
    looked_delay_ns: 0,
    resumed_ns: 0,
    api: 0,
    api_start_ns: 0,
    api_sp: 0,
    api_return: 0,
    closing: 0,
    dest: NO_DEST,
    message: NO_MESSAGE,
    sock: NO_SOCK,
};

/// The entry of a thread that is known.
#[inline(always)]
pub fn find(tid: u32) -> Option<&'static mut Thread> {
    // SAFETY: entries are removed when their thread ends, and its probes have ended then.
    THREADS.get_ptr_mut(tid).map(|thread| unsafe { &mut *thread })
}

/// The entry of a thread of a target, made if there is none; `None` for other threads. Entries of threads are removed
/// when they end, so one that is there needs no second look-up.
#[inline(always)]
pub fn of_target(tgid: u32, tid: u32) -> Option<&'static mut Thread> {
    if let Some(thread) = find(tid)
        && thread.tgid == tgid
    {
        return Some(thread);
    }
    TARGETS.get_ptr(tgid)?;
    find_or_add(tgid, tid)
}

/// The entry of a thread, made if there is none; `None` where the table is full.
#[inline(always)]
pub fn find_or_add(tgid: u32, tid: u32) -> Option<&'static mut Thread> {
    if let Some(thread) = find(tid) {
        thread.tgid = tgid;
        return Some(thread);
    }
    add(tgid, tid)
}

#[inline(always)]
fn add(tgid: u32, tid: u32) -> Option<&'static mut Thread> {
    if THREADS.insert(tid, &NEW, 0).is_err() {
        emit::lost(Loss::CallTable);
        return None;
    }
    let thread = find(tid)?;
    thread.tgid = tgid;
    Some(thread)
}

impl Thread {
    /// The call begins.
    #[inline(always)]
    pub fn enter(&mut self, call: u32, number: u32, args: [u64; 6], now_ns: u64) {
        self.number = number;
        self.flags = if are_sleeps_seen() { u32::from(WAIT_TIMED) } else { 0 };
        self.resolved = 0;
        self.start_ns = now_ns;
        self.args = args;
        self.sleep_ns = 0;
        self.wake_ns = 0;
        self.first_sleep_ns = 0;
        self.last_wake_ns = 0;
        self.off_cpu_ns = 0;
        self.longest_ns = 0;
        self.kernel_stack = 0;
        self.sleep_stack = 0;
        self.sleeps = 0;
        self.arg = 0;
        self.owner = 0;
        self.closing = 0;
        self.call = call;
    }

    /// Whether the thread is known not to have slept in the call that ends.
    #[inline(always)]
    pub fn stayed_awake(&self) -> bool {
        self.flags & u32::from(WAIT_TIMED | WAIT_SLEPT) == u32::from(WAIT_TIMED)
    }

    /// Whether the thread is known to have slept in the call.
    #[inline(always)]
    pub fn has_slept(&self) -> bool {
        self.flags & u32::from(WAIT_SLEPT) != 0
    }

    /// Adds the present sleep, which ended at `now_ns` unless a wake-up was seen, to those of the call. Returns its
    /// length.
    #[inline(always)]
    pub fn end_sleep(&mut self, now_ns: u64) -> u64 {
        let wake_ns = if self.wake_ns != 0 { self.wake_ns } else { now_ns };
        let slept_ns = wake_ns.saturating_sub(self.sleep_ns);
        self.sleep_ns = 0;
        self.wake_ns = 0;
        self.last_wake_ns = wake_ns;
        self.off_cpu_ns += slept_ns;
        slept_ns
    }
}
