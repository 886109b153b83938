//! Calls made in a stopped thread, on the free part of its stack, so that nothing that it uses is touched.

use std::fs::{File, OpenOptions};
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use profiler_common::agent::{Phase, Start};

use super::check::{Place, guard};
use super::error::AgentError;
use super::load::ENTRY;
use super::tracee::{self, Halt, Registers, Tracee};
use super::way_back::WayBack;
use crate::target::ProcRoot;

/// A system call of ours.
const QUICK: Duration = Duration::from_secs(2);
/// When the entry takes this long and is waiting for the loader's lock, it is taken back.
const PATIENCE: Duration = Duration::from_millis(50);
/// When an entry that takes this long is taken back whatever it does.
const LIMIT: Duration = Duration::from_secs(20);
/// Code that is looked through for a `syscall` instruction.
const CODE: usize = 4 << 20;

/// Memory of the process.
pub(super) struct Memory {
    pid: u32,
    file: File,
}

impl Memory {
    pub(super) fn open(pid: u32) -> Result<Memory, AgentError> {
        let open = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"));
        open.map(|file| Memory { pid, file }).map_err(|source| AgentError::Memory { pid, source })
    }

    pub(super) fn read<const N: usize>(&self, address: u64) -> Result<[u8; N], AgentError> {
        let mut bytes = [0; N];
        self.file
            .read_exact_at(&mut bytes, address)
            .map_err(|source| AgentError::Memory { pid: self.pid, source })?;
        Ok(bytes)
    }

    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), AgentError> {
        self.file.write_all_at(bytes, address).map_err(|source| AgentError::Memory { pid: self.pid, source })
    }

    /// Address of these instructions in executable memory.
    pub(super) fn find_code(&self, (start, end): (u64, u64), code: &[u8]) -> Result<u64, AgentError> {
        let len = usize::try_from(end.saturating_sub(start)).unwrap_or(CODE).min(CODE);
        let mut bytes = vec![0; len];
        let read = self.file.read_at(&mut bytes, start);
        bytes.truncate(read.map_err(|source| AgentError::Memory { pid: self.pid, source })?);
        let at = bytes.windows(code.len()).position(|piece| piece == code);
        at.map(|at| start + at as u64).ok_or(AgentError::Function { pid: self.pid, function: "syscall" })
    }
}

/// A stopped thread in which calls can be made.
pub(super) struct Remote<'a> {
    place: &'a Place,
    memory: &'a Memory,
    tracee: Tracee,
    /// A `syscall; ret` in libc.
    gadget: u64,
    way_back: WayBack,
    /// Where the library keeps the token of the last call that went its own way, and the token of ours.
    left: Option<(u64, u64)>,
}

/// How the entry's call ends.
pub(super) enum Ended {
    Done,
    /// It waited for the loader's lock, and stands where it did.
    TakenBack,
}

impl<'a> Remote<'a> {
    pub(super) fn new(
        place: &'a Place,
        memory: &'a Memory,
        tracee: Tracee,
        gadget: u64,
        way_back: WayBack,
    ) -> Result<Remote<'a>, AgentError> {
        memory.write(way_back.frame_at, &way_back.bytes)?;
        let remote = Remote { place, memory, tracee, gadget, way_back, left: None };
        // As if a call of ours had returned already: whatever becomes of us, the thread finds its way back.
        remote.tracee.set_registers(&Registers {
            rip: remote.way_back.sigreturn,
            rsp: remote.way_back.frame_at + 8,
            orig_rax: u64::MAX,
            ..*remote.tracee.kept()
        })?;
        remote.tracee.block_signals()?;
        Ok(remote)
    }

    /// Where the data lies that came with the way back.
    pub(super) fn data(&self) -> u64 {
        self.way_back.data_at
    }

    pub(super) fn tid(&self) -> u32 {
        self.tracee.tid()
    }

    /// Makes a system call.
    pub(super) fn system_call(
        &mut self,
        what: &'static str,
        number: i64,
        args: [u64; 6],
    ) -> Result<u64, AgentError> {
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let regs = Registers {
            rip: self.gadget,
            rsp: self.way_back.frame_at,
            rax: number as u64,
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            eflags: plain_flags(self.tracee.kept().eflags),
            ..*self.tracee.kept()
        };
        self.tracee.set_registers(&regs)?;
        // To its entry, and to its exit.
        let mut stops = 0;
        while stops < 2 {
            match self.tracee.run(QUICK)? {
                Halt::SystemCall => stops += 1,
                Halt::Event => {}
                Halt::Fault(_) => return Err(AgentError::Slow { what, tid: self.tracee.tid() }),
            }
        }
        let result = self.tracee.registers()?.rax as i64;
        if (-4095..0).contains(&result) {
            return Err(AgentError::Call {
                what,
                pid: self.place.pid,
                errno: Errno::from_raw(-result as i32),
            });
        }
        Ok(result as u64)
    }

    /// Calls the agent's entry, which runs without a stop until it says in its data that it is done. `on_offer` is given
    /// the descriptor that it offers. `left` is where it leaves the token when it goes its own way.
    pub(super) fn enter(
        &mut self,
        entry: u64,
        left: (u64, u64),
        mut on_offer: impl FnMut(i32),
    ) -> Result<Ended, AgentError> {
        let data = self.data();
        self.tracee.set_registers(&Registers {
            rip: entry,
            rsp: self.way_back.frame_at,
            rbp: 0,
            rax: 0,
            orig_rax: u64::MAX,
            rdi: data,
            eflags: plain_flags(self.tracee.kept().eflags),
            ..*self.tracee.kept()
        })?;
        self.left = Some(left);
        self.tracee.go()?;
        let begun = Instant::now();
        let mut next_look = PATIENCE;
        let mut offered = false;
        loop {
            let phase = u32::from_le_bytes(self.memory.read(data + offset_of!(Start, phase) as u64)?);
            if phase == Phase::Offered as u32 && !offered {
                offered = true;
                let ring = self.memory.read(data + offset_of!(Start, ring) as u64)?;
                on_offer(i32::from_le_bytes(ring));
                let opened = (Phase::Opened as u32).to_le_bytes();
                self.memory.write(data + offset_of!(Start, phase) as u64, &opened)?;
            }
            if phase == Phase::Done as u32 || self.has_left()? {
                self.halt()?;
                return Ok(Ended::Done);
            }
            match self.tracee.look(libc::PTRACE_CONT)? {
                None => {}
                Some(Halt::Fault(_)) => {
                    return Err(AgentError::Slow { what: ENTRY, tid: self.tracee.tid() });
                }
                Some(_) => self.tracee.go()?,
            }
            let waited = begun.elapsed();
            if waited > next_look {
                next_look = waited + PATIENCE;
                let is_due = self.waits_for_the_loader() || waited > LIMIT;
                if is_due && !self.holds_a_lock() {
                    self.halt()?;
                    return Ok(Ended::TakenBack);
                }
            }
            tracee::pause(waited);
        }
    }

    /// Stops the thread where it can be put back.
    fn halt(&mut self) -> Result<(), AgentError> {
        self.tracee.interrupt()?;
        while self.tracee.wait(QUICK)? != Halt::Event {
            self.tracee.go()?;
        }
        Ok(())
    }

    /// Whether the thread went its own way, because we were slow.
    pub(super) fn has_left(&self) -> Result<bool, AgentError> {
        let Some((address, token)) = self.left else { return Ok(false) };
        Ok(u64::from_le_bytes(self.memory.read(address)?) == token)
    }

    fn waits_for_the_loader(&self) -> bool {
        let (pid, tid) = (self.place.pid, self.tracee.tid());
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
        let mut words = text.split_ascii_whitespace();
        let call: Option<i64> = words.next().and_then(|word| word.parse().ok());
        let address = words.next().and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let is_lock =
            |address| self.place.loader.iter().any(|(start, end)| (*start..*end).contains(&address));
        call == Some(libc::SYS_futex) && address.is_some_and(is_lock)
    }

    /// Whether one of the loader's locks names this thread as its owner; also where that cannot be read.
    fn holds_a_lock(&self) -> bool {
        // A lock names its owner as the owner calls itself.
        let guard = guard(&ProcRoot::default(), self.place.pid, self.tid());
        let Some(own_tid) = guard.own_tid else { return true };
        self.place.loader.iter().any(|(start, end)| {
            let len = usize::try_from(end.saturating_sub(*start)).unwrap_or(CODE).min(CODE);
            let mut bytes = vec![0; len];
            match self.memory.file.read_exact_at(&mut bytes, *start) {
                Ok(()) => names(&bytes, own_tid),
                Err(_) => true,
            }
        })
    }

    /// Puts the thread back and lets it go on; returns for how long it was stopped.
    pub(super) fn finish(self) -> Result<Duration, AgentError> {
        if self.has_left()? {
            return Ok(self.tracee.leave());
        }
        self.tracee.release()
    }
}

/// Whether one of the words is this number.
fn names(bytes: &[u8], number: u32) -> bool {
    bytes.as_chunks().0.iter().any(|word| u32::from_le_bytes(*word) == number)
}

/// Without single-stepping, and with strings going upwards.
fn plain_flags(flags: u64) -> u64 {
    flags & !0x4_0500
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_names_its_owner() {
        // Lock, count, owner, users, kind: as a recursive mutex lies in memory.
        let mutex: Vec<u8> = [0, 1, 1, 4711, 1, 1_u32].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(names(&mutex, 4711));
        assert!(!names(&mutex, 4712));
        assert!(!names(&mutex[..12], 4711));
        assert!(!names(&[], 0));
    }
}
