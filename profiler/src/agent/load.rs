//! Loads the agent into a process and starts it, in one stop of one thread.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use object::{Object as _, ObjectSymbol as _};
use profiler_common::agent::{PATH_LEN, START_BUSY, START_FORKED, START_OK, Start, VERSION};

use super::check::{self, Place};
use super::error::AgentError;
use super::remote::{Memory, Remote};
use super::ring::Ring;
use super::tracee::Tracee;
use super::way_back::{SIGRETURN, SYSCALL_RET, WayBack};
use super::{LIBRARY, safe_point};
use crate::symbols::Symbolizer;
use crate::target::process::process_info;
use crate::target::{ProcRoot, monotonic_ns};

/// The agent's entry.
const ENTRY: &str = "stallscope_start";
/// How often the agent is told that the recorder lives.
const BEAT: Duration = Duration::from_millis(100);
/// The agent of a recording that just ended may be on its way out still.
const AGAIN: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(700)];

/// An agent at work. It leaves when this is dropped, or a second later when the recorder dies.
#[derive(Debug)]
pub struct Loaded {
    pub ring: Ring,
    /// For how long a thread of the target was stopped.
    pub stopped: Duration,
    /// Which one.
    pub tid: u32,
    beating: Arc<AtomicBool>,
    beat: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // Where it cannot be asked, the silence of the recorder tells it.
        let _ = self.ring.ask_to_leave();
        self.beating.store(false, Ordering::Release);
        if let Some(beat) = self.beat.take() {
            beat.thread().unpark();
            // It returns nothing, and cannot panic.
            let _ = beat.join();
        }
    }
}

/// Loads the agent. The process is as before where that fails.
pub fn load(root: &ProcRoot, pid: u32, symbolizer: &mut Symbolizer) -> Result<Loaded, AgentError> {
    let entry = entry().ok_or(AgentError::NotBuilt)?;
    let name = image_name();
    let mut waits = AGAIN.iter();
    loop {
        let place = check::place(root, pid, &format!("/memfd:{name}"))?;
        match enter(root, &place, symbolizer, &name, entry) {
            Err(AgentError::Busy { .. }) => match waits.next() {
                Some(wait) => std::thread::sleep(*wait),
                None => return Err(AgentError::Busy { pid }),
            },
            other => return other,
        }
    }
}

/// The agent's file is called by what is in it: another version is another library.
fn image_name() -> String {
    format!("stallscope-agent-{:08x}", crc32fast::hash(LIBRARY))
}

/// Offset of the entry in the library.
fn entry() -> Option<u64> {
    let file = object::File::parse(LIBRARY).ok()?;
    file.dynamic_symbols().find(|symbol| symbol.name() == Ok(ENTRY)).map(|symbol| symbol.address())
}

fn enter(
    root: &ProcRoot,
    place: &Place,
    symbolizer: &mut Symbolizer,
    name: &str,
    entry: u64,
) -> Result<Loaded, AgentError> {
    let pid = place.pid;
    let memory = Memory::open(pid)?;
    let gadget = memory.find_code(place.code, SYSCALL_RET)?;
    let sigreturn = memory.find_code(place.code, SIGRETURN)?;
    let own_child = process_info(root, pid)?.ppid == std::process::id();
    let way_back = |tracee: &Tracee| {
        let kept = tracee.kept();
        let (start, _) = place.stack_of(kept.rsp, kept.fs_base)?;
        let (xstate, mask) = tracee.kept_state();
        WayBack::new(kept, xstate, mask, sigreturn, start)
    };
    let (tracee, way_back) = safe_point::stop(root, pid, symbolizer, own_child, way_back)?;
    let tid = tracee.tid();
    let mut remote = Remote::new(place, &memory, tracee, gadget, way_back)?;
    let outcome = set_up(root, &mut remote, place, &memory, name, entry);
    let released = remote.finish();
    let ring = outcome?;
    let stopped = released?;
    let beating = Arc::new(AtomicBool::new(true));
    let beat = beat(&ring, Arc::clone(&beating)).map_err(|source| AgentError::Memory { pid, source })?;
    Ok(Loaded { ring, stopped, tid, beating, beat: Some(beat) })
}

/// All that is done while the thread is stopped.
fn set_up(
    root: &ProcRoot,
    remote: &mut Remote<'_>,
    place: &Place,
    memory: &Memory,
    name: &str,
    entry: u64,
) -> Result<Ring, AgentError> {
    // `errno` belongs to the program.
    let errno = remote.call("__errno_location", place.function("__errno_location")?, (0, 0))?;
    let kept: [u8; 4] = memory.read(errno)?;
    let result = load_and_start(root, remote, place, memory, name, entry);
    memory.write(errno, &kept)?;
    result
}

fn load_and_start(
    root: &ProcRoot,
    remote: &mut Remote<'_>,
    place: &Place,
    memory: &Memory,
    name: &str,
    entry: u64,
) -> Result<Ring, AgentError> {
    let base = match place.agent {
        Some(base) => base,
        None => load_library(root, remote, place, memory, name)?,
    };
    let pid = place.pid;
    let (fd, file) = new_file(remote, pid, memory, "stallscope-ring")?;
    let ring = Ring::create(file, monotonic_ns()).map_err(|source| AgentError::Memory { pid, source });
    let code = ring.and_then(|ring| {
        let start = start(place, fd)?;
        memory.write(remote.data(), &start)?;
        Ok((ring, remote.call(ENTRY, base + entry, (remote.data(), 0))? as i64))
    });
    close(remote, fd);
    match code? {
        (ring, START_OK) => Ok(ring),
        (_, START_FORKED) => Err(AgentError::Forked { pid }),
        (_, START_BUSY) => Err(AgentError::Busy { pid }),
        (_, code) => Err(AgentError::Start { pid, code }),
    }
}

/// Writes the library into a file in memory and has the target's loader map it; returns where.
fn load_library(
    root: &ProcRoot,
    remote: &mut Remote<'_>,
    place: &Place,
    memory: &Memory,
    name: &str,
) -> Result<u64, AgentError> {
    let pid = place.pid;
    let (fd, mut file) = new_file(remote, pid, memory, name)?;
    let written = file.write_all(LIBRARY).map_err(|source| AgentError::Memory { pid, source });
    let called = written.and_then(|()| {
        // The loader takes a path that it knows for the library that it had there: never the same path twice.
        let path = format!("/proc/self/{}fd/{fd}\0", "./".repeat(place.agents.min(64)));
        memory.write(remote.data(), path.as_bytes())?;
        remote.call_blindly("dlopen", place.function("dlopen")?, (remote.data(), libc::RTLD_NOW as u64))
    });
    close(remote, fd);
    called?;
    check::agent(root, pid, &format!("/memfd:{name}"))?.ok_or(AgentError::Refused { pid })
}

/// Has the target make a file in memory, and opens it here too.
fn new_file(
    remote: &mut Remote<'_>,
    pid: u32,
    memory: &Memory,
    name: &str,
) -> Result<(u64, File), AgentError> {
    let mut text = name.as_bytes().to_vec();
    text.push(0);
    memory.write(remote.data(), &text)?;
    let fd = remote.system_call(
        "memfd_create",
        libc::SYS_memfd_create,
        [remote.data(), u64::from(libc::MFD_CLOEXEC), 0, 0, 0, 0],
    )?;
    match open_anew(pid, fd) {
        Ok(file) => Ok((fd, file)),
        Err(source) => {
            close(remote, fd);
            Err(AgentError::Memory { pid, source })
        }
    }
}

/// Opens the file behind a descriptor of the target: an empty regular one without a name, or nothing. (Another thread
/// of the target could put something else there.)
fn open_anew(pid: u32, fd: u64) -> io::Result<File> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let refused = || io::Error::new(io::ErrorKind::InvalidData, "the target's new file was exchanged");
    let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path)?;
    let kind = found.metadata()?.file_type();
    if !kind.is_file() || kind.is_fifo() {
        return Err(refused());
    }
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(again)?;
    let metadata = file.metadata()?;
    if metadata.len() != 0 || metadata.nlink() != 0 { Err(refused()) } else { Ok(file) }
}

fn close(remote: &mut Remote<'_>, fd: u64) {
    // A descriptor that stays is closed when the process ends; there is nobody to tell.
    let _ = remote.system_call("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
}

/// What the entry is handed, as bytes.
fn start(place: &Place, fd: u64) -> Result<Vec<u8>, AgentError> {
    let mut bytes = Vec::with_capacity(size_of::<Start>());
    bytes.extend(VERSION.to_ne_bytes());
    bytes.extend((fd as i32).to_ne_bytes());
    for function in ["dlopen", "dlsym", "pthread_create", "pthread_detach", "clock_gettime"] {
        bytes.extend(place.function(function)?.to_ne_bytes());
    }
    let path = place.cupti.as_os_str().as_bytes();
    bytes.extend(path.iter().copied().take(PATH_LEN - 1));
    bytes.resize(size_of::<Start>(), 0);
    Ok(bytes)
}

/// Tells the agent again and again that the recorder lives.
fn beat(ring: &Ring, beating: Arc<AtomicBool>) -> io::Result<std::thread::JoinHandle<()>> {
    let ring = ring.try_clone()?;
    std::thread::Builder::new().name("beat".into()).spawn(move || {
        while beating.load(Ordering::Acquire) {
            if ring.beat(monotonic_ns()).is_err() {
                return;
            }
            std::thread::park_timeout(BEAT);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_entry_is_handed_is_laid_out_as_the_agent_reads_it() {
        use std::mem::offset_of;
        assert_eq!(offset_of!(Start, ring), 4);
        assert_eq!(offset_of!(Start, dlopen), 8);
        assert_eq!(offset_of!(Start, clock_gettime), 40);
        assert_eq!(offset_of!(Start, path), 48);
        assert_eq!(size_of::<Start>(), 48 + PATH_LEN);
    }
}
