//! Python strings.

use super::layout::TextLayout;
use super::memory::{Memory, Struct};
use crate::symbols::demangle::printable;

/// Characters that are kept of one string; what is cut ends with `..`.
const LONGEST: usize = 512;
/// Longer strings are no names: the object is not one, or somebody plays.
const IMPOSSIBLE: u64 = 1 << 24;

/// Where the bits of the state may begin that tell how a string is kept, the likeliest first: behind two bits; behind
/// eight where threads are free; behind 16 from 3.14 on. What is above these bits is not initialised.
const SHIFTS: [u32; 3] = [16, 2, 8];

/// The string at `address`; `None` where there is none.
pub(super) fn read(memory: &mut impl Memory, layout: TextLayout, address: u64) -> Option<String> {
    let object = Struct::read(memory, address, usize::from(layout.data.max(layout.state + 4)))?;
    let length = object.u64(layout.length).filter(|length| *length < IMPOSSIBLE)?;
    let (width, ascii) = parse_any(object.u32(layout.state)?)?;
    let data = address.checked_add(u64::from(layout.data) + if ascii { 0 } else { 16 })?;
    let kept = (length as usize).min(LONGEST);
    let mut bytes = vec![0; kept * width];
    if !memory.fill(data, &mut bytes) {
        return None;
    }
    let mut text: String = bytes.chunks_exact(width).map(character).collect();
    if (length as usize) > kept {
        text.push_str("..");
    }
    // Names are shown and compared: nothing in them may steer a terminal.
    Some(printable(text.as_bytes()))
}

/// A string has at least one of the bits behind its interning, so only one place makes sense.
fn parse_any(state: u32) -> Option<(usize, bool)> {
    SHIFTS.iter().find_map(|shift| parse_state(state, *shift))
}

/// Bytes of a character and whether all are ASCII, where the state can be that of a compact string.
fn parse_state(state: u32, shift: u32) -> Option<(usize, bool)> {
    let interned = state & ((1 << shift) - 1);
    let bits = state >> shift;
    let (kind, compact, ascii) = (bits & 7, bits & 8 != 0, bits & 16 != 0);
    let plausible = interned < 4 && compact && (!ascii || kind == 1);
    (plausible && matches!(kind, 1 | 2 | 4)).then_some((kind as usize, ascii))
}

fn character(bytes: &[u8]) -> char {
    let code = bytes.iter().rev().fold(0u32, |code, byte| code << 8 | u32::from(*byte));
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::*;

    const LAYOUT: TextLayout = TextLayout { length: 16, state: 32, data: 40 };

    fn put(memory: &mut Fake, address: u64, length: u64, state: u32, data: (u64, &[u8])) {
        memory.put(address, &[0; 64]);
        memory.put(address + 16, &length.to_le_bytes());
        memory.put(address + 32, &state.to_le_bytes());
        memory.put(address + data.0, data.1);
    }

    fn state(kind: u32, ascii: bool, shift: u32) -> u32 {
        (kind | 8 | u32::from(ascii) << 4) << shift | 1
    }

    #[test]
    fn strings_of_all_widths_are_read() {
        let mut memory = Fake::default();
        put(&mut memory, 0x1000, 4, state(1, true, 2), (40, b"name"));
        put(&mut memory, 0x2000, 3, state(1, false, 2), (56, &[b'a', 0xfc, b'b']));
        put(&mut memory, 0x3000, 2, state(2, false, 16), (56, &[0xac, 0x20, 0x41, 0]));
        put(&mut memory, 0x4000, 1, state(4, false, 8), (56, &[0x00, 0xf6, 0x01, 0]));
        let mut text = |address| read(&mut memory, LAYOUT, address);
        assert_eq!(text(0x1000).as_deref(), Some("name"));
        assert_eq!(text(0x2000).as_deref(), Some("aüb"));
        assert_eq!(text(0x3000).as_deref(), Some("€A"));
        assert_eq!(text(0x4000).as_deref(), Some("😀"));
        assert_eq!(text(0x9000), None);
    }

    #[test]
    fn huge_strings_are_cut_and_impossible_ones_refused() {
        let mut memory = Fake::default();
        put(&mut memory, 0x1000, 100_000, state(1, true, 2), (40, &[b'x'; 1000]));
        put(&mut memory, 0x2000, 1 << 40, state(1, true, 2), (40, &[b'x'; 1000]));
        let cut = read(&mut memory, LAYOUT, 0x1000).unwrap();
        assert_eq!((cut.len(), cut.ends_with("x..")), (LONGEST + 2, true));
        assert_eq!(read(&mut memory, LAYOUT, 0x2000), None);
    }

    #[test]
    fn what_is_above_the_state_is_not_looked_at() {
        assert_eq!(parse_any(0xabcd_efe4), Some((1, true)));
    }

    #[test]
    fn states_that_no_string_has_are_refused() {
        for bits in
            [0, u32::MAX, 0xffff, state(3, false, 2), state(2, true, 2), state(1, true, 2) & !(8 << 2)]
        {
            assert_eq!(parse_any(bits), None, "{bits:#x}");
        }
    }
}
