//! A thread that can be stopped without harm: it waits in a system call that the kernel makes again by itself, and is
//! in neither the loader nor an allocator, as its stack tells.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::check::guard;
use super::error::AgentError;
use super::seccomp::{Filters, Objection};
use super::tracee::Tracee;
use super::way_back::WayBack;
use crate::probes::event::Registers;
use crate::symbols::Symbolizer;
use crate::target::ProcRoot;
use crate::trace::record::Stack;

/// How long one is looked for.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two rounds over all threads.
const PAUSE: Duration = Duration::from_millis(20);
/// Threads looked at in one round.
const THREADS: usize = 256;

/// Calls that the kernel makes again by itself, with what is left of their time.
const RESTARTED: [i64; 8] = [
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_wait4,
    libc::SYS_waitid,
];
const FUTEX_WAIT: u64 = 0;
const FUTEX_WAIT_BITSET: u64 = 9;

/// Functions that hold locks which our calls would want, or that must not be entered twice.
const LOADER: [&str; 8] =
    ["dl_iterate_phdr", "dlopen", "dlclose", "dlsym", "dlvsym", "dladdr", "pthread_create", "fork"];
const ALLOCATOR: [&str; 12] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "memalign",
    "sysmalloc",
    "arena_get",
    "munmap_chunk",
    "mallopt",
    "brk",
    "trim",
    "tcache",
];

/// Where a blocked thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    call: i64,
    /// Its second argument: of a futex, what it is to do.
    operation: u64,
    sp: u64,
    ip: u64,
}

/// Finds such a thread and stops it, one whose stack has room for its way back without us. The leader is left out where it is our own child: whoever waits for it must not
/// be told of its stops.
pub(super) fn stop(
    root: &ProcRoot,
    pid: u32,
    symbolizer: &mut Symbolizer,
    leave_leader: bool,
    way_back: impl Fn(&Tracee) -> Option<WayBack>,
) -> Result<(Tracee, WayBack), AgentError> {
    let begun = Instant::now();
    let mut tries = 0;
    let mut verdicts: HashMap<Filters, Result<(), Objection>> = HashMap::from([(Filters::default(), Ok(()))]);
    symbolizer.add_process(pid);
    while begun.elapsed() < PATIENCE {
        let mut tids = root.tids(pid)?;
        // The newest threads belong to libraries, most often, and wait.
        tids.reverse();
        for tid in tids.into_iter().filter(|tid| !leave_leader || *tid != pid).take(THREADS) {
            tries += 1;
            let Some(position) = read_position(root, pid, tid).filter(is_restarted) else { continue };
            let registers = Registers { ip: position.ip, sp: position.sp, bp: 0 };
            let Some(stack) = symbolizer.live_stack(pid, tid, registers) else { continue };
            if !is_harmless(&stack) {
                continue;
            }
            // Twice: filters that are new to us are looked at while the thread runs on.
            for _ in 0..2 {
                let tracee = match Tracee::stop(pid, tid) {
                    Ok(tracee) => tracee,
                    // It ended, or somebody else was faster.
                    Err(AgentError::Gone { .. }) => break,
                    Err(error) => return Err(error),
                };
                let now = tracee.kept();
                if (now.rip, now.rsp, now.orig_rax as i64) != (position.ip, position.sp, position.call) {
                    break;
                }
                let filters = filters(root, &tracee)?;
                match verdicts.get(&filters) {
                    Some(Ok(())) => {}
                    Some(Err(objection)) => {
                        return Err(AgentError::Seccomp { pid, objection: objection.clone() });
                    }
                    None => {
                        drop(tracee);
                        let verdict = filters.judge();
                        verdicts.insert(filters, verdict);
                        continue;
                    }
                }
                // Without one it goes on as it was, and another one is looked for.
                if let Some(way_back) = way_back(&tracee) {
                    return Ok((tracee, way_back));
                }
                break;
            }
        }
        std::thread::sleep(PAUSE);
    }
    Err(AgentError::NoSafePoint { pid, tries })
}

/// The filters of a thread that stands still. It may have got some since its process was looked at.
fn filters(root: &ProcRoot, tracee: &Tracee) -> Result<Filters, AgentError> {
    let (pid, tid) = (tracee.pid(), tracee.tid());
    let has_none = || guard(root, pid, tid).filters.is_some_and(|filters| filters.mode == 0);
    match Filters::read(tid) {
        Ok(filters) => Ok(filters),
        // Said of a thread without filters, and by kernels that cannot tell.
        Err(_) if has_none() => Ok(Filters::default()),
        Err(errno) => Err(AgentError::Seccomp { pid, objection: Objection::Unreadable(errno) }),
    }
}

/// Calls that go on after a stop as if nothing had been.
fn is_restarted(position: &Position) -> bool {
    match position.call {
        libc::SYS_futex => matches!(position.operation & 0x7f, FUTEX_WAIT | FUTEX_WAIT_BITSET),
        call => RESTARTED.contains(&call),
    }
}

/// Whether the stack is known to its end, and leads through nothing that holds a lock we need.
fn is_harmless(stack: &Stack) -> bool {
    let frames = &stack.frames;
    !stack.truncated
        && !frames.is_empty()
        && frames.iter().all(|frame| {
            let function = frame.function.trim_start_matches('_');
            !frame.module.starts_with("ld-linux")
                && !frame.module.starts_with("ld-2.")
                && !LOADER.iter().any(|name| function.starts_with(name))
                && !ALLOCATOR.iter().any(|name| function.contains(name))
        })
}

fn read_position(root: &ProcRoot, pid: u32, tid: u32) -> Option<Position> {
    let path = root.task_path(pid, tid, "syscall");
    parse_position(&String::from_utf8_lossy(&crate::target::root::read_bounded(&path, 512).ok()?.bytes))
}

/// `number arguments… sp pc`; `None` where the thread is in no system call.
fn parse_position(text: &str) -> Option<Position> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [call, _, second, _, _, _, _, sp, ip] = words.as_slice() else { return None };
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    Some(Position {
        call: call.parse().ok().filter(|call| *call >= 0)?,
        operation: hex(second)?,
        sp: hex(sp)?,
        ip: hex(ip)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::record::{Frame, Space};

    fn stack(frames: &[(&str, &str)], truncated: bool) -> Stack {
        let frames = frames
            .iter()
            .map(|(function, module)| Frame {
                function: (*function).into(),
                module: (*module).into(),
                offset: 0,
            })
            .collect();
        Stack { id: 1, space: Space::User, frames, truncated }
    }

    #[test]
    fn a_thread_in_the_loader_or_an_allocator_is_left_alone() {
        let safe = [("poll", "libc.so.6"), ("loop", "job"), ("main", "job")];
        assert!(is_harmless(&stack(&safe, false)));
        assert!(!is_harmless(&stack(&safe, true)));
        assert!(!is_harmless(&stack(&[], false)));
        for inner in [
            ("__lll_lock_wait_private", "libc.so.6", "_int_malloc"),
            ("__lll_lock_wait", "libc.so.6", "je_arena_malloc_hard"),
            ("nanosleep", "libc.so.6", "dl_iterate_phdr"),
        ] {
            let frames = [(inner.0, inner.1), (inner.2, "lib.so"), ("main", "job")];
            assert!(!is_harmless(&stack(&frames, false)), "{inner:?}");
        }
        assert!(!is_harmless(&stack(&[("", "ld-linux-x86-64.so.2"), ("main", "job")], false)));
    }

    #[test]
    fn only_calls_that_the_kernel_makes_again_are_interrupted() {
        let at = |text: &str| parse_position(text).as_ref().is_some_and(is_restarted);
        let rest = "0x0 0x0 0x0 0x0 0x7ffc01 0x7f02";
        assert!(at(&format!("202 0x7f10 0x189 {rest}")), "a condition variable");
        assert!(at(&format!("202 0x7f10 0x80 {rest}")));
        assert!(!at(&format!("202 0x7f10 0x86 {rest}")), "a mutex with priorities");
        assert!(at(&format!("7 0x7f10 0x1 {rest}")));
        assert!(!at(&format!("232 0x3 0x1 {rest}")), "epoll_wait");
        assert!(!at(&format!("45 0x3 0x1 {rest}")), "recvfrom with a time-out");
        assert!(!at("running"));
        assert!(!at("-1 0x7ffc01 0x7f02"));
    }
}
