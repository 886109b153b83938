//! How much a file may unfold to. A few kilobytes of zstd can claim gigabytes of records; what a recorder writes unfolds to
//! some 30 times its length at most. What is beyond is not read, and told as damage.

use super::format::{BLOCK_HEADER, BlockHeader};
use super::kind::Kind;
use super::record::Record;

/// Bytes of memory that any file may unfold to.
const FREE: u64 = 32 << 20;
/// And that many for each of its bytes.
const FACTOR: u64 = 64;
/// What a record is counted as at least, bytes: it is in memory, in tables and in rows of the report.
const RECORD: u64 = 192;

/// What is told of blocks and records that are not read for it.
pub(super) const BEYOND: &str = "unfolds to more than a file of this length can hold";

/// Bytes of memory that may still be used.
#[derive(Debug)]
pub(super) struct Budget {
    left: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { left: FREE }
    }
}

impl Budget {
    /// A block of this length, as stored, was read.
    pub(super) fn earn(&mut self, header: &BlockHeader) {
        let bytes = u64::from(header.stored_len) + BLOCK_HEADER as u64;
        self.left = self.left.saturating_add(bytes.saturating_mul(FACTOR));
    }

    /// Whether there is room for as much.
    pub(super) fn has(&self, bytes: u64) -> bool {
        bytes <= self.left
    }

    /// Takes the room; false where there is not as much. Nothing is taken then.
    pub(super) fn spend(&mut self, bytes: u64) -> bool {
        let Some(left) = self.left.checked_sub(bytes) else { return false };
        self.left = left;
        true
    }

    /// The room was used, although it was not there.
    pub(super) fn exhaust(&mut self) {
        self.left = 0;
    }
}

/// What the records of a block take at least, as its header claims.
pub(super) fn of_block(header: &BlockHeader) -> u64 {
    u64::from(header.unpacked_len).max(u64::from(header.records) * RECORD)
}

/// Whether a record of this kind has rows of its own, so that only the decoded record tells what it takes.
pub(super) fn has_rows(kind: Kind) -> bool {
    use Kind::{GpuActivities, GpuSyncs, PythonStack, RdmaPort, RdmaSetupTotals, Stack};
    matches!(kind, Stack | PythonStack | GpuActivities | GpuSyncs | RdmaSetupTotals | RdmaPort)
}

/// What the rows in a record take.
pub(super) fn of_rows(record: &Record) -> u64 {
    let (rows, bytes) = match record {
        Record::Stack(stack) => (stack.frames.len(), size_of::<super::record::Frame>()),
        Record::PythonStack(stack) => (stack.frames.len(), size_of::<super::record::PythonFrame>()),
        Record::GpuActivities(batch) => (batch.what.len(), size_of::<super::gpu::GpuActivity>()),
        Record::GpuSyncs(batch) => (batch.call.len(), RECORD as usize),
        Record::RdmaSetupTotals(totals) => (totals.histogram.len(), size_of::<(u8, u64)>()),
        Record::RdmaPort(port) => (port.gids.len(), size_of::<super::place::Gid>()),
        _ => (0, 0),
    };
    rows as u64 * bytes as u64
}
