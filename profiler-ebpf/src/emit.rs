//! The way out: records into the ring buffer, and the count of what did not fit.

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE};
use aya_ebpf::helpers::generated::bpf_ringbuf_output;
use profiler_common::{CallTotals, Loss};

use crate::maps::{CALL_TOTALS, EVENTS, LOSSES};

/// After a quarter of the buffer the reader is woken for this many bytes' worth of records: once is enough, and a
/// wake-up costs more than the record.
const WAKE_WINDOW: u64 = 64 << 10;

/// Wakes the reader only when it falls behind.
#[inline(always)]
pub fn wake_flags() -> u64 {
    let filled = EVENTS.query(BPF_RB_AVAIL_DATA as u64);
    let quarter = EVENTS.query(BPF_RB_RING_SIZE as u64) / 4;
    if filled > quarter && filled - quarter < WAKE_WINDOW {
        BPF_RB_FORCE_WAKEUP as u64
    } else {
        BPF_RB_NO_WAKEUP as u64
    }
}

/// Copies a record of fixed size to the ring buffer.
#[inline(always)]
pub fn record<T: 'static>(value: &T, loss: Loss) -> bool {
    bytes((&raw const *value).cast(), size_of::<T>() as u64, loss)
}

/// Copies `len` bytes at `from` to the ring buffer; the verifier checks that they are there.
#[inline(always)]
pub fn bytes(from: *const u8, len: u64, loss: Loss) -> bool {
    let ring = (&raw const EVENTS).cast_mut().cast();
    // SAFETY: see above.
    let result = unsafe { bpf_ringbuf_output(ring, from.cast_mut().cast(), len, wake_flags()) };
    if result != 0 {
        lost(loss);
    }
    result == 0
}

#[inline(always)]
pub fn lost(loss: Loss) {
    if let Some(count) = LOSSES.get_ptr_mut(loss as u32) {
        // SAFETY: a slot of this processor; a count torn by an interrupt would be off by one.
        unsafe { *count += 1 };
    }
}

/// This processor's totals of a call.
#[inline(always)]
pub fn totals(call: u32) -> Option<&'static mut CallTotals> {
    // SAFETY: a slot of this processor.
    CALL_TOTALS.get_ptr_mut(call).map(|totals| unsafe { &mut *totals })
}
