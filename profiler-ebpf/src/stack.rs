//! Call stacks. A kernel stack is walked by the kernel, named by its hash, and sent once.
//!
//! A user stack is copied for userspace to unwind. What userspace learns by that (`profiler_common::stack`) makes the
//! same stack known when it comes again; until then every wait has a copy of its own. So a wait is never said to have a
//! stack that it does not have, whatever the frame pointer register is used for.

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_RING_SIZE, task_struct};
use aya_ebpf::helpers::generated::{bpf_get_stack, bpf_get_task_stack, bpf_ktime_get_ns};
use core::ffi::c_void;
use profiler_common::record::{Header, RecordKind, STACK_FRAMES, STACK_SNIPPET};
use profiler_common::stack::{SHAPE_CHAIN, SHAPE_SET, SHAPE_SLOTS, SHAPES_OF_KEY, mix, with_word};
use profiler_common::{Loss, Shape, ShapeKey, StackRecord};

use crate::emit;
use crate::maps::{COPY_DEBTS, EVENTS, KERNEL_STACK, KNOWN_STACKS, SEEN_STACKS, SHAPES, USER_STACK};
use crate::mem::{unknown, user_bytes_up_to};
use crate::regs::UserRegs;
use crate::repeat::{DONE, ON, repeat};
use crate::user_memory::{Current, UserMemory};

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
    chain: Chain,
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

const KERNEL_SEED: u64 = 0xc3a5_c85c_97cb_3127;

/// A frame pointer further above the stack pointer than this holds something else.
const LARGEST_STACK: u64 = 8 << 20;
/// No code lies below the first or above the second.
const CODE: core::ops::Range<u64> = 0x1000..1 << 56;

/// Copies of one thread's stacks: one for every 20 ms in the long run, and this many ahead of that.
const COPY_NS: u64 = 20_000_000;
const COPIES_AHEAD: u64 = 256;

/// Id of the current thread's user stack, which is sent to userspace where it is not known; 0: none.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn user(regs: *const UserRegs, id: u64) -> u64 {
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
    let stack = user_in(regs, id, scratch);
    scratch.busy = 0;
    stack
}

#[inline(always)]
fn user_in(regs: &UserRegs, id: u64, scratch: &mut UserStack) -> u64 {
    scratch.chain.count = 0;
    let key = ShapeKey { tgid: (id >> 32) as u32, reserved: 0, ip: regs.ip, sp: regs.sp };
    let stack = known(&key, regs, scratch);
    if stack != 0 {
        return stack;
    }
    // SAFETY: no preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if !may_copy(id as u32, now_ns) {
        emit::lost(Loss::StackCopiesLimited);
        return 0;
    }
    if scratch.chain.count == 0 {
        follow(scratch, regs);
    }
    let count = scratch.chain.count;
    let frames = if count > STACK_FRAMES as u32 { STACK_FRAMES as u32 } else { count };
    let number = mix(mix(KERNEL_SEED, id), now_ns) | 1;
    scratch.record = StackRecord {
        header: Header { kind: RecordKind::Stack as u32, len: 0 },
        id: number,
        chain: scratch.chain.hash,
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
    if end == begin {
        emit::lost(Loss::StackTruncated);
    }
    scratch.record.snippet = (end - begin) as u32;
    scratch.record.header.len = end as u32;
    if emit::bytes((&raw const *scratch).cast(), end, Loss::StackRing) { number } else { 0 }
}

/// Whether a thread may have a stack copied now. The ring buffer's second half is for waits alone.
#[inline(always)]
fn may_copy(tid: u32, now_ns: u64) -> bool {
    if EVENTS.query(BPF_RB_AVAIL_DATA as u64) > EVENTS.query(BPF_RB_RING_SIZE as u64) / 2 {
        return false;
    }
    // SAFETY: copied at once, and only this thread changes it.
    let paid_ns = unsafe { COPY_DEBTS.get(tid) }.copied().unwrap_or(0);
    let paid_ns = (if paid_ns > now_ns { paid_ns } else { now_ns }) + COPY_NS;
    paid_ns - now_ns <= COPIES_AHEAD * COPY_NS && COPY_DEBTS.insert(tid, paid_ns, 0).is_ok()
}

/// The frames that the frame pointer register leads to. It lies in a map, not on the stack, where the verifier would
/// look at everything that follows once for each count of frames.
#[repr(C)]
struct Chain {
    bp: u64,
    end: u64,
    hash: u64,
    /// 0: not followed yet.
    count: u32,
    reserved: u32,
}

/// Follows frame pointers as long as they can be some: functions without a frame keep anything in that register. What
/// comes out in such a case can still be nonsense, but it decides nothing then.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn follow(scratch: *mut UserStack, regs: *const UserRegs) -> u32 {
    // SAFETY: callers pass this processor's slot, and registers on their stack.
    let (Some(scratch), Some(regs)) = (unsafe { (scratch.as_mut(), regs.as_ref()) }) else { return 0 };
    let end = regs.sp.saturating_add(LARGEST_STACK);
    scratch.frames[0] = regs.ip;
    scratch.chain = Chain { bp: regs.bp, end, hash: 0, count: 1, reserved: 0 };
    if regs.bp >= regs.sp && regs.bp < end {
        repeat(STACK_FRAMES as u32, follow_one, &mut Following { scratch });
    }
    0
}

#[repr(C)]
struct Following {
    scratch: *mut UserStack,
}

#[inline(never)]
unsafe extern "C" fn follow_one(_: u32, following: *mut Following) -> i64 {
    // SAFETY: `repeat` passes what it was given; the buffer is a map's.
    let scratch = unsafe { &mut *(*following).scratch };
    let chain = &mut scratch.chain;
    let index = chain.count as usize;
    if index >= STACK_FRAMES || chain.bp >= chain.end || chain.bp & 7 != 0 {
        return DONE;
    }
    let Some([caller, address]) = Current.read::<[u64; 2]>(chain.bp) else { return DONE };
    if !CODE.contains(&address) {
        return DONE;
    }
    scratch.frames[index] = address;
    chain.count += 1;
    chain.hash = mix(mix(chain.hash, chain.bp), address);
    if caller <= chain.bp {
        return DONE;
    }
    chain.bp = caller;
    ON
}

/// Id of a stack that userspace has unwound before; 0: it is not known. Frame pointers are followed only for stacks that
/// they decide on.
#[inline(always)]
fn known(key: &ShapeKey, regs: &UserRegs, scratch: &mut UserStack) -> u64 {
    let Some(shapes) = SHAPES.get_ptr(key) else { return 0 };
    let mut index = 0;
    while index < SHAPES_OF_KEY {
        // SAFETY: an entry of the map, which userspace replaces as a whole.
        let shape = unsafe { &(*shapes)[index] };
        if shape.flags & SHAPE_SET != 0 {
            if shape.flags & SHAPE_CHAIN != 0 && scratch.chain.count == 0 {
                follow(scratch, regs);
            }
            let hash = shape.begin(key, regs.bp, scratch.chain.hash);
            let mut words = Words { shape, sp: key.sp, hash, unread: 0, reserved: 0 };
            repeat(u32::from(shape.count), take_word, &mut words);
            // SAFETY: copied at once; userspace never takes an id away from a hash.
            if words.unread == 0
                && let Some(stack) = unsafe { KNOWN_STACKS.get(words.hash) }
            {
                return *stack;
            }
        }
        index += 1;
    }
    0
}

#[repr(C)]
struct Words {
    shape: *const Shape,
    sp: u64,
    hash: u64,
    unread: u32,
    reserved: u32,
}

#[inline(never)]
unsafe extern "C" fn take_word(index: u32, words: *mut Words) -> i64 {
    // SAFETY: `repeat` passes what it was given; the shape lies in a map.
    let (words, shape) = unsafe { (&mut *words, &*(*words).shape) };
    if index as usize >= SHAPE_SLOTS {
        words.unread = 1;
        return DONE;
    }
    let slot = shape.slots[index as usize];
    let Some(word) = Current.read::<u64>(words.sp + u64::from(slot) * 8) else {
        words.unread = 1;
        return DONE;
    };
    words.hash = with_word(words.hash, slot, word);
    ON
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
        let begin = unknown(to);
        if len == 0 || begin > SNIPPET_END {
            break;
        }
        // SAFETY: begins and ends within the buffer, see `UserStack`.
        if !user_bytes_up_to::<{ PAGE as u64 }>(unsafe { base.add(begin as usize) }, len, from) {
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
        id: hash,
        chain: 0,
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
        // Where it is not kept the stack is only sent once more.
        let _ = SEEN_STACKS.insert(hash, 1, 0);
    }
    hash
}
