//! The end of a process that gets no memory (`ulimit -v`, a full machine): an error with help, as any other, in place of an
//! abort. What a recording had written until then is a readable trace.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU8, Ordering};

const MESSAGE: &[u8] = b"error: there is no memory left for stallscope\n\
help: allow it more (`ulimit -v`, the container's limit), or record for a shorter time; a trace that was begun is readable\n";

/// Exit status of a process that gets no memory.
static CODE: AtomicU8 = AtomicU8::new(1);

/// Sets the exit status of a process that gets no memory.
pub fn set_code(code: u8) {
    CODE.store(code, Ordering::Relaxed);
}

/// Above this it is one request that is too large, not the memory that is used up: who asks for it hears of that.
const LARGEST: usize = 1 << 30;

/// The system's allocator, but where memory is used up it does not return.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: every request goes to the system's allocator as it came, and what that returns goes back.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        there(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        there(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        there(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[inline]
fn there(memory: *mut u8, size: usize) -> *mut u8 {
    if memory.is_null() && size <= LARGEST {
        end();
    }
    memory
}

#[cold]
fn end() -> ! {
    // SAFETY: pointer and length describe the message; neither call needs memory, and the second one returns to nobody.
    unsafe {
        libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
        libc::_exit(i32::from(CODE.load(Ordering::Relaxed)))
    }
}
