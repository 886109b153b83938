//! Where in a function a probe is cheap.
//!
//! A probe's instruction is emulated by the kernel where it is one of a few kinds, and otherwise executed out of line under
//! a single step, which costs several times as much. The place is moved from the entry to the first such instruction that
//! every call passes exactly once: what lies between are instructions without branches, and no branch of the function
//! leads back to behind the entry.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

/// Bytes behind the entry within which a better place is looked for.
const REACH: u64 = 64;

/// Bytes from the entry of the function, which `code` is the whole of; 0 where there is no better place.
pub fn cheap_place(code: &[u8], is_whole: bool) -> u64 {
    if cfg!(not(target_arch = "x86_64")) {
        return 0;
    }
    let Some(at) = first_emulated(code) else { return 0 };
    if at == 0 || (is_whole && is_passed_once(code, at)) { at } else { 0 }
}

/// The first emulated instruction that control reaches from the entry without a branch.
fn first_emulated(code: &[u8]) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() || instruction.ip() > REACH {
            return None;
        }
        let start = usize::try_from(instruction.ip()).ok()?;
        if is_emulated(code.get(start..start + instruction.len())?) {
            return Some(instruction.ip());
        }
        if instruction.flow_control() != FlowControl::Next {
            return None;
        }
    }
    None
}

/// `push` of a general register, a plain `nop`, and jumps to a stated place.
fn is_emulated(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [0x50..=0x57 | 0x90]
            | [0x41, 0x50..=0x57]
            | [0x70..=0x7f | 0xeb, _]
            | [0xe9, _, _, _, _]
            | [0x0f, 0x80..=0x8f, _, _, _, _]
    )
}

/// Whether no branch of the function leads to behind its entry and not beyond `at`.
fn is_passed_once(code: &[u8], at: u64) -> bool {
    let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    decoder.into_iter().all(|instruction| match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            !target(&instruction).is_some_and(|target| target > 0 && target <= at)
        }
        // Where it leads is not known.
        FlowControl::IndirectBranch => false,
        _ => true,
    })
}

fn target(instruction: &Instruction) -> Option<u64> {
    let near =
        matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64);
    near.then(|| instruction.near_branch_target())
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_entry_is_taken_where_it_is_emulated() {
        // push %rbp; mov %rsp,%rbp; pop %rbp; ret
        assert_eq!(cheap_place(&[0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3], true), 0);
    }

    #[test]
    fn endbr64_and_moves_are_passed_over_up_to_a_push() {
        // endbr64; push %r12; ret
        assert_eq!(cheap_place(&[0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x54, 0xc3], true), 4);
        // mov %rsp,%rbp; push %rbx
        assert_eq!(cheap_place(&[0x48, 0x89, 0xe5, 0x53, 0xc3], true), 3);
        // A function that was not read to its end may hold a branch back.
        assert_eq!(cheap_place(&[0x48, 0x89, 0xe5, 0x53, 0xc3], false), 0);
    }

    #[test]
    fn a_place_inside_of_a_loop_is_not_taken() {
        // mov %edi,%eax; loop: add $1,%eax; jne loop; ret: the jump is emulated and passed many times.
        assert_eq!(cheap_place(&[0x89, 0xf8, 0x83, 0xc0, 0x01, 0x75, 0xfb, 0xc3], true), 0);
        // mov %edi,%eax; jne +1; nop; ret: passed once.
        assert_eq!(cheap_place(&[0x89, 0xf8, 0x75, 0x01, 0x90, 0xc3], true), 2);
        // endbr64; push %rbx; jmp *%rax
        assert_eq!(cheap_place(&[0xf3, 0x0f, 0x1e, 0xfa, 0x53, 0xff, 0xe0], true), 0);
    }

    #[test]
    fn a_call_or_a_return_ends_the_search() {
        // mov %edi,%eax; ret; push %rbx
        assert_eq!(cheap_place(&[0x89, 0xf8, 0xc3, 0x53], true), 0);
        // mov %edi,%eax; call *%rax; push %rbx
        assert_eq!(cheap_place(&[0x89, 0xf8, 0xff, 0xd0, 0x53], true), 0);
        assert_eq!(cheap_place(&[], true), 0);
        assert_eq!(cheap_place(&[0x06], true), 0);
    }
}
