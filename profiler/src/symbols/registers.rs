//! One step of unwinding: from a frame's registers to its caller's, by the rules of a [`Row`].

use gimli::{
    Encoding, EndianSlice, Evaluation, EvaluationResult, Expression, Format, LittleEndian, Register,
};
use gimli::{Location, Value};

use super::cfi::{Cfa, Row, Rule};
use super::decisive::{Decisive, Origin};
use crate::probes::event::Registers;

#[cfg(not(target_arch = "aarch64"))]
mod arch {
    pub const SP: u16 = 7;
    pub const FP: u16 = 6;
    pub const RETURN: u16 = 16;
    /// What a call leaves as it was unless a rule says otherwise.
    pub const PRESERVED: &[u16] = &[3, 6, 12, 13, 14, 15];
    /// A frame without a rule for the return address still has it in a register.
    pub const RETURN_IN_REGISTER: bool = false;
    pub const ADDRESS_MASK: u64 = u64::MAX;
}

#[cfg(target_arch = "aarch64")]
mod arch {
    pub const SP: u16 = 31;
    pub const FP: u16 = 29;
    pub const RETURN: u16 = 30;
    pub const PRESERVED: &[u16] = &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29];
    pub const RETURN_IN_REGISTER: bool = true;
    /// Takes off pointer authentication codes: user addresses have 48 bits.
    pub const ADDRESS_MASK: u64 = (1 << 48) - 1;
}

/// Registers that rules may refer to: all general ones of both architectures.
pub(super) use arch::{FP as FRAME_POINTER, RETURN};

const COUNT: usize = 33;
/// Operations of one expression; real ones have fewer than twenty, hostile ones loop.
const MAX_OPERATIONS: u32 = 1000;

/// Memory of the thread.
pub(super) trait Memory {
    /// The eight bytes at `address`, `None` where they cannot be had.
    fn read(&mut self, address: u64) -> Option<u64>;
}

/// Where a step led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// To this address in the caller.
    Caller(u64),
    /// Nowhere: the frame is the outermost one.
    Outermost,
    /// Nowhere: a register or a piece of memory is missing, or the rules make no sense.
    Lost,
}

/// Register values of one frame, as far as they are known.
#[derive(Clone, Debug)]
pub(super) struct RegisterFile {
    values: [Option<u64>; COUNT],
    /// Where each value came from.
    origins: [Origin; COUNT],
}

impl RegisterFile {
    /// A frame pointer of 0 is taken as unknown.
    pub(super) fn new(registers: Registers) -> RegisterFile {
        let mut file = RegisterFile::empty();
        file.set(arch::SP, Some(registers.sp), Origin::Walk);
        file.set(arch::FP, (registers.bp != 0).then_some(registers.bp), Origin::FramePointer);
        file
    }

    fn empty() -> RegisterFile {
        RegisterFile { values: [None; COUNT], origins: [Origin::Walk; COUNT] }
    }

    fn origin(&self, register: u16) -> Origin {
        self.origins.get(usize::from(register)).copied().unwrap_or(Origin::Unclear)
    }

    /// The value of a register that decides where the walk goes on.
    fn need(&self, register: u16, decisive: &mut Decisive) -> Option<u64> {
        // Also where there is none: another stack may have one.
        decisive.add(self.origin(register));
        self.get(register)
    }

    fn get(&self, register: u16) -> Option<u64> {
        self.values.get(usize::from(register)).copied().flatten()
    }

    fn set(&mut self, register: u16, value: Option<u64>, origin: Origin) {
        let index = usize::from(register);
        if let (Some(slot), Some(from)) = (self.values.get_mut(index), self.origins.get_mut(index)) {
            *slot = value;
            *from = origin;
        }
    }

    pub(super) fn stack_pointer(&self) -> u64 {
        self.get(arch::SP).unwrap_or(0)
    }

    pub(super) fn frame_pointer(&self) -> Option<u64> {
        self.get(arch::FP)
    }

    /// Sets a frame pointer that was guessed.
    pub(super) fn guess_frame_pointer(&mut self, value: u64) {
        self.set(arch::FP, Some(value), Origin::Unclear);
    }

    /// The registers of the caller whose return address is at `place`: its frame pointer is taken to be as it was.
    pub(super) fn guess_return(&mut self, place: u64) {
        let pointer = self.frame_pointer();
        *self = RegisterFile::empty();
        self.set(arch::SP, place.checked_add(8), Origin::Unclear);
        self.set(arch::FP, pointer, Origin::Unclear);
    }

    /// Turns these registers into the caller's. What decided about that is added to `decisive`.
    pub(super) fn step(
        &mut self,
        row: &Row,
        first: bool,
        memory: &mut impl Memory,
        decisive: &mut Decisive,
    ) -> Step {
        if let Some(Rule::Undefined) = row.rule(arch::RETURN) {
            return Step::Outermost;
        }
        self.try_step(row, first, memory, decisive).map_or(Step::Lost, |address| match address {
            0 => Step::Outermost,
            address => Step::Caller(address),
        })
    }

    fn try_step(
        &mut self,
        row: &Row,
        first: bool,
        memory: &mut impl Memory,
        decisive: &mut Decisive,
    ) -> Option<u64> {
        let cfa = match &row.cfa {
            Cfa::Register(register, offset) => self.need(*register, decisive)?.checked_add_signed(*offset)?,
            Cfa::Expression(bytes) => self.evaluate(bytes, None, memory, decisive)?,
        };
        let sp = self.stack_pointer();
        // The stack grows down: a caller's frame lies above. Only a signal may come from another stack,
        // and a leaf function of aarch64 may have no frame of its own.
        let advances = cfa > sp || row.signal || (arch::RETURN_IN_REGISTER && first && cfa == sp);
        if !advances {
            return None;
        }
        let mut caller = RegisterFile::empty();
        for &register in arch::PRESERVED {
            caller.set(register, self.get(register), self.origin(register));
        }
        caller.set(arch::SP, Some(cfa), Origin::Walk);
        for (register, rule) in &row.rules {
            if *register != arch::RETURN {
                let found = self.apply(rule, *register, cfa, memory, decisive);
                let (value, origin) =
                    found.map_or((None, Origin::Walk), |(value, origin)| (Some(value), origin));
                caller.set(*register, value, origin);
            }
        }
        let (address, origin) = match row.rule(arch::RETURN) {
            Some(rule) => self.apply(rule, arch::RETURN, cfa, memory, decisive)?,
            None if arch::RETURN_IN_REGISTER => (self.get(arch::RETURN)?, self.origin(arch::RETURN)),
            None => return None,
        };
        decisive.add(origin);
        let address = address & arch::ADDRESS_MASK;
        caller.set(arch::RETURN, row.signal.then_some(address), Origin::Walk);
        *self = caller;
        Some(address)
    }

    /// A value of the caller's, and where it came from.
    fn apply(
        &self,
        rule: &Rule,
        register: u16,
        cfa: u64,
        memory: &mut impl Memory,
        decisive: &mut Decisive,
    ) -> Option<(u64, Origin)> {
        let read =
            |memory: &mut _, address: u64| Some((Memory::read(memory, address)?, Origin::Word(address)));
        match rule {
            Rule::Undefined => None,
            Rule::Same => Some((self.get(register)?, self.origin(register))),
            Rule::Offset(offset) => read(memory, cfa.checked_add_signed(*offset)?),
            Rule::ValOffset(offset) => Some((cfa.checked_add_signed(*offset)?, Origin::Walk)),
            Rule::Register(other) => Some((self.get(*other)?, self.origin(*other))),
            Rule::Expression(bytes) => {
                let address = self.evaluate(bytes, Some(cfa), memory, decisive)?;
                read(memory, address)
            }
            Rule::ValExpression(bytes) => {
                Some((self.evaluate(bytes, Some(cfa), memory, decisive)?, Origin::Walk))
            }
        }
    }

    /// Everything that an expression looks at is decisive.
    fn evaluate(
        &self,
        bytes: &[u8],
        initial: Option<u64>,
        memory: &mut impl Memory,
        decisive: &mut Decisive,
    ) -> Option<u64> {
        let encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };
        let expression = Expression(EndianSlice::new(bytes, LittleEndian));
        let mut evaluation = expression.evaluation(encoding);
        evaluation.set_max_iterations(MAX_OPERATIONS);
        if let Some(value) = initial {
            evaluation.set_initial_value(value);
        }
        let mut result = evaluation.evaluate().ok()?;
        loop {
            result = match result {
                EvaluationResult::Complete => return outcome(evaluation),
                EvaluationResult::RequiresRegister { register: Register(register), .. } => {
                    evaluation.resume_with_register(Value::Generic(self.need(register, decisive)?)).ok()?
                }
                EvaluationResult::RequiresMemory { address, size: 8, space: None, .. } => {
                    let word = memory.read(address)?;
                    decisive.add(Origin::Word(address));
                    evaluation.resume_with_memory(Value::Generic(word)).ok()?
                }
                _ => return None,
            };
        }
    }
}

fn outcome(evaluation: Evaluation<EndianSlice<'_, LittleEndian>>) -> Option<u64> {
    match evaluation.result().first()?.location {
        Location::Address { address } => Some(address),
        _ => None,
    }
}

/// On x86-64 and aarch64 a function that keeps a frame pointer has its caller's at that address, and the
/// return address in the next word.
pub(super) fn frame_record(pointer: u64, memory: &mut impl Memory) -> Option<(u64, u64)> {
    let caller = memory.read(pointer)?;
    let address = memory.read(pointer.checked_add(8)?)?;
    Some((caller, address & arch::ADDRESS_MASK))
}

impl RegisterFile {
    /// A step by frame pointer alone, for code without rules. The caller judges the address.
    pub(super) fn step_by_frame_pointer(
        &mut self,
        memory: &mut impl Memory,
        decisive: &mut Decisive,
    ) -> Option<u64> {
        let pointer = self.need(arch::FP, decisive)?;
        if pointer < self.stack_pointer() || !pointer.is_multiple_of(8) {
            return None;
        }
        let (caller, address) = frame_record(pointer, memory)?;
        decisive.add(Origin::Word(pointer.checked_add(8)?));
        *self = RegisterFile::empty();
        self.set(arch::SP, Some(pointer.checked_add(16)?), Origin::Walk);
        self.set(arch::FP, (caller != 0).then_some(caller), Origin::Word(pointer));
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Words(u64);

    impl Memory for Words {
        fn read(&mut self, address: u64) -> Option<u64> {
            (0x1000..0x2000).contains(&address).then_some(address + self.0)
        }
    }

    fn step(cfa: Cfa, rules: Vec<(u16, Rule)>, sp: u64) -> (Step, RegisterFile) {
        let mut file = RegisterFile::new(Registers { ip: 0x400, sp, bp: 0x1800 });
        let step =
            file.step(&Row { cfa, rules, signal: false }, true, &mut Words(0), &mut Decisive::default());
        (step, file)
    }

    fn saved(offset: i64) -> Vec<(u16, Rule)> {
        vec![(RETURN, Rule::Offset(offset))]
    }

    #[test]
    fn expressions_read_registers_and_memory() {
        // The word at FP - 16, as in realigned frames.
        let cfa = Cfa::Expression(Box::new([0x70 + FRAME_POINTER as u8, 0x70, 0x06]));
        let (step, file) = step(cfa, saved(-8), 0x1100);
        assert_eq!(step, Step::Caller(0x17e8));
        assert_eq!(file.stack_pointer(), 0x17f0);
    }

    #[test]
    fn hostile_rules_end_the_walk() {
        // An endless loop: skip back over itself.
        let endless = Cfa::Expression(Box::new([0x2f, 0xfd, 0xff]));
        // Pushes without end.
        let pushing = Cfa::Expression(Box::new([0x31, 0x2f, 0xfc, 0xff]));
        let empty = Cfa::Expression(Box::new([]));
        let at_sp = |offset| Cfa::Register(arch::SP, offset);
        for cfa in [endless, pushing, empty, at_sp(i64::MIN), at_sp(i64::MAX), Cfa::Register(999, 8)] {
            assert_eq!(step(cfa, saved(-8), 0x1100).0, Step::Lost);
        }
        for offset in [i64::MIN, i64::MAX, -0x4000, 0x4000] {
            assert_eq!(step(at_sp(16), saved(offset), 0x1100).0, Step::Lost);
        }
        // A stack that does not come nearer to its end.
        assert_eq!(step(at_sp(-16), saved(-8), 0x1100).0, Step::Lost);
        for sp in [0, 1, u64::MAX - 7, u64::MAX] {
            assert_eq!(step(at_sp(16), saved(-8), sp).0, Step::Lost);
        }
    }

    #[test]
    fn an_undefined_return_address_is_the_end() {
        let rules = vec![(RETURN, Rule::Undefined)];
        assert_eq!(step(Cfa::Register(arch::SP, 8), rules, 0x1100).0, Step::Outermost);
    }
}
