//! Calls made in a stopped thread, on a stack of their own, so that nothing of the thread's is touched.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::check::Place;
use super::error::AgentError;
use super::tracee::{Halt, Registers, Tracee};
use super::way_back::{SIGRETURN, WayBack};

/// Bytes of the stack; loading a library takes a few thousand.
const STACK: u64 = 256 << 10;
/// For what the calls read, below the stack's top.
pub(super) const DATA: u64 = 16 << 10;
/// A system call of ours.
const QUICK: Duration = Duration::from_secs(2);
/// When a call that takes this long is waiting for the loader's lock, it is taken back.
const PATIENCE: Duration = Duration::from_millis(50);
/// When a call that takes this long is taken back whatever it does.
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
    /// Lowest address of our stack.
    stack: u64,
    /// The thread as it calls itself: what a lock that it holds names as its owner.
    own_tid: u32,
}

impl<'a> Remote<'a> {
    pub(super) fn new(
        place: &'a Place,
        memory: &'a Memory,
        tracee: Tracee,
        gadget: u64,
        way_back: WayBack,
    ) -> Result<Remote<'a>, AgentError> {
        memory.write(way_back.state_at, &way_back.state)?;
        memory.write(way_back.frame_at, &way_back.frame)?;
        let mut remote = Remote { place, memory, tracee, gadget, way_back, stack: 0, own_tid: 0 };
        remote.tracee.set_registers(&Registers {
            rip: gadget,
            rsp: remote.way_back.frame_at,
            rax: u64::MAX,
            orig_rax: u64::MAX,
            ..*remote.tracee.kept()
        })?;
        remote.tracee.block_signals()?;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        remote.stack =
            remote.system_call("mmap", libc::SYS_mmap, [0, STACK, protection, flags, u64::MAX, 0])?;
        remote.own_tid = remote.system_call("gettid", libc::SYS_gettid, [0; 6])? as u32;
        Ok(remote)
    }

    /// Where data for calls can lie, [`DATA`] bytes.
    pub(super) fn data(&self) -> u64 {
        self.stack + STACK - DATA
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

    /// Calls a function and returns what it returns. It comes back at a `syscall` instruction, whose system call is
    /// not made. (Without us it is: its number is then the result, which is a pointer, never null, or a `START_*`:
    /// no such call.)
    pub(super) fn call(
        &mut self,
        what: &'static str,
        function: u64,
        args: (u64, u64),
    ) -> Result<u64, AgentError> {
        let rsp = self.call_stack();
        self.memory.write(rsp, &self.gadget.to_le_bytes())?;
        self.memory.write(rsp + 8, &self.way_back.frame)?;
        let at = self.run_call(what, function, args, self.gadget + 2)?;
        self.tracee.set_registers(&Registers { orig_rax: u64::MAX, ..at })?;
        self.tracee.run(QUICK)?;
        Ok(at.orig_rax)
    }

    /// Calls a function whose result may be null, or any number, and is not wanted: it returns right into libc's return
    /// from a signal handler, so that without us no system call is made of its result.
    pub(super) fn call_blindly(
        &mut self,
        what: &'static str,
        function: u64,
        args: (u64, u64),
    ) -> Result<(), AgentError> {
        let rsp = self.call_stack();
        let sigreturn = u64::from_le_bytes(self.memory.read(self.way_back.frame_at)?);
        self.memory.write(rsp, &self.way_back.frame)?;
        let at = self.run_call(what, function, args, sigreturn + SIGRETURN.len() as u64)?;
        // Behind that instruction there is nothing: on by the other way, which ends there too.
        self.tracee.set_registers(&Registers { orig_rax: u64::MAX, rip: self.gadget + 2, rsp, ..at })?;
        self.tracee.run(QUICK)?;
        Ok(())
    }

    /// Where the return address of a call goes: as after a call instruction, the stack is aligned above it.
    fn call_stack(&self) -> u64 {
        ((self.data() - 1024) & !15) - 8
    }

    /// Runs a function until it has returned and stands at the entry of a system call at `end`; the registers there.
    fn run_call(
        &mut self,
        what: &'static str,
        function: u64,
        (first, second): (u64, u64),
        end: u64,
    ) -> Result<Registers, AgentError> {
        let rsp = self.call_stack();
        let regs = Registers {
            rip: function,
            rsp,
            rbp: 0,
            rax: 0,
            orig_rax: u64::MAX,
            rdi: first,
            rsi: second,
            eflags: plain_flags(self.tracee.kept().eflags),
            ..*self.tracee.kept()
        };
        self.tracee.set_registers(&regs)?;
        let begun = Instant::now();
        let mut entering = true;
        loop {
            match self.tracee.run(PATIENCE) {
                Ok(Halt::SystemCall) => {}
                Ok(Halt::Event) => continue,
                Ok(Halt::Fault(_)) => return Err(AgentError::Slow { what, tid: self.tracee.tid() }),
                Err(error @ AgentError::Slow { .. }) => {
                    drop(error);
                    self.wait_on(what, begun)?;
                }
                Err(error) => return Err(error),
            }
            let regs = self.tracee.registers()?;
            if entering && regs.rip == end && regs.rsp == rsp + 8 {
                return Ok(regs);
            }
            entering = !entering;
        }
    }

    /// The call takes long. While it waits for the loader's first lock nothing has happened yet, and it can be taken back. As
    /// soon as it holds one it is waited for, however long that is: a lock without its holder would stop the program for good.
    fn wait_on(&mut self, what: &'static str, begun: Instant) -> Result<(), AgentError> {
        loop {
            let is_due = self.waits_for_the_loader() || begun.elapsed() > LIMIT;
            if is_due && !self.holds_a_lock() {
                // Out of the system call it waits in: to its exit, and on to where registers can be given back.
                self.tracee.interrupt()?;
                self.tracee.wait(QUICK)?;
                return Err(AgentError::Slow { what, tid: self.tracee.tid() });
            }
            match self.tracee.wait(PATIENCE) {
                Ok(_) => return Ok(()),
                Err(AgentError::Slow { .. }) => {}
                Err(error) => return Err(error),
            }
        }
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
        self.place.loader.iter().any(|(start, end)| {
            let len = usize::try_from(end.saturating_sub(*start)).unwrap_or(CODE).min(CODE);
            let mut bytes = vec![0; len];
            match self.memory.file.read_exact_at(&mut bytes, *start) {
                Ok(()) => names(&bytes, self.own_tid),
                Err(_) => true,
            }
        })
    }

    /// Takes our stack away and lets the thread go on; returns for how long it was stopped.
    pub(super) fn finish(mut self) -> Result<Duration, AgentError> {
        // The thread is let go all the same; what stays mapped is 256 KB.
        let _ = self.system_call("munmap", libc::SYS_munmap, [self.stack, STACK, 0, 0, 0, 0]);
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
