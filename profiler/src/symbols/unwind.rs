//! Walks a user stack: by call frame information as far as it leads, then along the frames that the
//! kernel found by frame pointers.

use std::sync::Arc;

use super::cfi::{Cfa, Row, Rule};
use super::decisive::{Decisive, Origin};
use super::registers::{FRAME_POINTER, Memory, RETURN, RegisterFile, Step, frame_record};
use crate::probes::event::Registers;

/// Frames of one stack at most.
pub(super) const MAX_FRAMES: usize = 256;

/// Words of stack that are looked through for a frame: 64 KiB.
const MAX_SCAN: u64 = 8192;
/// Return addresses among them from which a walk is tried.
const MAX_TRIALS: u32 = 64;
/// Words that are looked through for a return address of code without rules: such functions have small frames.
const MAX_BARE_SCAN: u64 = 128;
/// Guesses about code without rules in one walk.
const MAX_BARE: u32 = 32;

/// A program counter of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// Whether a program starts there.
    fn is_start(&mut self, _address: u64) -> bool {
        false
    }

    /// Whether the rules say that `address` has no caller.
    fn is_outermost(&mut self, address: u64) -> bool {
        match self.code(address) {
            Code::Rules(row) => matches!(row.rule(RETURN), Some(Rule::Undefined)),
            Code::Bare => self.is_start(address),
            Code::Unmapped => false,
        }
    }
}

impl Row {
    fn needs_frame_pointer(&self) -> bool {
        match self.cfa {
            Cfa::Register(register, _) => register == FRAME_POINTER,
            // Realigned frames: the expression begins with the frame pointer.
            Cfa::Expression(_) => true,
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
    /// What decided about the frames.
    pub decisive: Decisive,
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
    let mut walker = Walker {
        bare: 0,
        file: RegisterFile::new(registers),
        pc: Pc::exact(registers.ip),
        walk: Walk::default(),
    };
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
    /// Guesses behind code without rules so far, which are made within each other.
    bare: u32,
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
                Code::Rules(row) => match self.file.step(&row, first, memory, &mut self.walk.decisive) {
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
                Code::Bare if space.is_start(self.pc.site()) => {
                    self.walk.complete = true;
                    return None;
                }
                Code::Bare | Code::Unmapped => {
                    if self.leave_bare(space, memory) {
                        return None;
                    }
                    let decisive = &mut self.walk.decisive;
                    Pc::after_call(self.file.step_by_frame_pointer(memory, decisive)?)
                }
            };
        }
        None
    }

    /// Walks to the thread's start from code that has no rules: by the frame pointer, or else as [`Walker::find_return`].
    fn leave_bare(&mut self, space: &mut impl AddressSpace, memory: &mut impl Memory) -> bool {
        if self.bare >= MAX_BARE {
            return false;
        }
        let mut trial = self.clone();
        let address = trial.file.step_by_frame_pointer(memory, &mut trial.walk.decisive);
        if let Some(address) = address {
            trial.pc = Pc::after_call(address);
            if self.become_if_complete(trial, space, memory) {
                return true;
            }
        }
        self.find_return(space, memory)
    }

    /// Looks for the return address of code that has no rules and keeps no frame pointer, as musl's C library on
    /// Debian: the lowest one in the stack above from which the rest of the walk leads to the thread's start.
    ///
    /// On success the walk is at its end.
    fn find_return(&mut self, space: &mut impl AddressSpace, memory: &mut impl Memory) -> bool {
        for slot in 0..MAX_BARE_SCAN {
            let Some(place) = self.file.stack_pointer().checked_add(slot * 8) else { return false };
            let Some(address) = memory.read(place) else { return false };
            if !space.follows_call(address) {
                continue;
            }
            if self.bare >= MAX_BARE {
                return false;
            }
            let mut trial = self.clone();
            trial.file.guess_return(place);
            trial.pc = Pc::after_call(address);
            trial.walk.decisive.add(Origin::Unclear);
            if self.become_if_complete(trial, space, memory) {
                return true;
            }
        }
        false
    }

    fn become_if_complete(
        &mut self,
        mut trial: Walker,
        space: &mut impl AddressSpace,
        memory: &mut impl Memory,
    ) -> bool {
        trial.bare += 1;
        // Where it stopped, and whether that is the end, is in the trial itself.
        let _ = trial.advance(space, memory);
        self.bare = trial.bare;
        let complete = trial.walk.complete && trial.pc_is_outermost(space);
        if complete {
            *self = trial;
        }
        complete
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
        let mut tried = 0;
        for slot in 0..MAX_SCAN {
            let Some(pointer) = self.file.stack_pointer().checked_add(slot * 8) else { return false };
            if memory.read(pointer).is_none() {
                return false;
            }
            let mut trial = self.clone();
            trial.retry_with(pointer);
            match trial.file.clone().step(row, false, memory, &mut Decisive::default()) {
                Step::Caller(address) if space.follows_call(address) => {}
                _ => continue,
            }
            // Where it stopped, and whether that is the end, is in the trial itself.
            let _ = trial.advance(space, memory);
            // A return address of 0 ends a stack too, but nonsense is full of zeros.
            if trial.walk.complete && trial.pc_is_outermost(space) {
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

    fn pc_is_outermost(&self, space: &mut impl AddressSpace) -> bool {
        self.walk.frames.last().is_some_and(|pc| space.is_outermost(pc.site()))
    }

    fn retry_with(&mut self, pointer: u64) {
        self.walk.frames.pop();
        self.file.guess_frame_pointer(pointer);
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
        walk.decisive.add_chain();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Code from 0x1000 to 0x2000 without rules; 0x1f00 and above is the thread's start.
    struct Plain;

    impl AddressSpace for Plain {
        fn code(&mut self, address: u64) -> Code {
            match address {
                0x1000..0x1f00 => Code::Bare,
                0x1f00..0x2000 => {
                    let rules = vec![(RETURN, Rule::Undefined)];
                    Code::Rules(Arc::new(Row { cfa: Cfa::Register(0, 0), rules, signal: false }))
                }
                _ => Code::Unmapped,
            }
        }

        fn follows_call(&mut self, address: u64) -> bool {
            self.is_code(address)
        }
    }

    fn walk_of(addresses: &[u64], stack_pointer: u64) -> Walk {
        let mut frames: Vec<_> = addresses.iter().map(|&address| Pc::after_call(address)).collect();
        frames[0] = Pc::exact(addresses[0]);
        Walk { frames, complete: false, stack_pointer, decisive: Decisive::default() }
    }

    fn addresses(walk: &Walk) -> Vec<u64> {
        walk.frames.iter().map(|pc| pc.address).collect()
    }

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn splice_at(walk: Walk, kernel: &[u64], bp: u64, words: &[u64]) -> Walk {
        let bytes = bytes(words);
        let registers = Registers { ip: kernel[0], sp: 0x8000, bp };
        let mut snippet = Snippet { base: 0x8000, bytes: &bytes };
        splice(&mut Plain, walk, kernel, registers, &mut snippet)
    }

    #[test]
    fn kernel_frames_are_joined_by_the_place_of_their_records() {
        // Records at 0x8010 and, beyond the snippet, at 0x9000. The walk found two functions without frame
        // pointers and stopped with its stack pointer at 0x8020. All recursion: the addresses tell nothing.
        let walk = walk_of(&[0x1100, 0x1200, 0x1200, 0x1200], 0x8020);
        let spliced = splice_at(walk, &[0x1100, 0x1200, 0x1200, 0x1f80], 0x8010, &[0, 0, 0x9000, 0x1200]);
        assert_eq!(addresses(&spliced), [0x1100, 0x1200, 0x1200, 0x1200, 0x1200, 0x1f80]);
        assert!(spliced.complete);
    }

    #[test]
    fn kernel_frames_are_joined_behind_a_shared_address_where_their_records_are_not_known() {
        // The frame pointer that is known is not the one that the kernel started from.
        let walk = walk_of(&[0x1100, 0x1200, 0x1300], 0x8020);
        let spliced = splice_at(walk, &[0x1100, 0x1300, 0x1400, 0x1500], 0, &[0; 4]);
        assert_eq!(addresses(&spliced), [0x1100, 0x1200, 0x1300, 0x1400, 0x1500]);
        assert!(!spliced.complete);
    }

    #[test]
    fn frames_that_fit_nowhere_and_addresses_that_are_no_code_are_left_out() {
        let walk = walk_of(&[0x1100, 0x1200], 0x8020);
        let spliced = splice_at(walk.clone(), &[0x1101, 0x1300, 0x1400], 0, &[0; 4]);
        assert_eq!(addresses(&spliced), [0x1100, 0x1200]);
        assert!(!spliced.complete);
        let spliced = splice_at(walk, &[0x1100, 0x1200, 0x1300, 0x7777, 0x1400], 0, &[0; 4]);
        assert_eq!(addresses(&spliced), [0x1100, 0x1200, 0x1300]);
        assert!(!spliced.complete);
    }

    #[test]
    fn a_complete_walk_takes_nothing_from_the_kernel() {
        let walk = Walk { complete: true, ..walk_of(&[0x1100, 0x1f80], 0x8020) };
        assert_eq!(splice_at(walk.clone(), &[0x1100, 0x1f80, 0x1300], 0x8010, &[0; 4]), walk);
    }

    #[test]
    fn kernel_frames_alone_end_where_they_leave_code() {
        let walk = kernel_frames(&mut Plain, &[0x1100, 0x1200, 5, 0x1300], true);
        assert_eq!(addresses(&walk), [0x1100, 0x1200]);
        assert!(!walk.complete);
        assert!(kernel_frames(&mut Plain, &[0x1100, 0x1f80], true).complete);
        // Nothing is known of the process: the addresses are all there is.
        assert_eq!(kernel_frames(&mut Plain, &[5, 6, 7], false).frames.len(), 3);
        assert_eq!(kernel_frames(&mut Plain, &[0x1100; 1000], true).frames.len(), MAX_FRAMES);
    }

    #[test]
    fn code_without_rules_is_left_by_the_frame_pointer() {
        let stack = bytes(&[0, 0, 0x8020, 0x1200, 0, 0x1f80]);
        let mut snippet = Snippet { base: 0x8000, bytes: &stack };
        let registers = Registers { ip: 0x1100, sp: 0x8000, bp: 0x8010 };
        let walk = walk(&mut Plain, registers, &mut snippet);
        assert_eq!(addresses(&walk), [0x1100, 0x1200, 0x1f80]);
        assert!(walk.complete);
    }

    #[test]
    fn a_frame_pointer_that_leads_back_ends_the_walk() {
        let stack = bytes(&[0, 0, 0x8010, 0x1200]);
        let mut snippet = Snippet { base: 0x8000, bytes: &stack };
        let registers = Registers { ip: 0x1100, sp: 0x8000, bp: 0x8010 };
        let walk = walk(&mut Plain, registers, &mut snippet);
        assert_eq!(addresses(&walk), [0x1100, 0x1200]);
        assert!(!walk.complete);
    }
}
