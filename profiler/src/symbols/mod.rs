//! Unwinding of user stacks and names for addresses.
//!
//! User stacks are unwound by the call frame information of the modules that a process maps, so that
//! programs without frame pointers show; the kernel's walk by frame pointers continues where that ends.
//! Memory, files and tables of the target are hostile input: everything read from them is bounded.
//!
//! Resident memory is bounded by the limits in `files` (indexes 24 MiB in all, names, unwind rows) and
//! `modules` (processes, mappings); no file is mapped or read as a whole. A Python process costs about
//! 1 MiB, the kernel's symbols 5 MiB.

mod cache;
mod cfi;
mod debug_file;
#[cfg(test)]
mod debug_tests;
mod decisive;
mod demangle;
mod dwarf;
mod elf;
mod file;
mod files;
pub mod functions;
mod kernel;
mod live;
#[cfg(test)]
mod live_tests;
mod maps;
mod memory;
mod mini;
mod modules;
mod names;
mod perf_map;
pub mod python;
mod registers;
mod sections;
mod source;
mod unwind;
mod vdso;

use std::hash::{DefaultHasher, Hash, Hasher};

use profiler_common::record::STACK_FRAMES;

pub use self::decisive::KnownStack;
use self::kernel::Kernel;
use self::modules::Modules;
use self::unwind::{Pc, Snippet, Walk};
use crate::probes::event::{RawStack, Registers};
use crate::trace::record::{Frame, Space, Stack};

/// A user stack before its frames have names. Two that are equal read the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unwound {
    pid: u32,
    frames: Vec<Pc>,
    complete: bool,
}

impl Unwound {
    /// Whose stack it is.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// Turns addresses of processes and of the kernel into named stacks.
#[derive(Default)]
pub struct Symbolizer {
    modules: Modules,
    kernel: Kernel,
    unresolved_frames: u64,
    truncated_stacks: u64,
}

impl Symbolizer {
    pub fn new() -> Symbolizer {
        Symbolizer::default()
    }

    /// Reads the mappings of `pid` and opens the files behind them, while the process still exists.
    pub fn add_process(&mut self, pid: u32) {
        self.modules.add(pid);
    }

    /// `pid` runs another program now: what is known of its mappings is dropped.
    pub fn exec(&mut self, pid: u32) {
        self.modules.exec(pid);
    }

    /// No more stacks of `pid` will come.
    pub fn forget(&mut self, pid: u32) {
        self.modules.forget(pid);
    }

    /// Unwinds and names a stack that the kernel sent; keeps its id.
    pub fn stack(&mut self, raw: &RawStack) -> Stack {
        if raw.kernel {
            return self.kernel_stack(raw);
        }
        let (unwound, _) = self.unwind(raw);
        self.name(raw.id, &unwound)
    }

    /// Unwinds a user stack, which is quick compared to finding the names; and says by what the kernel would know
    /// it again, where that can be said.
    pub fn unwind(&mut self, raw: &RawStack) -> (Unwound, Option<KnownStack>) {
        let mut space = self.modules.space(raw.pid);
        let (walk, known) = if raw.regs.ip == 0 || raw.snippet.is_empty() {
            let has_code = space.is_known();
            (unwind::kernel_frames(&mut space, &raw.frames, has_code), None)
        } else {
            let mut snippet = Snippet { base: raw.regs.sp, bytes: &raw.snippet };
            let walk = unwind::walk(&mut space, raw.regs, &mut snippet);
            let walk = unwind::splice(&mut space, walk, &raw.frames, raw.regs, &mut snippet);
            let known = walk.decisive.shape(raw);
            (walk, known)
        };
        (Unwound { pid: raw.pid, frames: walk.frames, complete: walk.complete }, known)
    }

    /// Names the frames of a user stack.
    pub fn name(&mut self, id: u64, unwound: &Unwound) -> Stack {
        let mut space = self.modules.space(unwound.pid);
        let (frames, cut) = named(&mut space, &unwound.frames);
        self.finish(Stack { id, space: Space::User, frames, truncated: cut || !unwound.complete })
    }

    /// The stack of a thread that is blocked now, with an id of its own. `None` where it has woken or is
    /// gone: its memory is read while it is not stopped, and the result is thrown away if it moved.
    ///
    /// With all registers 0 they are taken from `/proc/PID/task/TID/syscall`.
    pub fn live_stack(&mut self, pid: u32, tid: u32, regs: Registers) -> Option<Stack> {
        let mut space = self.modules.space(pid);
        let walk = live::walk(&mut space, pid, tid, regs)?;
        let (frames, cut) = named(&mut space, &walk.frames);
        let id = live_id(&walk, &frames);
        Some(self.finish(Stack { id, space: Space::User, frames, truncated: cut || !walk.complete }))
    }

    /// Frames without a name so far.
    pub fn unresolved_frames(&self) -> u64 {
        self.unresolved_frames
    }

    /// Names of files that processes have mapped, in whose place the disk has another file or none, and that cannot be
    /// read any more: their functions have no names, and nothing is read from the wrong file.
    pub fn replaced_files(&self) -> impl Iterator<Item = &str> {
        self.modules.replaced()
    }

    /// Stacks so far whose outermost frame is not the thread's start.
    pub fn truncated_stacks(&self) -> u64 {
        self.truncated_stacks
    }

    fn kernel_stack(&mut self, raw: &RawStack) -> Stack {
        let pcs =
            raw.frames.iter().enumerate().map(|(index, &address)| {
                if index == 0 { Pc::exact(address) } else { Pc::after_call(address) }
            });
        let frames = pcs.map(|pc| self.kernel.frame(pc.site())).collect();
        let truncated = raw.frames.len() >= STACK_FRAMES;
        self.finish(Stack { id: raw.id, space: Space::Kernel, frames, truncated })
    }

    fn finish(&mut self, stack: Stack) -> Stack {
        self.unresolved_frames +=
            stack.frames.iter().filter(|frame| frame.function.is_empty()).count() as u64;
        self.truncated_stacks += u64::from(stack.truncated);
        stack
    }
}

/// A symbol for people: demangled, where it is mangled.
pub fn demangle_function(symbol: &str) -> String {
    demangle::demangle(symbol.as_bytes())
}

/// Longest stack that is written, inlined functions included.
const MAX_NAMED: usize = 4 * unwind::MAX_FRAMES;

/// The frames of a walk, and whether some were left out.
fn named(space: &mut modules::Space<'_>, walk: &[Pc]) -> (Vec<Frame>, bool) {
    let mut frames = Vec::with_capacity(walk.len());
    for pc in walk {
        frames.extend(space.frames(pc.site()));
        if frames.len() > MAX_NAMED {
            frames.truncate(MAX_NAMED);
            return (frames, true);
        }
    }
    (frames, false)
}

/// Equal for stacks that read the same, and never 0.
fn live_id(walk: &Walk, frames: &[Frame]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (walk.complete, frames).hash(&mut hasher);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn can_move_to_its_own_thread() {
        fn is_send<T: Send>(_: &T) {}
        is_send(&Symbolizer::new());
    }

    #[test]
    fn stacks_of_unknown_processes_keep_their_addresses() {
        let mut symbolizer = Symbolizer::new();
        // Above the largest id that Linux gives.
        let raw = RawStack { id: 9, pid: 1 << 30, frames: vec![0x1111, 0x2222], ..RawStack::default() };
        let stack = symbolizer.stack(&raw);
        let offsets: Vec<_> = stack.frames.iter().map(|frame| frame.offset).collect();
        assert_eq!((stack.id, stack.truncated, offsets), (9, true, vec![0x1111, 0x2221]));
        assert_eq!((symbolizer.unresolved_frames(), symbolizer.truncated_stacks()), (2, 1));
    }
}
