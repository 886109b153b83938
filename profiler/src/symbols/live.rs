//! The stack of a thread that is blocked, without stopping it.

use super::memory::LiveMemory;
use super::unwind::{self, AddressSpace, Walk};
use crate::probes::event::Registers;

/// Unwinds the thread if it is still blocked where `registers` say, before and after its stack was read.
pub(super) fn walk(space: &mut impl AddressSpace, pid: u32, tid: u32, registers: Registers) -> Option<Walk> {
    let before = read_position(pid, tid)?;
    let registers = if registers == Registers::default() {
        Registers { ip: before.ip, sp: before.sp, bp: 0 }
    } else {
        registers
    };
    if (registers.ip, registers.sp) != (before.ip, before.sp) {
        return None;
    }
    let walk = unwind::walk(space, registers, &mut LiveMemory::new(tid));
    (read_position(pid, tid)? == before).then_some(walk)
}

/// Where a blocked thread left user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    sp: u64,
    ip: u64,
}

/// `None` where the thread runs or is gone.
fn read_position(pid: u32, tid: u32) -> Option<Position> {
    parse_position(&std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?)
}

/// `number arguments… sp pc`, `-1 sp pc` outside of a system call, or `running`.
fn parse_position(text: &str) -> Option<Position> {
    let mut fields = text.split_ascii_whitespace().rev();
    let mut number = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
    let (ip, sp) = (number()?, number()?);
    (ip != 0 && sp != 0).then_some(Position { sp, ip })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_is_known_of_blocked_threads_only() {
        let blocked = "0 0x3 0x7f10 0x1000 0x22 0x0 0x0 0x7ffc0e1 0x7f5d2\n";
        assert_eq!(parse_position(blocked), Some(Position { sp: 0x7ff_c0e1, ip: 0x7f5d2 }));
        assert_eq!(parse_position("-1 0x10 0x20"), Some(Position { sp: 0x10, ip: 0x20 }));
        for text in ["running\n", "", "0x0 0x0", "-1 0x0", "1 2 3"] {
            assert_eq!(parse_position(text), None, "{text}");
        }
    }
}
