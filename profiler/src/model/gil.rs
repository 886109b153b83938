//! Which stacks wait for CPython's global interpreter lock.
//!
//! The lock is a condition variable that is waited for with a time-out, by a function that builds with symbols call
//! `take_gil`. Without symbols it is a nameless function of the interpreter right below one that is known to take the
//! lock. A thread that was asked to give the lock away also waits until another one has it. Locks of Python programs
//! are semaphores, which look different.

use crate::trace::record::{Frame, Stack};

/// What waits below the lock.
const TIMED_WAITS: [&str; 2] = ["pthread_cond_timedwait", "pthread_cond_clockwait"];
/// The function that takes the lock, and the one that hands it over.
const TAKES: &str = "take_gil";
const HANDS_OVER: &str = "drop_gil";
/// What the interpreter calls its wait for a condition.
const INLINED: &str = "PyCOND_";
/// Functions of the interpreter that take the lock, and wait for no condition otherwise.
const TAKERS: [&str; 7] = [
    "PyEval_RestoreThread",
    "PyEval_AcquireThread",
    "PyEval_AcquireLock",
    "PyGILState_Ensure",
    "_PyThreadState_Attach",
    "_Py_HandlePending",
    "_PyEval_EvalFrameDefault",
];
/// Frames of the C library at the inner end.
const LIBC_FRAMES: usize = 6;
/// Nameless frames between the wait and what takes the lock.
const NAMELESS: usize = 3;

/// Whether a thread with this native stack waits for the lock, if it waits on a futex.
pub(super) fn waits_for_gil(stack: &Stack) -> bool {
    let is_wait = |frame: &Frame| frame.function.contains("pthread_cond_");
    // With debug information the C library's inner function of a similar name is there too: the outer one counts.
    let inner = stack.frames.get(..LIBC_FRAMES).unwrap_or(&stack.frames);
    let Some(wait) = inner.iter().rposition(is_wait) else { return false };
    let outside = stack.frames.get(wait + 1..).unwrap_or_default();
    // Where debug information tells of inlined functions, the wait is one.
    let inlined = outside.iter().take_while(|frame| frame.function.starts_with(INLINED)).count();
    let outside = outside.get(inlined..).unwrap_or_default();
    let Some(first) = outside.first() else { return false };
    if [TAKES, HANDS_OVER].iter().any(|name| first.function.starts_with(name)) {
        return true;
    }
    let is_timed = |frame: &Frame| TIMED_WAITS.iter().any(|name| frame.function.contains(name));
    if !stack.frames.get(wait).is_some_and(is_timed) {
        return false;
    }
    let own = outside.iter().take_while(|frame| frame.module == first.module);
    let mut named = own.take(NAMELESS + 1).skip_while(|frame| frame.function.is_empty());
    // A function that is waited in directly has its own reasons, unless it takes the lock.
    named
        .next()
        .is_some_and(|frame| frame.function.starts_with(TAKES) || TAKERS.contains(&frame.function.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::record::Space;

    fn waits(names: &[&str]) -> bool {
        let frame = |name: &&str| {
            let (function, module) = name.split_once('@').unwrap_or((name, "libpython3.11.so.1.0"));
            Frame { function: function.into(), module: module.into(), offset: 0 }
        };
        let frames = names.iter().map(frame).collect();
        waits_for_gil(&Stack { id: 1, space: Space::User, frames, truncated: false })
    }

    #[test]
    fn the_lock_is_known_with_and_without_symbols() {
        let libc = ["@libc.so.6", "pthread_cond_timedwait@libc.so.6"];
        assert!(waits(&["__pthread_cond_wait_common@libc.so.6", libc[1], "take_gil"]));
        for outside in [
            &["take_gil", "PyEval_RestoreThread", "sock_recv@_socket.so"][..],
            &["", "PyEval_RestoreThread", "sock_recv@_socket.so"],
            &["", "", "_PyEval_EvalFrameDefault"],
            &["PyEval_AcquireThread"],
            &["PyCOND_TIMEDWAIT", "take_gil", "PyEval_RestoreThread"],
        ] {
            assert!(waits(&[&libc[..], outside].concat()), "{outside:?}");
        }
    }

    #[test]
    fn other_conditions_are_not_the_lock() {
        let libc = ["@libc.so.6", "pthread_cond_timedwait@libc.so.6"];
        for outside in [
            &["wait_for_work@libtorch.so", "PyEval_RestoreThread"][..],
            &["", "builtin_wait", "_PyEval_EvalFrameDefault"],
            &["", "", "", "", "PyEval_RestoreThread"],
            &[],
        ] {
            assert!(!waits(&[&libc[..], outside].concat()), "{outside:?}");
        }
        assert!(!waits(&["sem_clockwait@libc.so.6", "PyThread_acquire_lock_timed", "lock_acquire"]));
        assert!(waits(&["pthread_cond_wait@libc.so.6", "drop_gil", "_PyEval_EvalFrameDefault"]));
        assert!(!waits(&["pthread_cond_wait@libc.so.6", "", "PyEval_RestoreThread"]));
    }
}
