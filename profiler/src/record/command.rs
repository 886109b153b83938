//! `record -- COMMAND`: starts the command, held just before its first instruction until the probes are on.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::thread::JoinHandle;

use nix::sys::signal::SigSet;

/// A command that waits for [`HeldCommand::release`].
pub struct HeldCommand {
    pid: u32,
    gate: Option<std::fs::File>,
    spawner: Option<JoinHandle<io::Result<Child>>>,
}

impl HeldCommand {
    /// Forks. The child announces its id and then waits; `Command::spawn` itself returns only after the
    /// exec, so it runs on a thread of its own.
    /// The child blocks the signals of `mask`.
    pub fn start(
        program: &std::ffi::OsStr,
        arguments: &[std::ffi::OsString],
        mask: Option<SigSet>,
    ) -> io::Result<HeldCommand> {
        let (announce_read, announce_write) = pipe()?;
        let (gate_read, gate_write) = pipe()?;
        let mut command = Command::new(program);
        command.args(arguments);
        let (announce, gate) = (announce_write.as_raw_fd(), gate_read.as_raw_fd());
        // The parent's end must not stay open in the child: it would keep its own gate from closing.
        let parents_gate = gate_write.as_raw_fd();
        // SAFETY: between fork and exec the closure makes only system calls on descriptors that the child
        // inherited, and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                if let Some(mask) = &mask {
                    mask.thread_set_mask()?;
                }
                announce_and_wait(announce, gate, parents_gate)
            });
        }
        let spawner = std::thread::Builder::new().name("spawn".into()).spawn(move || {
            let child = command.spawn();
            drop((announce_write, gate_read));
            child
        })?;
        let mut bytes = [0u8; 4];
        let mut announced = std::fs::File::from(announce_read);
        if let Err(error) = announced.read_exact(&mut bytes) {
            // The fork itself failed: the thread knows why.
            return Err(match spawner.join() {
                Ok(Err(reason)) => reason,
                _ => error,
            });
        }
        Ok(HeldCommand {
            pid: u32::from_ne_bytes(bytes),
            gate: Some(std::fs::File::from(gate_write)),
            spawner: Some(spawner),
        })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets the command run. Fails where the program cannot be executed.
    pub fn release(mut self) -> io::Result<RunningCommand> {
        if let Some(mut gate) = self.gate.take() {
            gate.write_all(&[1])?;
        }
        let spawner = self.spawner.take().ok_or_else(|| io::Error::other("released twice"))?;
        let child = spawner.join().map_err(|_| io::Error::other("the spawning thread panicked"))??;
        Ok(RunningCommand { child })
    }
}

impl Drop for HeldCommand {
    /// A command that was never released ends without having run.
    fn drop(&mut self) {
        self.gate = None;
        if let Some(spawner) = self.spawner.take()
            && let Ok(Ok(mut child)) = spawner.join()
        {
            // It never ran the command; its status says nothing.
            let _ = child.wait();
        }
    }
}

pub struct RunningCommand {
    child: Child,
}

impl RunningCommand {
    /// The exit status, once it has one.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

fn announce_and_wait(announce: RawFd, gate: RawFd, parents_gate: RawFd) -> io::Result<()> {
    // SAFETY: getpid has no preconditions.
    let pid = unsafe { libc::getpid() }.to_ne_bytes();
    // SAFETY: the buffer is valid for its length; all three descriptors are the child's own copies.
    let written = unsafe {
        libc::close(parents_gate);
        libc::write(announce, pid.as_ptr().cast(), pid.len())
    };
    if written != 4 {
        return Err(io::Error::last_os_error());
    }
    let mut byte = 0u8;
    loop {
        // SAFETY: one byte is read into one byte.
        match unsafe { libc::read(gate, std::ptr::from_mut(&mut byte).cast(), 1) } {
            1 => return Ok(()),
            0 => return Err(io::Error::from_raw_os_error(libc::ECANCELED)),
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return Err(io::Error::last_os_error()),
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: pipe2 succeeded, so both are open and belong to nobody else.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn arguments(list: &[&str]) -> Vec<OsString> {
        list.iter().map(OsString::from).collect()
    }

    #[test]
    fn runs_nothing_before_the_release() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ran");
        let held = HeldCommand::start("touch".as_ref(), &[file.clone().into()], None).unwrap();
        assert!(std::path::Path::new(&format!("/proc/{}", held.pid())).exists());
        assert!(!file.exists());
        let mut running = held.release().unwrap();
        assert!(running.wait().unwrap().success());
        assert!(file.exists());
    }

    #[test]
    fn passes_the_exit_status_on() {
        let held = HeldCommand::start("sh".as_ref(), &arguments(&["-c", "exit 7"]), None).unwrap();
        let pid = held.pid();
        let mut running = held.release().unwrap();
        assert_eq!(running.child.id(), pid);
        assert_eq!(running.wait().unwrap().code(), Some(7));
    }

    #[test]
    fn says_that_a_program_does_not_exist() {
        let held = HeldCommand::start("/nonexistent/program".as_ref(), &[], None).unwrap();
        let error = held.release().err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_command_that_is_dropped_never_runs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ran");
        drop(HeldCommand::start("touch".as_ref(), &[file.clone().into()], None).unwrap());
        assert!(!file.exists());
    }
}
