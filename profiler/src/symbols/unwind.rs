//! Walks a user stack: by call frame information as far as it leads, then along the frames that the
//! kernel found by frame pointers.

use std::sync::Arc;

use super::cfi::{Row, Rule};
use super::registers::{Memory, RETURN, RegisterFile, Step, frame_record};
use crate::probes::event::Registers;

/// Frames of one stack at most.
pub(super) const MAX_FRAMES: usize = 256;

/// A program counter of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pc {
    pub address: u64,
    /// It was left by a call: the call is the instruction before, and may be the last one of its function.
    pub after_call: bool,
}

impl Pc {
    pub(super) fn after_call(address: u64) -> Pc {
        Pc { address, after_call: true }
    }

    pub(super) fn exact(address: u64) -> Pc {
        Pc { address, after_call: false }
    }

    /// The address to look things up by.
    pub(super) fn site(self) -> u64 {
        if self.after_call { self.address.saturating_sub(1) } else { self.address }
    }
}

/// What is known of a code address.
#[derive(Clone, Debug)]
pub(super) enum Code {
    Rules(Arc<Row>),
    /// Executable, without call frame information.
    Bare,
    /// Not executable memory of the process.
    Unmapped,
}

/// The executable memory of a process.
pub(super) trait AddressSpace {
    fn code(&mut self, address: u64) -> Code;

    fn is_code(&mut self, address: u64) -> bool {
        !matches!(self.code(address), Code::Unmapped)
    }

    /// Whether the rules say that `address` has no caller.
    fn is_outermost(&mut self, address: u64) -> bool {
        match self.code(address) {
            Code::Rules(row) => matches!(row.rule(RETURN), Some(Rule::Undefined)),
            Code::Bare | Code::Unmapped => false,
        }
    }
}

/// A walk, innermost frame first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    pub frames: Vec<Pc>,
    /// The outermost frame is where the thread starts.
    pub complete: bool,
    /// Stack pointer of the outermost frame that was reached.
    pub stack_pointer: u64,
}

/// Memory from `base` upward, as copied by the kernel.
pub(super) struct Snippet<'a> {
    pub base: u64,
    pub bytes: &'a [u8],
}

impl Snippet<'_> {
    fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.base).is_some_and(|offset| offset < self.bytes.len() as u64)
    }
}

impl Memory for Snippet<'_> {
    fn read(&mut self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.base)?).ok()?;
        super::source::u64_at(self.bytes, offset)
    }
}

/// Unwinds from `registers` as far as rules and memory lead.
pub(super) fn walk(space: &mut impl AddressSpace, registers: Registers, memory: &mut impl Memory) -> Walk {
    let mut file = RegisterFile::new(registers);
    let mut walk = Walk::default();
    let mut pc = Pc::exact(registers.ip);
    while walk.frames.len() < MAX_FRAMES {
        let code = space.code(pc.site());
        if matches!(code, Code::Unmapped) && !walk.frames.is_empty() {
            break;
        }
        let first = walk.frames.is_empty();
        walk.frames.push(pc);
        walk.stack_pointer = file.stack_pointer();
        let next = match code {
            Code::Rules(row) => match file.step(&row, first, memory) {
                // A signal interrupts anywhere: what it returns to is not behind a call.
                Step::Caller(address) if row.signal => Some(Pc::exact(address)),
                Step::Caller(address) => Some(Pc::after_call(address)),
                Step::Outermost => {
                    walk.complete = true;
                    None
                }
                Step::Lost => None,
            },
            Code::Bare | Code::Unmapped => file.step_by_frame_pointer(memory).map(Pc::after_call),
        };
        match next {
            Some(next) => pc = next,
            None => break,
        }
    }
    walk
}

/// Continues a walk that ended early with the kernel's frames (`kernel[0]` is the program counter itself,
/// the others are return addresses).
///
/// The kernel's frames lack functions that keep no frame pointer, but reach beyond the snippet. They are
/// joined on at the outermost address that both walks have; where they share none, by the place of their
/// frame records: those above the stack pointer that the walk reached are callers.
pub(super) fn splice(
    space: &mut impl AddressSpace,
    mut walk: Walk,
    kernel: &[u64],
    registers: Registers,
    snippet: &mut Snippet<'_>,
) -> Walk {
    if walk.complete {
        return walk;
    }
    let rest = match shared_address(&walk, kernel) {
        Some(index) => kernel.get(index + 1..),
        None => first_beyond(&walk, kernel, registers, snippet).and_then(|index| kernel.get(index..)),
    };
    for &address in rest.unwrap_or_default() {
        let pc = Pc::after_call(address);
        if walk.frames.len() >= MAX_FRAMES || !space.is_code(pc.site()) {
            return walk;
        }
        walk.frames.push(pc);
    }
    walk.complete = walk.frames.last().is_some_and(|pc| space.is_outermost(pc.site()));
    walk
}

/// A stack of which only the kernel's frames are known.
pub(super) fn kernel_frames(space: &mut impl AddressSpace, kernel: &[u64], has_code: bool) -> Walk {
    let mut walk = Walk::default();
    for (index, &address) in kernel.iter().take(MAX_FRAMES).enumerate() {
        let pc = if index == 0 { Pc::exact(address) } else { Pc::after_call(address) };
        // A frame pointer register that held something else leads to nonsense from there on.
        if index > 0 && has_code && !space.is_code(pc.site()) {
            return walk;
        }
        walk.frames.push(pc);
    }
    walk.complete = walk.frames.last().is_some_and(|pc| space.is_outermost(pc.site()));
    walk
}

/// Index in `kernel` of the outermost frame of `walk` that is there too.
fn shared_address(walk: &Walk, kernel: &[u64]) -> Option<usize> {
    walk.frames.iter().rev().find_map(|pc| kernel.iter().rposition(|&address| address == pc.address))
}

/// Index in `kernel` of the first frame whose record lies above what the walk reached. `None` where the
/// kernel's frames are not those that the frame pointer register leads to.
fn first_beyond(
    walk: &Walk,
    kernel: &[u64],
    registers: Registers,
    snippet: &mut Snippet<'_>,
) -> Option<usize> {
    let mut pointer = registers.bp;
    for index in 1..kernel.len() {
        if pointer < registers.sp {
            return None;
        }
        let return_slot = pointer.checked_add(8)?;
        if !snippet.contains(return_slot) {
            return Some(index);
        }
        let (caller, address) = frame_record(pointer, snippet)?;
        if kernel.get(index) != Some(&address) {
            return None;
        }
        if return_slot >= walk.stack_pointer {
            return Some(index);
        }
        pointer = caller;
    }
    None
}
