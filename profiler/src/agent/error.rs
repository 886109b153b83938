//! Why a process has no agent. Each says what the target was left like: as it was.

use std::io;

use nix::errno::Errno;

use super::seccomp::Objection;
use crate::target::ReadError;

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("process {pid} does not use CUDA")]
    NoCuda { pid: u32 },
    #[error("this program was built without the agent (`cargo xtask build` makes it)")]
    NotBuilt,
    #[error("the agent exists for x86-64 only")]
    Architecture,
    #[error("process {pid} runs on musl; the agent needs glibc")]
    Musl { pid: u32 },
    #[error("process {pid} is a 32-bit program")]
    Bits { pid: u32 },
    #[error("process {pid} cannot be entered: {objection}")]
    Seccomp { pid: u32, objection: Objection },
    #[error("process {pid} is traced by process {tracer} already")]
    Traced { pid: u32, tracer: u32 },
    #[error(
        "kernel.yama.ptrace_scope is 3 on this machine: no process may be entered (it can be changed by a restart only)"
    )]
    Yama,
    #[error("process {pid} is a fork of a process that is recorded; CUDA cannot be used in it")]
    Forked { pid: u32 },
    #[error("process {pid} has no `{function}` in its libc")]
    Function { pid: u32, function: &'static str },
    #[error(
        "no libcupti for process {pid}: install the wheel nvidia-cuda-cupti-cu12 (CUDA 12) or nvidia-cuda-cupti (CUDA 13), or the toolkit's"
    )]
    NoCupti { pid: u32 },
    #[error(
        "no thread of process {pid} was at a place where it can be stopped without harm, in {tries} looks"
    )]
    NoSafePoint { pid: u32, tries: u32 },
    #[error("thread {tid} cannot be stopped: {errno}{}", permission(*errno))]
    Stop { tid: u32, errno: Errno },
    #[error("ptrace {what} of thread {tid}: {errno}")]
    Ptrace { what: &'static str, tid: u32, errno: Errno },
    #[error("thread {tid} did not get to the end of {what} in time; it was put back")]
    Slow { what: &'static str, tid: u32 },
    #[error("{what} failed in process {pid}: {errno}")]
    Call { what: &'static str, pid: u32, errno: Errno },
    #[error("another recorder has the agent in process {pid}")]
    Busy { pid: u32 },
    #[error("the agent in process {pid} did not start (code {code})")]
    Start { pid: u32, code: i64 },
    #[error("memory of process {pid}: {source}")]
    Memory { pid: u32, source: io::Error },
    #[error("process {pid} ended meanwhile")]
    Gone { pid: u32 },
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Who may refuse a stop.
fn permission(errno: Errno) -> &'static str {
    if errno == Errno::EPERM {
        " (another debugger has it, or kernel.yama.ptrace_scope or its user namespace asks for CAP_SYS_PTRACE)"
    } else {
        ""
    }
}
