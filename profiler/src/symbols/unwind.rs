//! Walks a user stack: by call frame information as far as it leads, then along the frames that the
//! kernel found by frame pointers.

use std::sync::Arc;

use super::cfi::{Cfa, Row, Rule};
use super::registers::{FRAME_POINTER, Memory, RETURN, RegisterFile, Step, frame_record};
use crate::probes::event::Registers;

/// Frames of one stack at most.
pub(super) const MAX_FRAMES: usize = 256;

/// Words of stack that are looked through for a frame: 64 KiB.
const MAX_SCAN: u64 = 8192;
/// Return addresses among them from which a walk is tried.
const MAX_TRIALS: u32 = 64;

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

    /// Whether the instruction before `address` is a call.
    fn follows_call(&mut self, address: u64) -> bool;

    /// Whether the rules say that `address` has no caller.
    fn is_outermost(&mut self, address: u64) -> bool {
        match self.code(address) {
            Code::Rules(row) => matches!(row.rule(RETURN), Some(Rule::Undefined)),
            Code::Bare | Code::Unmapped => false,
        }
    }
}

impl Row {
    /// Where the frame's upper end lies from the frame pointer, for frames that are found by it.
    fn frame_pointer_offset(&self) -> Option<u64> {
        match self.cfa {
            Cfa::Register(FRAME_POINTER, offset) => u64::try_from(offset).ok(),
            _ => None,
        }
    }

    fn needs_frame_pointer(&self) -> bool {
        self.frame_pointer_offset().is_some()
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
    let mut walker =
        Walker { file: RegisterFile::new(registers), pc: Pc::exact(registers.ip), walk: Walk::default() };
    while let Some(row) = walker.advance(space, memory) {
        if !walker.find_frame_pointer(&row, space, memory) {
            break;
        }
    }
    walker.walk
}

/// A walk that is under way.
#[derive(Clone)]
struct Walker {
    file: RegisterFile,
    pc: Pc,
    walk: Walk,
}

impl Walker {
    /// Walks to the end, or to a frame that cannot be left without the frame pointer, whose value is not
    /// known; returns that frame's rules then.
    fn advance(&mut self, space: &mut impl AddressSpace, memory: &mut impl Memory) -> Option<Arc<Row>> {
        while self.walk.frames.len() < MAX_FRAMES {
            let code = space.code(self.pc.site());
            let first = self.walk.frames.is_empty();
            if matches!(code, Code::Unmapped) && !first {
                break;
            }
            self.walk.frames.push(self.pc);
            self.walk.stack_pointer = self.file.stack_pointer();
            self.pc = match code {
                Code::Rules(row) => match self.file.step(&row, first, memory) {
                    // A signal interrupts anywhere: what it returns to is not behind a call.
                    Step::Caller(address) if row.signal => Pc::exact(address),
                    Step::Caller(address) => Pc::after_call(address),
                    Step::Outermost => {
                        self.walk.complete = true;
                        return None;
                    }
                    Step::Lost => {
                        return (row.needs_frame_pointer() && self.file.frame_pointer().is_none())
                            .then_some(row);
                    }
                },
                Code::Bare | Code::Unmapped => Pc::after_call(self.file.step_by_frame_pointer(memory)?),
            };
        }
        None
    }

    /// Looks for the frame of a function that is found by the frame pointer only, in the stack above: at
    /// the lowest place from which the rest of the walk leads to the thread's start. `/proc` tells the
    /// program counter and the stack pointer of a blocked thread, no other register.
    ///
    /// On success the walk stands before that frame again, and the frame pointer is known.
    fn find_frame_pointer(
        &mut self,
        row: &Row,
        space: &mut impl AddressSpace,
        memory: &mut impl Memory,
    ) -> bool {
        let Some(offset) = row.frame_pointer_offset() else { return false };
        let mut tried = 0;
        for slot in 0..MAX_SCAN {
            // The return address lies just below the frame's upper end.
            let Some(place) = self.file.stack_pointer().checked_add(slot * 8) else { return false };
            let Some(address) = memory.read(place) else { return false };
            if !space.follows_call(address) {
                continue;
            }
            let Some(pointer) = place.checked_add(8).and_then(|end| end.checked_sub(offset)) else {
                continue;
            };
            let mut trial = self.clone();
            trial.retry_with(pointer);
            let _ = trial.advance(space, memory);
            if trial.walk.complete {
                self.retry_with(pointer);
                return true;
            }
            tried += 1;
            if tried >= MAX_TRIALS {
                return false;
            }
        }
        false
    }

    fn retry_with(&mut self, pointer: u64) {
        self.walk.frames.pop();
        self.file.set_frame_pointer(Some(pointer));
    }
}

/// Continues a walk that ended early with the kernel's frames (`kernel[0]` is the program counter itself,
/// the others are return addresses).
///
/// The kernel's frames lack functions that keep no frame pointer, but reach beyond the snippet. They are
/// joined on by the place of their frame records: those above the stack pointer that the walk reached are
/// its callers. Where these places cannot be told, behind the outermost address that both walks have.
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
    let beyond = first_beyond(&walk, kernel, registers, snippet);
    let index = beyond.or_else(|| shared_address(&walk, kernel).map(|index| index + 1));
    let rest = index.and_then(|index| kernel.get(index..));
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
