//! Who holds what a `futex` call waits for. A futex is a bare word; only where the program keeps the holder's id in it, or
//! beside it as glibc's `pthread_mutex_t` does, it can be told.

use profiler_common::record::FUTEX_CONTENDED;

use crate::thread::Thread;
use crate::user_memory::UserMemory;

const COMMAND: u32 = 0x7f;
const WAIT: u32 = 0;
const LOCK_PI: u32 = 6;
const WAIT_BITSET: u32 = 9;
const LOCK_PI2: u32 = 13;

/// In words that hold the id of the owner: somebody waits. The id is in the lower bits.
const WAITERS: u32 = 1 << 31;
const OWNER: u32 = 0x3fff_ffff;

/// What a lock's word holds when somebody waits for it, in glibc, Rust and Go.
const CONTENDED: u32 = 2;

/// All that glibc puts into `__kind` of a mutex: type, robust, priority, shared, elision.
const MUTEX_KINDS: u32 = 0x3ff;
/// More threads than this do not use one mutex: the words are something else.
const MUTEX_USERS: u32 = 1 << 22;

/// The beginning of glibc's `pthread_mutex_t`, on 64-bit machines.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Mutex {
    lock: u32,
    count: u32,
    owner: u32,
    users: u32,
    kind: u32,
}

/// Notes operation and owner while the thread is about to sleep.
#[inline(always)]
pub fn resolve<M: UserMemory>(thread: &mut Thread, memory: M) {
    let (address, operation, expected) = (thread.args[0], thread.args[1] as u32, thread.args[2] as u32);
    let command = operation & COMMAND;
    thread.arg = operation as i32 & (FUTEX_CONTENDED - 1);
    thread.owner = if command == LOCK_PI || command == LOCK_PI2 {
        memory.read::<u32>(address).unwrap_or(0) & OWNER
    } else if command != WAIT && command != WAIT_BITSET {
        0
    } else if expected & WAITERS != 0 {
        // Robust mutexes of glibc, those of musl that have an owner. A counter of that size is owned by nobody that exists.
        expected & OWNER
    } else if expected == CONTENDED {
        thread.arg |= FUTEX_CONTENDED;
        mutex_owner(memory.read::<Mutex>(address).unwrap_or_default())
    } else {
        0
    };
}

#[inline(always)]
fn mutex_owner(mutex: Mutex) -> u32 {
    let is_mutex = mutex.kind & !MUTEX_KINDS == 0 && mutex.users > 0 && mutex.users < MUTEX_USERS;
    if is_mutex && mutex.owner & !OWNER == 0 { mutex.owner } else { 0 }
}
