//! A program on a host: in its network namespace, with a resolver configuration of its own.

use std::ffi::{CStr, CString, OsStr};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr;

use tempfile::NamedTempFile;

use super::error::DemoError;
use super::netns::Namespace;

/// A program that will run in a network namespace.
#[derive(Debug)]
pub struct Role {
    command: Command,
    namespace: Namespace,
    files: Vec<(CString, String)>,
    passed: Vec<RawFd>,
}

impl Role {
    pub fn new(program: impl AsRef<OsStr>, namespace: Namespace) -> Role {
        Role { command: Command::new(program), namespace, files: Vec::new(), passed: Vec::new() }
    }

    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, arguments: I) -> Role {
        self.command.args(arguments);
        self
    }

    #[must_use]
    pub fn stdin(mut self, stdin: Stdio) -> Role {
        self.command.stdin(stdin);
        self
    }

    #[must_use]
    pub fn stdout(mut self, stdout: Stdio) -> Role {
        self.command.stdout(stdout);
        self
    }

    /// Lets the program inherit `fd` under the same number; it must stay open until [`Role::spawn`] returned.
    #[must_use]
    pub fn pass(mut self, fd: BorrowedFd<'_>) -> Role {
        self.passed.push(fd.as_raw_fd());
        self
    }

    /// The program sees `resolv_conf` as `/etc/resolv.conf`, and looks names up in `/etc/hosts` and DNS only.
    #[must_use]
    pub fn resolver(self, resolv_conf: &str) -> Role {
        self.file(c"/etc/resolv.conf", resolv_conf)
            .file(c"/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
            .file(c"/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
    }

    fn file(mut self, path: &CStr, text: &str) -> Role {
        self.files.push((path.to_owned(), text.to_owned()));
        self
    }

    /// Starts the program. It is killed when the thread that called this ends.
    pub fn spawn(mut self) -> Result<Child, DemoError> {
        let program = self.command.get_program().to_string_lossy().into_owned();
        let mut kept = Vec::new();
        let mut mounts = Vec::new();
        for (path, text) in &self.files {
            // The machine may lack a file (then the C library's defaults hold); a mount point must exist.
            if !Path::new(OsStr::from_bytes(path.to_bytes())).exists()
                && path.as_c_str() != c"/etc/resolv.conf"
            {
                continue;
            }
            let file = temporary_file(text)?;
            let source = CString::new(file.path().as_os_str().as_bytes())
                .map_err(|error| DemoError::Spawn { program: program.clone(), source: error.into() })?;
            mounts.push((source, path.clone()));
            kept.push(file);
        }
        let (namespace, passed) = (self.namespace.clone(), self.passed.clone());
        let parent = std::process::id().cast_signed();
        // SAFETY: `enter` makes bare system calls on data prepared beforehand and allocates nothing.
        unsafe {
            self.command.pre_exec(move || enter(parent, namespace.fd().as_raw_fd(), &mounts, &passed));
        }
        // spawn() returns after the exec, when the files are mounted: their names are not needed any more.
        self.command.spawn().map_err(|source| DemoError::Spawn { program, source })
    }
}

fn temporary_file(text: &str) -> Result<NamedTempFile, DemoError> {
    let failed = |source| DemoError::Write { path: std::env::temp_dir().display().to_string(), source };
    let mut file = NamedTempFile::with_prefix("stallscope-").map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    // Readable for a program that gives up root.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file().set_permissions(mode).map_err(failed)?;
    Ok(file)
}

/// Runs between fork and exec.
fn enter(
    parent: libc::pid_t,
    netns: RawFd,
    mounts: &[(CString, CString)],
    passed: &[RawFd],
) -> io::Result<()> {
    // SAFETY: system calls with valid descriptors and NUL-terminated strings that live across the call.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        if libc::getppid() != parent {
            // It died before the kernel knew whom to tell.
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        check(libc::setns(netns, libc::CLONE_NEWNET))?;
        for &fd in passed {
            check(libc::fcntl(fd, libc::F_SETFD, 0))?;
        }
        if mounts.is_empty() {
            return Ok(());
        }
        check(libc::unshare(libc::CLONE_NEWNS))?;
        // Before any mount: without this they would appear on the machine.
        check(libc::mount(
            ptr::null(),
            c"/".as_ptr(),
            ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            ptr::null(),
        ))?;
        for (source, target) in mounts {
            check(libc::mount(source.as_ptr(), target.as_ptr(), ptr::null(), libc::MS_BIND, ptr::null()))?;
        }
        hide_name_cache();
    }
    Ok(())
}

/// glibc asks a running nscd before any server: take its socket out of sight, where there is one.
///
/// # Safety
/// Only in a private mount namespace.
unsafe fn hide_name_cache() {
    for path in [c"/run/nscd", c"/var/run/nscd"] {
        // SAFETY: constant strings; a failure (no such directory) is what is wanted.
        unsafe {
            libc::mount(c"none".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, ptr::null());
        }
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
