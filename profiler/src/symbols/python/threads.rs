//! The interpreter's list of threads, and whose they are.

use std::collections::{HashMap, HashSet};

use super::layout::Layout;
use super::memory::{Memory, Struct, word};

/// Interpreters of one process that are looked at.
const MAX_INTERPRETERS: usize = 64;
/// Threads of one process that are looked at.
const MAX_THREADS: usize = 4096;

/// Where the C library keeps a thread's id, from what `pthread_self` returns. The offsets are part of what debuggers
/// rely on and have not changed: glibc on x86-64 and on aarch64, musl on both.
const PTHREAD_TIDS: [u64; 4] = [720, 208, 48, 32];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadState {
    pub address: u64,
    pthread: u64,
    /// As the process's own namespace numbers it.
    native: Option<u64>,
}

/// The states of all threads that run Python functions at times. Lists that make no sense are left where they stop
/// doing so: they may be changing this moment.
pub(super) fn list(memory: &mut impl Memory, layout: &Layout, runtime: u64) -> Vec<ThreadState> {
    let mut states = Vec::new();
    let mut seen = HashSet::new();
    let mut interpreter = runtime.checked_add(layout.interpreters.into()).and_then(|at| word(memory, at));
    for _ in 0..MAX_INTERPRETERS {
        let Some(address) = interpreter.filter(|address| *address != 0 && seen.insert(*address)) else {
            break;
        };
        list_threads(memory, layout, address, &mut states);
        interpreter = address.checked_add(layout.interpreter_next.into()).and_then(|at| word(memory, at));
    }
    states
}

fn list_threads(memory: &mut impl Memory, layout: &Layout, interpreter: u64, states: &mut Vec<ThreadState>) {
    let mut seen = HashSet::new();
    let head = interpreter.checked_add(layout.interpreter_threads.into());
    let mut next = head.and_then(|at| word(memory, at));
    while let Some(address) = next.filter(|address| *address != 0 && seen.insert(*address)) {
        if states.len() >= MAX_THREADS {
            return;
        }
        let Some((state, after)) = read_state(memory, layout, interpreter, address) else { return };
        states.push(state);
        next = Some(after);
    }
}

/// A thread state and the one after it.
fn read_state(
    memory: &mut impl Memory,
    layout: &Layout,
    interpreter: u64,
    address: u64,
) -> Option<(ThreadState, u64)> {
    let native = layout.thread_native.unwrap_or(0);
    let size = [layout.thread_next, layout.thread_interpreter, layout.thread_pthread, native];
    let size = usize::from(size.into_iter().max()?) + 8;
    let state = Struct::read(memory, address, size)?;
    if state.u64(layout.thread_interpreter)? != interpreter {
        return None;
    }
    let found = ThreadState {
        address,
        pthread: state.u64(layout.thread_pthread)?,
        native: layout.thread_native.and_then(|offset| state.u64(offset)),
    };
    Some((found, state.u64(layout.thread_next)?))
}

/// Addresses of the states by thread id. `tids` are the threads that the process has; one that is not among them is none.
pub(super) fn by_tid(
    memory: &mut impl Memory,
    states: &[ThreadState],
    tids: &HashSet<u32>,
) -> HashMap<u32, Vec<u64>> {
    let mut found: HashMap<u32, Vec<u64>> = HashMap::new();
    let mut add = |tid: u32, state: &ThreadState| found.entry(tid).or_default().push(state.address);
    let known = |value: u64| u32::try_from(value).ok().filter(|tid| tids.contains(tid));
    let mut unknown = Vec::new();
    for state in states {
        match state.native.and_then(known) {
            Some(tid) => add(tid, state),
            // Before 3.11; and a forked child of 3.11.0 and 3.11.1 has its parent's id there.
            None => unknown.push(state),
        }
    }
    if let Some(offset) = PTHREAD_TIDS.into_iter().find(|offset| fits(memory, &unknown, tids, *offset)) {
        for state in unknown {
            if let Some(tid) = pthread_tid(memory, state, offset).filter(|tid| tids.contains(tid)) {
                add(tid, state);
            }
        }
    }
    found
}

/// Whether all threads have an id of the process at this offset, each its own.
fn fits(memory: &mut impl Memory, states: &[&ThreadState], tids: &HashSet<u32>, offset: u64) -> bool {
    let mut seen = HashMap::new();
    let mut fitting = 0;
    for state in states {
        match pthread_tid(memory, state, offset) {
            Some(tid) if tids.contains(&tid) => {
                fitting += 1;
                // Several states of one thread are of several interpreters.
                if *seen.entry(tid).or_insert(state.pthread) != state.pthread {
                    return false;
                }
            }
            // Zero: it has ended.
            Some(0) => {}
            _ => return false,
        }
    }
    fitting > 0
}

fn pthread_tid(memory: &mut impl Memory, state: &ThreadState, offset: u64) -> Option<u32> {
    if !state.pthread.is_multiple_of(8) || state.pthread == 0 {
        return None;
    }
    let mut bytes = [0; 4];
    memory.fill(state.pthread.checked_add(offset)?, &mut bytes).then(|| u32::from_le_bytes(bytes))
}
