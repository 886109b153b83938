//! Completions of providers of which nothing is known but what they hand out: the array that a program's `poll_cq` filled. The entry
//! tells where the array is; what leaves the function tells how many entries were filled.
//!
//! Each poll that finds nothing costs two traps that way. They are counted, so that userspace can keep to its budget.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::{map, uprobe, uretprobe};
use aya_ebpf::maps::{LruHashMap, PerCpuArray};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use profiler_common::Loss;
use profiler_common::record::{Header, RecordKind};
use profiler_common::verbs::{ENTRIES_MOST, VerbsEntryRecord};

use crate::repeat::{DONE, ON, repeat};
use crate::user_memory::{Current, UserMemory};
use crate::{emit, maps};

/// Where a thread that is polling wants its completions, by thread.
#[map]
pub static VERBS_POLLING: LruHashMap<u64, u64> = LruHashMap::with_max_entries(16384, 0);

/// Traps that no record tells of.
#[map]
pub static VERBS_TRAPS: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// `struct ibv_wc`, as far as it is read.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Entry {
    wr_id: u64,
    status: u32,
    opcode: u32,
    vendor: u32,
    bytes: u32,
    immediate: u32,
    qp_num: u32,
}

const ENTRY_BYTES: u64 = 48;

struct Found {
    record: VerbsEntryRecord,
    next: u64,
    count: u32,
}

#[inline(always)]
pub fn count_trap() {
    if let Some(traps) = VERBS_TRAPS.get_ptr_mut(0) {
        // SAFETY: a slot of this processor; a count torn by an interrupt would be off by one.
        unsafe { *traps += 1 };
    }
}

#[uprobe]
pub fn verbs_poll(ctx: ProbeContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    if maps::TARGETS.get_ptr((id >> 32) as u32).is_none() {
        return 0;
    }
    count_trap();
    if let Some(array) = ctx.arg::<u64>(2) {
        // The thread of longest ago makes room.
        let _ = VERBS_POLLING.insert(&id, &array, 0);
    }
    0
}

/// On an instruction that returns.
#[uprobe]
pub fn verbs_polled(ctx: ProbeContext) -> u32 {
    // SAFETY: a member of the program's own context.
    let count = unsafe { result(ctx.regs.cast()) };
    polled(count)
}

/// For functions whose returns are not all known.
#[uretprobe]
pub fn verbs_poll_ret(ctx: RetProbeContext) -> u32 {
    polled(ctx.ret::<u64>() as i32)
}

#[inline(always)]
fn polled(count: i32) -> u32 {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if maps::TARGETS.get_ptr(tgid).is_none() {
        return 0;
    }
    count_trap();
    // SAFETY: the value is copied at once.
    let Some(array) = (unsafe { VERBS_POLLING.get(&id) }).copied() else { return 0 };
    let _ = VERBS_POLLING.remove(&id);
    if count <= 0 {
        return 0;
    }
    let mut found = Found {
        record: VerbsEntryRecord {
            header: Header { kind: RecordKind::VerbsEntry as u32, len: size_of::<VerbsEntryRecord>() as u32 },
            // SAFETY: no preconditions.
            time_ns: unsafe { bpf_ktime_get_ns() },
            tgid,
            tid: id as u32,
            ..VerbsEntryRecord::default()
        },
        next: array,
        count: count as u32,
    };
    repeat(ENTRIES_MOST, take_one, &mut found);
    if found.count != 0 {
        emit::lost(Loss::VerbsList);
    }
    0
}

unsafe extern "C" fn take_one(_: u32, found: *mut Found) -> i64 {
    // SAFETY: `repeat` hands on what it was given.
    let found = unsafe { &mut *found };
    if found.count == 0 {
        return DONE;
    }
    let Some(entry) = Current.read::<Entry>(found.next) else { return DONE };
    found.record.wr_id = entry.wr_id;
    found.record.status = entry.status;
    found.record.opcode = entry.opcode;
    found.record.vendor = entry.vendor;
    found.record.bytes = entry.bytes;
    found.record.qp_num = entry.qp_num;
    emit::record(&found.record, Loss::VerbsRing);
    found.next += ENTRY_BYTES;
    found.count -= 1;
    ON
}

/// What the function is about to return.
#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
unsafe fn result(regs: *const aya_ebpf::bindings::pt_regs) -> i32 {
    // SAFETY: the caller's registers.
    unsafe { core::ptr::read_volatile(&raw const (*regs).rax) as i32 }
}

#[cfg(not(bpf_target_arch = "x86_64"))]
#[inline(always)]
unsafe fn result(_: *const aya_ebpf::bindings::pt_regs) -> i32 {
    0
}
