//! The agent's thread: takes CUPTI, watches whether the recorder lives, leaves.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use profiler_common::agent::{PATH_LEN, SILENCE_NS, Start, State, Step};

use crate::cupti::{self, Cupti, SUCCESS};
use crate::ring::Ring;
use crate::{buffers, ring, syncs, sys};

/// Looks whether the recorder lives and wants to go on.
const LOOK_MS: i64 = 20;
/// Looks between two flushes in the first second, so that something is seen soon, and later: each costs the program.
const FLUSH_SOON: u32 = 5;
const FLUSH_LATER: u32 = 50;
/// How long the last kernels are waited for where CUPTI is not finalised.
const LAST_MS: i64 = 50;
/// How long an API callback is waited for, in which CUPTI can be finalised.
const FINALIZE_MS: i64 = 500;

/// Not 0 while a recording lasts. A recorder that takes its call back clears it.
#[unsafe(export_name = "stallscope_active")]
static ACTIVE: AtomicU32 = AtomicU32::new(0);
static DLOPEN: AtomicUsize = AtomicUsize::new(0);
static DLSYM: AtomicUsize = AtomicUsize::new(0);
static CLOCK: AtomicUsize = AtomicUsize::new(0);
static PATH: [AtomicU32; PATH_LEN / 4] = [const { AtomicU32::new(0) }; PATH_LEN / 4];

/// What the callback at the exit of API functions is to do.
static FINALIZE: AtomicU32 = AtomicU32::new(IDLE);
const IDLE: u32 = 0;
const WANTED: u32 = 1;
const AT_WORK: u32 = 2;
const DONE: u32 = 3;

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type ClockGettime = unsafe extern "C" fn(c_int, *mut sys::Timespec) -> c_int;
type ThreadMain = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type PthreadCreate = unsafe extern "C" fn(*mut u64, *const c_void, ThreadMain, *mut c_void) -> c_int;
type PthreadDetach = unsafe extern "C" fn(u64) -> c_int;

/// Takes the agent for one recording; false where another one has it.
pub fn claim() -> bool {
    ACTIVE.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

pub fn release() {
    ACTIVE.store(0, Ordering::Release);
}

/// Starts the agent's thread.
///
/// # Safety
///
/// The addresses in `start` are those functions of the process's libc.
pub unsafe fn spawn(start: &Start) -> bool {
    DLOPEN.store(start.dlopen as usize, Ordering::Relaxed);
    DLSYM.store(start.dlsym as usize, Ordering::Relaxed);
    CLOCK.store(start.clock_gettime as usize, Ordering::Relaxed);
    for (place, bytes) in PATH.iter().zip(start.path.as_chunks::<4>().0) {
        place.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    // SAFETY: by the contract of this function.
    let (create, detach) = unsafe {
        (
            core::mem::transmute::<usize, PthreadCreate>(start.pthread_create as usize),
            core::mem::transmute::<usize, PthreadDetach>(start.pthread_detach as usize),
        )
    };
    let mut thread = 0;
    // SAFETY: `thread` is written before the call returns; `thread_main` takes no argument.
    unsafe {
        if create(&raw mut thread, core::ptr::null(), thread_main, core::ptr::null_mut()) != 0 {
            return false;
        }
        detach(thread);
    }
    true
}

/// `CLOCK_MONOTONIC`, 0 where it cannot be had.
pub fn now_ns() -> u64 {
    let address = CLOCK.load(Ordering::Relaxed);
    if address == 0 {
        return 0;
    }
    let mut now = sys::Timespec { sec: 0, nsec: 0 };
    // SAFETY: the address is libc's `clock_gettime`, by the contract of `spawn`.
    unsafe { core::mem::transmute::<usize, ClockGettime>(address)(1, &raw mut now) };
    (now.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.nsec as u64)
}

unsafe extern "C" fn timestamp() -> u64 {
    now_ns()
}

unsafe extern "C" fn thread_main(_: *mut c_void) -> *mut c_void {
    sys::name_thread(b"stallscope\0\0\0\0\0\0");
    let state = match ring::get() {
        Some(ring) => {
            ring.tell_thread(sys::thread_id());
            ring.tell_state(State::Starting as u32);
            record(&ring)
        }
        None => State::Failed,
    };
    if let Some(ring) = ring::get() {
        ring.tell_state(state as u32);
    }
    // A recorder that comes back before this is done hears that the agent is busy, and tries again.
    ring::unmap();
    release();
    core::ptr::null_mut()
}

fn record(ring: &Ring) -> State {
    if !load() {
        ring.tell_step(Step::Load as u32, 0);
        return State::Failed;
    }
    let Some(cupti) = cupti::get() else {
        ring.tell_step(Step::Functions as u32, 0);
        return State::Failed;
    };
    let mut version = 0;
    // SAFETY: `version` is written while the call lasts.
    let result = unsafe { (cupti.version)(&raw mut version) };
    ring.tell_version(version);
    if result != SUCCESS || version < cupti::OLDEST {
        ring.tell_step(Step::Version as u32, result);
        return State::Failed;
    }
    let mut subscriber = core::ptr::null_mut();
    // SAFETY: `subscriber` is written while the call lasts, and the callback stays: the agent is never unloaded.
    let result = unsafe { (cupti.subscribe)(&raw mut subscriber, callback, core::ptr::null_mut()) };
    if result != SUCCESS {
        ring.tell_step(Step::Subscribe as u32, result);
        return if result == cupti::MULTIPLE_SUBSCRIBERS { State::Taken } else { State::Failed };
    }
    if let Err((step, result)) = turn_on(&cupti, ring) {
        ring.tell_step(step as u32, result);
        leave(&cupti, subscriber, version);
        return State::Failed;
    }
    ring.tell_state(State::Running as u32);
    stay(&cupti, ring);
    leave(&cupti, subscriber, version)
}

/// Opens CUPTI, which is loaded already in most processes.
fn load() -> bool {
    let (dlopen, dlsym) = (DLOPEN.load(Ordering::Relaxed), DLSYM.load(Ordering::Relaxed));
    if dlopen == 0 || dlsym == 0 {
        return false;
    }
    let mut path = [0_u8; PATH_LEN];
    for (bytes, place) in path.as_chunks_mut::<4>().0.iter_mut().zip(&PATH) {
        *bytes = place.load(Ordering::Relaxed).to_ne_bytes();
    }
    if let Some(last) = path.last_mut() {
        *last = 0;
    }
    // SAFETY: the addresses are these functions of libc, by the contract of `spawn`; the path ends with 0.
    unsafe {
        let dlopen = core::mem::transmute::<usize, Dlopen>(dlopen);
        let dlsym = core::mem::transmute::<usize, Dlsym>(dlsym);
        // RTLD_NOW, local.
        let handle = dlopen(path.as_ptr().cast(), 2);
        if handle.is_null() {
            return false;
        }
        cupti::find(|name| dlsym(handle, name) as usize);
    }
    true
}

fn turn_on(cupti: &Cupti, ring: &Ring) -> Result<(), (Step, u32)> {
    let check = |step, result| if result == SUCCESS { Ok(()) } else { Err((step, result)) };
    if !buffers::prepare() {
        return Err((Step::Memory, 0));
    }
    // SAFETY: CUPTI's functions with arguments of their types; the callbacks stay.
    unsafe {
        check(Step::Clock, (cupti.clock)(timestamp))?;
        check(Step::Buffers, (cupti.buffers)(buffers::requested, buffers::completed))?;
        // Records of calls stay on until the end, however dear they are: jobs in which they were turned off while kernels
        // were recorded, or never on, were left with a broken heap (CUDA 13.0, bench/gpu.md).
        // The kinds as a whole first, then all functions off, then those that launch on: without its kind a function's
        // switch does nothing.
        let runtime = (cupti.enable)(cupti::RUNTIME) == SUCCESS;
        let kinds = ((cupti.enable)(cupti::DRIVER) == SUCCESS) | runtime;
        for cbid in 1..cupti::FUNCTIONS {
            (cupti.enable_runtime)(cbid, 0);
            (cupti.enable_driver)(cbid, 0);
        }
        let mut launches = 0;
        for cbid in cupti::RUNTIME_LAUNCHES {
            launches += u32::from((cupti.enable_runtime)(cbid, 1) == SUCCESS);
        }
        for cbid in cupti::DRIVER_LAUNCHES {
            launches += u32::from((cupti.enable_driver)(cbid, 1) == SUCCESS);
        }
        if launches == 0 || !kinds {
            ring.tell_no_launches();
        }
        syncs::turn_on(cupti);
        check(Step::Kernels, (cupti.enable)(cupti::CONCURRENT_KERNEL))?;
        check(Step::Copies, (cupti.enable)(cupti::MEMCPY))
    }
}

/// Until the recorder wants to end, or is not heard of any more.
fn stay(cupti: &Cupti, ring: &Ring) {
    let mut looks = 0_u32;
    loop {
        sys::sleep_ms(LOOK_MS);
        if ring.is_asked_to_leave() || now_ns().saturating_sub(ring.alive_ns()) > SILENCE_NS {
            return;
        }
        looks = looks.wrapping_add(1);
        let every = if looks <= FLUSH_LATER { FLUSH_SOON } else { FLUSH_LATER };
        if looks.is_multiple_of(every) {
            // SAFETY: 0: only records that are complete.
            unsafe { (cupti.flush)(0) };
        }
    }
}

/// Turns everything off and gives CUPTI back.
fn leave(cupti: &Cupti, subscriber: *mut c_void, version: u32) -> State {
    // SAFETY: CUPTI's functions with arguments of their types; `subscriber` is ours.
    unsafe {
        (cupti.disable)(cupti::CONCURRENT_KERNEL);
        (cupti.disable)(cupti::MEMCPY);
        (cupti.disable)(cupti::RUNTIME);
        (cupti.disable)(cupti::DRIVER);
        for cbid in cupti::RUNTIME_LAUNCHES {
            (cupti.enable_runtime)(cbid, 0);
        }
        for cbid in cupti::DRIVER_LAUNCHES {
            (cupti.enable_driver)(cbid, 0);
        }
        syncs::turn_off(cupti);
        if version >= cupti::FINALIZE_FROM {
            (cupti.flush)(1);
        } else {
            // CUPTI stays, and a worker of it still follows kernels that have not ended: they are not taken from it.
            (cupti.flush)(0);
            sys::sleep_ms(LAST_MS);
            (cupti.flush)(0);
        }
    }
    if version >= cupti::FINALIZE_FROM && finalize(cupti, subscriber) {
        buffers::forget();
        return State::Finalized;
    }
    // SAFETY: as above.
    unsafe { (cupti.unsubscribe)(subscriber) };
    State::Disabled
}

/// Has CUPTI finalised by the next thread that leaves a CUDA function, which is where its makers do it. False where
/// none came by.
fn finalize(cupti: &Cupti, subscriber: *mut c_void) -> bool {
    FINALIZE.store(WANTED, Ordering::Release);
    // SAFETY: CUPTI's functions with arguments of their types; `subscriber` is ours.
    unsafe {
        (cupti.enable_domain)(1, subscriber, cupti::RUNTIME_DOMAIN);
        (cupti.enable_domain)(1, subscriber, cupti::DRIVER_DOMAIN);
    }
    for _ in 0..FINALIZE_MS {
        if FINALIZE.load(Ordering::Acquire) == DONE {
            FINALIZE.store(IDLE, Ordering::Release);
            return true;
        }
        sys::sleep_ms(1);
    }
    if FINALIZE.compare_exchange(WANTED, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // SAFETY: as above.
        unsafe {
            (cupti.enable_domain)(0, subscriber, cupti::RUNTIME_DOMAIN);
            (cupti.enable_domain)(0, subscriber, cupti::DRIVER_DOMAIN);
        }
        return false;
    }
    // One is at it.
    while FINALIZE.load(Ordering::Acquire) != DONE {
        sys::sleep_ms(1);
    }
    FINALIZE.store(IDLE, Ordering::Release);
    true
}

/// CUPTI calls it in the program's threads, and only while it is to be finalised.
unsafe extern "C" fn callback(_: *mut c_void, domain: u32, _: u32, data: *const c_void) {
    if !matches!(domain, cupti::DRIVER_DOMAIN | cupti::RUNTIME_DOMAIN) || data.is_null() {
        return;
    }
    // SAFETY: for these domains it is a `CUpti_CallbackData`, which begins with the site.
    if unsafe { data.cast::<u32>().read() } != cupti::SITE_EXIT {
        return;
    }
    if ring::is_forked() {
        return;
    }
    if FINALIZE.compare_exchange(WANTED, AT_WORK, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return;
    }
    if let Some(cupti) = cupti::get() {
        // SAFETY: at the exit of an API function, where CUPTI allows it.
        unsafe { (cupti.finalize)() };
    }
    FINALIZE.store(DONE, Ordering::Release);
}
