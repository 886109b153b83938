//! The descriptors that `poll`, `select` and `epoll_wait` wait on.

use profiler_common::record::WAIT_SOCKS;
use profiler_common::{Call, Loss};

use crate::call_class::{EPOLL, POLL, SELECT};
use crate::mem::member;
use crate::offset;
use crate::repeat::{DONE, ON, repeat};
use crate::socket::{describe, file_of, is_socket};
use crate::thread::Thread;
use crate::user_memory::UserMemory;
use crate::wait::{NODES, SetWait};
use crate::{emit, maps};

/// Descriptors of a set that are looked at; most sets have fewer.
const LOOK_AT: u32 = 64;

const POLLIN: u16 = 1;
const POLLPRI: u16 = 2;
const POLLOUT: u16 = 4;

/// An empty set: too large to be built on the stack.
static NEW: SetWait = SetWait::EMPTY;

/// Room for this thread's set; `None` where the table is full.
#[inline(always)]
fn room(tid: u32) -> Option<&'static mut SetWait> {
    if maps::SETS.get_ptr_mut(tid).is_none() && maps::SETS.insert(tid, &NEW, 0).is_err() {
        emit::lost(Loss::CallTable);
        return None;
    }
    // SAFETY: the thread's own entry, removed when it ends.
    maps::SETS.get_ptr_mut(tid).map(|set| unsafe { &mut *set })
}

/// Describes the sockets of the set that the thread waits on, in its entry of `SETS`.
#[inline(always)]
pub fn resolve<M: UserMemory>(thread: &mut Thread, tid: u32, memory: M) {
    let Some(set) = room(tid) else { return };
    set.count = 0;
    set.others = 0;
    set.other_count = 0;
    set.nfds = 0;
    let cut = if POLL.has(thread.call) {
        poll(set, thread, memory)
    } else if SELECT.has(thread.call) {
        select(set, thread, memory)
    } else {
        epoll(set, thread, memory)
    };
    thread.arg = timeout_ms(thread, memory);
    thread.resolved = 1;
    if cut {
        emit::lost(Loss::PollSetTruncated);
    }
}

/// What the loops over a set work on. It lies on the stack, and the verifier follows every value there: all that
/// changes from step to step is in the set, which is a map's.
#[repr(C)]
struct Walk<M> {
    set: *mut SetWait,
    memory: M,
    args: [u64; 6],
    task: u64,
}

impl<M: UserMemory> Walk<M> {
    #[inline(always)]
    fn new(set: &mut SetWait, thread: &Thread, memory: M) -> Walk<M> {
        Walk { set: &raw mut *set, memory, args: thread.args, task: memory.task() }
    }
}

/// Takes the steps. Whether the set is larger than what is looked at.
#[inline(always)]
fn run<M: UserMemory>(
    set: &mut SetWait,
    thread: &Thread,
    memory: M,
    step: unsafe extern "C" fn(u32, *mut Walk<M>) -> i64,
) -> bool {
    set.whole = 0;
    set.left = 0;
    set.word = 0;
    repeat(LOOK_AT, step, &mut Walk::new(set, thread, memory));
    set.whole == 0
}

#[inline(always)]
fn poll<M: UserMemory>(set: &mut SetWait, thread: &Thread, memory: M) -> bool {
    set.nfds = thread.args[1] as u32;
    run(set, thread, memory, poll_step::<M>)
}

#[inline(never)]
unsafe extern "C" fn poll_step<M: UserMemory>(index: u32, walk: *mut Walk<M>) -> i64 {
    // SAFETY: `repeat` passes what it was given; the set is the thread's entry of `SETS`.
    let (walk, set) = unsafe { (&*walk, &mut *(*walk).set) };
    if u64::from(index) >= walk.args[1] {
        set.whole = 1;
        return DONE;
    }
    // fd, events, revents
    let Some(entry) = walk.memory.read::<u64>(walk.args[0] + u64::from(index) * 8) else { return DONE };
    let fd = entry as u32;
    if (fd as i32) >= 0 {
        let asked = index << 16 | (entry >> 32) as u32 & 0xffff;
        visit(set, file_of(walk.task, fd), fd, asked);
    }
    ON
}

#[inline(always)]
fn select<M: UserMemory>(set: &mut SetWait, thread: &Thread, memory: M) -> bool {
    run(set, thread, memory, select_step::<M>)
}

/// Looks at the next descriptor of the present word, or loads the next word.
#[inline(never)]
unsafe extern "C" fn select_step<M: UserMemory>(_: u32, walk: *mut Walk<M>) -> i64 {
    // SAFETY: `repeat` passes what it was given; the set is the thread's entry of `SETS`.
    let (walk, set) = unsafe { (&*walk, &mut *(*walk).set) };
    if set.left == 0 {
        let first = set.word * 64;
        if u64::from(first) >= walk.args[0] || first >= 1024 {
            set.whole = 1;
            return DONE;
        }
        set.bits = words(&walk.args, walk.memory, set.word);
        set.left = set.bits[0] | set.bits[1] | set.bits[2];
        set.word += 1;
        return ON;
    }
    let bit = set.left.trailing_zeros();
    set.left &= set.left - 1;
    let fd = (set.word - 1) * 64 + bit;
    if u64::from(fd) >= walk.args[0] {
        set.whole = 1;
        return DONE;
    }
    set.nfds += 1;
    let asked = u32::from(events(&set.bits, bit));
    visit(set, file_of(walk.task, fd), fd, asked);
    ON
}

/// The `word`th 64 bits of the three sets.
#[inline(always)]
fn words<M: UserMemory>(args: &[u64; 6], memory: M, word: u32) -> [u64; 3] {
    let at = u64::from(word) * 8;
    let read = |base: u64| if base == 0 { 0 } else { memory.read(base + at).unwrap_or(0) };
    [read(args[1]), read(args[2]), read(args[3])]
}

#[inline(always)]
fn events(bits: &[u64; 3], bit: u32) -> u16 {
    let has = |word: u64, flag: u16| if word >> (bit & 63) & 1 != 0 { flag } else { 0 };
    has(bits[0], POLLIN) | has(bits[1], POLLOUT) | has(bits[2], POLLPRI)
}

/// Walks the tree of an epoll descriptor in the kernel.
#[inline(always)]
fn epoll<M: UserMemory>(set: &mut SetWait, thread: &Thread, memory: M) -> bool {
    let file = file_of(memory.task(), thread.args[0] as u32);
    let poll: u64 = member(file, offset!(file_private_data));
    set.nodes[0] = member(poll, offset!(eventpoll_rbr));
    set.depth = u32::from(set.nodes[0] != 0);
    run(set, thread, memory, epoll_step::<M>)
}

/// Visits the node that waits on top, and puts its children there.
#[inline(never)]
unsafe extern "C" fn epoll_step<M: UserMemory>(_: u32, walk: *mut Walk<M>) -> i64 {
    // SAFETY: `repeat` passes what it was given; the set is the thread's entry of `SETS`.
    let set = unsafe { &mut *(*walk).set };
    if set.depth == 0 {
        set.whole = 1;
        return DONE;
    }
    let mut depth = set.depth - 1;
    let node = set.nodes[depth as usize % NODES];
    let left: u64 = member(node, offset!(rb_left));
    let right: u64 = member(node, offset!(rb_right));
    if right != 0 {
        set.nodes[depth as usize % NODES] = right;
        depth += 1;
    }
    if left != 0 {
        set.nodes[depth as usize % NODES] = left;
        depth += 1;
    }
    set.depth = depth;
    visit_item(set, node);
    ON
}

/// An item of an epoll set, by its node in the tree.
#[inline(always)]
fn visit_item(set: &mut SetWait, node: u64) {
    let item = node - u64::from(offset!(epitem_rbn));
    let key = item + u64::from(offset!(epitem_ffd));
    let fd: u32 = member(key, offset!(epoll_filefd_fd));
    let events: u32 = member(item, offset!(epitem_event));
    set.nfds += 1;
    visit(set, member(key, offset!(epoll_filefd_file)), fd, events & 0xffff);
}

/// Takes a descriptor into the set. `asked`: its place in the caller's array, and the events asked for. Where all
/// places are taken, a socket takes that of something else.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn visit(set: *mut SetWait, file: u64, fd: u32, asked: u32) -> u32 {
    // SAFETY: an entry of `SETS`.
    let Some(set) = (unsafe { set.as_mut() }) else { return 0 };
    if file == 0 {
        return 0;
    }
    let socket = is_socket(file);
    let slot = if set.count < WAIT_SOCKS as u32 {
        set.count += 1;
        if !socket {
            // A stack of slots, four bits each.
            set.others = set.others << 4 | u64::from(set.count - 1);
            set.other_count += 1;
        }
        set.count - 1
    } else if socket && set.other_count > 0 {
        let slot = set.others as u32 & 15;
        set.others >>= 4;
        set.other_count -= 1;
        slot
    } else {
        return 0;
    };
    let slot = slot as usize % WAIT_SOCKS;
    describe(file, fd, &raw mut set.socks[slot]);
    set.socks[slot].events = asked as u16;
    set.places[slot] = (asked >> 16) as u16;
    0
}

/// After the call: which descriptors have something. For `epoll` the kernel does not say.
#[inline(always)]
pub fn returned<M: UserMemory>(set: &mut SetWait, thread: &Thread, memory: M) {
    if !EPOLL.has(thread.call) {
        set.is_poll = u32::from(POLL.has(thread.call));
        repeat(WAIT_SOCKS as u32, returned_step::<M>, &mut Walk::new(set, thread, memory));
    }
}

#[inline(never)]
unsafe extern "C" fn returned_step<M: UserMemory>(slot: u32, walk: *mut Walk<M>) -> i64 {
    // SAFETY: `repeat` passes what it was given; the set is the thread's entry of `SETS`.
    let (walk, set) = unsafe { (&*walk, &mut *(*walk).set) };
    if slot >= set.count {
        return DONE;
    }
    let slot = slot as usize % WAIT_SOCKS;
    set.socks[slot].revents = if set.is_poll != 0 {
        walk.memory.read(walk.args[0] + u64::from(set.places[slot]) * 8 + 6).unwrap_or(0)
    } else {
        let fd = set.socks[slot].fd as u32 & 1023;
        events(&words(&walk.args, walk.memory, fd / 64), fd % 64)
    };
    ON
}

/// The call's time-out in milliseconds, rounded up; -1: none.
#[inline(always)]
fn timeout_ms<M: UserMemory>(thread: &Thread, memory: M) -> i32 {
    let args = &thread.args;
    let (address, per_ms) = if thread.call == Call::Poll as u32 {
        return args[2] as i32;
    } else if thread.call == Call::EpollWait as u32 || thread.call == Call::EpollPwait as u32 {
        return args[3] as i32;
    } else if thread.call == Call::Ppoll as u32 {
        (args[2], 1_000_000)
    } else if thread.call == Call::Select as u32 {
        // Seconds and microseconds.
        (args[4], 1_000)
    } else if thread.call == Call::Pselect6 as u32 {
        (args[4], 1_000_000)
    } else {
        (args[3], 1_000_000)
    };
    if address == 0 {
        return -1;
    }
    let Some([seconds, fraction]) = memory.read::<[u64; 2]>(address) else { return -1 };
    let ms = seconds.wrapping_mul(1000).wrapping_add(fraction.div_ceil(per_ms));
    if seconds > 1 << 20 || ms > i32::MAX as u64 { i32::MAX } else { ms as i32 }
}
