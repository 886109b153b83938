//! Call stacks: walked by the kernel, named by a hash, sent once.

use aya_ebpf::bindings::{BPF_F_USER_STACK, task_struct};
use aya_ebpf::helpers::generated::{bpf_get_stack, bpf_get_task_stack};
use core::ffi::c_void;
use profiler_common::record::{Header, RecordKind, STACK_FRAMES, STACK_SNIPPET};
use profiler_common::{Loss, StackRecord};

use crate::emit;
use crate::maps::{KERNEL_STACK, SEEN_STACKS, USER_STACK};
use crate::mem::user_bytes;
use crate::regs::UserRegs;
use crate::repeat::{DONE, ON, repeat};

const PAGE: usize = 4096;
const HEAD: usize = size_of::<StackRecord>();
const FRAMES: usize = STACK_FRAMES * 8;
/// Where the longest snippet ends.
const SNIPPET_END: u64 = (HEAD + FRAMES + STACK_SNIPPET) as u64;
/// Pages that the snippet may touch.
const CHUNKS: u32 = (STACK_SNIPPET / PAGE) as u32 + 1;

/// The record, its frames and the snippet right behind them, and a page to spare: with it every copy of at most a page
/// that begins within bounds also ends within them, which is what the verifier understands.
#[repr(C)]
pub struct UserStack {
    record: StackRecord,
    frames: [u64; STACK_FRAMES],
    snippet: [u8; STACK_SNIPPET + PAGE],
    /// Set while a program fills it: where system-call probes can be preempted, the second one goes without.
    busy: u64,
}

#[repr(C)]
pub struct KernelStack {
    record: StackRecord,
    frames: [u64; STACK_FRAMES],
}

/// Innermost frames that are always the probe's own: this function, its program, and what runs it.
const OWN_FRAMES: u64 = 3;

const USER_SEED: u64 = 0x9ae1_6a3b_2f90_404f;
const KERNEL_SEED: u64 = 0xc3a5_c85c_97cb_3127;

#[inline(always)]
fn mix(hash: u64, value: u64) -> u64 {
    let hash = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

/// Hash of the current thread's user stack, sent to userspace if it is new; 0: none.
#[inline(never)]
pub fn user(ctx: *mut c_void, regs: *const UserRegs, id: u64) -> u64 {
    // SAFETY: callers pass registers on their stack.
    let Some(regs) = (unsafe { regs.as_ref() }) else { return 0 };
    let Some(scratch) = USER_STACK.get_ptr_mut(0) else { return 0 };
    // SAFETY: this processor's slot.
    let scratch = unsafe { &mut *scratch };
    if scratch.busy != 0 {
        emit::lost(Loss::StackRing);
        return 0;
    }
    scratch.busy = 1;
    let hash = user_in(ctx, regs, id, scratch);
    scratch.busy = 0;
    hash
}

#[inline(always)]
fn user_in(ctx: *mut c_void, regs: &UserRegs, id: u64, scratch: &mut UserStack) -> u64 {
    let to = (&raw mut scratch.frames).cast();
    // SAFETY: `to` has that many bytes.
    let len = unsafe { bpf_get_stack(ctx, to, FRAMES as u32, u64::from(BPF_F_USER_STACK)) };
    let frames = if len > 0 { len as u64 as u32 / 8 } else { 0 };
    let frames = if frames > STACK_FRAMES as u32 { STACK_FRAMES as u32 } else { frames };
    let seed = mix(mix(USER_SEED, id >> 32), regs.ip);
    let hash = hash_frames(mix(seed, regs.sp), &scratch.frames, frames);
    if SEEN_STACKS.get_ptr(hash).is_some() {
        return hash;
    }
    scratch.record = StackRecord {
        header: Header { kind: RecordKind::Stack as u32, len: 0 },
        hash,
        tgid: (id >> 32) as u32,
        tid: id as u32,
        space: 0,
        frames: frames as u16,
        snippet: 0,
        ip: regs.ip,
        sp: regs.sp,
        bp: regs.bp,
    };
    let begin = HEAD as u64 + u64::from(frames) * 8;
    let end = copy_snippet(scratch, begin, regs.sp);
    // The verifier does not know what the function returns.
    let end = if end > SNIPPET_END { SNIPPET_END } else { end };
    if frames == 0 || end == begin {
        emit::lost(Loss::StackTruncated);
    }
    scratch.record.snippet = (end - begin) as u32;
    scratch.record.header.len = end as u32;
    if emit::bytes((&raw const *scratch).cast(), end, Loss::StackRing) {
        let _ = SEEN_STACKS.insert(hash, 1, 0);
        return hash;
    }
    // It will be sent with the next wait that has it.
    hash
}

/// Copies stack memory from `sp` upward to `begin` bytes into the buffer, a page at a time, since a copy fails as a
/// whole where a page is absent. Returns where the copy ends.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn copy_snippet(scratch: *mut UserStack, begin: u64, sp: u64) -> u64 {
    if scratch.is_null() {
        return begin;
    }
    let base = scratch.cast::<u8>();
    let mut to = begin;
    let mut from = sp;
    let mut left = STACK_SNIPPET as u64;
    let mut chunk = 0;
    while chunk < CHUNKS {
        let page_rest = PAGE as u64 - (from & (PAGE as u64 - 1));
        let len = if page_rest > left { left } else { page_rest };
        if len == 0 || len > PAGE as u64 || to > SNIPPET_END {
            break;
        }
        // SAFETY: begins and ends within the buffer, see `UserStack`.
        if !user_bytes(unsafe { base.add(to as usize) }, len as u32, from) {
            break;
        }
        to += len;
        from = from.wrapping_add(len);
        left -= len;
        chunk += 1;
    }
    to
}

#[repr(C)]
struct Hashing {
    frames: *const [u64; STACK_FRAMES],
    hash: u64,
}

/// Never 0, which stands for no stack.
#[inline(always)]
fn hash_frames(seed: u64, frames: &[u64; STACK_FRAMES], count: u32) -> u64 {
    let mut state = Hashing { frames, hash: seed };
    repeat(count, hash_frame, &mut state);
    if state.hash == 0 { 1 } else { state.hash }
}

#[inline(never)]
unsafe extern "C" fn hash_frame(index: u32, state: *mut Hashing) -> i64 {
    // SAFETY: `repeat` passes what it was given; the frames lie in a map.
    let (state, frames) = unsafe { (&mut *state, &*(*state).frames) };
    if index as usize >= STACK_FRAMES {
        return DONE;
    }
    state.hash = mix(state.hash, frames[index as usize]);
    ON
}

/// Hash of the current thread's kernel stack, sent if new; 0: none. For `sched_switch` only.
#[inline(never)]
pub fn kernel(ctx: *mut c_void, id: u64) -> u64 {
    let Some(scratch) = KERNEL_STACK.get_ptr_mut(0) else { return 0 };
    // SAFETY: this processor's slot, and no interrupt comes in between.
    let scratch = unsafe { &mut *scratch };
    let to = (&raw mut scratch.frames).cast();
    // SAFETY: `to` has that many bytes.
    let len = unsafe { bpf_get_stack(ctx, to, FRAMES as u32, OWN_FRAMES) };
    send_kernel(scratch, len, id)
}

/// The same for a task that an iterator looks at.
#[inline(always)]
pub fn kernel_of(task: *mut task_struct, id: u64) -> u64 {
    let Some(scratch) = KERNEL_STACK.get_ptr_mut(1) else { return 0 };
    // SAFETY: only one iterator runs at a time.
    let scratch = unsafe { &mut *scratch };
    let to = (&raw mut scratch.frames).cast();
    // SAFETY: `to` has that many bytes.
    let len = unsafe { bpf_get_task_stack(task, to, FRAMES as u32, 0) };
    send_kernel(scratch, len, id)
}

#[inline(always)]
fn send_kernel(scratch: &mut KernelStack, len: i64, id: u64) -> u64 {
    if len <= 0 {
        return 0;
    }
    let frames = len as u64 as u32 / 8;
    let frames = if frames > STACK_FRAMES as u32 { STACK_FRAMES as u32 } else { frames };
    let hash = hash_frames(KERNEL_SEED, &scratch.frames, frames);
    if SEEN_STACKS.get_ptr(hash).is_some() {
        return hash;
    }
    let len = HEAD as u64 + u64::from(frames) * 8;
    scratch.record = StackRecord {
        header: Header { kind: RecordKind::Stack as u32, len: len as u32 },
        hash,
        tgid: (id >> 32) as u32,
        tid: id as u32,
        space: 1,
        frames: frames as u16,
        snippet: 0,
        ip: 0,
        sp: 0,
        bp: 0,
    };
    if emit::bytes((&raw const *scratch).cast(), len, Loss::StackRing) {
        let _ = SEEN_STACKS.insert(hash, 1, 0);
    }
    hash
}
