//! What an unwinding depended on, so that the kernel can tell whether another stack would be unwound the same.
//!
//! A walk begins at a program counter and a stack pointer. From there on the rules of the modules say everything but
//! the words that it reads. Of these, most saved registers lead nowhere; the decisive ones are the return addresses and
//! those registers that a frame was found by.

use profiler_common::stack::{
    NO_SHAPE, SHAPE_BP, SHAPE_CHAIN, SHAPE_SET, SHAPE_SLOTS, Shape, ShapeKey, with_word,
};

use crate::probes::event::RawStack;

/// Where a register's value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The walk itself: follows from what is decisive already.
    Walk,
    /// The frame pointer register of the innermost frame.
    FramePointer,
    /// The word at this address.
    Word(u64),
    /// It was guessed.
    Unclear,
}

/// What decided about the frames of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decisive {
    /// Addresses of words.
    words: Vec<u64>,
    frame_pointer: bool,
    chain: bool,
    unclear: bool,
}

impl Decisive {
    pub(super) fn add(&mut self, origin: Origin) {
        match origin {
            Origin::Walk => {}
            Origin::FramePointer => self.frame_pointer = true,
            Origin::Unclear => self.unclear = true,
            Origin::Word(address) if self.words.contains(&address) => {}
            Origin::Word(_) if self.words.len() >= SHAPE_SLOTS => self.unclear = true,
            Origin::Word(address) => self.words.push(address),
        }
    }

    /// The frames that the kernel found by frame pointers are among them.
    pub(super) fn add_chain(&mut self) {
        self.chain = true;
    }

    /// The shape of the stack that was walked. `None` where that does not tell it from others.
    pub(super) fn shape(&self, raw: &RawStack) -> Option<KnownStack> {
        if self.unclear {
            return None;
        }
        let key = ShapeKey { tgid: raw.pid, reserved: 0, ip: raw.regs.ip, sp: raw.regs.sp };
        let mut flags = SHAPE_SET;
        flags |= if self.frame_pointer { SHAPE_BP } else { 0 };
        flags |= if self.chain { SHAPE_CHAIN } else { 0 };
        let count = u16::try_from(self.words.len()).ok()?;
        let mut shape = Shape { count, flags, ..NO_SHAPE };
        let mut hash = shape.begin(&key, raw.regs.bp, raw.chain);
        for (slot, &address) in shape.slots.iter_mut().zip(&self.words) {
            let offset = address.checked_sub(raw.regs.sp).filter(|offset| offset.is_multiple_of(8))?;
            *slot = u16::try_from(offset / 8).ok()?;
            let word = super::source::u64_at(&raw.snippet, usize::try_from(offset).ok()?)?;
            hash = with_word(hash, *slot, word);
        }
        Some(KnownStack { key, shape, hash })
    }
}

/// By what the kernel knows a stack again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownStack {
    pub key: ShapeKey,
    pub shape: Shape,
    /// Hash of the words that the stack has where the shape says.
    pub hash: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::event::Registers;

    fn raw(words: &[u64], bp: u64) -> RawStack {
        RawStack {
            pid: 7,
            regs: Registers { ip: 0x1100, sp: 0x8000, bp },
            snippet: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            ..RawStack::default()
        }
    }

    fn decisive(origins: &[Origin]) -> Decisive {
        let mut decisive = Decisive::default();
        for origin in origins {
            decisive.add(*origin);
        }
        decisive
    }

    #[test]
    fn stacks_that_differ_in_decisive_words_alone_have_other_hashes() {
        let decisive = decisive(&[Origin::Word(0x8008), Origin::Walk, Origin::Word(0x8018)]);
        let hash = |words: &[u64], bp| decisive.shape(&raw(words, bp)).unwrap().hash;
        let known = hash(&[1, 2, 3, 4], 5);
        assert_eq!(hash(&[9, 2, 9, 4], 9), known);
        assert_ne!(hash(&[1, 9, 3, 4], 5), known);
        assert_ne!(hash(&[1, 2, 3, 9], 5), known);
        // The same words elsewhere.
        assert_ne!(hash(&[1, 4, 3, 2], 5), known);
    }

    #[test]
    fn a_frame_pointer_that_led_somewhere_counts() {
        let decisive = decisive(&[Origin::FramePointer, Origin::Word(0x8000)]);
        let hash = |bp| decisive.shape(&raw(&[1], bp)).unwrap().hash;
        assert_ne!(hash(1), hash(2));
    }

    #[test]
    fn what_cannot_be_told_by_words_has_no_shape() {
        assert_eq!(decisive(&[Origin::Unclear]).shape(&raw(&[1], 0)), None);
        // Beyond what was copied, below the stack pointer, between words.
        for address in [0x8010, 0x7ff8, 0x8004, u64::MAX] {
            assert_eq!(decisive(&[Origin::Word(address)]).shape(&raw(&[1, 2], 0)), None, "{address:#x}");
        }
        let many: Vec<Origin> =
            (0..=SHAPE_SLOTS as u64).map(|slot| Origin::Word(0x8000 + slot * 8)).collect();
        assert_eq!(decisive(&many).shape(&raw(&[1; 2 * SHAPE_SLOTS], 0)), None);
        let (_, fewer) = many.split_last().unwrap();
        assert!(decisive(fewer).shape(&raw(&[1; 2 * SHAPE_SLOTS], 0)).is_some());
    }
}
