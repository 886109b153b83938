//! Reads of kernel and user memory that may fail.

use aya_ebpf::helpers::generated::{bpf_probe_read_kernel, bpf_probe_read_user};
use profiler_common::config::NO_OFFSET;

/// A value at a kernel address; zero where it cannot be read.
#[inline(always)]
pub fn kernel<T: Copy + Default>(address: u64) -> T {
    let mut value = T::default();
    // SAFETY: the helper writes `size_of::<T>()` bytes at most, and zeroes them on failure.
    unsafe { bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, address as *const _) };
    value
}

/// A member of the structure at `base`; zero where there is none or it cannot be read.
#[inline(always)]
pub fn member<T: Copy + Default>(base: u64, offset: u32) -> T {
    if base == 0 || offset == NO_OFFSET {
        return T::default();
    }
    kernel(base + u64::from(offset))
}

/// Copies kernel memory to `to`, which the caller guarantees to have `len` bytes.
#[inline(always)]
pub fn kernel_bytes(to: *mut u8, len: u32, address: u64) -> bool {
    // SAFETY: the caller's bound; the verifier checks it too.
    unsafe { bpf_probe_read_kernel(to.cast(), len, address as *const _) == 0 }
}

/// Copies memory of the current process to `to`, which the caller guarantees to have `len` bytes.
#[inline(always)]
pub fn user_bytes(to: *mut u8, len: u32, address: u64) -> bool {
    // SAFETY: the caller's bound; the verifier checks it too.
    unsafe { bpf_probe_read_user(to.cast(), len, address as *const _) == 0 }
}

/// The same for a length that is worked out, where the caller guarantees `to` to have `MOST` bytes.
#[inline(always)]
pub fn user_bytes_up_to<const MOST: u64>(to: *mut u8, len: u64, address: u64) -> bool {
    let len = unknown(len);
    len <= MOST && user_bytes(to, len as u32, address)
}

/// The same number, of which the compiler knows nothing: else it leaves out a comparison whose result it knows, or compares
/// another copy, and an older kernel's verifier misses the bound.
#[inline(always)]
pub fn unknown(value: u64) -> u64 {
    // SAFETY: reads a value on the stack.
    unsafe { core::ptr::read_volatile(&raw const value) }
}
