//! Reads debug sections piece by piece, with a budget.
//!
//! Debug information can have gigabytes, and comes from the target. gimli reads it through [`Reader`], which takes
//! blocks of a few KiB out of the file as they are needed, and counts what is read: when the budget of a look-up is
//! spent every read fails, so that nothing in the data can make it take longer, or grow larger, than that.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;

use gimli::{LittleEndian, ReaderOffsetId};

use crate::symbols::source::Source;

const BLOCK: u64 = 16 << 10;
/// 1.5 MiB for all files together.
const SLOTS: usize = 96;
/// What reading a block takes of the budget: some microseconds where the file is in the page cache.
const MISS: usize = 128;
/// Bytes that a search for the end of a string goes through for one unit of the budget.
const SEARCH: usize = 16;

struct Block {
    file: u32,
    number: u64,
    bytes: Box<[u8]>,
}

/// Blocks of files that were read last.
#[derive(Default)]
pub(in crate::symbols) struct Blocks(Vec<Option<Block>>);

impl Blocks {
    /// The bytes of `file` from `offset` to the end of the block that they are in, and whether they had to be read.
    fn get(&mut self, file: u32, source: &Source, offset: u64) -> (&[u8], bool) {
        if self.0.is_empty() {
            self.0.resize_with(SLOTS, || None);
        }
        let number = offset / BLOCK;
        let slot = (number.wrapping_add(u64::from(file).wrapping_mul(37)) % SLOTS as u64) as usize;
        let Some(slot) = self.0.get_mut(slot) else { return (&[], false) };
        let missed = slot.as_ref().is_none_or(|block| (block.file, block.number) != (file, number));
        if missed {
            let mut bytes = vec![0; BLOCK as usize];
            let len = source.read_at(number * BLOCK, &mut bytes);
            bytes.truncate(len);
            *slot = Some(Block { file, number, bytes: bytes.into_boxed_slice() });
        }
        let start = (offset % BLOCK) as usize;
        (slot.as_ref().and_then(|block| block.bytes.get(start..)).unwrap_or_default(), missed)
    }
}

/// What a look-up reads from, and how much it may still read.
pub(super) struct Access<'a> {
    pub file: u32,
    pub source: &'a Source,
    pub blocks: &'a RefCell<Blocks>,
    pub fuel: Cell<u64>,
}

impl Access<'_> {
    /// Takes from the budget.
    pub(super) fn spend(&self, amount: usize) -> gimli::Result<()> {
        let left = self.fuel.get().checked_sub(amount as u64);
        self.fuel.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or(gimli::Error::UnexpectedEof(ReaderOffsetId(0)))
    }

    /// Does something with at most `amount` of the budget.
    pub(super) fn within<T>(&self, amount: u64, work: impl FnOnce() -> T) -> T {
        let all = self.fuel.get();
        let part = all.min(amount);
        self.fuel.set(part);
        let result = work();
        self.fuel.set(all - part + self.fuel.get());
        result
    }

    fn copy(&self, mut offset: u64, mut out: &mut [u8]) -> Option<()> {
        let mut blocks = self.blocks.try_borrow_mut().ok()?;
        while !out.is_empty() {
            let (bytes, missed) = blocks.get(self.file, self.source, offset);
            if missed {
                self.spend(MISS).ok()?;
            }
            let len = bytes.len().min(out.len());
            if len == 0 {
                return None;
            }
            let (now, later) = out.split_at_mut_checked(len)?;
            now.copy_from_slice(bytes.get(..len)?);
            offset = offset.checked_add(len as u64)?;
            out = later;
        }
        Some(())
    }
}

/// Where the bytes of a section are.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    /// In the file, from this offset.
    File(u64),
    Memory(&'a [u8]),
}

/// A piece of a section.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    access: &'a Access<'a>,
    content: Content<'a>,
    start: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(access: &'a Access<'a>, content: Content<'a>, len: usize) -> Reader<'a> {
        Reader { access, content, start: 0, end: len }
    }

    /// The bytes, the first `max` of them.
    pub(super) fn bytes(mut self, max: usize) -> gimli::Result<Vec<u8>> {
        let mut bytes = vec![0; max.min(self.end.saturating_sub(self.start))];
        gimli::Reader::read_slice(&mut self, &mut bytes)?;
        Ok(bytes)
    }

    fn past_end(&self) -> gimli::Error {
        gimli::Error::UnexpectedEof(ReaderOffsetId(self.start as u64))
    }

    fn copy(&self, out: &mut [u8]) -> Option<()> {
        match self.content {
            Content::File(offset) => self.access.copy(offset.checked_add(self.start as u64)?, out),
            Content::Memory(bytes) => {
                let end = self.start.checked_add(out.len())?;
                out.copy_from_slice(bytes.get(self.start..end)?);
                Some(())
            }
        }
    }
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}..{:#x}", self.start, self.end)
    }
}

impl gimli::Reader for Reader<'_> {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    fn empty(&mut self) {
        self.end = self.start;
    }

    fn truncate(&mut self, len: usize) -> gimli::Result<()> {
        if len > self.len() {
            return Err(self.past_end());
        }
        self.end = self.start + len;
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.start.saturating_sub(base.start)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.start as u64)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let offset = usize::try_from(id.0).ok()?;
        (self.start..=self.end).contains(&offset).then(|| offset - self.start)
    }

    fn find(&self, byte: u8) -> gimli::Result<usize> {
        let mut rest = *self;
        let mut buffer = [0; 256];
        let mut passed = 0;
        while rest.len() > 0 {
            let len = rest.len().min(buffer.len());
            let piece = buffer.get_mut(..len).unwrap_or_default();
            self.access.spend(1 + len / SEARCH)?;
            rest.copy(piece).ok_or_else(|| self.past_end())?;
            if let Some(at) = piece.iter().position(|&other| other == byte) {
                return Ok(passed + at);
            }
            passed += len;
            rest.start += len;
        }
        Err(self.past_end())
    }

    fn skip(&mut self, len: usize) -> gimli::Result<()> {
        self.access.spend(1)?;
        if len > self.len() {
            return Err(self.past_end());
        }
        self.start += len;
        Ok(())
    }

    fn split(&mut self, len: usize) -> gimli::Result<Self> {
        self.access.spend(1)?;
        let mut front = *self;
        front.truncate(len)?;
        self.start += len;
        Ok(front)
    }

    fn to_slice(&self) -> gimli::Result<Cow<'_, [u8]>> {
        self.access.spend(1 + self.len() / SEARCH)?;
        if self.len() > BLOCK as usize {
            return Err(self.past_end());
        }
        Ok(Cow::Owned(self.bytes(BLOCK as usize)?))
    }

    fn to_string(&self) -> gimli::Result<Cow<'_, str>> {
        let bytes = self.to_slice()?.into_owned();
        String::from_utf8(bytes).map(Cow::Owned).map_err(|_| gimli::Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> gimli::Result<Cow<'_, str>> {
        Ok(Cow::Owned(String::from_utf8_lossy(&self.to_slice()?).into_owned()))
    }

    fn read_slice(&mut self, out: &mut [u8]) -> gimli::Result<()> {
        self.access.spend(1)?;
        if out.len() > self.len() {
            return Err(self.past_end());
        }
        self.copy(out).ok_or_else(|| self.past_end())?;
        self.start += out.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gimli::Reader as _;

    use super::*;

    #[test]
    fn jumping_through_a_file_takes_more_of_the_budget_than_reading_on() {
        let source = Source::Memory(Arc::from(vec![1; 64 * BLOCK as usize]));
        let blocks = RefCell::new(Blocks::default());
        let reads = |step: usize| {
            blocks.borrow_mut().0.clear();
            let access = Access { file: 1, source: &source, blocks: &blocks, fuel: Cell::new(1000) };
            let whole = Reader::new(&access, Content::File(0), 64 * BLOCK as usize);
            let at = |number: usize| {
                let mut place = whole;
                place.start += number * step;
                place.read_u8()
            };
            (0..64).take_while(|number| at(*number).is_ok()).count()
        };
        assert_eq!(reads(1), 64);
        assert!((1..10).contains(&reads(BLOCK as usize)));
    }
}
