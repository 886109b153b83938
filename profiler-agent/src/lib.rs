//! The agent: lives in a CUDA process while stallscope records it, and writes what ran on the GPU into shared memory.
//!
//! It is a guest. It has no dependency, none on libc either (what it needs of it the recorder hands over), it allocates
//! nothing from the target's allocator, prints nothing, waits for nobody in a callback, and when the recorder falls
//! silent it leaves by itself.

#![no_std]

mod buffers;
mod cupti;
mod memory;
mod ring;
mod syncs;
mod sys;
mod work;

use core::panic::PanicInfo;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use profiler_common::agent::{
    HOLD_NS, Phase, START_BUSY, START_FORKED, START_MAP, START_OK, START_THREAD, START_VERSION, Start,
    VERSION,
};

/// The token of the last recorder that did not put its thread back: where it finds its own, the thread went by itself.
#[unsafe(export_name = "stallscope_left")]
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Called by libcuda in a process whose `CUDA_INJECTION64_PATH` names this file. There is nothing to do before a recorder
/// comes: that the file is mapped is all that it needs. 1: done.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> i32 {
    1
}

/// Called by the recorder in a thread of the target, which it puts back as soon as this has said that it is done. When
/// nobody does, the thread goes back by itself, where this returns to.
///
/// # Safety
///
/// `start` lies still until this returns, only the recorder writes to it meanwhile, and its addresses are those functions
/// of the process's libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stallscope_start(start: *mut Start) {
    // SAFETY: by the contract of this function.
    let given = unsafe { start.read() };
    // SAFETY: `start` is aligned and lies still; the recorder writes whole numbers only.
    let (phase, result) = unsafe {
        (AtomicU32::from_ptr(&raw mut (*start).phase), AtomicI64::from_ptr(&raw mut (*start).result))
    };
    if given.version != VERSION {
        result.store(START_VERSION, Ordering::Relaxed);
        hold(phase, given.token);
        return;
    }
    // SAFETY: by the contract of this function: `__errno_location` returns a pointer to this thread's `errno`.
    let (errno, kept) = unsafe {
        let location = core::mem::transmute::<usize, ErrnoLocation>(given.errno_location as usize);
        let errno = location();
        (errno, *errno)
    };
    // SAFETY: by the contract of this function.
    let fd = unsafe { begin(&given, start, result) };
    if fd >= 0 {
        wait(phase, Phase::Opened, HOLD_NS);
    }
    sys::close(fd);
    sys::close(given.image);
    // SAFETY: it is this thread's.
    unsafe { *errno = kept };
    hold(phase, given.token);
}

type ErrnoLocation = unsafe extern "C" fn() -> *mut i32;

/// Makes the shared file, offers it to the recorder, and starts the agent's thread; the file's descriptor, or -1.
///
/// # Safety
///
/// As [`stallscope_start`].
unsafe fn begin(given: &Start, start: *mut Start, result: &AtomicI64) -> i32 {
    if !work::claim() {
        let code = if ring::is_forked() { START_FORKED } else { START_BUSY };
        result.store(code, Ordering::Relaxed);
        return -1;
    }
    let Some(fd) = ring::make() else {
        work::release();
        result.store(START_MAP, Ordering::Relaxed);
        return -1;
    };
    // SAFETY: by the contract of this function.
    unsafe {
        (*start).ring = fd;
        AtomicU32::from_ptr(&raw mut (*start).phase).store(Phase::Offered as u32, Ordering::Release);
        if work::spawn(given) {
            result.store(START_OK, Ordering::Relaxed);
            return fd;
        }
    }
    ring::unmap();
    work::release();
    result.store(START_THREAD, Ordering::Relaxed);
    fd
}

/// All is done: waits here for the recorder to put the thread back. No system call that has a time of its own is made: the
/// one that the thread was in may be about to go on with what is left of its time, which the kernel keeps once a thread.
fn hold(phase: &AtomicU32, token: u64) {
    phase.store(Phase::Done as u32, Ordering::Release);
    wait(phase, Phase::Begun, HOLD_NS);
    LEFT.store(token, Ordering::SeqCst);
}

fn wait(phase: &AtomicU32, wanted: Phase, limit_ns: u64) {
    let begun = sys::now_ns();
    while phase.load(Ordering::Acquire) != wanted as u32 && sys::now_ns().wrapping_sub(begun) < limit_ns {
        for _ in 0..16 {
            core::hint::spin_loop();
        }
        sys::give_way();
    }
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
