//! Loops that the verifier looks through once, by `bpf_loop`.

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
