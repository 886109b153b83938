//! What a thread is doing this moment, as `/proc` shows it: the system call it is blocked in, with its
//! arguments, its state and where in the kernel it sleeps.

use super::process::thread_state;
use super::root::{ProcRoot, ReadError, SMALL, printable, read_bounded};

/// What `/proc/PID/task/TID/syscall` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// On a CPU, or about to be.
    Running,
    /// Asleep, but not in a system call (a page fault, a signal stop).
    OutsideCall {
        sp: u64,
        ip: u64,
    },
    InCall(CallState),
}

/// A system call that has not returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallState {
    /// Number of the call on this architecture.
    pub number: u64,
    pub arguments: [u64; 6],
    /// User-mode stack pointer and program counter.
    pub sp: u64,
    pub ip: u64,
}

/// One thread at the moment of the look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadActivity {
    pub pid: u32,
    pub tid: u32,
    /// `R`, `S`, `D`, `T` …
    pub state: char,
    /// `None` where the kernel does not permit or offer it (`CONFIG_HAVE_ARCH_TRACEHOOK`, ptrace access).
    pub activity: Option<Activity>,
    /// Function of the kernel that it sleeps in; empty where it runs or the kernel does not say.
    pub wchan: String,
}

/// Looks at one thread.
///
/// # Errors
///
/// When the thread is gone.
pub fn thread_activity(root: &ProcRoot, pid: u32, tid: u32) -> Result<ThreadActivity, ReadError> {
    let state = thread_state(root, pid, tid)?;
    let activity = match read_bounded(&root.task_path(pid, tid, "syscall"), SMALL) {
        Ok(contents) => parse(&contents.bytes),
        Err(error) if error.is_gone() && root.tids(pid).is_err() => return Err(error),
        Err(_) => None,
    };
    let wchan = read_bounded(&root.task_path(pid, tid, "wchan"), SMALL).unwrap_or_default();
    let wchan = if wchan.bytes == b"0" { String::new() } else { printable(&wchan.bytes) };
    Ok(ThreadActivity { pid, tid, state, activity, wchan })
}

/// What one thread is doing, and nothing else of it: cheaper than [`thread_activity`]. `None` where the kernel does not
/// say or the thread is gone.
pub fn activity(root: &ProcRoot, pid: u32, tid: u32) -> Option<Activity> {
    parse(&read_bounded(&root.task_path(pid, tid, "syscall"), SMALL).ok()?.bytes)
}

/// Looks at all threads of a process; those that end meanwhile are left out.
pub fn activities(root: &ProcRoot, pid: u32) -> Result<Vec<ThreadActivity>, ReadError> {
    Ok(root.tids(pid)?.into_iter().filter_map(|tid| thread_activity(root, pid, tid).ok()).collect())
}

/// `running`, or `-1 SP PC`, or `NUMBER ARG0 … ARG5 SP PC`.
fn parse(text: &[u8]) -> Option<Activity> {
    let text = std::str::from_utf8(text).ok()?.trim();
    if text == "running" {
        return Some(Activity::Running);
    }
    let mut words = text.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut values = words.map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    let mut next = || values.next().flatten();
    let Ok(number) = u64::try_from(number) else {
        return Some(Activity::OutsideCall { sp: next()?, ip: next()? });
    };
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = next()?;
    }
    Some(Activity::InCall(CallState { number, arguments, sp: next()?, ip: next()? }))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn reads_all_three_forms() {
        assert_eq!(parse(b"running\n"), Some(Activity::Running));
        let outside = Activity::OutsideCall { sp: 0x7ffe_0000, ip: 0x5555_0000 };
        assert_eq!(parse(b"-1 0x7ffe0000 0x55550000\n"), Some(outside));
        let call = CallState { number: 45, arguments: [3, 1, 2, 0, 0, u64::MAX], sp: 0x10, ip: 0x20 };
        assert_eq!(
            parse(b"45 0x3 0x1 0x2 0x0 0x0 0xffffffffffffffff 0x10 0x20\n"),
            Some(Activity::InCall(call))
        );
    }

    #[test]
    fn what_is_cut_or_garbage_is_unknown() {
        for text in [
            &b""[..],
            b"45",
            b"45 0x3 0x1 0x2 0x0 0x0 0x0 0x10",
            b"-1 0x1",
            b"x 0x1 0x2",
            b"1 2 3 4 5 6 7 8 9",
        ] {
            assert_eq!(parse(text), None, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn sees_the_call_that_a_thread_of_this_process_is_blocked_in() {
        let (reader, writer) = std::io::pipe().unwrap();
        let fd = reader.as_raw_fd();
        let (send, receive) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            send.send(nix::unistd::gettid().as_raw() as u32).unwrap();
            std::io::Read::read(&mut { reader }, &mut [0; 17]).unwrap()
        });
        let tid = receive.recv().unwrap();
        let root = ProcRoot::default();
        let own = root.own_pid();
        let call = loop {
            let look = thread_activity(&root, own, tid).unwrap();
            if let Some(Activity::InCall(call)) = look.activity
                && call.number == libc::SYS_read as u64
                && call.arguments[2] == 17
            {
                break call;
            }
            std::thread::yield_now();
        };
        assert_eq!(call.arguments[0], fd as u64);
        assert!(call.sp != 0 && call.ip != 0);
        assert!(activities(&root, own).unwrap().iter().any(|look| look.tid == tid));
        drop(writer);
        assert_eq!(thread.join().unwrap(), 0);
    }

    #[test]
    fn a_thread_that_is_gone_is_said_to_be_gone() {
        assert!(thread_activity(&ProcRoot::default(), u32::MAX, 1).unwrap_err().is_gone());
    }
}
