//! Wait records: what a call that is over, or still lasts, is told as.

use profiler_common::record::{Header, RecordKind, WAIT_IN_FLIGHT, WAIT_SET_CUT, WAIT_SOCKS};
use profiler_common::{Call, Loss, SockRecord, WaitRecord};

use crate::call_class::{HAS_FD, ON_SET, ON_SOCKET};
use crate::regs::UserRegs;
use crate::thread::{NO_SOCK, Thread};
use crate::user_memory::UserMemory;
use crate::{api, emit, futex, maps, poll_set, socket};

/// Nodes of an epoll tree that wait to be visited: twice the depth of a tree of a million items.
pub const NODES: usize = 64;

/// Entries of an array of `pollfd` that are read at once.
pub const POLLFDS: usize = 16;

/// A wait on a set of descriptors: the record as it goes out, and what filling it needs.
#[repr(C)]
pub struct SetWait {
    pub wait: WaitRecord,
    pub socks: [SockRecord; WAIT_SOCKS],
    /// Place of each in the caller's array of `pollfd`.
    pub places: [u16; WAIT_SOCKS],
    /// Those that are filled.
    pub count: u32,
    /// Descriptors in the set.
    pub nfds: u32,
    /// Slots whose place a socket may take, four bits each, the last one lowest.
    pub others: u64,
    pub other_count: u32,
    /// Sockets and descriptors that were looked at.
    pub sockets: u32,
    pub looked: u32,
    /// `poll`, `select`: the piece of the set that is looked at begins here, and the next one here.
    pub first: u32,
    pub next: u32,
    /// Descriptors of that piece that are left, as bits.
    pub left: u64,
    pub bits: [u64; 3],
    pub pollfds: [u64; POLLFDS],
    /// The task's table of open files.
    pub files: u64,
    pub file_count: u32,
    /// `epoll`: nodes of the tree that wait to be visited.
    pub depth: u32,
    /// The set's end was reached.
    pub whole: u32,
    pub is_poll: u32,
    /// A listening socket was found.
    pub listens: u32,
    /// Something was not looked at, and no listening socket was found.
    pub cut: u32,
    pub nodes: [u64; NODES],
}

pub const EMPTY_WAIT: WaitRecord = WaitRecord {
    header: Header { kind: 0, len: 0 },
    start_ns: 0,
    end_ns: 0,
    tgid: 0,
    tid: 0,
    call: 0,
    flags: 0,
    nsocks: 0,
    nfds: 0,
    fd: 0,
    polls: 0,
    ret: 0,
    off_cpu_ns: 0,
    user_stack: 0,
    kernel_stack: 0,
    ip: 0,
    sp: 0,
    bp: 0,
    api_start_ns: 0,
    api: 0,
    arg: 0,
    sleep_ns: 0,
    wake_ns: 0,
    runq_ns: 0,
    owner: 0,
    reserved: 0,
};

impl SetWait {
    pub const EMPTY: SetWait = SetWait {
        wait: EMPTY_WAIT,
        socks: [NO_SOCK; WAIT_SOCKS],
        places: [0; WAIT_SOCKS],
        count: 0,
        nfds: 0,
        others: 0,
        other_count: 0,
        sockets: 0,
        looked: 0,
        first: 0,
        next: 0,
        left: 0,
        bits: [0; 3],
        pollfds: [0; POLLFDS],
        files: 0,
        file_count: 0,
        depth: 0,
        whole: 0,
        is_poll: 0,
        listens: 0,
        cut: 0,
        nodes: [0; NODES],
    };
}

/// A wait on one descriptor or none.
#[repr(C)]
pub struct SingleWait {
    pub wait: WaitRecord,
    pub sock: SockRecord,
}

/// How a wait ended, and what goes into its record beside the thread's own state.
#[derive(Clone, Copy)]
pub struct End {
    pub now_ns: u64,
    pub ret: i64,
    /// Time inside that the thread waited for a processor.
    pub runq_ns: u64,
    /// `WAIT_*` that are added.
    pub flags: u32,
    pub user_stack: u64,
    pub regs: UserRegs,
}

/// Finds out what sockets the thread waits on, unless that is known.
#[inline(always)]
pub fn resolve<M: UserMemory>(thread: &mut Thread, tid: u32, memory: M) {
    if thread.resolved != 0 {
        return;
    }
    if ON_SET.has(thread.call) {
        poll_set::resolve(thread, tid, memory);
    } else if ON_SOCKET.has(thread.call) {
        let mut fd = thread.args[0] as u32;
        let mut file = socket::file_of(memory.task(), fd);
        if thread.call == Call::Splice as u32 && !socket::is_socket(file) {
            // From a pipe, into what may be a socket.
            fd = thread.args[2] as u32;
            file = socket::file_of(memory.task(), fd);
        }
        let sock = socket::describe(file, fd, &raw mut thread.sock);
        if thread.call == Call::Connect as u32 {
            socket::merge_dest(&mut thread.sock, &thread.dest);
        }
        crate::tcp::own(sock, &thread.sock, thread.tgid);
        thread.resolved = 1;
    } else if thread.call == Call::Close as u32 {
        // Only where the call sleeps is the file sure to be there; a call without a sleep waited for nobody.
        let file = if thread.has_slept() { thread.closing } else { 0 };
        socket::describe(file, thread.args[0] as u32, &raw mut thread.sock);
        thread.resolved = 1;
    } else {
        if thread.call == Call::Futex as u32 {
            futex::resolve(thread, memory);
        }
        thread.resolved = 1;
    }
}

/// Writes the record of a wait whose sockets are resolved. A wait on a file is none.
#[inline(always)]
pub fn emit<M: UserMemory>(thread: &mut Thread, tid: u32, end: &End, memory: M) -> bool {
    if ON_SET.has(thread.call) {
        emit_set(thread, tid, end, memory)
    } else {
        emit_single(thread, tid, end, memory)
    }
}

#[inline(always)]
fn emit_set<M: UserMemory>(thread: &mut Thread, tid: u32, end: &End, memory: M) -> bool {
    let Some(set) = maps::SETS.get_ptr_mut(tid) else { return false };
    // SAFETY: the thread's own entry.
    let set = unsafe { &mut *set };
    if end.flags & u32::from(WAIT_IN_FLIGHT) == 0 {
        poll_set::returned(set, thread, memory);
    }
    // Stale sockets of an earlier call must not stand for a set that could not be looked at.
    let count = if thread.resolved == 0 { 0 } else { set.count & 31 };
    let count = if count > WAIT_SOCKS as u32 { WAIT_SOCKS as u32 } else { count };
    let nfds = if thread.resolved == 0 { 0 } else { set.nfds };
    let len = size_of::<WaitRecord>() as u32 + count * size_of::<SockRecord>() as u32;
    fill(&mut set.wait, thread, tid, end, memory);
    set.wait.header.len = len;
    set.wait.nsocks = count as u16;
    if thread.resolved == 0 || set.cut != 0 {
        set.wait.flags |= WAIT_SET_CUT;
    }
    set.wait.nfds = if nfds > 0xffff { 0xffff } else { nfds as u16 };
    emit::bytes((&raw const *set).cast(), u64::from(len), Loss::WaitRing)
}

#[inline(always)]
fn emit_single<M: UserMemory>(thread: &mut Thread, tid: u32, end: &End, memory: M) -> bool {
    let Some(mut entry) = maps::EVENTS.reserve::<SingleWait>(0) else {
        emit::lost(Loss::WaitRing);
        return false;
    };
    // SAFETY: every field is written below, the socket only where it is said to be there.
    let single = unsafe { &mut *entry.as_mut_ptr() };
    fill(&mut single.wait, thread, tid, end, memory);
    single.sock = thread.sock;
    let closes = thread.call == Call::Close as u32 && thread.sock.family != 0;
    let with_socket = closes || ON_SOCKET.has(thread.call);
    single.wait.nsocks = u16::from(with_socket);
    single.wait.nfds = u16::from(with_socket);
    single.wait.header.len =
        size_of::<WaitRecord>() as u32 + if with_socket { size_of::<SockRecord>() as u32 } else { 0 };
    entry.submit(emit::wake_flags());
    true
}

#[inline(always)]
fn fill<M: UserMemory>(wait: &mut WaitRecord, thread: &mut Thread, tid: u32, end: &End, memory: M) {
    wait.header.kind = RecordKind::Wait as u32;
    wait.start_ns = thread.start_ns;
    wait.end_ns = end.now_ns;
    wait.tgid = thread.tgid;
    wait.tid = tid;
    wait.call = thread.call as u16;
    wait.flags = (thread.flags | end.flags) as u16;
    wait.fd = if HAS_FD.has(thread.call) { thread.args[0] as i32 } else { -1 };
    wait.polls = 0;
    wait.ret = end.ret;
    wait.off_cpu_ns = thread.off_cpu_ns;
    wait.user_stack = end.user_stack;
    wait.kernel_stack = thread.kernel_stack;
    wait.ip = end.regs.ip;
    wait.sp = end.regs.sp;
    wait.bp = end.regs.bp;
    wait.api = api::current(thread, end.regs.sp, memory);
    wait.api_start_ns = if wait.api == 0 { 0 } else { thread.api_start_ns };
    wait.arg = thread.arg;
    wait.sleep_ns = thread.first_sleep_ns;
    wait.wake_ns = thread.last_wake_ns;
    wait.runq_ns = end.runq_ns;
    wait.owner = thread.owner;
    wait.reserved = 0;
}
