//! From what the user names to the list of processes to watch.

use std::collections::{BTreeSet, HashMap};

use nix::errno::Errno;
use regex::Regex;

use super::process::{ProcessInfo, executable, has_live_thread, parent, process_info};
use super::root::{ProcRoot, ReadError};

/// Why something cannot be a target.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    #[error("no process has the id {pid}")]
    NoSuchProcess { pid: u32 },
    #[error("{tid} is a thread of process {pid} ({comm}), not a process")]
    IsThread { tid: u32, pid: u32, comm: String },
    #[error("{pid} ({comm}) is a kernel thread")]
    KernelThread { pid: u32, comm: String },
    #[error("process {pid} ({comm}) has ended and waits for its parent {ppid} to take its exit status")]
    Zombie { pid: u32, comm: String, ppid: u32 },
    #[error("{pid} is stallscope itself")]
    Itself { pid: u32 },
    #[error("no process named /{pattern}/")]
    NoMatch { pattern: String },
    #[error("--comm {pattern}: {reason}")]
    BadPattern { pattern: String, reason: String },
    #[error("not permitted to look into process {pid} of user {uid}")]
    NotPermitted { pid: u32, uid: u32 },
    #[error("process {pid} is hidden from this user")]
    Hidden { pid: u32 },
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl SelectError {
    /// What the user can do about it.
    pub fn help(&self) -> String {
        match self {
            SelectError::NoSuchProcess { .. } => {
                "it may have ended; `pgrep -a NAME` or `stallscope record --comm REGEX` finds a process by name"
                    .into()
            }
            SelectError::IsThread { pid, .. } => format!("use --pid {pid}: all threads of a process are watched"),
            SelectError::KernelThread { .. } => {
                "name a user process; kernel threads make no system calls".into()
            }
            SelectError::Zombie { ppid, .. } => {
                format!("nothing of it runs any more; its parent (--pid {ppid}) may be what you look for")
            }
            SelectError::Itself { .. } => "name the process of the job".into(),
            SelectError::NoMatch { .. } => {
                "the pattern is searched in the command name (15 bytes) and in the executable's file name; \
                 `ps -eo pid,comm` lists them"
                    .into()
            }
            SelectError::BadPattern { .. } => "the syntax is that of Rust's regex crate; quote it for the shell".into(),
            SelectError::NotPermitted { .. } | SelectError::Hidden { .. } => {
                "run stallscope as root (sudo), or with CAP_SYS_PTRACE, CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN".into()
            }
            SelectError::Read(error) if error.path.ends_with("proc") => {
                "mount the process file system: mount -t proc proc /proc".into()
            }
            SelectError::Read(_) => "run `stallscope doctor --pid PID` to see what can be read".into(),
        }
    }
}

/// Checks the ids given with `--pid`; duplicates are dropped, the order is kept.
pub fn select_pids(root: &ProcRoot, pids: &[u32]) -> Result<Vec<u32>, SelectError> {
    let mut chosen = Vec::new();
    for &pid in pids {
        check(root, pid)?;
        if !chosen.contains(&pid) {
            chosen.push(pid);
        }
    }
    Ok(chosen)
}

/// All user processes whose command name or executable's file name the pattern matches, ascending;
/// never ourselves.
pub fn select_comm(root: &ProcRoot, pattern: &str) -> Result<Vec<u32>, SelectError> {
    let regex = Regex::new(pattern).map_err(|error| SelectError::BadPattern {
        pattern: pattern.to_owned(),
        reason: first_reason(&error),
    })?;
    let own = root.own_pid();
    let mut chosen = Vec::new();
    let mut refused = None;
    for pid in root.pids()? {
        let Ok(info) = process_info(root, pid) else { continue };
        if pid == own || !matches(root, &info, &regex) {
            continue;
        }
        match check_info(root, &info) {
            Ok(()) => chosen.push(pid),
            Err(error @ SelectError::NotPermitted { .. }) => refused = Some(error),
            Err(_) => {}
        }
    }
    match (chosen.is_empty(), refused) {
        (false, _) => Ok(chosen),
        (true, Some(error)) => Err(error),
        (true, None) => Err(SelectError::NoMatch { pattern: pattern.to_owned() }),
    }
}

/// All processes that descend from `pid`, ascending, without `pid` itself and without us.
pub fn children(root: &ProcRoot, pid: u32) -> Vec<u32> {
    let mut found = with_descendants(root, &[pid]);
    found.retain(|child| *child != pid);
    found
}

/// The processes and all that descend from them, ascending. We are left out, and with us whatever only
/// we started; kernel threads and zombies are left out too.
pub fn with_descendants(root: &ProcRoot, pids: &[u32]) -> Vec<u32> {
    let own = root.own_pid();
    let mut children_of: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in root.pids().unwrap_or_default() {
        if let Ok(ppid) = parent(root, pid) {
            children_of.entry(ppid).or_default().push(pid);
        }
    }
    let mut found: BTreeSet<u32> = pids.iter().copied().collect();
    let mut pending: Vec<u32> = pids.to_vec();
    while let Some(pid) = pending.pop() {
        for &child in children_of.get(&pid).into_iter().flatten() {
            if child != own && is_user_process(root, child) && found.insert(child) {
                pending.push(child);
            }
        }
    }
    found.into_iter().collect()
}

/// Whether `pid` can be a target.
pub fn check(root: &ProcRoot, pid: u32) -> Result<(), SelectError> {
    // Larger numbers are no process ids, and 0 is the kernel's idle task.
    if pid == 0 || i32::try_from(pid).is_err() {
        return Err(SelectError::NoSuchProcess { pid });
    }
    match process_info(root, pid) {
        Ok(info) => check_info(root, &info),
        Err(error) if error.is_gone() && is_hidden(root, pid) => Err(SelectError::Hidden { pid }),
        Err(error) if error.is_gone() => Err(SelectError::NoSuchProcess { pid }),
        Err(error) => Err(error.into()),
    }
}

fn check_info(root: &ProcRoot, info: &ProcessInfo) -> Result<(), SelectError> {
    let (pid, comm) = (info.pid, info.comm.clone());
    if info.tgid == root.own_pid() {
        return Err(SelectError::Itself { pid });
    }
    if info.tgid != pid {
        return Err(SelectError::IsThread { tid: pid, pid: info.tgid, comm });
    }
    if info.kernel_thread {
        return Err(SelectError::KernelThread { pid, comm });
    }
    if info.is_zombie() && !has_live_thread(root, pid) {
        return Err(SelectError::Zombie { pid, comm, ppid: info.ppid });
    }
    // The kernel grants this link on the same terms as the descriptors and maps that are needed later.
    match root.namespace(pid, "net") {
        Err(error) if error.is_denied() => Err(SelectError::NotPermitted { pid, uid: info.uid }),
        _ => Ok(()),
    }
}

fn is_user_process(root: &ProcRoot, pid: u32) -> bool {
    process_info(root, pid)
        .is_ok_and(|info| !info.kernel_thread && (!info.is_zombie() || has_live_thread(root, pid)))
}

fn matches(root: &ProcRoot, info: &ProcessInfo, regex: &Regex) -> bool {
    if regex.is_match(&info.comm) {
        return true;
    }
    let exe = executable(root, info.pid).unwrap_or_default();
    exe.rsplit('/').next().is_some_and(|name| !name.is_empty() && regex.is_match(name))
}

/// With `hidepid` a foreign process has no directory, but a signal to it is still refused for want of
/// permission rather than because it does not exist.
fn is_hidden(root: &ProcRoot, pid: u32) -> bool {
    *root == ProcRoot::default()
        && i32::try_from(pid).is_ok_and(|pid| {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) == Err(Errno::EPERM)
        })
}

/// The last line of the regex crate's explanation: the ones before it draw the pattern.
fn first_reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default().trim();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    struct Child(std::process::Child);

    impl Child {
        fn start(program: &str, arguments: &[&str]) -> Child {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null());
            Child(command.spawn().unwrap())
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// One process of a made-up `/proc`.
    fn fake(directory: &Path, pid: u32, ppid: u32, comm: &str, state: char, flags: u32) {
        let process = directory.join(pid.to_string());
        std::fs::create_dir_all(process.join("task").join(pid.to_string())).unwrap();
        let mut stat = format!("{pid} ({comm}) {state} {ppid} 1 1 0 -1 {flags}");
        stat.push_str(&" 0".repeat(43));
        std::fs::write(process.join("stat"), &stat).unwrap();
        std::fs::write(process.join(format!("task/{pid}/stat")), &stat).unwrap();
        std::fs::write(process.join("status"), format!("Tgid:\t{pid}\nNSpid:\t{pid}\n")).unwrap();
    }

    fn fake_root() -> (tempfile::TempDir, ProcRoot) {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("50", directory.path().join("self")).unwrap();
        fake(directory.path(), 1, 0, "init", 'S', 0);
        fake(directory.path(), 2, 0, "kthreadd", 'S', 0x0020_0000);
        fake(directory.path(), 10, 1, "launch", 'S', 0);
        fake(directory.path(), 11, 10, "rank", 'S', 0);
        fake(directory.path(), 12, 11, "loader", 'S', 0);
        fake(directory.path(), 13, 10, "rank", 'Z', 0);
        fake(directory.path(), 50, 10, "stallscope", 'R', 0);
        let root = ProcRoot::new(directory.path());
        (directory, root)
    }

    #[test]
    fn accepts_a_running_child_once() {
        let child = Child::start("cat", &[]);
        let pid = child.0.id();
        assert_eq!(select_pids(&ProcRoot::default(), &[pid, pid]).unwrap(), [pid]);
    }

    #[test]
    fn says_that_there_is_no_such_process() {
        for pid in [0, 0x7fff_fff0, u32::MAX] {
            let error = select_pids(&ProcRoot::default(), &[pid]).unwrap_err();
            assert!(matches!(error, SelectError::NoSuchProcess { pid: named } if named == pid), "{error}");
        }
    }

    #[test]
    fn a_thread_id_names_the_process_to_use() {
        // A shell has no second thread: the test process of another thread count would be ourselves.
        let directory = tempfile::tempdir().unwrap();
        fake(directory.path(), 31, 1, "rank", 'S', 0);
        std::fs::write(directory.path().join("31/status"), "Tgid:\t30\nNSpid:\t31\n").unwrap();
        let error = select_pids(&ProcRoot::new(directory.path()), &[31]).unwrap_err();
        assert!(matches!(error, SelectError::IsThread { tid: 31, pid: 30, .. }), "{error}");
        assert!(error.help().contains("--pid 30"));
    }

    #[test]
    fn refuses_itself_and_its_own_threads() {
        let root = ProcRoot::default();
        let own = std::process::id();
        assert!(matches!(select_pids(&root, &[own]), Err(SelectError::Itself { .. })));
        let tid = std::thread::spawn(|| nix::unistd::gettid().as_raw() as u32);
        let tid = tid.join().unwrap();
        // The thread may be gone by now; while it is there it is us.
        let result = select_pids(&root, &[tid]);
        assert!(
            matches!(result, Err(SelectError::Itself { .. } | SelectError::NoSuchProcess { .. })),
            "{result:?}"
        );
        let alive = nix::unistd::gettid().as_raw() as u32;
        assert!(matches!(select_pids(&root, &[alive]), Err(SelectError::Itself { .. })));
    }

    #[test]
    fn refuses_a_zombie_and_names_its_parent() {
        let mut child = Child::start("true", &[]);
        let pid = child.0.id();
        let wait = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        let id = nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(pid as i32));
        nix::sys::wait::waitid(id, wait).unwrap();
        let error = select_pids(&ProcRoot::default(), &[pid]).unwrap_err();
        assert!(matches!(error, SelectError::Zombie { ppid, .. } if ppid == std::process::id()), "{error}");
        child.0.wait().unwrap();
    }

    #[test]
    fn refuses_kernel_threads() {
        let (_directory, root) = fake_root();
        let error = select_pids(&root, &[2]).unwrap_err();
        assert_eq!(error.to_string(), "2 (kthreadd) is a kernel thread");
    }

    #[test]
    fn finds_by_command_name_without_zombies_and_ourselves() {
        let (_directory, root) = fake_root();
        assert_eq!(select_comm(&root, "^rank$").unwrap(), [11]);
        assert_eq!(select_comm(&root, "l").unwrap(), [10, 12]);
        assert!(matches!(select_comm(&root, "stallscope"), Err(SelectError::NoMatch { .. })));
        assert!(matches!(select_comm(&root, "kthreadd"), Err(SelectError::NoMatch { .. })));
    }

    #[test]
    fn finds_by_the_executables_name() {
        let (directory, root) = fake_root();
        std::os::unix::fs::symlink("/opt/x/python3.12 (deleted)", directory.path().join("11/exe")).unwrap();
        assert_eq!(select_comm(&root, r"^python3\.\d+$").unwrap(), [11]);
    }

    #[test]
    fn a_wrong_pattern_is_explained_in_one_line() {
        let error = select_comm(&ProcRoot::default(), "a(b").unwrap_err();
        assert_eq!(error.to_string(), "--comm a(b: unclosed group");
    }

    #[test]
    fn descends_to_grandchildren_and_leaves_ourselves_out() {
        let (_directory, root) = fake_root();
        assert_eq!(children(&root, 10), [11, 12]);
        assert_eq!(with_descendants(&root, &[11]), [11, 12]);
        assert!(children(&root, 12).is_empty());
    }

    #[test]
    fn a_ring_of_parents_ends() {
        let directory = tempfile::tempdir().unwrap();
        fake(directory.path(), 20, 21, "a", 'S', 0);
        fake(directory.path(), 21, 20, "b", 'S', 0);
        assert_eq!(with_descendants(&ProcRoot::new(directory.path()), &[20]), [20, 21]);
    }

    #[test]
    fn every_error_has_help() {
        let comm = String::new;
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        for error in [
            SelectError::NoSuchProcess { pid: 1 },
            SelectError::IsThread { tid: 1, pid: 2, comm: comm() },
            SelectError::KernelThread { pid: 1, comm: comm() },
            SelectError::Zombie { pid: 1, comm: comm(), ppid: 2 },
            SelectError::Itself { pid: 1 },
            SelectError::NoMatch { pattern: comm() },
            SelectError::BadPattern { pattern: comm(), reason: comm() },
            SelectError::NotPermitted { pid: 1, uid: 2 },
            SelectError::Hidden { pid: 1 },
            SelectError::Read(ReadError::new("/proc", source)),
        ] {
            assert!(!error.help().is_empty());
            assert!(!error.to_string().contains('\n'));
        }
    }
}
