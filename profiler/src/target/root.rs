//! Reading `/proc`: bounded, and with the end of a process as an ordinary result.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// Enough for `stat`, `comm`, `schedstat`, `syscall`, `wchan`.
pub const SMALL: usize = 4096;
/// Enough for `status`, whose line `Groups:` can hold 65536 ids.
pub const STATUS: usize = 1 << 20;
/// Entries of one directory at most (threads, descriptors, processes).
const ENTRIES: usize = 1 << 20;

/// Where the process file system is: `/proc`, or a stand-in for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcRoot {
    path: PathBuf,
}

impl Default for ProcRoot {
    fn default() -> ProcRoot {
        ProcRoot { path: PathBuf::from("/proc") }
    }
}

/// What could be read of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub bytes: Vec<u8>,
    /// The file goes on beyond the limit.
    pub truncated: bool,
}

/// A file or link below `/proc` that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct ReadError {
    pub path: PathBuf,
    pub source: io::Error,
}

impl ReadError {
    pub(crate) fn new(path: impl Into<PathBuf>, source: io::Error) -> ReadError {
        ReadError { path: path.into(), source }
    }

    pub(crate) fn malformed(path: impl Into<PathBuf>, what: &'static str) -> ReadError {
        ReadError::new(path, io::Error::new(io::ErrorKind::InvalidData, what))
    }

    /// The process or thread ended: nothing to tell the user about.
    pub fn is_gone(&self) -> bool {
        is_gone(&self.source)
    }

    /// The kernel refused: a lack of privilege.
    pub fn is_denied(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

/// Whether the error says that the process or thread is no longer there.
pub fn is_gone(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    error.kind() == io::ErrorKind::NotFound || errno == Some(Errno::ESRCH)
}

impl ProcRoot {
    pub fn new(path: impl Into<PathBuf>) -> ProcRoot {
        ProcRoot { path: path.into() }
    }

    /// A file of the whole machine, for instance `sys/net/ipv4/tcp_syn_retries`.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.path.join(relative)
    }

    /// `/proc/PID/NAME`.
    pub fn process_path(&self, pid: u32, name: &str) -> PathBuf {
        self.path.join(pid.to_string()).join(name)
    }

    /// `/proc/PID/task/TID/NAME`.
    pub fn task_path(&self, pid: u32, tid: u32, name: &str) -> PathBuf {
        self.process_path(pid, "task").join(tid.to_string()).join(name)
    }

    /// Ids of all processes, ascending.
    pub fn pids(&self) -> Result<Vec<u32>, ReadError> {
        numbers(&self.path)
    }

    /// Ids of the threads of a process, ascending.
    pub fn tids(&self, pid: u32) -> Result<Vec<u32>, ReadError> {
        numbers(&self.process_path(pid, "task"))
    }

    /// Open descriptors of a process, ascending.
    pub fn fds(&self, pid: u32) -> Result<Vec<u32>, ReadError> {
        numbers(&self.process_path(pid, "fd"))
    }

    /// Process id of the caller as this `/proc` numbers it, which differs from `getpid` where the mount
    /// belongs to another PID namespace.
    pub fn own_pid(&self) -> u32 {
        std::fs::read_link(self.path("self"))
            .ok()
            .and_then(|link| link.to_str().and_then(|text| text.parse().ok()))
            .unwrap_or_else(std::process::id)
    }

    /// Number of a namespace (`pid`, `mnt`, `net`, `user`) that the process is in.
    pub fn namespace(&self, pid: u32, kind: &str) -> Result<u64, ReadError> {
        namespace_number(&self.process_path(pid, "ns").join(kind))
    }

    /// Number of a namespace that the calling process is in.
    pub fn own_namespace(&self, kind: &str) -> Result<u64, ReadError> {
        namespace_number(&self.path("self/ns").join(kind))
    }
}

/// Reads at most `limit` bytes.
pub fn read_bounded(path: &Path, limit: usize) -> Result<Contents, ReadError> {
    let file = File::open(path).map_err(|source| ReadError::new(path, source))?;
    read_file_bounded(file, limit).map_err(|source| ReadError::new(path, source))
}

/// Reads at most `limit` bytes of an open file.
pub fn read_file_bounded(file: impl Read, limit: usize) -> io::Result<Contents> {
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    let truncated = bytes.len() > limit;
    bytes.truncate(limit);
    Ok(Contents { bytes, truncated })
}

/// Text of a link, made [`printable`].
pub fn read_link(path: &Path) -> Result<String, ReadError> {
    std::fs::read_link(path)
        .map(|target| printable(target.as_os_str().as_bytes()))
        .map_err(|source| ReadError::new(path, source))
}

/// Text from the target for people to read: what is no UTF-8, and control characters, which could steer a
/// terminal or break a line-based format, become replacement characters; trailing newlines go.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end_matches('\n');
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of all records.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid, writable timespec for the whole call; the clock exists on every Linux.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    if result != 0 {
        return 0;
    }
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

fn numbers(directory: &Path) -> Result<Vec<u32>, ReadError> {
    let entries = std::fs::read_dir(directory).map_err(|source| ReadError::new(directory, source))?;
    let mut found = Vec::new();
    for entry in entries.take(ENTRIES) {
        // A process that ends while its directory is read cuts the list short.
        let Ok(entry) = entry else { break };
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.push(number);
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn namespace_number(link: &Path) -> Result<u64, ReadError> {
    let text = read_link(link)?;
    text.split_once(":[")
        .and_then(|(_, rest)| rest.strip_suffix(']'))
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| ReadError::malformed(link, "not the link of a namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_a_file_at_the_limit_and_says_so() {
        let contents = read_file_bounded(&b"abcdef"[..], 4).unwrap();
        assert_eq!(contents, Contents { bytes: b"abcd".to_vec(), truncated: true });
        let contents = read_file_bounded(&b"abcd"[..], 4).unwrap();
        assert_eq!(contents, Contents { bytes: b"abcd".to_vec(), truncated: false });
    }

    #[test]
    fn a_missing_process_is_gone_and_not_denied() {
        let error = ProcRoot::default().tids(u32::MAX).unwrap_err();
        assert!(error.is_gone());
        assert!(!error.is_denied());
        assert!(error.to_string().contains("/proc/4294967295/task"), "{error}");
    }

    #[test]
    fn finds_itself_and_its_namespaces() {
        let root = ProcRoot::default();
        let own = root.own_pid();
        assert_eq!(own, std::process::id());
        assert!(root.pids().unwrap().contains(&own));
        assert!(root.tids(own).unwrap().contains(&own));
        assert_eq!(root.namespace(own, "net").unwrap(), root.own_namespace("net").unwrap());
    }

    #[test]
    fn reads_a_namespace_number_only_from_a_namespace_link() {
        let directory = tempfile::tempdir().unwrap();
        let ns = directory.path().join("7/ns");
        std::fs::create_dir_all(&ns).unwrap();
        std::os::unix::fs::symlink("net:[4026531840]", ns.join("net")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", ns.join("pid")).unwrap();
        let root = ProcRoot::new(directory.path());
        assert_eq!(root.namespace(7, "net").unwrap(), 4_026_531_840);
        assert!(!root.namespace(7, "pid").unwrap_err().is_gone());
        assert!(root.namespace(7, "mnt").unwrap_err().is_gone());
    }

    #[test]
    fn text_of_the_target_cannot_steer_the_terminal() {
        assert_eq!(printable(b"a\x1b[2Jb\xffc\n"), "a\u{fffd}[2Jb\u{fffd}c");
    }

    #[test]
    fn the_monotonic_clock_does_not_go_back() {
        let first = monotonic_ns();
        assert!(first > 0);
        assert!(monotonic_ns() >= first);
    }
}
