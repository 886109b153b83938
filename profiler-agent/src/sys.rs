//! System calls, made directly: the target's libc is not needed, and its `errno` not touched.

use core::arch::asm;

const CLOSE: usize = 3;
const MMAP: usize = 9;
const MUNMAP: usize = 11;
const SCHED_YIELD: usize = 24;
const MADVISE: usize = 28;
const NANOSLEEP: usize = 35;
const FTRUNCATE: usize = 77;
const PRCTL: usize = 157;
const GETTID: usize = 186;
const CLOCK_GETTIME: usize = 228;
const MEMFD_CREATE: usize = 319;

pub const PRIVATE: usize = 0x22;
pub const SHARED: usize = 0x01;

#[repr(C)]
pub struct Timespec {
    pub sec: i64,
    pub nsec: i64,
}

/// The result, or -errno.
///
/// # Safety
///
/// The call must not break the memory of the process.
unsafe fn syscall(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: Linux's convention; the kernel changes rcx, r11 and rax only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// New memory, readable and writable; `None` where there is none.
pub fn map(len: usize, flags: usize, fd: i32) -> Option<*mut u8> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let result = unsafe { syscall(MMAP, [0, len, 3, flags, fd as isize as usize, 0]) };
    (result > 0).then_some(result as *mut u8)
}

/// # Safety
///
/// Nothing may use the mapping any more.
pub unsafe fn unmap(address: *mut u8, len: usize) {
    // SAFETY: by the contract of this function.
    unsafe { syscall(MUNMAP, [address as usize, len, 0, 0, 0, 0]) };
}

/// What a child made by `fork` has of a mapping: zeros, or nothing. False where the kernel cannot do that.
pub fn in_children(address: *mut u8, len: usize, what: ForkAdvice) -> bool {
    // SAFETY: neither advice changes anything in this process.
    unsafe { syscall(MADVISE, [address as usize, len, what as usize, 0, 0, 0]) == 0 }
}

/// `MADV_DONTFORK`, `MADV_WIPEONFORK`.
#[derive(Clone, Copy)]
pub enum ForkAdvice {
    Nothing = 10,
    Zeros = 18,
}

/// A new file in memory of this length, closed by `exec`; `None` where there is none.
pub fn memory_file(name: &core::ffi::CStr, len: usize) -> Option<i32> {
    const CLOSE_ON_EXEC: usize = 1;
    // SAFETY: the kernel reads `name`, which ends with 0.
    let fd = unsafe { syscall(MEMFD_CREATE, [name.as_ptr() as usize, CLOSE_ON_EXEC, 0, 0, 0, 0]) };
    if fd < 0 {
        return None;
    }
    // SAFETY: touches no memory.
    if unsafe { syscall(FTRUNCATE, [fd as usize, len, 0, 0, 0, 0]) } == 0 {
        return Some(fd as i32);
    }
    close(fd as i32);
    None
}

/// Closes a descriptor of ours; -1 is none.
pub fn close(fd: i32) {
    if fd >= 0 {
        // SAFETY: touches no memory.
        unsafe { syscall(CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
    }
}

/// `CLOCK_MONOTONIC` without any function of the process; 0 where it cannot be had.
pub fn now_ns() -> u64 {
    let mut time = Timespec { sec: 0, nsec: 0 };
    // SAFETY: the kernel writes `time`, which lives until it returns.
    unsafe { syscall(CLOCK_GETTIME, [1, &raw mut time as usize, 0, 0, 0, 0]) };
    (time.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.nsec as u64)
}

/// Lets other threads run.
pub fn give_way() {
    // SAFETY: touches no memory.
    unsafe { syscall(SCHED_YIELD, [0; 6]) };
}

pub fn sleep_ms(ms: i64) {
    let time = Timespec { sec: ms / 1000, nsec: ms % 1000 * 1_000_000 };
    // SAFETY: the kernel reads `time`, which lives until it returns.
    unsafe { syscall(NANOSLEEP, [&raw const time as usize, 0, 0, 0, 0, 0]) };
}

pub fn thread_id() -> u32 {
    // SAFETY: touches no memory.
    unsafe { syscall(GETTID, [0; 6]) as u32 }
}

/// Names the calling thread.
pub fn name_thread(name: &[u8; 16]) {
    // SAFETY: PR_SET_NAME reads 16 bytes.
    unsafe { syscall(PRCTL, [15, name.as_ptr() as usize, 0, 0, 0, 0]) };
}
