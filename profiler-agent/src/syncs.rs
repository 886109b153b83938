//! Calls in which a thread of the program waits for the GPU, however it waits: they are few, so that each is told.

use core::sync::atomic::{AtomicU32, Ordering};

use profiler_common::agent::{Activity, Kind};
use profiler_common::cuda::SYNCS;

use crate::cupti::{Cupti, Raw, SUCCESS};

/// `CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM`: the kernel's ids, as against those of the threads library.
const KERNEL_S_IDS: u32 = 1;
/// What threads were called before, plus 1; 0: not changed.
static BEFORE: AtomicU32 = AtomicU32::new(0);

/// Has them recorded; without their kinds, which the launches need too, nothing comes of it.
///
/// # Safety
///
/// CUPTI is ours.
pub unsafe fn turn_on(cupti: &Cupti) {
    let mut before = 0;
    // SAFETY: CUPTI's functions with arguments of their types; `before` is written while the call lasts.
    unsafe {
        if (cupti.thread_ids)(&raw mut before) != SUCCESS || (cupti.use_thread_ids)(KERNEL_S_IDS) != SUCCESS {
            return;
        }
        BEFORE.store(before.wrapping_add(1), Ordering::Relaxed);
        switch(cupti, 1);
    }
}

/// # Safety
///
/// CUPTI is ours.
pub unsafe fn turn_off(cupti: &Cupti) {
    // SAFETY: by the contract of this function.
    unsafe { switch(cupti, 0) };
    if let Some(before) = BEFORE.swap(0, Ordering::Relaxed).checked_sub(1) {
        // SAFETY: as above.
        unsafe { (cupti.use_thread_ids)(before) };
    }
}

/// # Safety
///
/// CUPTI is ours.
unsafe fn switch(cupti: &Cupti, on: u8) {
    for function in &SYNCS {
        let switch = if function.is_driver { cupti.enable_driver } else { cupti.enable_runtime };
        for id in function.ids.into_iter().filter(|id| *id != 0) {
            // SAFETY: by the contract of this function; a function that this CUPTI does not know gives an error.
            unsafe { switch(id, on) };
        }
    }
}

/// What a `CUpti_ActivityAPI` says of such a call.
pub fn activity(raw: Raw, function: u16) -> Activity {
    Activity {
        kind: Kind::Sync,
        detail: function,
        name: 0,
        start_ns: raw.u64(8),
        end_ns: raw.u64(16),
        bytes: 0,
        device: 0,
        stream: 0,
        correlation: raw.u32(32),
        tid: raw.u32(28),
    }
}
