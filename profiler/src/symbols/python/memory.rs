//! Memory of the interpreter, with a limit on what one look may read.

use crate::symbols::memory::read_process;
use crate::symbols::source::{u32_at, u64_at};

/// Bytes that one look reads at most.
const LOOK_BYTES: usize = 4 << 20;
/// Reads of one look at most; a stack of 256 frames takes about 1 300.
const LOOK_READS: usize = 8192;

/// Something that has memory.
pub(super) trait Memory {
    /// Fills all of `buffer` from `address`; false where that is not possible.
    fn fill(&mut self, address: u64, buffer: &mut [u8]) -> bool;
}

/// A process, for one look.
pub(super) struct Remote {
    pid: u32,
    bytes_left: usize,
    reads_left: usize,
}

impl Remote {
    pub(super) fn new(pid: u32) -> Remote {
        Remote { pid, bytes_left: LOOK_BYTES, reads_left: LOOK_READS }
    }
}

impl Memory for Remote {
    fn fill(&mut self, address: u64, buffer: &mut [u8]) -> bool {
        let (Some(bytes), Some(reads)) =
            (self.bytes_left.checked_sub(buffer.len()), self.reads_left.checked_sub(1))
        else {
            return false;
        };
        (self.bytes_left, self.reads_left) = (bytes, reads);
        read_process(self.pid, address, buffer) == buffer.len()
    }
}

/// A structure that was copied as a whole, so that its members belong together.
pub(super) struct Struct {
    bytes: Vec<u8>,
}

impl Struct {
    /// `size` bytes at `address`, which must be one that a structure can have.
    pub(super) fn read(memory: &mut impl Memory, address: u64, size: usize) -> Option<Struct> {
        if address == 0 || !address.is_multiple_of(8) {
            return None;
        }
        let mut bytes = vec![0; size];
        memory.fill(address, &mut bytes).then_some(Struct { bytes })
    }

    pub(super) fn u64(&self, offset: u16) -> Option<u64> {
        u64_at(&self.bytes, offset.into())
    }

    pub(super) fn u32(&self, offset: u16) -> Option<u32> {
        u32_at(&self.bytes, offset.into())
    }

    pub(super) fn i32(&self, offset: u16) -> Option<i32> {
        self.u32(offset).map(u32::cast_signed)
    }

    pub(super) fn u8(&self, offset: u16) -> Option<u8> {
        self.bytes.get(usize::from(offset)).copied()
    }
}

/// The word at an address.
pub(super) fn word(memory: &mut impl Memory, address: u64) -> Option<u64> {
    Struct::read(memory, address, 8)?.u64(0)
}
