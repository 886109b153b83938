//! Calls of the function that the user named as the marker of an iteration.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::{map, uprobe};
use aya_ebpf::maps::HashMap;
use aya_ebpf::programs::ProbeContext;
use profiler_common::Loss;
use profiler_common::marker::{MARKER_RECORDED, MARKER_SLICE_LOG2, MarkerRecord, MarkerState};
use profiler_common::record::{Header, RecordKind};

use crate::{emit, maps};

/// What is not recorded yet, by thread: nobody else changes a thread's entry.
#[map]
pub static MARKER_CALLS: HashMap<u32, MarkerState> = HashMap::with_max_entries(16384, 0);

static NONE: MarkerState =
    MarkerState { slice: 0, recorded: 0, counted: 0, start_ns: 0, end_ns: 0, tgid: 0, reserved: 0 };

#[uprobe]
pub fn marker_call(_: ProbeContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    let (tgid, tid) = ((id >> 32) as u32, id as u32);
    if maps::TARGETS.get_ptr(tgid).is_none() {
        return 0;
    }
    // SAFETY: no preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let slice = now_ns >> MARKER_SLICE_LOG2;
    let Some(state) = state(tid) else {
        // No place for one more thread: its calls are recorded without a bound.
        record(tgid, tid, now_ns, now_ns, 1);
        return 0;
    };
    if state.slice != slice || state.tgid != tgid {
        if state.counted > 0 {
            record(state.tgid, tid, state.start_ns, state.end_ns, state.counted);
        }
        *state = NONE;
        state.slice = slice;
        state.tgid = tgid;
    }
    if state.recorded < MARKER_RECORDED {
        state.recorded += 1;
        record(tgid, tid, now_ns, now_ns, 1);
        return 0;
    }
    if state.counted == 0 {
        state.start_ns = now_ns;
    }
    state.end_ns = now_ns;
    state.counted += 1;
    0
}

#[inline(always)]
fn state(tid: u32) -> Option<&'static mut MarkerState> {
    let known = MARKER_CALLS.get_ptr_mut(&tid).or_else(|| {
        // Whether there was a place is seen by the second look.
        let _ = MARKER_CALLS.insert(&tid, &NONE, 0);
        MARKER_CALLS.get_ptr_mut(&tid)
    });
    // SAFETY: entries are never removed, and this thread is the only one that uses its own.
    known.map(|state| unsafe { &mut *state })
}

#[inline(always)]
fn record(tgid: u32, tid: u32, start_ns: u64, end_ns: u64, calls: u64) {
    let header = Header { kind: RecordKind::Marker as u32, len: size_of::<MarkerRecord>() as u32 };
    emit::record(&MarkerRecord { header, start_ns, end_ns, tgid, tid, calls }, Loss::OtherRing);
}
