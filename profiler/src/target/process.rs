//! One process: who it is, its threads and their CPU times.

use procfs::FromRead;
use procfs::process::{Schedstat, Stat};

use super::root::{ProcRoot, ReadError, SMALL, STATUS, monotonic_ns, printable, read_bounded, read_link};
use crate::trace::record::{Process, Thread, ThreadTime};

/// `PF_KTHREAD` of the kernel's task flags, field 9 of `stat`.
const KERNEL_THREAD: u32 = 0x0020_0000;

/// What `/proc/PID/stat` and `status` say, as far as it is needed here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    pub pid: u32,
    /// Process that the id belongs to; differs from `pid` where that is a thread's id.
    pub tgid: u32,
    pub ppid: u32,
    /// Id in the process's own PID namespace.
    pub ns_pid: u32,
    /// Levels of PID namespaces it is seen in: 1 in ours alone.
    pub pid_levels: usize,
    pub comm: String,
    /// As `stat` shows it: `R`, `S`, `D`, `Z` ….
    pub state: char,
    pub kernel_thread: bool,
    /// Effective user.
    pub uid: u32,
    /// Clock ticks since boot; tells a process from a later one with the same id.
    pub start_ticks: u64,
    /// `Seccomp:` of `status`: 0 off, 1 strict, 2 filter; `None` where the kernel does not say.
    pub seccomp: Option<u32>,
}

impl ProcessInfo {
    /// Ended, and not yet waited for by its parent. Such a leader can still have running threads: see
    /// [`has_live_thread`].
    pub fn is_zombie(&self) -> bool {
        is_dead(self.state)
    }
}

/// Fields of `/proc/PID/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Status {
    tgid: u32,
    ns_pids: Vec<u32>,
    uid: u32,
    seccomp: Option<u32>,
}

/// Reads who a process is.
pub fn process_info(root: &ProcRoot, pid: u32) -> Result<ProcessInfo, ReadError> {
    let stat = read_stat(&root.process_path(pid, "stat"))?;
    let path = root.process_path(pid, "status");
    let status = parse_status(&read_bounded(&path, STATUS)?.bytes);
    Ok(ProcessInfo {
        pid,
        tgid: if status.tgid == 0 { pid } else { status.tgid },
        ppid: u32::try_from(stat.ppid).unwrap_or(0),
        ns_pid: status.ns_pids.last().copied().unwrap_or(pid),
        pid_levels: status.ns_pids.len().max(1),
        comm: printable(stat.comm.as_bytes()),
        state: stat.state,
        kernel_thread: stat.flags & KERNEL_THREAD != 0,
        uid: status.uid,
        start_ticks: stat.starttime,
        seccomp: status.seccomp,
    })
}

/// The trace's record of a process.
pub fn process_record(
    root: &ProcRoot,
    pid: u32,
    seen_ns: u64,
    asked_for: bool,
) -> Result<Process, ReadError> {
    let info = process_info(root, pid)?;
    Ok(Process {
        pid,
        ppid: info.ppid,
        ns_pid: info.ns_pid,
        comm: info.comm,
        exe: executable(root, pid).unwrap_or_default(),
        seen_ns,
        asked_for,
    })
}

/// Path of the executable as the process itself sees it; empty for one that has none (kernel threads).
/// A file that was removed or replaced has the path it was started from.
pub fn executable(root: &ProcRoot, pid: u32) -> Result<String, ReadError> {
    let link = read_link(&root.process_path(pid, "exe"))?;
    let path = link.strip_suffix(" (deleted)").unwrap_or(&link);
    // For a process in a chroot the kernel shows the path from outside of it.
    let inside = read_link(&root.process_path(pid, "root"))
        .ok()
        .filter(|prefix| prefix != "/")
        .and_then(|prefix| path.strip_prefix(&prefix).filter(|rest| rest.starts_with('/')));
    Ok(inside.unwrap_or(path).to_owned())
}

/// Records of all threads that the process has now.
pub fn threads(root: &ProcRoot, pid: u32, seen_ns: u64) -> Result<Vec<Thread>, ReadError> {
    let mut found = Vec::new();
    for tid in root.tids(pid)? {
        match thread(root, pid, tid, seen_ns) {
            Ok(record) => found.push(record),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The record of one thread.
pub fn thread(root: &ProcRoot, pid: u32, tid: u32, seen_ns: u64) -> Result<Thread, ReadError> {
    let name = read_bounded(&root.task_path(pid, tid, "comm"), SMALL)?;
    let status = parse_status(&read_bounded(&root.task_path(pid, tid, "status"), STATUS)?.bytes);
    Ok(Thread {
        pid,
        tid,
        ns_tid: status.ns_pids.last().copied().unwrap_or(tid),
        name: printable(&name.bytes),
        seen_ns,
    })
}

/// CPU time and run-queue time of a thread since it began, both as the kernel accounts them; without
/// `CONFIG_SCHED_INFO` the latter is 0.
pub fn thread_time(root: &ProcRoot, pid: u32, tid: u32) -> Result<ThreadTime, ReadError> {
    let times = schedstat(root, pid, tid)?;
    Ok(ThreadTime {
        time_ns: monotonic_ns(),
        pid,
        tid,
        running_ns: times.sum_exec_runtime,
        runnable_ns: times.run_delay,
    })
}

/// How often the thread was given a processor; 0 without `CONFIG_SCHED_INFO`.
pub fn times_scheduled(root: &ProcRoot, pid: u32, tid: u32) -> Result<u64, ReadError> {
    Ok(schedstat(root, pid, tid)?.pcount)
}

fn schedstat(root: &ProcRoot, pid: u32, tid: u32) -> Result<Schedstat, ReadError> {
    let path = root.task_path(pid, tid, "schedstat");
    let text = read_bounded(&path, SMALL)?;
    Schedstat::from_read(text.bytes.as_slice())
        .map_err(|_| ReadError::malformed(&path, "not the numbers of schedstat"))
}

/// Whether any thread of the process still runs, which a leader in state `Z` does not rule out.
pub fn has_live_thread(root: &ProcRoot, pid: u32) -> bool {
    let Ok(tids) = root.tids(pid) else { return false };
    tids.into_iter()
        .any(|tid| read_stat(&root.task_path(pid, tid, "stat")).is_ok_and(|stat| !is_dead(stat.state)))
}

/// State of one thread as `stat` shows it.
pub fn thread_state(root: &ProcRoot, pid: u32, tid: u32) -> Result<char, ReadError> {
    Ok(read_stat(&root.task_path(pid, tid, "stat"))?.state)
}

/// Parent of a process; cheaper than [`process_info`].
pub(super) fn parent(root: &ProcRoot, pid: u32) -> Result<u32, ReadError> {
    let stat = read_stat(&root.process_path(pid, "stat"))?;
    Ok(u32::try_from(stat.ppid).unwrap_or(0))
}

/// Start time of a process in clock ticks since boot; `None` where no thread of it runs any more.
pub(super) fn live_since(root: &ProcRoot, pid: u32) -> Option<u64> {
    let stat = read_stat(&root.process_path(pid, "stat")).ok()?;
    (!is_dead(stat.state) || has_live_thread(root, pid)).then_some(stat.starttime)
}

fn is_dead(state: char) -> bool {
    matches!(state, 'Z' | 'X' | 'x')
}

fn read_stat(path: &std::path::Path) -> Result<Stat, ReadError> {
    let text = read_bounded(path, SMALL)?;
    Stat::from_read(text.bytes.as_slice()).map_err(|_| ReadError::malformed(path, "not the fields of stat"))
}

/// Missing and malformed lines leave the default: kernels differ in what they show.
fn parse_status(bytes: &[u8]) -> Status {
    let mut status = Status::default();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some((name, value)) = std::str::from_utf8(line).ok().and_then(|line| line.split_once(':')) else {
            continue;
        };
        let mut numbers = value.split_ascii_whitespace().map_while(|word| word.parse::<u32>().ok());
        match name {
            "Tgid" => status.tgid = numbers.next().unwrap_or(0),
            "NSpid" => status.ns_pids = numbers.take(32).collect(),
            "Uid" => status.uid = numbers.nth(1).unwrap_or(0),
            "Seccomp" => status.seccomp = numbers.next(),
            _ => {}
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS_TEXT: &[u8] = b"Name:\tTgid: 9\\n\nState:\tS (sleeping)\nTgid:\t120\nPid:\t121\nPPid:\t1\n\
        Uid:\t1000\t1001\t1000\t1000\nNStgid:\t120\t7\nNSpid:\t121\t8\nSeccomp:\t2\n\xff:\n";

    fn write(directory: &std::path::Path, name: &str, text: &[u8]) {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn stat_line(pid: u32, comm: &str, state: char, flags: u32) -> Vec<u8> {
        let mut text = format!("{pid} ({comm}) {state} 77 1 1 0 -1 {flags}");
        for field in 10..=52 {
            text.push_str(if field == 22 { " 4242" } else { " 0" });
        }
        text.push('\n');
        text.into_bytes()
    }

    #[test]
    fn reads_ids_of_all_namespaces_and_the_seccomp_mode() {
        let status = parse_status(STATUS_TEXT);
        assert_eq!(status, Status { tgid: 120, ns_pids: vec![121, 8], uid: 1001, seccomp: Some(2) });
    }

    #[test]
    fn a_name_with_parentheses_and_newlines_does_not_shift_the_fields() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "121/stat", &stat_line(121, "a) R 1\n(b", 'S', KERNEL_THREAD));
        write(directory.path(), "121/status", STATUS_TEXT);
        let info = process_info(&ProcRoot::new(directory.path()), 121).unwrap();
        assert_eq!(info.comm, "a) R 1\u{fffd}(b");
        assert_eq!((info.tgid, info.ppid, info.ns_pid, info.pid_levels), (120, 77, 8, 2));
        assert_eq!((info.state, info.start_ticks), ('S', 4242));
        assert!(info.kernel_thread);
    }

    #[test]
    fn garbage_in_stat_is_an_error_with_the_path() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "5/stat", b"\0\xff");
        let error = process_info(&ProcRoot::new(directory.path()), 5).unwrap_err();
        assert!(!error.is_gone());
        assert!(error.to_string().contains("5/stat"), "{error}");
    }

    #[test]
    fn an_executable_in_a_chroot_has_the_path_seen_from_inside() {
        let directory = tempfile::tempdir().unwrap();
        let root = ProcRoot::new(directory.path());
        for (pid, exe, in_root, expected) in [
            (1, "/srv/jail/bin/job", "/srv/jail", "/bin/job"),
            (2, "/srv/jailer/bin/job", "/srv/jail", "/srv/jailer/bin/job"),
            (3, "/bin/job (deleted)", "/", "/bin/job"),
        ] {
            let process = directory.path().join(pid.to_string());
            std::fs::create_dir(&process).unwrap();
            std::os::unix::fs::symlink(exe, process.join("exe")).unwrap();
            std::os::unix::fs::symlink(in_root, process.join("root")).unwrap();
            assert_eq!(executable(&root, pid).unwrap(), expected);
        }
    }

    #[test]
    fn describes_its_own_process_and_threads() {
        let root = ProcRoot::default();
        let own = root.own_pid();
        let (started, has_started) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::Builder::new()
            .name("target-worker".into())
            .spawn(move || {
                started.send(nix::unistd::gettid().as_raw() as u32).unwrap();
                let _ = stopped.recv();
            })
            .unwrap();
        let tid = has_started.recv().unwrap();

        let process = process_record(&root, own, 5, true).unwrap();
        assert_eq!((process.pid, process.seen_ns, process.asked_for), (own, 5, true));
        assert_eq!(process.exe, std::env::current_exe().unwrap().to_string_lossy());
        let found = threads(&root, own, 7).unwrap();
        let thread = found.iter().find(|thread| thread.tid == tid).unwrap();
        assert_eq!((thread.name.as_str(), thread.pid, thread.seen_ns), ("target-worker", own, 7));
        assert_eq!(process_info(&root, tid).unwrap().tgid, own);
        assert!(has_live_thread(&root, own));
        drop(stop);
        worker.join().unwrap();
    }

    #[test]
    fn running_time_grows_with_work_done() {
        let root = ProcRoot::default();
        let (own, tid) = (root.own_pid(), nix::unistd::gettid().as_raw() as u32);
        let before = thread_time(&root, own, tid).unwrap();
        let mut after = before;
        while after.running_ns <= before.running_ns {
            after = thread_time(&root, own, tid).unwrap();
        }
        assert!(after.time_ns > before.time_ns);
    }

    #[test]
    fn a_zombie_leader_with_a_live_thread_still_runs() {
        let directory = tempfile::tempdir().unwrap();
        let root = ProcRoot::new(directory.path());
        write(directory.path(), "9/task/9/stat", &stat_line(9, "job", 'Z', 0));
        assert!(!has_live_thread(&root, 9));
        write(directory.path(), "9/task/10/stat", &stat_line(10, "job", 'S', 0));
        assert!(has_live_thread(&root, 9));
    }
}
