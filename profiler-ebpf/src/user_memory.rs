//! User memory of the current task, or of another one from a program that may sleep.

use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::{bpf_copy_from_user_task, bpf_get_current_task};

use crate::mem::user_bytes;

pub trait UserMemory: Copy {
    /// Address of the task's `task_struct`.
    fn task(self) -> u64;

    /// Copies `len` bytes to `to`; false where they cannot be read.
    fn read_bytes(self, to: *mut u8, len: u32, address: u64) -> bool;

    /// A value at a user address, `None` where it cannot be read.
    #[inline(always)]
    fn read<T: Copy + Default>(self, address: u64) -> Option<T> {
        let mut value = T::default();
        if self.read_bytes((&raw mut value).cast(), size_of::<T>() as u32, address) {
            Some(value)
        } else {
            None
        }
    }
}

#[derive(Clone, Copy)]
pub struct Current;

impl UserMemory for Current {
    #[inline(always)]
    fn task(self) -> u64 {
        // SAFETY: no preconditions.
        unsafe { bpf_get_current_task() }
    }

    #[inline(always)]
    fn read_bytes(self, to: *mut u8, len: u32, address: u64) -> bool {
        user_bytes(to, len, address)
    }
}

/// A task that an iterator holds on to. For programs that may sleep only.
#[derive(Clone, Copy)]
pub struct Remote(pub *mut task_struct);

impl UserMemory for Remote {
    #[inline(always)]
    fn task(self) -> u64 {
        self.0 as u64
    }

    #[inline(always)]
    fn read_bytes(self, to: *mut u8, len: u32, address: u64) -> bool {
        // SAFETY: `to` has `len` bytes, as the verifier checks.
        unsafe { bpf_copy_from_user_task(to.cast(), len, address as *const _, self.0, 0) == 0 }
    }
}
