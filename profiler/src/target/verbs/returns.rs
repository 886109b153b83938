//! Where a function returns: for a provider of which nothing is known but what its `poll_cq` hands out.
//!
//! A probe on an instruction that returns sees the result, as a return probe does, and leaves the stack as it is: unwinding goes on working.
//! It serves only where all ways out of the function are known. A jump to elsewhere can be a call whose return is the function's own.

use iced_x86::{Decoder, DecoderOptions, FlowControl};

use super::code::CodeError;

/// Places of one function that are watched, at most.
const RETURNS_MAX: usize = 32;

/// Offsets of all instructions of `code`, which is the whole function, that return.
pub fn returns(code: &[u8]) -> Result<Vec<u64>, CodeError> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(CodeError::Architecture);
    }
    let len = code.len() as u64;
    let mut found = Vec::new();
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(CodeError::Leaves);
        }
        match instruction.flow_control() {
            FlowControl::Return => found.push(instruction.ip()),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
                if instruction.near_branch_target() >= len =>
            {
                return Err(CodeError::Leaves);
            }
            _ => {}
        }
    }
    if found.is_empty() || found.len() > RETURNS_MAX { Err(CodeError::Leaves) } else { Ok(found) }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn all_returns_are_found() {
        // test %esi,%esi; je +1; ret; xor %eax,%eax; ret
        let code = [0x85, 0xf6, 0x74, 0x01, 0xc3, 0x31, 0xc0, 0xc3];
        assert_eq!(returns(&code), Ok(vec![4, 7]));
    }

    #[test]
    fn a_byte_of_an_instruction_is_no_return() {
        // mov $0xc3c3c3c3,%eax; ret
        assert_eq!(returns(&[0xb8, 0xc3, 0xc3, 0xc3, 0xc3, 0xc3]), Ok(vec![5]));
    }

    #[test]
    fn a_function_that_leaves_another_way_is_not_watched_so() {
        // ret; jmp behind its end
        assert_eq!(returns(&[0xc3, 0xeb, 0x10]), Err(CodeError::Leaves));
        assert_eq!(returns(&[0x74, 0x10, 0xc3]), Err(CodeError::Leaves));
        assert_eq!(returns(&[]), Err(CodeError::Leaves));
        assert_eq!(returns(&[0xc3; 100]), Err(CodeError::Leaves));
        assert_eq!(returns(&[0x06, 0xc3]), Err(CodeError::Leaves), "no instruction of this processor");
    }
}
