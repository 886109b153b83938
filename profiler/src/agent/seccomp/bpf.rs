//! Classic BPF as system-call filters (seccomp) have it, run here over calls that were not made yet. A program comes
//! from the kernel, which has checked it, and is checked again: nothing in it can make this run long or fail otherwise
//! than by an error.
//!
//! What a call's arguments will be is not always known. A word that is not known is [`None`] here, and so is what is
//! computed from it; a jump that depends on it goes both ways, and the worst end counts.

/// Instructions of one filter at most, as the kernel has it.
pub(super) const LENGTH: usize = 4096;
/// Instructions that are run for one call at most, over all ways.
const STEPS: usize = 1 << 16;
/// Words of memory that a program has.
const MEMORY: usize = 16;
/// Bytes of `struct seccomp_data`.
const DATA: u32 = 64;
/// `AUDIT_ARCH_X86_64`.
const ARCH: u32 = 0xc000_003e;

/// One instruction, `struct sock_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Instruction {
    pub(super) code: u16,
    pub(super) jt: u8,
    pub(super) jf: u8,
    pub(super) k: u32,
}

/// A system call as a filter sees it. An argument that is not known is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) number: u32,
    pub(super) args: [Option<u64>; 6],
}

impl Call {
    /// A word of `struct seccomp_data`: number, architecture, instruction pointer, arguments, low halves first.
    fn word(&self, offset: u32) -> Word {
        match offset {
            0 => Some(self.number),
            4 => Some(ARCH),
            8 | 12 => None,
            _ => {
                let index = (offset - 16) as usize / 8;
                let arg = self.args.get(index).copied().flatten()?;
                Some(if offset.is_multiple_of(8) { arg as u32 } else { (arg >> 32) as u32 })
            }
        }
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// It is made, perhaps with a line in a log.
    Allow,
    /// It fails with this number.
    Errno(u16),
    /// A tracer or another process is asked; without one it fails.
    Ask,
    /// The thread gets `SIGSYS`.
    Trap,
    /// The thread or the process ends; also anything that the kernel does not know.
    Kill,
}

impl Action {
    /// Of the number that a filter returns.
    pub(super) fn of(returned: u32) -> Action {
        match returned & 0xffff_0000 {
            0x7fff_0000 | 0x7ffc_0000 => Action::Allow,
            0x0005_0000 => Action::Errno(returned as u16),
            0x7ff0_0000 | 0x7fc0_0000 => Action::Ask,
            0x0003_0000 => Action::Trap,
            _ => Action::Kill,
        }
    }
}

/// Which of two returned numbers the kernel obeys: the lower action, as signed numbers.
pub(super) fn stricter(first: u32, second: u32) -> u32 {
    let action = |returned: u32| (returned & 0xffff_0000).cast_signed();
    if action(second) < action(first) { second } else { first }
}

/// A program that cannot be run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BpfError {
    #[error("it has {0} instructions")]
    Length(usize),
    #[error("its instruction {0} is not known")]
    Instruction(usize),
    #[error("it leaves its own end")]
    End,
    #[error("it has too many ways")]
    Long,
    #[error("it returns what it computes of an argument")]
    Unclear,
}

type Word = Option<u32>;

/// Where a program is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Machine {
    pc: usize,
    a: Word,
    x: Word,
    memory: [Word; MEMORY],
}

/// All numbers that the program can return for this call: one where all that it looks at is known.
///
/// # Errors
///
/// Where the kernel would not have taken the program, or where it has too many ways.
pub(super) fn run(program: &[Instruction], call: &Call) -> Result<Vec<u32>, BpfError> {
    if program.is_empty() || program.len() > LENGTH {
        return Err(BpfError::Length(program.len()));
    }
    let begin = Machine { a: Some(0), x: Some(0), memory: [Some(0); MEMORY], pc: 0 };
    let mut ways = vec![begin];
    let mut returned = Vec::new();
    let mut steps = 0;
    while let Some(mut machine) = ways.pop() {
        loop {
            steps += 1;
            if steps > STEPS {
                return Err(BpfError::Long);
            }
            let instruction = program.get(machine.pc).ok_or(BpfError::End)?;
            match machine.step(*instruction, call)? {
                Step::Next => {}
                Step::Either(other) => ways.push(other),
                Step::Return(Some(value)) => {
                    if !returned.contains(&value) {
                        returned.push(value);
                    }
                    break;
                }
                Step::Return(None) => return Err(BpfError::Unclear),
            }
        }
    }
    Ok(returned)
}

enum Step {
    Next,
    /// Goes on here, and there too.
    Either(Machine),
    Return(Word),
}

// Parts of an instruction's code.
const LD: u16 = 0;
const LDX: u16 = 1;
const ST: u16 = 2;
const STX: u16 = 3;
const ALU: u16 = 4;
const JMP: u16 = 5;
const RET: u16 = 6;
const MISC: u16 = 7;
const IMM: u16 = 0x00;
const ABS: u16 = 0x20;
const MEM: u16 = 0x60;
const LEN: u16 = 0x80;
/// The second operand is the index register.
const X: u16 = 0x08;

impl Machine {
    fn step(&mut self, instruction: Instruction, call: &Call) -> Result<Step, BpfError> {
        let unknown = BpfError::Instruction(self.pc);
        let Instruction { code, k, .. } = instruction;
        self.pc += 1;
        match code & 7 {
            LD | LDX => {
                let value = match code & !7 {
                    IMM => Some(k),
                    LEN => Some(DATA),
                    MEM => *self.memory.get(k as usize).ok_or(unknown)?,
                    ABS if code == LD | ABS && k.is_multiple_of(4) && k < DATA => call.word(k),
                    _ => return Err(unknown),
                };
                if code & 7 == LD { self.a = value } else { self.x = value }
            }
            ST if code == ST => *self.memory.get_mut(k as usize).ok_or(unknown)? = self.a,
            STX if code == STX => *self.memory.get_mut(k as usize).ok_or(unknown)? = self.x,
            ALU => {
                let second = if code & X == 0 { Some(k) } else { self.x };
                match alu(code & 0xf0, self.a, second, code & X != 0).ok_or(unknown)? {
                    Ok(value) => self.a = value,
                    Err(ended) => return Ok(Step::Return(ended)),
                }
            }
            JMP => return self.jump(instruction).ok_or(unknown),
            RET if code == RET => return Ok(Step::Return(Some(k))),
            RET if code == RET | 0x10 => return Ok(Step::Return(self.a)),
            MISC if code == MISC => self.x = self.a,
            MISC if code == MISC | 0x80 => self.a = self.x,
            _ => return Err(unknown),
        }
        Ok(Step::Next)
    }

    /// `None` where there is no such jump.
    fn jump(&mut self, Instruction { code, jt, jf, k }: Instruction) -> Option<Step> {
        if code == JMP {
            self.pc = self.pc.checked_add(k as usize)?;
            return Some(Step::Next);
        }
        let second = if code & X == 0 { Some(k) } else { self.x };
        let holds: fn(u32, u32) -> bool = match code & 0xf0 {
            0x10 => |a, b| a == b,
            0x20 => |a, b| a > b,
            0x30 => |a, b| a >= b,
            0x40 => |a, b| a & b != 0,
            _ => return None,
        };
        let there = self.pc + usize::from(jt);
        let here = self.pc + usize::from(jf);
        let (Some(a), Some(b)) = (self.a, second) else {
            self.pc = here;
            return Some(if there == here {
                Step::Next
            } else {
                Step::Either(Machine { pc: there, ..*self })
            });
        };
        self.pc = if holds(a, b) { there } else { here };
        Some(Step::Next)
    }
}

/// The outer `None`: no such operation. `Err`: the program ends and returns that.
fn alu(operation: u16, a: Word, b: Word, by_register: bool) -> Option<Result<Word, Word>> {
    let both = |of: fn(u32, u32) -> u32| Some(Ok(a.zip(b).map(|(a, b)| of(a, b))));
    match operation {
        0x00 => both(u32::wrapping_add),
        0x10 => both(u32::wrapping_sub),
        0x20 => both(u32::wrapping_mul),
        0x30 => match b {
            // The kernel ends a program that divides by a register of 0, and takes none with a constant of 0.
            Some(0) if by_register => Some(Err(Some(0))),
            Some(0) => None,
            Some(b) => Some(Ok(a.map(|a| a / b))),
            None => Some(Err(None)),
        },
        0x40 => both(|a, b| a | b),
        0x50 => both(|a, b| a & b),
        0x60 => both(|a, b| a << (b & 31)),
        0x70 => both(|a, b| a >> (b & 31)),
        0x80 if !by_register => Some(Ok(a.map(u32::wrapping_neg))),
        0xa0 => both(|a, b| a ^ b),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    const CALL: Call =
        Call { number: 7, args: [Some(0x1111_2222_3333_4444), None, Some(5), Some(0), Some(0), Some(0)] };

    /// What a program returns that puts this together in the accumulator.
    fn computes(instructions: &[Instruction]) -> Result<Vec<u32>, BpfError> {
        let mut program = instructions.to_vec();
        program.push(op(RET | 0x10, 0, 0, 0));
        run(&program, &CALL)
    }

    #[test]
    fn a_filter_sees_number_architecture_and_halves_of_arguments() {
        for (offset, expected) in [(0, 7), (4, ARCH), (16, 0x3333_4444), (20, 0x1111_2222), (32, 5), (36, 0)]
        {
            assert_eq!(computes(&[op(LD | ABS, 0, 0, offset)]), Ok(vec![expected]), "{offset}");
        }
        assert_eq!(computes(&[op(LD | LEN, 0, 0, 0)]), Ok(vec![64]));
        for (code, offset) in [(LD | ABS, 64), (LD | ABS, 2), (0x28, 0), (0x40, 0), (LDX | ABS, 0)] {
            assert_eq!(computes(&[op(code, 0, 0, offset)]), Err(BpfError::Instruction(0)), "{code} {offset}");
        }
    }

    #[test]
    fn what_is_not_known_goes_both_ways() {
        let program = [op(LD | ABS, 0, 0, 24), op(JMP | 0x10, 1, 0, 9), op(RET, 0, 0, 1), op(RET, 0, 0, 2)];
        let mut returned = run(&program, &CALL).unwrap();
        returned.sort_unstable();
        assert_eq!(returned, [1, 2]);
        let known = Call { args: [Some(9); 6], ..CALL };
        assert_eq!(run(&program, &known), Ok(vec![2]));
        assert_eq!(computes(&[op(LD | ABS, 0, 0, 24)]), Err(BpfError::Unclear));
    }

    #[test]
    fn programs_that_could_run_long_or_away_are_errors() {
        assert_eq!(run(&[], &CALL), Err(BpfError::Length(0)));
        assert_eq!(run(&[op(JMP, 0, 0, u32::MAX)], &CALL), Err(BpfError::End));
        assert_eq!(run(&[op(JMP | 0x10, 200, 200, 0)], &CALL), Err(BpfError::End));
        assert_eq!(computes(&[op(ST, 0, 0, 16)]), Err(BpfError::Instruction(0)));
        assert_eq!(computes(&[op(ALU | 0x30, 0, 0, 0)]), Err(BpfError::Instruction(0)), "divides by 0");
        // Each pair doubles the ways.
        let mut doubling = Vec::new();
        for _ in 0..30 {
            doubling.extend([op(LD | ABS, 0, 0, 24), op(JMP | 0x10, 0, 1, 9), op(MISC, 0, 0, 0)]);
        }
        doubling.push(op(RET, 0, 0, 0));
        assert_eq!(run(&doubling, &CALL), Err(BpfError::Long));
    }

    #[test]
    fn any_bytes_are_a_program_or_an_error_and_never_more() {
        let mut random = crate::random::Random(3);
        for _ in 0..20_000 {
            let program: Vec<Instruction> = (0..random.below(12))
                .map(|_| {
                    op(
                        random.any() as u16 & 0xff,
                        random.below(4) as u8,
                        random.below(4) as u8,
                        random.any() as u32 >> random.below(32),
                    )
                })
                .collect();
            if let Ok(returned) = run(&program, &CALL) {
                assert!(!returned.is_empty());
            }
        }
    }
}
