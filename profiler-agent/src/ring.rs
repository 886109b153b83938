//! The agent's side of the shared file. Any thread writes to it, none waits.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use profiler_common::agent::{
    Activity, CONTROL, Control, NAME_LEN, NAMES, NameHead, SIZE, SLOTS, Slot, name_hash,
};

use crate::sys::{self, ForkAdvice};

/// Names that are known to have been written; more are written again.
const KNOWN: usize = 8192;
/// Places of the table that are looked at for one name.
const PROBES: usize = 16;

static BASE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// A page that says 1 here, and 0 in a child made by `fork`: there are neither the mapping nor the agent's thread.
static HERE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
const PAGE: usize = 4096;
/// Threads that may be using the mapping.
static USERS: AtomicU32 = AtomicU32::new(0);
static SEEN: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];

/// Access to the mapping, which lasts until it is dropped.
pub struct Ring {
    base: *mut u8,
}

/// Makes the shared file and maps it; its descriptor.
pub fn make() -> Option<i32> {
    if !mark() {
        return None;
    }
    let fd = sys::memory_file(c"stallscope-ring", SIZE)?;
    let Some(base) = sys::map(SIZE, sys::SHARED, fd) else {
        sys::close(fd);
        return None;
    };
    sys::in_children(base, SIZE, ForkAdvice::Nothing);
    // One of a call that was taken back.
    unmap();
    for known in &SEEN {
        known.store(0, Ordering::Relaxed);
    }
    // SAFETY: aligned, inside the mapping.
    let alive = unsafe { AtomicU64::from_ptr(base.add(offset_of!(Control, alive_ns)).cast()) };
    alive.store(sys::now_ns(), Ordering::Relaxed);
    BASE.store(base, Ordering::SeqCst);
    Some(fd)
}

/// Makes the page that tells this process from its children; it stays for later recordings.
fn mark() -> bool {
    let mut page = HERE.load(Ordering::Acquire);
    if page.is_null() {
        let Some(new) = sys::map(PAGE, sys::PRIVATE, -1) else { return false };
        if !sys::in_children(new, PAGE, ForkAdvice::Zeros) {
            // SAFETY: nobody knows of it.
            unsafe { sys::unmap(new, PAGE) };
            return false;
        }
        page = new.cast();
        HERE.store(page, Ordering::Release);
    }
    // SAFETY: the page is never unmapped.
    unsafe { (*page).store(1, Ordering::Release) };
    true
}

/// Whether this is a child, made by `fork`, of the process that was recorded.
pub fn is_forked() -> bool {
    let page = HERE.load(Ordering::Acquire);
    // SAFETY: the page is never unmapped.
    !page.is_null() && unsafe { (*page).load(Ordering::Acquire) } == 0
}

/// Takes the mapping away once nobody uses it; if that takes too long, it stays.
pub fn unmap() {
    let base = BASE.swap(core::ptr::null_mut(), Ordering::SeqCst);
    if base.is_null() {
        return;
    }
    for _ in 0..1000 {
        if USERS.load(Ordering::SeqCst) == 0 {
            // SAFETY: new users find a null pointer, and the old ones are gone.
            unsafe { sys::unmap(base, SIZE) };
            return;
        }
        sys::sleep_ms(1);
    }
}

/// The mapping, if there is one.
pub fn get() -> Option<Ring> {
    if is_forked() {
        return None;
    }
    USERS.fetch_add(1, Ordering::SeqCst);
    let base = BASE.load(Ordering::SeqCst);
    if base.is_null() {
        USERS.fetch_sub(1, Ordering::SeqCst);
        return None;
    }
    Some(Ring { base })
}

impl Drop for Ring {
    fn drop(&mut self) {
        USERS.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ring {
    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: all callers pass aligned offsets below SIZE, and the mapping outlives `self`.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    fn u32_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.base.add(offset).cast()) }
    }

    pub fn alive_ns(&self) -> u64 {
        self.u64_at(offset_of!(Control, alive_ns)).load(Ordering::Relaxed)
    }

    pub fn is_asked_to_leave(&self) -> bool {
        self.u32_at(offset_of!(Control, leave)).load(Ordering::Relaxed) != 0
    }

    pub fn tell_state(&self, state: u32) {
        self.u32_at(offset_of!(Control, state)).store(state, Ordering::Release);
    }

    pub fn tell_step(&self, step: u32, result: u32) {
        self.u32_at(offset_of!(Control, result)).store(result, Ordering::Relaxed);
        self.u32_at(offset_of!(Control, step)).store(step, Ordering::Relaxed);
    }

    pub fn tell_version(&self, version: u32) {
        self.u32_at(offset_of!(Control, cupti_version)).store(version, Ordering::Relaxed);
    }

    pub fn tell_thread(&self, tid: u32) {
        self.u32_at(offset_of!(Control, tid)).store(tid, Ordering::Relaxed);
    }

    pub fn tell_no_launches(&self) {
        self.u32_at(offset_of!(Control, no_launches)).store(1, Ordering::Relaxed);
    }

    pub fn add_cupti_dropped(&self, count: u64) {
        self.u64_at(offset_of!(Control, cupti_dropped)).fetch_add(count, Ordering::Relaxed);
    }

    pub fn add_unfinished(&self) {
        self.u64_at(offset_of!(Control, unfinished)).fetch_add(1, Ordering::Relaxed);
    }

    pub fn add_dropped(&self, count: u64) {
        self.u64_at(offset_of!(Control, dropped)).fetch_add(count, Ordering::Relaxed);
    }

    pub fn add_callback_ns(&self, ns: u64) {
        self.u64_at(offset_of!(Control, callback_ns)).fetch_add(ns, Ordering::Relaxed);
    }

    /// Hands an activity over, or counts it where the recorder is behind.
    pub fn push(&self, activity: &Activity) {
        let head = self.u64_at(offset_of!(Control, head));
        let tail = self.u64_at(offset_of!(Control, tail));
        let mut turn = head.load(Ordering::Relaxed);
        loop {
            if turn.wrapping_sub(tail.load(Ordering::Acquire)) >= SLOTS as u64 {
                self.add_dropped(1);
                return;
            }
            match head.compare_exchange_weak(turn, turn.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => turn = now,
            }
        }
        let index = turn as usize & (SLOTS - 1);
        let offset = CONTROL + NAMES + index * size_of::<Slot>();
        let mark = turn.wrapping_add(1) as u32;
        let slot = Slot {
            // Not the finished mark of any turn of this slot yet: turns of a slot differ by SLOTS.
            turn: mark.wrapping_sub(1),
            kind: activity.kind as u16,
            detail: activity.detail,
            name: activity.name,
            start_ns: activity.start_ns,
            end_ns: activity.end_ns,
            bytes: activity.bytes,
            device: activity.device,
            stream: activity.stream,
            correlation: activity.correlation,
            tid: activity.tid,
            reserved: 0,
        };
        // SAFETY: the slot is inside the mapping and was handed out to this thread alone.
        unsafe { self.base.add(offset).cast::<Slot>().write_volatile(slot) };
        self.u32_at(offset).store(mark, Ordering::Release);
    }

    /// Hash of a name, which is written out where that was not done yet.
    pub fn name(&self, name: &[u8]) -> u64 {
        let hash = name_hash(name);
        for probe in 0..PROBES {
            let index = (hash as usize).wrapping_add(probe) % KNOWN;
            let Some(place) = SEEN.get(index) else { return hash };
            match place.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(known) if known == hash => return hash,
                Err(_) => {}
            }
        }
        self.write_name(hash, name);
        hash
    }

    fn write_name(&self, hash: u64, name: &[u8]) {
        let cursor = self.u64_at(offset_of!(Control, names));
        let room = (size_of::<NameHead>() + name.len()).next_multiple_of(8) as u64;
        let at = cursor.fetch_add(room, Ordering::Relaxed);
        if at.saturating_add(room) > NAMES as u64 {
            // The cursor stays beyond the end, so that nothing is written any more.
            cursor.fetch_sub(room, Ordering::Relaxed);
            self.u64_at(offset_of!(Control, names_dropped)).fetch_add(1, Ordering::Relaxed);
            return;
        }
        let offset = CONTROL + at as usize;
        let head = NameHead { hash, len: name.len() as u32, complete: 0 };
        // SAFETY: the piece is inside the mapping and was handed out to this thread alone.
        unsafe {
            self.base.add(offset).cast::<NameHead>().write_volatile(head);
            let text = self.base.add(offset + size_of::<NameHead>());
            core::ptr::copy_nonoverlapping(name.as_ptr(), text, name.len());
        }
        self.u32_at(offset + offset_of!(NameHead, complete)).store(1, Ordering::Release);
    }
}

/// The bytes of a C string, at most [`NAME_LEN`].
///
/// # Safety
///
/// `text` is null or points to a string that ends with 0.
pub unsafe fn c_string<'a>(text: *const u8) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    let mut len = 0;
    // SAFETY: reads up to the 0 at most.
    while len < NAME_LEN && unsafe { *text.add(len) } != 0 {
        len += 1;
    }
    // SAFETY: these bytes were just read.
    unsafe { core::slice::from_raw_parts(text, len) }
}
