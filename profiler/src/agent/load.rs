//! Loads the agent into a process and starts it, in one stop of one thread.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::offset_of;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use profiler_common::agent::{PATH_LEN, Phase, SIZE, START_BUSY, START_FORKED, START_OK, Start, VERSION};

use super::check::{self, Place};
use super::error::AgentError;
use super::image::Image;
use super::remote::{Ended, Memory, Remote};
use super::ring::Ring;
use super::tracee::{Haste, Tracee};
use super::way_back::{SIGRETURN, SYSCALL_RET, WayBack};
use super::{LIBRARY, safe_point};
use crate::symbols::Symbolizer;
use crate::target::process::process_info;
use crate::target::{ProcRoot, monotonic_ns};

/// The agent's entry.
pub(super) const ENTRY: &str = "stallscope_start";
/// Functions of libc that it is handed, in this order.
const FUNCTIONS: [&str; 6] =
    ["dlopen", "dlsym", "pthread_create", "pthread_detach", "clock_gettime", "__errno_location"];
/// Where in its data the name of its file is.
const NAME_AT: u64 = size_of::<Start>() as u64;
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
    let image = Image::embedded().ok_or(AgentError::NotBuilt)?;
    let name = image_name();
    let mut waits = AGAIN.iter();
    loop {
        let place = check::place(root, pid, &format!("/memfd:{name}"))?;
        match enter(root, &place, symbolizer, &name, image) {
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

fn enter(
    root: &ProcRoot,
    place: &Place,
    symbolizer: &mut Symbolizer,
    name: &str,
    image: &Image,
) -> Result<Loaded, AgentError> {
    let pid = place.pid;
    let memory = Memory::open(pid)?;
    let gadget = memory.find_code(place.code, SYSCALL_RET)?;
    let sigreturn = memory.find_code(place.code, SIGRETURN)?;
    let own_child = process_info(root, pid)?.ppid == std::process::id();
    // Unlike that of any call before.
    let token = monotonic_ns() | 1;
    let data = data(place, name, token)?;
    let way_back = |tracee: &Tracee| {
        let kept = tracee.kept();
        let (start, _) = place.stack_of(kept.rsp, kept.fs_base)?;
        WayBack::new(kept, tracee.kept_state(), sigreturn, start, &data)
    };
    let haste = Haste::new();
    let (tracee, way_back) = safe_point::stop(root, pid, symbolizer, own_child, way_back)?;
    let tid = tracee.tid();
    let remote = Remote::new(place, &memory, tracee, gadget, way_back)?;
    let mut visit = Visit { place, memory: &memory, remote, image, mapped: None };
    let outcome = visit.make(token);
    let released = visit.remote.finish();
    drop(haste);
    let ring = outcome?;
    let stopped = released?;
    let beating = Arc::new(AtomicBool::new(true));
    let beat = beat(&ring, Arc::clone(&beating)).map_err(|source| AgentError::Memory { pid, source })?;
    Ok(Loaded { ring, stopped, tid, beating, beat: Some(beat) })
}

/// All that is done while the thread is stopped.
struct Visit<'a> {
    place: &'a Place,
    memory: &'a Memory,
    remote: Remote<'a>,
    image: &'a Image,
    /// Where the library was mapped just now.
    mapped: Option<u64>,
}

impl Visit<'_> {
    fn make(&mut self, token: u64) -> Result<Ring, AgentError> {
        let result = match self.place.agent {
            Some(base) => self.start(base, token),
            None => self.map().and_then(|base| self.start(base, token)),
        };
        if result.is_err()
            && let Some(base) = self.mapped
        {
            // What stays mapped otherwise does nothing; there is nobody to tell.
            let _ = self.remote.system_call("munmap", libc::SYS_munmap, [base, self.image.len, 0, 0, 0, 0]);
        }
        result
    }

    /// Maps the library: its code from a file in memory, by which it is known again, and behind it the rest.
    fn map(&mut self) -> Result<u64, AgentError> {
        let name = self.remote.data() + NAME_AT;
        let flags = u64::from(libc::MFD_CLOEXEC);
        let fd =
            self.remote.system_call("memfd_create", libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0])?;
        let result = self.map_file(fd);
        if result.is_err() {
            self.close(fd);
        }
        result
    }

    fn map_file(&mut self, fd: u64) -> Result<u64, AgentError> {
        let pid = self.place.pid;
        let failed = |source| AgentError::Memory { pid, source };
        let mut file = open_anew(pid, fd, 0).map_err(failed)?;
        file.write_all(&self.image.code).map_err(failed)?;
        let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let base = self.remote.system_call(
            "mmap",
            libc::SYS_mmap,
            [0, self.image.len, writable, anonymous, u64::MAX, 0],
        )?;
        self.mapped = Some(base);
        let fixed = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
        let code = self.image.code.len() as u64;
        let runs = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        self.remote.system_call("mmap", libc::SYS_mmap, [base, code, runs, fixed, fd, 0])?;
        self.memory.write(base + code, &self.image.data_at(base))?;
        // The entry closes it.
        let image = self.remote.data() + offset_of!(Start, image) as u64;
        self.memory.write(image, &(fd as i32).to_le_bytes())?;
        Ok(base)
    }

    /// Has the entry of the library that lies at `base` begin the agent's thread.
    fn start(&mut self, base: u64, token: u64) -> Result<Ring, AgentError> {
        let pid = self.place.pid;
        let mut offered = -1;
        let mut ring = None;
        let ended = self.remote.enter(base + self.image.entry, (base + self.image.left, token), |fd| {
            offered = fd;
            ring = Some(
                u64::try_from(fd)
                    .map_err(io::Error::other)
                    .and_then(|fd| Ring::adopt(open_anew(pid, fd, SIZE as u64)?, monotonic_ns())),
            );
        })?;
        if matches!(ended, Ended::TakenBack) {
            self.take_back(base, offered)?;
            return Err(AgentError::Slow { what: ENTRY, tid: self.remote.tid() });
        }
        let result = self.remote.data() + offset_of!(Start, result) as u64;
        let code = i64::from_le_bytes(self.memory.read(result)?);
        if self.remote.has_left()? {
            // What it answered is no longer there. Its thread, if it has one, hears nobody, and leaves.
            self.mapped = None;
            return Err(AgentError::Slow { what: ENTRY, tid: self.remote.tid() });
        }
        match (code, ring) {
            (START_OK, Some(ring)) => {
                self.mapped = None;
                ring.map_err(|source| AgentError::Memory { pid, source })
            }
            (START_FORKED, _) => Err(AgentError::Forked { pid }),
            (START_BUSY, _) => Err(AgentError::Busy { pid }),
            (code, _) => Err(AgentError::Start { pid, code }),
        }
    }

    /// The entry did not get to its end: what it has open is closed, and the agent is free again.
    fn take_back(&mut self, base: u64, offered: i32) -> Result<(), AgentError> {
        if let Ok(fd) = u64::try_from(offered) {
            self.close(fd);
        }
        let image = self.memory.read(self.remote.data() + offset_of!(Start, image) as u64)?;
        if let Ok(fd) = u64::try_from(i32::from_le_bytes(image)) {
            self.close(fd);
        }
        self.memory.write(base + self.image.active, &0_u32.to_le_bytes())
    }

    fn close(&mut self, fd: u64) {
        // A descriptor that stays is closed when the process ends; there is nobody to tell.
        let _ = self.remote.system_call("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
    }
}

/// Opens the file behind a descriptor of the target: a regular one without a name that is this long, or nothing.
/// (Another thread of the target could put something else there.)
fn open_anew(pid: u32, fd: u64, len: u64) -> io::Result<File> {
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
    if metadata.len() != len || metadata.nlink() != 0 { Err(refused()) } else { Ok(file) }
}

/// What the entry is handed, and the name of its file.
fn data(place: &Place, name: &str, token: u64) -> Result<Vec<u8>, AgentError> {
    let mut bytes = Vec::with_capacity(size_of::<Start>() + name.len() + 1);
    bytes.extend(VERSION.to_ne_bytes());
    bytes.extend((Phase::Begun as u32).to_ne_bytes());
    for function in FUNCTIONS {
        bytes.extend(place.function(function)?.to_ne_bytes());
    }
    bytes.extend((-1_i32).to_ne_bytes());
    bytes.extend((-1_i32).to_ne_bytes());
    bytes.extend(0_i64.to_ne_bytes());
    bytes.extend(token.to_ne_bytes());
    let path = place.cupti.as_os_str().as_bytes();
    bytes.extend(path.iter().copied().take(PATH_LEN - 1));
    bytes.resize(NAME_AT as usize, 0);
    bytes.extend(name.as_bytes());
    bytes.push(0);
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
        assert_eq!(offset_of!(Start, phase), 4);
        assert_eq!(offset_of!(Start, dlopen), 8);
        assert_eq!(offset_of!(Start, errno_location), 48);
        assert_eq!(offset_of!(Start, image), 56);
        assert_eq!(offset_of!(Start, ring), 60);
        assert_eq!(offset_of!(Start, result), 64);
        assert_eq!(offset_of!(Start, token), 72);
        assert_eq!(offset_of!(Start, path), 80);
        assert_eq!(size_of::<Start>(), 80 + PATH_LEN);
    }
}
