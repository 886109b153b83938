//! One stopped thread: its state is kept when it stops, and given back before it goes on. All of it is done from the
//! thread that stopped it.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::error::AgentError;

/// Of the ELF notes, the one with vector registers.
const NT_X86_XSTATE: usize = 0x202;
/// More than any processor's.
const XSTATE: usize = 64 << 10;
/// How long a thread may take to stop. It runs all that time, where the machine is in full use.
const STOP: Duration = Duration::from_secs(2);
/// How long a thread that has not stopped yet is waited for, to be let go: the kernel does that to stopped ones only.
const LAST: Duration = Duration::from_mins(1);

/// Signals that an instruction raises: blocking them would cost the process its handlers.
const RAISED: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

pub(super) type Registers = libc::user_regs_struct;

/// Why a thread stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// At the entry or the exit of a system call.
    SystemCall,
    /// Asked to, or with its whole process.
    Event,
    /// An instruction failed.
    Fault(i32),
}

/// A thread that is stopped. It goes on as it was when this is dropped.
pub(super) struct Tracee {
    pid: u32,
    tid: u32,
    regs: Registers,
    xstate: Vec<u8>,
    mask: u64,
    /// Signals that came and are to be delivered afterwards.
    held: Vec<i32>,
    /// Stands at an exit from the kernel where registers can be given back.
    at_event: bool,
    gone: bool,
    since: Instant,
}

impl Tracee {
    /// Stops the thread, wherever it is.
    pub(super) fn stop(pid: u32, tid: u32) -> Result<Tracee, AgentError> {
        let since = Instant::now();
        request(libc::PTRACE_SEIZE, tid, 0, libc::PTRACE_O_TRACESYSGOOD as usize)
            .map_err(|errno| AgentError::Stop { tid, errno })?;
        // SAFETY: plain integers.
        let regs = unsafe { std::mem::zeroed() };
        let mut tracee = Tracee {
            pid,
            tid,
            regs,
            xstate: Vec::new(),
            mask: 0,
            held: Vec::new(),
            at_event: false,
            gone: false,
            since,
        };
        // From here on the thread is let go whatever happens: by `drop`, which needs what is read here.
        let kept = tracee.keep();
        if let Err(error) = kept {
            tracee.abandon();
            return Err(error);
        }
        Ok(tracee)
    }

    fn keep(&mut self) -> Result<(), AgentError> {
        self.interrupt()?;
        while self.wait(STOP)? != Halt::Event {
            self.resume(libc::PTRACE_CONT)?;
        }
        self.regs = self.registers()?;
        self.xstate = self.read_xstate()?;
        let address = &raw mut self.mask as usize;
        request(libc::PTRACE_GETSIGMASK, self.tid, 8, address).map_err(self.failed("GETSIGMASK"))?;
        self.at_event = true;
        Ok(())
    }

    pub(super) fn kept(&self) -> &Registers {
        &self.regs
    }

    /// What a frame needs for the thread's way back: vector state and signal mask.
    pub(super) fn kept_state(&self) -> (&[u8], u64) {
        (&self.xstate, self.mask)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn tid(&self) -> u32 {
        self.tid
    }

    /// Keeps signals away that would run the program's handlers in the middle of our calls.
    pub(super) fn block_signals(&self) -> Result<(), AgentError> {
        let raised = RAISED.iter().fold(0_u64, |mask, signal| mask | 1 << (signal - 1));
        self.set_mask(!raised)
    }

    fn set_mask(&self, mask: u64) -> Result<(), AgentError> {
        request(libc::PTRACE_SETSIGMASK, self.tid, 8, &raw const mask as usize)
            .map_err(self.failed("SETSIGMASK"))
    }

    pub(super) fn registers(&self) -> Result<Registers, AgentError> {
        // SAFETY: plain integers.
        let mut regs: Registers = unsafe { std::mem::zeroed() };
        request(libc::PTRACE_GETREGS, self.tid, 0, &raw mut regs as usize).map_err(self.failed("GETREGS"))?;
        Ok(regs)
    }

    pub(super) fn set_registers(&self, regs: &Registers) -> Result<(), AgentError> {
        request(libc::PTRACE_SETREGS, self.tid, 0, &raw const *regs as usize).map_err(self.failed("SETREGS"))
    }

    fn read_xstate(&self) -> Result<Vec<u8>, AgentError> {
        let mut bytes = vec![0_u8; XSTATE];
        let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        request(libc::PTRACE_GETREGSET, self.tid, NT_X86_XSTATE, &raw mut piece as usize)
            .map_err(self.failed("GETREGSET"))?;
        bytes.truncate(piece.iov_len);
        Ok(bytes)
    }

    fn write_xstate(&mut self) -> Result<(), AgentError> {
        let piece = libc::iovec { iov_base: self.xstate.as_mut_ptr().cast(), iov_len: self.xstate.len() };
        request(libc::PTRACE_SETREGSET, self.tid, NT_X86_XSTATE, &raw const piece as usize)
            .map_err(self.failed("SETREGSET"))
    }

    /// Lets it run to the next entry or exit of a system call.
    pub(super) fn run(&mut self, limit: Duration) -> Result<Halt, AgentError> {
        self.resume(libc::PTRACE_SYSCALL)?;
        self.wait(limit)
    }

    /// Lets it stop wherever it is, in a system call too.
    pub(super) fn interrupt(&self) -> Result<(), AgentError> {
        request(libc::PTRACE_INTERRUPT, self.tid, 0, 0).map_err(self.failed("INTERRUPT"))
    }

    fn resume(&mut self, how: libc::c_uint) -> Result<(), AgentError> {
        self.at_event = false;
        request(how, self.tid, 0, 0).map_err(self.failed("CONT"))
    }

    /// Lets it run until it is interrupted, or something happens.
    pub(super) fn go(&mut self) -> Result<(), AgentError> {
        self.resume(libc::PTRACE_CONT)
    }

    /// Waits until it stands; signals that came are kept for later.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<Halt, AgentError> {
        let begun = Instant::now();
        loop {
            if let Some(halt) = self.look(libc::PTRACE_SYSCALL)? {
                return Ok(halt);
            }
            let waited = begun.elapsed();
            if waited > limit {
                return Err(AgentError::Slow { what: "a stop", tid: self.tid });
            }
            pause(waited);
        }
    }

    /// Why it stands, if it does. After a signal, which is kept for later, it goes on in the way `how`.
    pub(super) fn look(&mut self, how: libc::c_uint) -> Result<Option<Halt>, AgentError> {
        loop {
            let mut status = 0;
            // SAFETY: `status` is written while the call lasts.
            let got =
                unsafe { libc::waitpid(self.tid as i32, &raw mut status, libc::__WALL | libc::WNOHANG) };
            if got < 0 && Errno::last() == Errno::EINTR {
                continue;
            }
            if got < 0 || (got > 0 && (libc::WIFEXITED(status) || libc::WIFSIGNALED(status))) {
                self.gone = true;
                return Err(AgentError::Gone { pid: self.pid });
            }
            if got == 0 {
                return Ok(None);
            }
            let signal = libc::WSTOPSIG(status);
            if signal == libc::SIGTRAP | 0x80 {
                return Ok(Some(Halt::SystemCall));
            }
            if status >> 16 == libc::PTRACE_EVENT_STOP {
                self.at_event = true;
                return Ok(Some(Halt::Event));
            }
            if RAISED.contains(&signal) && self.is_raised() {
                return Ok(Some(Halt::Fault(signal)));
            }
            self.held.push(signal);
            self.resume(how)?;
        }
    }

    /// Whether the signal that it stands at comes from an instruction of its own.
    fn is_raised(&self) -> bool {
        // SAFETY: plain integers and pointers that are not followed.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let read = request(libc::PTRACE_GETSIGINFO, self.tid, 0, &raw mut info as usize);
        read.is_ok() && info.si_code > 0
    }

    /// Gives everything back and lets it go on; returns for how long it was stopped.
    pub(super) fn release(mut self) -> Result<Duration, AgentError> {
        let result = self.give_back();
        let stopped = self.since.elapsed();
        if result.is_err() {
            self.abandon();
        }
        result.map(|()| stopped)
    }

    fn give_back(&mut self) -> Result<(), AgentError> {
        // Only on its way out of the kernel does the kernel look whether a system call is to be made again.
        if !self.at_event {
            self.interrupt()?;
            loop {
                self.resume(libc::PTRACE_CONT)?;
                if self.wait(STOP)? == Halt::Event {
                    break;
                }
            }
        }
        let mut regs = self.regs;
        again_if_cut_short(&mut regs);
        // The registers last: until then the thread's own way back is the one it takes if we die.
        self.set_mask(self.mask)?;
        self.write_xstate()?;
        self.set_registers(&regs)?;
        self.detach().map_err(self.failed("DETACH"))
    }

    /// Lets it go on as it stands: it is on a way of its own.
    pub(super) fn leave(mut self) -> Duration {
        let stopped = self.since.elapsed();
        self.abandon();
        stopped
    }

    fn detach(&mut self) -> Result<(), Errno> {
        request(libc::PTRACE_DETACH, self.tid, 0, 0)?;
        self.gone = true;
        for signal in self.held.drain(..) {
            // SAFETY: touches no memory.
            unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.tid, signal) };
        }
        Ok(())
    }

    /// Lets it go as it is: nothing was changed yet, or it is on a way of its own. One that was asked to stop and did not
    /// yet would stand still once it does.
    fn abandon(&mut self) {
        let begun = Instant::now();
        while !self.gone && self.detach().is_err() && begun.elapsed() < LAST {
            // These fail where it is gone, which the wait says too.
            let _ = self.interrupt();
            let _ = self.wait(STOP);
        }
        // What is left then is let go with our own thread.
        self.gone = true;
    }

    fn failed(&self, what: &'static str) -> impl Fn(Errno) -> AgentError + use<> {
        let (pid, tid) = (self.pid, self.tid);
        move |errno| match errno {
            Errno::ESRCH => AgentError::Gone { pid },
            errno => AgentError::Ptrace { what, tid, errno },
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.gone && self.give_back().is_err() {
            self.abandon();
        }
    }
}

/// Between two looks. Most waits are over within microseconds. Whoever yields to others instead is set back behind all
/// that run, where a machine is busy; whoever sleeps is woken before them.
pub(super) fn pause(waited: Duration) {
    if waited < Duration::from_micros(20) {
        std::hint::spin_loop();
    } else {
        std::thread::sleep(Duration::from_micros(if waited < Duration::from_millis(2) { 5 } else { 50 }));
    }
}

/// While this lives the calling thread is among the first to get a processor, and sleeps no longer than it asks for:
/// what it waits too long a stopped thread waits too.
pub(super) struct Haste {
    nice: libc::c_int,
    slack: libc::c_int,
}

impl Haste {
    pub(super) fn new() -> Haste {
        // SAFETY: these touch no memory, and concern the calling thread alone. Where they are refused, it is slower.
        unsafe {
            let haste = Haste {
                nice: libc::getpriority(libc::PRIO_PROCESS, 0),
                slack: libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0),
            };
            libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
            haste
        }
    }
}

impl Drop for Haste {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe {
            libc::setpriority(libc::PRIO_PROCESS, 0, self.nice);
            libc::prctl(libc::PR_SET_TIMERSLACK, self.slack.max(1), 0, 0, 0);
        }
    }
}

/// Calls that end with EINTR whenever their thread stops, and are simply made again. The kernel makes all others
/// again by itself.
fn again_if_cut_short(regs: &mut Registers) {
    let call = regs.orig_rax as i64;
    let never_restarted = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
    if never_restarted.contains(&call) && regs.rax as i64 == -i64::from(libc::EINTR) {
        regs.rax = regs.orig_rax;
        regs.rip = regs.rip.wrapping_sub(2);
        regs.orig_rax = u64::MAX;
    }
}

fn request(what: libc::c_uint, tid: u32, address: usize, data: usize) -> Result<(), Errno> {
    // SAFETY: callers pass the address of a variable of the type that the request wants, which outlives the call.
    let result = unsafe { libc::ptrace(what, tid as libc::pid_t, address, data) };
    Errno::result(result).map(drop)
}
