//! Waits on non-blocking descriptors: one record from the first look that found nothing to the next progress,
//! however often the program looked.

use profiler_common::record::{Header, RecordKind, WAIT_NONBLOCKING, WAIT_PAUSED};
use profiler_common::table::{NONBLOCKING_RECEIVE, NONBLOCKING_SEND};
use profiler_common::{Loss, NonblockingKey, NonblockingWait, WaitRecord};

use crate::maps::{EVENTS, NONBLOCKING};
use crate::regs::UserRegs;
use crate::sched::run_delay_ns;
use crate::thread::{NO_SOCK, Thread};
use crate::user_memory::Current;
use crate::wait::SingleWait;
use crate::{api, emit, sample, settings, socket, stack};

/// A wait that is yet to be filled in.
static NEW: NonblockingWait = NonblockingWait {
    start_ns: 0,
    last_ns: 0,
    run_delay_ns: 0,
    start_run_delay_ns: 0,
    tgid: 0,
    polls: 0,
    call: 0,
    api: 0,
    api_start_ns: 0,
    user_stack: 0,
    ip: 0,
    sp: 0,
    bp: 0,
    sock: NO_SOCK,
};

#[inline(always)]
pub fn key(tid: u32, fd: u32, receive: bool) -> NonblockingKey {
    let direction = if receive { NONBLOCKING_RECEIVE } else { NONBLOCKING_SEND };
    NonblockingKey { tid, fd: fd as i32, direction, reserved: 0 }
}

/// Whether the thread turned to something else after its last look. While it waits for a processor it cannot look.
#[inline(always)]
fn has_paused(open: &NonblockingWait, now_ns: u64, run_delay_ns: u64) -> bool {
    let since_ns = now_ns.saturating_sub(open.last_ns);
    since_ns.saturating_sub(run_delay_ns.saturating_sub(open.run_delay_ns)) > settings::spin_gap_ns()
}

/// A copy: Linux 6.1 takes no argument of a global function for a map's key.
#[inline(always)]
fn on_stack(key: &NonblockingKey) -> NonblockingKey {
    NonblockingKey { tid: key.tid, fd: key.fd, direction: key.direction, reserved: 0 }
}

/// The thread looked, and there was nothing.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn look(
    thread: *mut Thread,
    key: *const NonblockingKey,
    regs: *const UserRegs,
    now_ns: u64,
) -> u32 {
    // SAFETY: callers pass a thread's entry, and a key and registers on their stack.
    let (Some(thread), Some(key), Some(regs)) = (unsafe { (thread.as_mut(), key.as_ref(), regs.as_ref()) })
    else {
        return 0;
    };
    let key = &on_stack(key);
    sample::looked(thread, key.tid, now_ns);
    let Some(open) = NONBLOCKING.get_ptr_mut(key) else { return begin(thread, key, regs, now_ns) };
    // SAFETY: the thread's own entry; userspace removes it only when the thread has ended or the recording has.
    let open = unsafe { &mut *open };
    let run_delay_ns = run_delay_ns();
    if has_paused(open, now_ns, run_delay_ns) {
        again(open, key, thread);
    }
    open.last_ns = now_ns;
    open.run_delay_ns = run_delay_ns;
    open.polls = open.polls.saturating_add(1);
    if open.user_stack == 0 && now_ns - open.start_ns >= settings::min_stall_ns() {
        open.ip = regs.ip;
        open.sp = regs.sp;
        open.bp = regs.bp;
        open.api = api::current(thread, regs.sp, Current);
        open.api_start_ns = if open.api == 0 { 0 } else { thread.api_start_ns };
        open.user_stack = stack::user(regs, u64::from(open.tgid) << 32 | u64::from(key.tid));
    }
    0
}

/// The wait so far ended with the look before, another one begins. A function of its own, as the next one: what it keeps
/// on the stack is no part of the way to a copy of the user stack.
#[inline(never)]
extern "C" fn again(open: &mut NonblockingWait, key: &NonblockingKey, thread: &Thread) -> u32 {
    end(open, key, open.last_ns, WAIT_PAUSED, 0);
    open.start_ns = thread.start_ns;
    open.start_run_delay_ns = thread.run_delay_ns;
    open.polls = 0;
    open.user_stack = 0;
    socket::describe(socket::own_file(key.fd as u32), key.fd as u32, &mut open.sock);
    0
}

#[inline(never)]
extern "C" fn begin(thread: &mut Thread, key: &NonblockingKey, regs: &UserRegs, now_ns: u64) -> u32 {
    // Pipes, event and timer descriptors are none of our business.
    let file = socket::own_file(key.fd as u32);
    if !socket::is_socket(file) {
        return 0;
    }
    // In place: it is too large for the stack, of which older kernels let all calls together have 512 bytes.
    if NONBLOCKING.insert(key, &NEW, 0).is_err() {
        emit::lost(Loss::NonblockingTable);
        return 0;
    }
    let Some(open) = NONBLOCKING.get_ptr_mut(key) else { return 0 };
    // SAFETY: the thread's own entry, made just now.
    let open = unsafe { &mut *open };
    open.start_ns = thread.start_ns;
    open.last_ns = now_ns;
    open.run_delay_ns = run_delay_ns();
    open.start_run_delay_ns = thread.run_delay_ns;
    open.tgid = thread.tgid;
    open.polls = 1;
    open.call = thread.call;
    open.ip = regs.ip;
    open.sp = regs.sp;
    open.bp = regs.bp;
    let sock = socket::describe(file, key.fd as u32, &mut open.sock);
    crate::tcp::own(sock, &open.sock, thread.tgid);
    thread.open_nonblocking += 1;
    0
}

/// The thread got something from the descriptor, or an error, or closed it.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn progress(thread: *mut Thread, key: *const NonblockingKey, now_ns: u64, ret: i64) -> u32 {
    // SAFETY: callers pass a thread's entry and a key on their stack.
    let (Some(thread), Some(key)) = (unsafe { (thread.as_mut(), key.as_ref()) }) else { return 0 };
    let key = &on_stack(key);
    let Some(open) = NONBLOCKING.get_ptr_mut(key) else { return 0 };
    // SAFETY: as above.
    let open = unsafe { &mut *open };
    sample::looked(thread, key.tid, now_ns);
    if has_paused(open, now_ns, run_delay_ns()) {
        end(open, key, open.last_ns, WAIT_PAUSED, ret);
    } else {
        end(open, key, now_ns, 0, ret);
    }
    if NONBLOCKING.remove(key).is_ok() && thread.open_nonblocking > 0 {
        thread.open_nonblocking -= 1;
    }
    if thread.open_nonblocking == 0 {
        thread.looked_ns = 0;
    }
    0
}

/// Writes the record of a wait that was long enough.
#[inline(always)]
fn end(open: &NonblockingWait, key: &NonblockingKey, end_ns: u64, flags: u16, ret: i64) {
    if end_ns.saturating_sub(open.start_ns) < settings::min_stall_ns() {
        return;
    }
    // Of one that paused the last look has the figure, or the thread is looking now.
    let run_delay_ns = if flags & WAIT_PAUSED == 0 { run_delay_ns() } else { open.run_delay_ns };
    let Some(mut entry) = EVENTS.reserve::<SingleWait>(0) else {
        emit::lost(Loss::WaitRing);
        return;
    };
    // SAFETY: every field is written below.
    let single = unsafe { &mut *entry.as_mut_ptr() };
    single.sock = open.sock;
    single.wait = WaitRecord {
        header: Header { kind: RecordKind::Wait as u32, len: size_of::<SingleWait>() as u32 },
        start_ns: open.start_ns,
        end_ns,
        tgid: open.tgid,
        tid: key.tid,
        call: open.call as u16,
        flags: WAIT_NONBLOCKING | flags,
        nsocks: 1,
        nfds: 1,
        fd: key.fd,
        polls: open.polls,
        ret,
        off_cpu_ns: 0,
        user_stack: open.user_stack,
        kernel_stack: 0,
        ip: open.ip,
        sp: open.sp,
        bp: open.bp,
        api_start_ns: open.api_start_ns,
        api: open.api,
        arg: 0,
        sleep_ns: 0,
        wake_ns: 0,
        runq_ns: run_delay_ns.saturating_sub(open.start_run_delay_ns),
        owner: 0,
        reserved: 0,
    };
    entry.submit(emit::wake_flags());
}
