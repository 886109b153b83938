//! What keeps the verifier's work, which is most of the time that attaching takes, small.
//!
//! Loops are `bpf_loop`'s: it looks through their bodies once. And functions that several places call, or one place on
//! many paths, are global: `extern "C"` with their name exported, which makes it check each of them once, by itself,
//! instead of at every call. Such a function takes integers and pointers to structures, which it must expect to be
//! null, and returns an integer.

use aya_ebpf::helpers::generated::bpf_loop;
use core::ffi::c_void;

/// What a body returns: go on, or end the loop.
pub const ON: i64 = 0;
pub const DONE: i64 = 1;

/// Calls `body` with 0, 1 … below `times`, until it returns [`DONE`].
#[inline(always)]
pub fn repeat<S>(times: u32, body: unsafe extern "C" fn(u32, *mut S) -> i64, state: &mut S) {
    // SAFETY: the body takes a pointer to what `state` is.
    unsafe { bpf_loop(times, body as *mut c_void, (&raw mut *state).cast(), 0) };
}
