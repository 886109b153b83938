//! Calls made in a stopped thread, on a stack of their own, so that nothing of the thread's is touched.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::check::Place;
use super::error::AgentError;
use super::tracee::{Halt, Registers, Tracee};

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

    /// Address of a `syscall` instruction in executable memory.
    pub(super) fn find_syscall(&self, (start, end): (u64, u64)) -> Result<u64, AgentError> {
        let len = usize::try_from(end.saturating_sub(start)).unwrap_or(CODE).min(CODE);
        let mut bytes = vec![0; len];
        let read = self.file.read_at(&mut bytes, start);
        bytes.truncate(read.map_err(|source| AgentError::Memory { pid: self.pid, source })?);
        let at = bytes.windows(2).position(|pair| pair == [0x0f, 0x05]);
        at.map(|at| start + at as u64).ok_or(AgentError::Function { pid: self.pid, function: "syscall" })
    }
}

/// A stopped thread in which calls can be made.
pub(super) struct Remote<'a> {
    place: &'a Place,
    memory: &'a Memory,
    tracee: Tracee,
    gadget: u64,
    /// Lowest address of our stack.
    stack: u64,
}

impl<'a> Remote<'a> {
    pub(super) fn new(
        place: &'a Place,
        memory: &'a Memory,
        tracee: Tracee,
        gadget: u64,
    ) -> Result<Remote<'a>, AgentError> {
        tracee.block_signals()?;
        let mut remote = Remote { place, memory, tracee, gadget, stack: 0 };
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        remote.stack =
            remote.system_call("mmap", libc::SYS_mmap, [0, STACK, protection, flags, u64::MAX, 0])?;
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
    /// not made.
    pub(super) fn call(
        &mut self,
        what: &'static str,
        function: u64,
        (first, second): (u64, u64),
    ) -> Result<u64, AgentError> {
        let top = self.data() - 256;
        // As after a call instruction: the return address, and the stack aligned above it.
        let rsp = (top & !15) - 8;
        self.memory.write(rsp, &self.gadget.to_le_bytes())?;
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
            if entering && regs.rip == self.gadget + 2 && regs.rsp == rsp + 8 {
                let result = regs.orig_rax;
                self.tracee.set_registers(&Registers { orig_rax: u64::MAX, ..regs })?;
                self.tracee.run(QUICK)?;
                return Ok(result);
            }
            entering = !entering;
        }
    }

    /// The call takes long. While it waits for the loader's lock nothing has happened yet, and it can be taken back.
    fn wait_on(&mut self, what: &'static str, begun: Instant) -> Result<(), AgentError> {
        loop {
            if self.waits_for_the_loader() || begun.elapsed() > LIMIT {
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

    /// Takes our stack away and lets the thread go on; returns for how long it was stopped.
    pub(super) fn finish(mut self) -> Result<Duration, AgentError> {
        let _ = self.system_call("munmap", libc::SYS_munmap, [self.stack, STACK, 0, 0, 0, 0]);
        self.tracee.release()
    }
}

/// Without single-stepping, and with strings going upwards.
fn plain_flags(flags: u64) -> u64 {
    flags & !0x4_0500
}
