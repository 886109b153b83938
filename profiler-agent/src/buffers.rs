//! CUPTI's buffers: a fixed number of them, mapped once, and what is read out of them.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use profiler_common::agent::{Activity, Kind};
use profiler_common::cuda::sync_of;

use crate::cupti::{self, CONCURRENT_KERNEL, DRIVER, MEMCPY, RUNTIME, Raw, SUCCESS};
use crate::ring::{Ring, c_string};
use crate::{ring, syncs, sys, work};

/// Bytes of a buffer; about 3000 kernels with their launches.
const SIZE: usize = 1 << 20;
const COUNT: usize = 8;
/// Records read out of one buffer at most.
const RECORDS: usize = SIZE / 16;

static POOL: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// Bit `n`: buffer `n` is CUPTI's.
static IN_USE: AtomicU32 = AtomicU32::new(0);

/// Maps the memory, which stays for later recordings: CUPTI may still hold a buffer.
pub fn prepare() -> bool {
    if POOL.load(Ordering::Acquire).is_null() {
        let Some(memory) = sys::map(SIZE * COUNT, sys::PRIVATE, -1) else { return false };
        POOL.store(memory, Ordering::Release);
    }
    true
}

/// After CUPTI was finalised it holds no buffer.
pub fn forget() {
    IN_USE.store(0, Ordering::Release);
}

/// CUPTI asks for a buffer; without one it drops and counts.
pub unsafe extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, records: *mut usize) {
    let (address, len) = take().map_or((core::ptr::null_mut(), 0), |address| (address, SIZE));
    // SAFETY: CUPTI passes pointers to its own variables.
    unsafe {
        buffer.write(address);
        size.write(len);
        records.write(0);
    }
}

fn take() -> Option<*mut u8> {
    let pool = POOL.load(Ordering::Acquire);
    if pool.is_null() {
        return None;
    }
    for number in 0..COUNT {
        let bit = 1 << number;
        if IN_USE.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            // SAFETY: `number` is below COUNT.
            return Some(unsafe { pool.add(number * SIZE) });
        }
    }
    None
}

fn give_back(buffer: *mut u8) {
    let pool = POOL.load(Ordering::Acquire) as usize;
    let number = (buffer as usize).wrapping_sub(pool) / SIZE;
    if number < COUNT {
        IN_USE.fetch_and(!(1 << number), Ordering::AcqRel);
    }
}

/// CUPTI hands a buffer back.
pub unsafe extern "C" fn completed(
    context: *mut c_void,
    stream: u32,
    buffer: *mut u8,
    _size: usize,
    valid: usize,
) {
    let begun = work::now_ns();
    if let (Some(ring), Some(cupti)) = (ring::get(), cupti::get()) {
        if !buffer.is_null() && valid > 0 {
            read(&ring, &cupti, buffer, valid.min(SIZE));
        }
        let mut dropped = 0;
        // SAFETY: `dropped` is written while the call lasts.
        if unsafe { (cupti.dropped)(context, stream, &raw mut dropped) } == SUCCESS && dropped > 0 {
            ring.add_cupti_dropped(dropped as u64);
        }
        ring.add_callback_ns(work::now_ns().saturating_sub(begun));
    }
    if !buffer.is_null() {
        give_back(buffer);
    }
}

fn read(ring: &Ring, cupti: &cupti::Cupti, buffer: *mut u8, valid: usize) {
    let mut record = core::ptr::null_mut();
    for _ in 0..RECORDS {
        // SAFETY: the buffer is ours with `valid` bytes of records; `record` is null or the last one returned.
        if unsafe { (cupti.next)(buffer, valid, &raw mut record) } != SUCCESS || record.is_null() {
            return;
        }
        // SAFETY: CUPTI returned it, and nobody else has the buffer.
        take_in(ring, unsafe { Raw::new(record) });
    }
}

fn take_in(ring: &Ring, raw: Raw) {
    let activity = match raw.u32(0) {
        CONCURRENT_KERNEL => Activity {
            kind: Kind::Kernel,
            detail: 0,
            // SAFETY: CUPTI's name of a kernel lives as long as the module.
            name: ring.name(unsafe { c_string(raw.u64(104) as *const u8) }),
            start_ns: raw.u64(16),
            end_ns: raw.u64(24),
            bytes: 0,
            device: raw.u32(40),
            stream: raw.u32(48),
            correlation: raw.u32(92),
            tid: 0,
        },
        MEMCPY => Activity {
            kind: Kind::Copy,
            detail: u16::from(raw.u8(4)),
            name: 0,
            start_ns: raw.u64(16),
            end_ns: raw.u64(24),
            bytes: raw.u64(8),
            device: raw.u32(32),
            stream: raw.u32(40),
            correlation: raw.u32(44),
            tid: 0,
        },
        kind @ (RUNTIME | DRIVER) if let Some(function) = sync_of(kind == DRIVER, raw.u32(4)) => {
            syncs::activity(raw, function)
        }
        // What was called before the other functions were turned off comes too.
        RUNTIME if !cupti::RUNTIME_LAUNCHES.contains(&raw.u32(4)) => return,
        DRIVER if !cupti::DRIVER_LAUNCHES.contains(&raw.u32(4)) => return,
        RUNTIME | DRIVER => Activity {
            kind: Kind::Launch,
            detail: raw.u32(0) as u16,
            name: 0,
            start_ns: raw.u64(8),
            end_ns: raw.u64(16),
            bytes: 0,
            device: 0,
            stream: 0,
            correlation: raw.u32(32),
            tid: raw.u32(28),
        },
        _ => return,
    };
    if activity.end_ns == 0 {
        ring.add_unfinished();
    } else {
        ring.push(&activity);
    }
}
