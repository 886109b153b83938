//! Unwinding of user stacks and names for addresses.

use crate::probes::event::{RawStack, Registers};
use crate::trace::record::{Frame, Stack};

/// Turns addresses of processes and of the kernel into named stacks.
#[derive(Debug, Default)]
pub struct Symbolizer {
    unresolved_frames: u64,
    truncated_stacks: u64,
}

impl Symbolizer {
    pub fn new() -> Symbolizer {
        Symbolizer::default()
    }

    /// Reads the mappings of `pid` and opens the files behind them, while the process still exists.
    pub fn add_process(&mut self, pid: u32) {
        let _ = pid;
    }

    /// `pid` runs another program now: what is known of its mappings is dropped.
    pub fn exec(&mut self, pid: u32) {
        let _ = pid;
    }

    /// No more stacks of `pid` will come.
    pub fn forget(&mut self, pid: u32) {
        let _ = pid;
    }

    /// Unwinds and names a stack that the kernel sent; keeps its id.
    pub fn stack(&mut self, raw: &RawStack) -> Stack {
        let frames = raw.frames.iter().map(|&offset| Frame { offset, ..Frame::default() }).collect();
        self.unresolved_frames += raw.frames.len() as u64;
        Stack { id: raw.id, space: raw.space(), frames, truncated: true }
    }

    /// The stack of a thread that is blocked now. `None` where it has woken or is gone.
    pub fn live_stack(&mut self, pid: u32, tid: u32, regs: Registers) -> Option<Stack> {
        let _ = (pid, tid, regs);
        None
    }

    /// Frames without a name so far.
    pub fn unresolved_frames(&self) -> u64 {
        self.unresolved_frames
    }

    /// Stacks so far whose outermost frame is not the thread's start.
    pub fn truncated_stacks(&self) -> u64 {
        self.truncated_stacks
    }
}
