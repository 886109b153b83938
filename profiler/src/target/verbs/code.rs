//! The instruction of a provider's `poll_cq` that is reached only when a completion was found.
//!
//! libmlx5 looks at the owner of the next entry first, and leaves where there is none. Behind that it loads the entry's
//! last byte again, `opcode << 4 | owner`, and goes by the opcode: the compiler makes a jump table of it, and guards
//! it by `cmp $0xef, byte; ja default`. That jump is taken by nobody and passed once for each completion, errors
//! included; the kernel emulates jumps, so a probe on it costs no single step. The register that the byte was loaded by
//! has the entry's address.
//!
//! The function is followed from its entry along its branches, so that instructions are seen as the processor sees
//! them; the place is accepted only when there is exactly one.

use std::collections::BTreeSet;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

/// Instructions looked at, at most.
const INSTRUCTIONS_MAX: usize = 16 << 10;
/// Offset of the opcode in an entry.
const ENTRY_OPCODE: u64 = 63;
/// Offset of `qp_num` in `struct ibv_wc`.
const WC_QP_NUM: u64 = 28;
/// The largest byte that a valid entry has there.
const LAST_VALID: u64 = 0xef;

/// Where a completion has been found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionPoint {
    /// Bytes from the beginning of the function.
    pub offset: u64,
    /// Number of the general register with the entry's address, as instructions number them.
    pub register: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    #[error("its poll_cq has no place that only completions pass")]
    None,
    #[error("its poll_cq has {0} places that only completions seem to pass")]
    Many(usize),
    #[error("its file does not say where its poll_cq ends")]
    Extent,
    #[error("its poll_cq returns in ways that are not known")]
    Leaves,
    #[error("no such place is known for this processor's instructions")]
    Architecture,
}

/// Finds the place in `code`, which begins with the function.
pub fn completion_point(code: &[u8]) -> Result<CompletionPoint, CodeError> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(CodeError::Architecture);
    }
    let mut walk = Walk {
        code,
        todo: vec![0],
        seen: BTreeSet::new(),
        targets: BTreeSet::new(),
        found: Vec::new(),
        info: InstructionInfoFactory::new(),
    };
    while let Some(at) = walk.todo.pop() {
        if walk.seen.len() >= INSTRUCTIONS_MAX {
            break;
        }
        walk.block(at);
    }
    // Whoever jumps in between the load and the place has another register there.
    let targets = &walk.targets;
    walk.found.retain(|found| targets.range(found.loaded + 1..=found.point.offset).next().is_none());
    match walk.found.as_slice() {
        [] => Err(CodeError::None),
        [one] => Ok(one.point),
        many => Err(CodeError::Many(many.len())),
    }
}

struct Found {
    point: CompletionPoint,
    /// Where the byte is loaded.
    loaded: u64,
}

/// `movzbl 63(base), byte`, still in force.
#[derive(Clone, Copy)]
struct Load {
    at: u64,
    byte: Register,
    base: Register,
}

struct Walk<'a> {
    code: &'a [u8],
    todo: Vec<u64>,
    seen: BTreeSet<u64>,
    targets: BTreeSet<u64>,
    found: Vec<Found>,
    info: InstructionInfoFactory,
}

impl Walk<'_> {
    /// Follows the code from `at` to where it ends or has been seen.
    fn block(&mut self, at: u64) {
        let Some(code) = usize::try_from(at).ok().and_then(|at| self.code.get(at..)) else { return };
        let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
        let (mut load, mut compared, mut names_queue) = (None, None, false);
        while decoder.can_decode() && self.seen.len() < INSTRUCTIONS_MAX {
            let instruction = decoder.decode();
            if instruction.is_invalid() || !self.seen.insert(instruction.ip()) {
                return;
            }
            if let (Some(load), true) = (compared, names_queue)
                && matches!(instruction.code(), Code::Ja_rel8_64 | Code::Ja_rel32_64)
            {
                self.note(instruction.ip(), load);
            }
            compared = load.filter(|load| compares(&instruction, *load));
            names_queue |= stores_queue(&instruction);
            load = self.after(&instruction, load);
            if !self.follow(&instruction) {
                return;
            }
        }
    }

    fn note(&mut self, offset: u64, load: Load) {
        let Ok(register) = u8::try_from(load.base.number()) else { return };
        self.found.push(Found { point: CompletionPoint { offset, register }, loaded: load.at });
    }

    /// The load that is in force behind the instruction.
    fn after(&mut self, instruction: &Instruction, load: Option<Load>) -> Option<Load> {
        let is_load = instruction.mnemonic() == Mnemonic::Movzx
            && instruction.op1_kind() == OpKind::Memory
            && instruction.memory_size().size() == 1
            && instruction.memory_index() == Register::None
            && instruction.memory_displacement64() == ENTRY_OPCODE
            && instruction.memory_base().is_gpr64()
            && instruction.memory_base() != Register::RSP;
        if is_load {
            let byte = instruction.op0_register().full_register();
            let base = instruction.memory_base();
            return (byte != base).then_some(Load { at: instruction.ip(), byte, base });
        }
        let load = load?;
        let writes = |access| {
            matches!(
                access,
                OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite
            )
        };
        let spoils = self.info.info(instruction).used_registers().iter().any(|used| {
            let register = used.register().full_register();
            writes(used.access()) && (register == load.byte || register == load.base)
        });
        (!spoils && instruction.flow_control() != FlowControl::Call).then_some(load)
    }

    /// Notes where the instruction leads to; whether the code goes on behind it.
    fn follow(&mut self, instruction: &Instruction) -> bool {
        let flow = instruction.flow_control();
        if matches!(flow, FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch) {
            let target = instruction.near_branch_target();
            self.targets.insert(target);
            self.todo.push(target);
        }
        matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Call)
    }
}

fn compares(instruction: &Instruction, load: Load) -> bool {
    instruction.mnemonic() == Mnemonic::Cmp
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().size() == 1
        && instruction.op0_register().full_register() == load.byte
        && instruction.op1_kind() == OpKind::Immediate8
        && u64::from(instruction.immediate8()) == LAST_VALID
}

/// `wc->qp_num = …`: only the old interface fills in completions of the caller's.
fn stores_queue(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_kind() == OpKind::Memory
        && instruction.memory_displacement64() == WC_QP_NUM
        && instruction.memory_size().size() == 4
        && instruction.op1_kind() == OpKind::Register
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// `test`/`je` over a call, then the guarded jump table.
    fn function(guard: &[u8]) -> Vec<u8> {
        let mut code = vec![0x55]; // push %rbp
        code.extend([0x85, 0xf6, 0x74, 0x02, 0x31, 0xc0]); // test %esi,%esi; je +2; xor %eax,%eax
        code.extend([0x41, 0x89, 0x45, 0x1c]); // mov %eax,0x1c(%r13)
        code.extend([0x0f, 0xb6, 0x55, 0x3f]); // movzbl 0x3f(%rbp),%edx
        code.extend(guard);
        code.extend([0x80, 0xfa, 0xef]); // cmp $0xef,%dl
        code.extend([0x77, 0x03]); // ja +3
        code.extend([0xff, 0xe0, 0x90]); // jmp *%rax; nop
        code.extend([0x5d, 0xc3]); // pop %rbp; ret
        code
    }

    #[test]
    fn the_guard_of_the_jump_table_is_found_with_its_register() {
        // shr $4,%cl, as the compiler puts it in between
        let code = function(&[0xc0, 0xe9, 0x04]);
        let offset = code.len() as u64 - 7;
        assert_eq!(completion_point(&code), Ok(CompletionPoint { offset, register: 5 }));
    }

    #[test]
    fn a_register_that_was_overwritten_is_no_entry() {
        assert_eq!(completion_point(&function(&[0x31, 0xed])), Err(CodeError::None)); // xor %ebp,%ebp
        assert_eq!(completion_point(&function(&[0x31, 0xd2])), Err(CodeError::None)); // xor %edx,%edx
    }

    #[test]
    fn two_places_are_as_good_as_none() {
        let mut code = function(&[]);
        // The return becomes a nop: the code goes on into a second function of the kind.
        let end = code.len() - 1;
        code[end] = 0x90;
        code.extend(function(&[]));
        assert_eq!(completion_point(&code), Err(CodeError::Many(2)));
    }

    #[test]
    fn a_jump_into_the_middle_makes_the_register_unsure() {
        let mut code = function(&[0xc0, 0xe9, 0x04]);
        code[4] = 10; // je to behind the load
        assert_eq!(completion_point(&code), Err(CodeError::None));
    }

    #[test]
    fn no_code_and_any_code_are_looked_through_without_harm() {
        assert_eq!(completion_point(&[]), Err(CodeError::None));
        let mut state = 7_u32;
        for _ in 0..200 {
            let code: Vec<u8> = (0..512)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            let _ = completion_point(&code);
        }
    }

    #[test]
    fn endless_code_ends() {
        assert_eq!(completion_point(&vec![0x90; 1 << 20]), Err(CodeError::None));
    }
}
