//! The descriptors that `poll`, `select` and `epoll_wait` wait on.
//!
//! A set may be large, and what counts most may come last: NCCL's proxy thread polls an array that is nearly empty but
//! for its end, where the listening socket is. A listening socket makes the whole wait idle, so the look ends with it.
//! Where not everything could be looked at and none was found, the wait is marked (`WAIT_SET_CUT`).
//!
//! A descriptor of a set can be an epoll set itself: what that one holds stands in its place, however deep (the kernel
//! allows five levels).

use profiler_common::config::NO_OFFSET;
use profiler_common::record::WAIT_SOCKS;
use profiler_common::{Call, Loss};

use crate::call_class::{EPOLL, POLL, SELECT};
use crate::mem::{kernel, member};
use crate::offset;
use crate::repeat::{DONE, ON, repeat};
use crate::socket::{AF_INET, AF_INET6, AF_UNIX, describe, is_socket, sock_of};
use crate::thread::Thread;
use crate::user_memory::UserMemory;
use crate::wait::{NODES, POLLFDS, SetWait};
use crate::{emit, maps};

/// Descriptors of a set that are looked at.
const LOOK_AT: u32 = 256;
/// Places of an array of `pollfd`, or bits of a set of `select`, that are looked at.
const PLACES: u32 = 1024;
/// Each step looks at one descriptor, or loads the next piece of the array.
const STEPS: u32 = LOOK_AT + PLACES / POLLFDS as u32 + 2;

const POLLIN: u16 = 1;
const POLLPRI: u16 = 2;
const POLLOUT: u16 = 4;

const TCP_LISTEN: u8 = 10;

/// Set in what is asked of an item of an epoll set that reports nothing until it is armed again.
const DISARMED: u32 = 1 << 31;

/// Place of what has none in the caller's array.
const NO_PLACE: u32 = 0x7fff;

/// Set in the address of a node whose set is an item of another one.
const NESTED: u64 = 1;

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
    begin(set, memory.task());
    if POLL.has(thread.call) {
        repeat(STEPS, poll_step::<M>, &mut Walk::new(set, thread, memory));
        if u64::from(set.next) < thread.args[1] {
            let rest = thread.args[1] - u64::from(set.next);
            set.nfds += if rest > 0xffff { 0xffff } else { rest as u32 };
        }
    } else if SELECT.has(thread.call) {
        repeat(STEPS, select_step::<M>, &mut Walk::new(set, thread, memory));
    } else {
        let poll: u64 = member(file_at(set, thread.args[0] as u32), offset!(file_private_data));
        set.nodes[0] = member(poll, offset!(eventpoll_rbr));
        set.depth = u32::from(set.nodes[0] != 0);
        repeat(STEPS, epoll_step::<M>, &mut Walk::new(set, thread, memory));
    }
    thread.arg = timeout_ms(thread, memory);
    thread.resolved = 1;
    set.cut = u32::from((set.cut != 0 || set.whole == 0) && set.listens == 0);
    if set.cut != 0 {
        emit::lost(Loss::PollSetTruncated);
    }
    if set.sockets >= WAIT_SOCKS as u32 {
        set.nfds = set.sockets;
    }
}

/// Nothing looked at yet.
#[inline(always)]
fn begin(set: &mut SetWait, task: u64) {
    set.count = 0;
    set.others = 0;
    set.other_count = 0;
    set.nfds = 0;
    set.sockets = 0;
    set.looked = 0;
    set.next = 0;
    set.left = 0;
    set.cut = 0;
    set.whole = 0;
    set.listens = 0;
    set.depth = 0;
    let files: u64 = member(task, offset!(task_files));
    let table: u64 = member(files, offset!(files_fdt));
    set.file_count = member(table, offset!(fdtable_max_fds));
    set.files = member(table, offset!(fdtable_fd));
}

/// The `struct file` behind a descriptor of the task whose set it is; 0: none.
#[inline(always)]
fn file_at(set: &SetWait, fd: u32) -> u64 {
    if fd >= set.file_count || set.files == 0 { 0 } else { kernel(set.files + u64::from(fd) * 8) }
}

/// Puts aside what is left of the present piece where enough was looked at.
#[inline(always)]
fn limit(set: &mut SetWait) {
    if set.listens != 0 {
        set.left = 0;
        set.depth = 0;
    } else if set.looked >= LOOK_AT && (set.left != 0 || set.depth != 0) {
        set.cut = 1;
        set.left = 0;
        set.depth = 0;
    }
}

/// What the loops over a set work on. It lies on the stack, and the verifier follows every value there: all that
/// changes from step to step is in the set, which is a map's.
#[repr(C)]
struct Walk<M> {
    set: *mut SetWait,
    memory: M,
    args: [u64; 6],
}

impl<M: UserMemory> Walk<M> {
    #[inline(always)]
    fn new(set: &mut SetWait, thread: &Thread, memory: M) -> Walk<M> {
        Walk { set: &raw mut *set, memory, args: thread.args }
    }
}

/// Looks at the next descriptor of the present piece of the array, or loads the next piece.
#[inline(never)]
unsafe extern "C" fn poll_step<M: UserMemory>(_: u32, walk: *mut Walk<M>) -> i64 {
    // SAFETY: `repeat` passes what it was given; the set is the thread's entry of `SETS`.
    let (walk, set) = unsafe { (&*walk, &mut *(*walk).set) };
    limit(set);
    if set.depth != 0 {
        visit_node(set);
        return ON;
    }
    if set.left == 0 {
        return load_pollfds(set, walk);
    }
    let bit = set.left.trailing_zeros();
    set.left &= set.left - 1;
    set.looked += 1;
    // fd, events, revents
    let entry = set.pollfds[bit as usize % POLLFDS];
    let place = set.first + bit;
    let fd = entry as u32;
    take(set, file_at(set, fd), fd, (place & NO_PLACE) << 16 | (entry >> 32) as u32 & 0xffff);
    ON
}

#[inline(always)]
fn load_pollfds<M: UserMemory>(set: &mut SetWait, walk: &Walk<M>) -> i64 {
    if u64::from(set.next) >= walk.args[1] {
        set.whole = 1;
        return DONE;
    }
    if set.next >= PLACES {
        return DONE;
    }
    let rest = walk.args[1] - u64::from(set.next);
    let count = if rest >= POLLFDS as u64 { POLLFDS as u32 } else { rest as u32 & 15 };
    let from = walk.args[0] + u64::from(set.next) * 8;
    if !walk.memory.read_bytes((&raw mut set.pollfds).cast(), count * 8, from) {
        return DONE;
    }
    // Signs of the descriptors, the first one lowest: shifted through, since the compiler makes a branch of each shift to a
    // place of its own, and then there are 65536 ways for a verifier to follow.
    let mut signs = 0;
    let mut index = 0;
    while index < POLLFDS {
        signs = signs >> 1 | set.pollfds[index] as u32 & 1 << 31;
        index += 1;
    }
    // Negative descriptors are places that the program does not use.
    let live = !(signs >> (32 - POLLFDS));
    set.left = u64::from(live & ((1 << count) - 1));
    set.first = set.next;
    set.next += count;
    set.nfds += set.left.count_ones();
    ON
}

/// Looks at the next descriptor of the present word, or loads the next word.
#[inline(never)]
unsafe extern "C" fn select_step<M: UserMemory>(_: u32, walk: *mut Walk<M>) -> i64 {
    // SAFETY: `repeat` passes what it was given; the set is the thread's entry of `SETS`.
    let (walk, set) = unsafe { (&*walk, &mut *(*walk).set) };
    limit(set);
    if set.depth != 0 {
        visit_node(set);
        return ON;
    }
    if set.left == 0 {
        return load_bits(set, walk);
    }
    let bit = set.left.trailing_zeros();
    set.left &= set.left - 1;
    set.looked += 1;
    let fd = set.first + bit;
    let asked = u32::from(events(&set.bits, bit));
    take(set, file_at(set, fd), fd, asked);
    ON
}

#[inline(always)]
fn load_bits<M: UserMemory>(set: &mut SetWait, walk: &Walk<M>) -> i64 {
    if u64::from(set.next) >= walk.args[0] {
        set.whole = 1;
        return DONE;
    }
    if set.next >= PLACES {
        return DONE;
    }
    set.bits = words(&walk.args, walk.memory, set.next / 64);
    set.left = set.bits[0] | set.bits[1] | set.bits[2];
    let rest = walk.args[0] - u64::from(set.next);
    if rest < 64 {
        set.left &= (1 << rest) - 1;
    }
    set.first = set.next;
    set.next += 64;
    set.nfds += set.left.count_ones();
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

/// Looks at the next item of the epoll set.
#[inline(never)]
unsafe extern "C" fn epoll_step<M: UserMemory>(_: u32, walk: *mut Walk<M>) -> i64 {
    // SAFETY: `repeat` passes what it was given; the set is the thread's entry of `SETS`.
    let set = unsafe { &mut *(*walk).set };
    if set.depth == 0 {
        set.whole = 1;
        return DONE;
    }
    if set.looked >= LOOK_AT || set.listens != 0 {
        set.nfds += set.depth;
        return DONE;
    }
    visit_node(set);
    ON
}

/// Visits the node that waits on top, and puts its children there.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn visit_node(set: *mut SetWait) -> u32 {
    // SAFETY: an entry of `SETS`.
    let Some(set) = (unsafe { set.as_mut() }) else { return 0 };
    let mut depth = set.depth.saturating_sub(1);
    let top = set.nodes[depth as usize % NODES];
    let (node, nested) = (top & !NESTED, top & NESTED);
    let left: u64 = member(node, offset!(rb_left));
    let right: u64 = member(node, offset!(rb_right));
    if right != 0 {
        set.nodes[depth as usize % NODES] = right | nested;
        depth += 1;
    }
    if left != 0 {
        set.nodes[depth as usize % NODES] = left | nested;
        depth += 1;
    }
    set.depth = depth;
    visit_item(set, node, nested);
    0
}

/// Takes a descriptor into the set, or what it holds where it is an epoll set.
#[inline(always)]
fn take(set: &mut SetWait, file: u64, fd: u32, asked: u32) {
    let inner = epoll_of(file);
    if inner == 0 {
        visit(set, file, fd, asked);
        return;
    }
    // Its items are counted instead.
    set.nfds = set.nfds.saturating_sub(1);
    let root: u64 = member(inner, offset!(eventpoll_rbr));
    if root == 0 || asked & DISARMED != 0 {
        return;
    }
    // A path through a tree of a million items takes half of the places.
    if set.depth as usize >= NODES - 2 {
        set.cut = 1;
        return;
    }
    set.nodes[set.depth as usize % NODES] = root | NESTED;
    set.depth += 1;
}

/// The epoll set behind a file, 0 where it is something else. A set knows its own file.
#[inline(always)]
fn epoll_of(file: u64) -> u64 {
    if file == 0 || offset!(eventpoll_file) == NO_OFFSET || is_socket(file) {
        return 0;
    }
    let private: u64 = member(file, offset!(file_private_data));
    if private != 0 && member::<u64>(private, offset!(eventpoll_file)) == file { private } else { 0 }
}

/// An item of an epoll set, by its node in the tree.
#[inline(always)]
fn visit_item(set: &mut SetWait, node: u64, nested: u64) {
    let item = node - u64::from(offset!(epitem_rbn));
    let key = item + u64::from(offset!(epitem_ffd));
    let fd: u32 = member(key, offset!(epoll_filefd_fd));
    let events: u32 = member(item, offset!(epitem_event));
    set.nfds += 1;
    set.looked += 1;
    // The kernel adds errors and hang-ups to what is asked for, so nothing at all means that it is disarmed.
    let disarmed = if events & 0xffff == 0 { DISARMED } else { 0 };
    if nested != 0 && disarmed != 0 {
        set.nfds = set.nfds.saturating_sub(1);
        return;
    }
    let asked = events & 0xffff | NO_PLACE << 16 | disarmed;
    take(set, member(key, offset!(epoll_filefd_file)), fd, asked);
}

/// Takes a descriptor into the set. `asked`: its place in the caller's array, the events asked for, `DISARMED`. Where
/// all places are taken, a socket takes that of something else, and a listening one that of any.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn visit(set: *mut SetWait, file: u64, fd: u32, asked: u32) -> u32 {
    // SAFETY: an entry of `SETS`.
    let Some(set) = (unsafe { set.as_mut() }) else { return 0 };
    if file == 0 {
        return 0;
    }
    let socket = is_socket(file);
    let awaited = socket && asked & DISARMED == 0;
    set.sockets += u32::from(socket);
    let slot = if set.count < WAIT_SOCKS as u32 {
        set.count += 1;
        if !awaited {
            // A stack of slots, four bits each.
            set.others = set.others << 4 | u64::from(set.count - 1);
            set.other_count += 1;
        }
        set.count - 1
    } else if awaited && set.other_count > 0 {
        let slot = set.others as u32 & 15;
        set.others >>= 4;
        set.other_count -= 1;
        slot
    } else if awaited && is_listening(file) {
        WAIT_SOCKS as u32 - 1
    } else {
        return 0;
    };
    let slot = slot as usize % WAIT_SOCKS;
    describe(file, fd, &raw mut set.socks[slot]);
    set.socks[slot].events = asked as u16;
    set.places[slot] = (asked >> 16) as u16 & NO_PLACE as u16;
    if awaited && listens(set.socks[slot].family, set.socks[slot].state) {
        set.listens = 1;
    }
    0
}

#[inline(always)]
fn listens(family: u16, state: u8) -> bool {
    state == TCP_LISTEN && (family == AF_INET || family == AF_INET6 || family == AF_UNIX)
}

#[inline(always)]
fn is_listening(file: u64) -> bool {
    let sock = sock_of(file);
    listens(member(sock, offset!(sock_family)), member(sock, offset!(sock_state)))
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
    if u32::from(set.places[slot]) == NO_PLACE {
        return ON;
    }
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
