//! The agent: lives in a CUDA process while stallscope records it, and writes what ran on the GPU into shared memory.
//!
//! It is a guest. It has no dependency, not even on libc (what it needs of it the recorder hands over), it allocates
//! nothing from the target's allocator, prints nothing, waits for nobody in a callback, and when the recorder falls
//! silent it leaves by itself.

#![no_std]

mod buffers;
mod cupti;
mod ring;
mod syncs;
mod sys;
mod work;

use core::panic::PanicInfo;

use profiler_common::agent::{
    START_BUSY, START_FORKED, START_MAP, START_OK, START_THREAD, START_VERSION, Start, VERSION,
};

/// Called by the recorder in a stopped thread of the target; returns at once.
///
/// # Safety
///
/// `start` is readable and lies still until this returns, and its addresses are those functions of the process's libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stallscope_start(start: *const Start) -> i64 {
    // SAFETY: by the contract of this function.
    let start = unsafe { start.read_unaligned() };
    if start.version != VERSION {
        return START_VERSION;
    }
    if !work::claim() {
        return if ring::is_forked() { START_FORKED } else { START_BUSY };
    }
    if !ring::map(start.ring) {
        work::release();
        return START_MAP;
    }
    // SAFETY: the addresses are those functions, by the contract of this function.
    if unsafe { work::spawn(&start) } {
        return START_OK;
    }
    ring::unmap();
    work::release();
    START_THREAD
}

/// There is nothing that panics; if there were, this thread would sleep rather than harm its host.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        sys::sleep_ms(1000);
    }
}

/// Asked for by the unwinding tables of `core`, and never called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
