//! Line numbers out of the tables of code objects.

use super::layout::Lines;

/// The line of the instruction at `offset` bytes into the code. `None` where the table gives it none.
pub(super) fn line(encoding: Lines, table: &[u8], first: u32, offset: u64) -> Option<u32> {
    let line = match encoding {
        Lines::Lnotab => lnotab(table, first, offset),
        Lines::Ranges => ranges(table, first, offset)?,
        Lines::Locations => locations(table, first, offset / 2)?,
    };
    u32::try_from(line).ok().filter(|line| *line > 0)
}

/// Pairs of steps: in the code, and signed in lines.
fn lnotab(table: &[u8], first: u32, offset: u64) -> i64 {
    let (mut line, mut at) = (i64::from(first), 0u64);
    for pair in table.chunks_exact(2) {
        let [step, lines] = pair else { break };
        at += u64::from(*step);
        if at > offset {
            break;
        }
        line += i64::from(lines.cast_signed());
    }
    line
}

/// Pairs of a range's length and the step in lines before it; -128 says that the range has no line.
fn ranges(table: &[u8], first: u32, offset: u64) -> Option<i64> {
    const NO_LINE: i8 = -128;
    let (mut line, mut end) = (i64::from(first), 0u64);
    for pair in table.chunks_exact(2) {
        let [length, lines] = pair else { break };
        let lines = lines.cast_signed();
        end += u64::from(*length);
        if lines != NO_LINE {
            line += i64::from(lines);
        }
        if offset < end {
            return (lines != NO_LINE).then_some(line);
        }
    }
    None
}

/// Entries of a head (kind and length in instructions) and what the kind asks for.
fn locations(table: &[u8], first: u32, instruction: u64) -> Option<i64> {
    let mut bytes = table.iter().copied();
    let (mut line, mut end) = (i64::from(first), 0u64);
    while let Some(head) = bytes.next() {
        let mut has_line = true;
        match (head >> 3) & 15 {
            15 => has_line = false,
            14 => {
                line = line.checked_add(signed(&mut bytes)?)?;
                for _ in 0..3 {
                    varint(&mut bytes)?;
                }
            }
            13 => line = line.checked_add(signed(&mut bytes)?)?,
            kind @ 10..=12 => {
                line += i64::from(kind - 10);
                bytes.next()?;
                bytes.next()?;
            }
            _ => {
                bytes.next()?;
            }
        }
        end += u64::from(head & 7) + 1;
        if instruction < end {
            return has_line.then_some(line);
        }
    }
    None
}

/// Six bits a byte, the lowest first; bit 6 says that more follow.
fn varint(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..60).step_by(6) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
    None
}

/// The lowest bit is the sign.
fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = varint(bytes)?;
    let size = (value >> 1).cast_signed();
    Some(if value & 1 == 0 { size } else { -size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::live_tests::random_below;

    #[test]
    fn lines_of_3_8_follow_the_steps() {
        // def f(): / a() / ... / b(), with a step back.
        let table = [0, 1, 6, 4, 10, 0xff];
        let at = |offset| line(Lines::Lnotab, &table, 10, offset);
        assert_eq!(
            [at(0), at(5), at(6), at(15), at(16), at(400)].map(Option::unwrap),
            [11, 11, 15, 15, 14, 14]
        );
    }

    #[test]
    fn ranges_of_3_10_can_be_without_a_line() {
        let table = [4, 1, 6, 0x80, 8, 2];
        let at = |offset| line(Lines::Ranges, &table, 10, offset);
        assert_eq!(
            [at(0), at(3), at(4), at(9), at(10), at(17), at(18)],
            [Some(11), Some(11), None, None, Some(13), Some(13), None]
        );
    }

    #[test]
    fn locations_of_all_kinds_are_read() {
        let head = |kind: u8, length: u8| 0x80 | kind << 3 | (length - 1);
        let table = [
            head(11, 2),
            0,
            9, // one line further
            head(0, 1),
            0x11, // the same line
            head(14, 3),
            0b100,
            0,
            1,
            1,           // two further
            head(15, 1), // none
            head(13, 1),
            0b11, // one back
            head(13, 8),
            0x40 | 8,
            1, // 36 further
        ];
        let at = |instruction: u64| line(Lines::Locations, &table, 10, instruction * 2);
        let lines: Vec<_> = [0, 1, 2, 3, 5, 6, 7, 8, 15, 16].map(at).into();
        let wanted = [11, 11, 11, 13, 13].map(Some);
        assert_eq!(lines[..5], wanted);
        assert_eq!(lines[5..], [None, Some(12), Some(48), Some(48), None]);
    }

    #[test]
    fn any_table_is_read_to_its_end_at_most() {
        let mut next = random_below(7);
        for round in 0..2000 {
            let table: Vec<u8> = (0..round % 50).map(|_| next(256) as u8).collect();
            for encoding in [Lines::Lnotab, Lines::Ranges, Lines::Locations] {
                line(encoding, &table, u32::MAX, next(1 << 24) as u64);
                line(encoding, &table, 0, u64::MAX);
            }
        }
    }
}
