//! All maps. Those that userspace reads are described in `profiler-common`.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};
use profiler_common::call::{CALL_COUNT, CALL_TABLE};
use profiler_common::config::MARK_COUNT;
use profiler_common::counter::LOSS_COUNT;
use profiler_common::{
    CallTotals, HandshakeRecord, NonblockingKey, NonblockingWait, SampleCounts, SampleKey, ShapeKey, Shapes,
    Target,
};

use crate::stack::{KernelStack, UserStack};
use crate::tcp::Owner;
use crate::thread::Thread;
use crate::wait::SetWait;

/// Processes that are watched, by id.
#[map]
pub static TARGETS: HashMap<u32, Target> = HashMap::with_max_entries(16384, 0);

/// Whether a process may be a target: the first question of the hot programs. The verifier turns a look-up in an array
/// into a few instructions, where one in a hash table is a call.
#[map]
static MARKS: Array<u8> = Array::with_max_entries(MARK_COUNT, 0);

#[inline(always)]
pub fn is_marked(tgid: u32) -> bool {
    MARKS.get(tgid % MARK_COUNT).is_some_and(|mark| *mark != 0)
}

#[inline(always)]
pub fn mark(tgid: u32) {
    // Cannot fail: the index is inside of the array.
    let _ = MARKS.set(tgid % MARK_COUNT, 1, 0);
}

/// System-call number to `Call`, 0: not watched.
#[map]
pub static CALLS: Array<u16> = Array::with_max_entries(CALL_TABLE, 0);

/// Kernel functions that go on with an interrupted call, by address, and that `Call`. Filled for a snapshot that needs it.
#[map]
pub static RESTARTS: HashMap<u64, u32> = HashMap::with_max_entries(16, 0);

/// Its one place is not 0 when `sleep_switch` runs, so that a wait without a sleep did not sleep.
#[map]
static SCHED_SEEN: Array<u32> = Array::with_max_entries(1, 0);

#[inline(always)]
pub fn are_sleeps_seen() -> bool {
    SCHED_SEEN.get(0).is_some_and(|seen| *seen != 0)
}

/// Threads of the targets that were seen in a watched call, by id.
#[map]
pub static THREADS: HashMap<u32, Thread> = HashMap::with_max_entries(16384, 0);

/// Room for the poll set of each thread that slept in one.
#[map]
pub static SETS: HashMap<u32, SetWait> = HashMap::with_max_entries(4096, 0);

#[map]
pub static CALL_TOTALS: PerCpuArray<CallTotals> = PerCpuArray::with_max_entries(CALL_COUNT as u32, 0);

#[map]
pub static LOSSES: PerCpuArray<u64> = PerCpuArray::with_max_entries(LOSS_COUNT as u32, 0);

/// Records for userspace, which sets the size.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(8 << 20, 0);

#[map]
pub static NONBLOCKING: HashMap<NonblockingKey, NonblockingWait> = HashMap::with_max_entries(16384, 0);

/// Threads that were found on a processor.
#[map]
pub static SAMPLES: HashMap<SampleKey, SampleCounts> = HashMap::with_max_entries(16384, 0);

/// Handshakes that last, by the socket's address.
#[map]
pub static HANDSHAKES: HashMap<u64, HandshakeRecord> = HashMap::with_max_entries(8192, 0);

/// TCP sockets known to be a target's, by address.
#[map]
pub static OWNED: LruHashMap<u64, Owner> = LruHashMap::with_max_entries(65536, 0);

/// Hashes of kernel stacks that userspace has.
#[map]
pub static SEEN_STACKS: LruHashMap<u64, u8> = LruHashMap::with_max_entries(16384, 0);

/// Where the words lie that decide where a user stack leads. Userspace fills it when it has unwound a copy.
#[map]
pub static SHAPES: LruHashMap<ShapeKey, Shapes> = LruHashMap::with_max_entries(4096, 0);

/// Id of each user stack that userspace has unwound, by the hash of its shape and words.
#[map]
pub static KNOWN_STACKS: LruHashMap<u64, u64> = LruHashMap::with_max_entries(16384, 0);

/// When each thread will have paid for the stacks that were copied for it, see `stack::may_copy`.
#[map]
pub static COPY_DEBTS: LruHashMap<u32, u64> = LruHashMap::with_max_entries(16384, 0);

#[map]
pub static USER_STACK: PerCpuArray<UserStack> = PerCpuArray::with_max_entries(1, 0);

/// 0: for `sched_switch`, which nothing interrupts; 1: for the iterators, one of which runs at a time.
#[map]
pub static KERNEL_STACK: PerCpuArray<KernelStack> = PerCpuArray::with_max_entries(2, 0);

/// For each processor, how far `CLOCK_MONOTONIC` is ahead of the scheduler's clock there, plus 1; 0: unknown.
#[map]
pub static CLOCK_LEADS: Array<u64> = Array::with_max_entries(4096, 0);
