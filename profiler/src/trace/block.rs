//! Finds the blocks of a trace, also behind damage.

use std::io::Read;

use zstd::bulk::Decompressor;

use super::budget::{self, Budget};
use super::format::{self, BLOCK_HEADER, BlockHeader, FILE_HEADER, FLAG_ZSTD, FLAGS_KNOWN, MAGIC, SYNC};
use super::kind::Kind;
use super::window::Window;

/// Damage is told place by place up to here; what comes after is counted.
const DAMAGE_MAX: usize = 32;
/// Damaged payloads are searched for blocks as long as they make up less than this many times the file:
/// overlapping claims of lengths must not make reading a file quadratic.
const SEARCH_FACTOR: u64 = 4;
const SEARCH_FREE: u64 = 8 << 20;

/// A block whose checksums are right, unpacked.
#[derive(Debug)]
pub(super) struct Block {
    /// Position in the file.
    pub(super) offset: u64,
    pub(super) header: BlockHeader,
    /// `None`: of an encoding that this version does not know.
    pub(super) payload: Option<Vec<u8>>,
}

/// What was not as it should be.
#[derive(Debug, Default)]
pub(super) struct Damage {
    told: Vec<String>,
    more: u64,
    bytes_unread: u64,
}

impl Damage {
    pub(super) fn add(&mut self, offset: u64, what: &str, unread: u64) {
        self.bytes_unread = self.bytes_unread.saturating_add(unread);
        if self.told.len() < DAMAGE_MAX {
            let bytes = if unread == 0 { String::new() } else { format!(" ({unread} bytes not read)") };
            self.told.push(format!("at byte {offset}: {what}{bytes}"));
        } else {
            self.more += 1;
        }
    }

    /// Adds what was found further on.
    pub(super) fn append(&mut self, later: Damage) {
        self.bytes_unread = self.bytes_unread.saturating_add(later.bytes_unread);
        let free = DAMAGE_MAX.saturating_sub(self.told.len());
        self.more += later.more + later.told.len().saturating_sub(free) as u64;
        self.told.extend(later.told.into_iter().take(free));
    }

    pub(super) fn is_none(&self) -> bool {
        self.told.is_empty()
    }

    pub(super) fn bytes_unread(&self) -> u64 {
        self.bytes_unread
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = self.told.clone();
        if self.more > 0 {
            lines.push(format!("and {} more damaged places", self.more));
        }
        lines
    }
}

/// What is told of a file that several traces were put together in: a second recording has other hosts, ids and clocks.
const OTHER_TRACE: &str = "another trace begins here, of which nothing is read: a file has one recording";
/// What is told of blocks that [`Budget`] has no room for.
const BEYOND: &str = "a block unfolds to more than a file of this length can hold";

/// Reads block after block.
pub(super) struct BlockReader<R> {
    window: Window<R>,
    unpacker: Option<Decompressor<'static>>,
    budget: Budget,
    pub(super) damage: Damage,
    /// Bytes of damaged payloads that were or will be searched for blocks.
    searched: u64,
}

/// What stands at a place where a block should begin.
enum Found {
    Block(Block),
    End,
    /// The header of another trace.
    OtherTrace,
    /// No block: what is wrong, and how much of it certainly holds none.
    Bad(&'static str, usize),
}

impl<R: Read> BlockReader<R> {
    /// Bytes of the source that were read or skipped.
    pub(super) fn offset(&self) -> u64 {
        self.window.offset()
    }

    pub(super) fn new(window: Window<R>) -> Self {
        BlockReader {
            window,
            unpacker: None,
            budget: Budget::default(),
            damage: Damage::default(),
            searched: 0,
        }
    }

    /// The next block; what is damaged before it is skipped and noted.
    pub(super) fn next_block(&mut self) -> Option<Block> {
        let from = self.window.offset();
        let mut reason = None;
        loop {
            match self.look() {
                Found::Block(block) => {
                    self.note(from, block.offset, reason);
                    return Some(block);
                }
                Found::End => {
                    self.note(from, self.window.offset(), reason);
                    if let Some(error) = self.window.take_error() {
                        self.damage.add(self.window.offset(), &format!("cannot read: {error}"), 0);
                    }
                    return None;
                }
                Found::OtherTrace => {
                    let begin = self.window.offset();
                    self.note(from, begin, reason);
                    self.skip_all();
                    self.damage.add(begin, OTHER_TRACE, self.window.offset().saturating_sub(begin));
                    return None;
                }
                Found::Bad(what, skip) => {
                    reason.get_or_insert(what);
                    self.window.advance(skip);
                    self.skip_to_sync();
                }
            }
        }
    }

    fn note(&mut self, from: u64, to: u64, reason: Option<&'static str>) {
        if let Some(reason) = reason {
            self.damage.add(from, reason, to.saturating_sub(from));
        }
    }

    fn look(&mut self) -> Found {
        let offset = self.window.offset();
        if self.is_other_trace() {
            return Found::OtherTrace;
        }
        let bytes = self.window.peek(BLOCK_HEADER);
        if bytes.is_empty() {
            return Found::End;
        }
        let Some(header) = BlockHeader::decode(bytes) else {
            let short = bytes.len() < BLOCK_HEADER && SYNC.starts_with(bytes.get(..4).unwrap_or(bytes));
            let what = if short { "the file ends inside a block" } else { "no block header" };
            return Found::Bad(what, 1);
        };
        let len = BLOCK_HEADER + header.stored_len as usize;
        let block = self.window.peek(len);
        let Some(stored) = block.get(BLOCK_HEADER..len) else {
            return self.bad("the file ends inside a block", len);
        };
        if crc32fast::hash(stored) != header.payload_crc {
            return self.bad("the checksum of a block does not match", len);
        }
        self.budget.earn(&header);
        let is_known = header.flags & !FLAGS_KNOWN == 0 && Kind::from_number(header.kind).is_some();
        if is_known && !self.budget.spend(budget::of_block(&header)) {
            return Found::Bad(BEYOND, len);
        }
        let payload = if !is_known {
            None
        } else if header.flags & FLAG_ZSTD == 0 {
            Some(stored.to_vec())
        } else {
            match unpack(&mut self.unpacker, stored, header.unpacked_len as usize) {
                Some(payload) => Some(payload),
                None => return Found::Bad("a block cannot be unpacked", len),
            }
        };
        self.window.advance(len);
        Found::Block(Block { offset, header, payload })
    }

    fn is_other_trace(&mut self) -> bool {
        let Some(len) = format::file_header_len(self.window.peek(FILE_HEADER)) else { return false };
        format::decode_file_header(self.window.peek(len)).is_some()
    }

    /// A block with a valid header and a wrong payload: bytes may be missing in it, so that good blocks
    /// begin within its claimed length.
    fn bad(&mut self, what: &'static str, len: usize) -> Found {
        let searched = self.searched.saturating_add(len as u64);
        let seen = self.window.offset().saturating_add(len as u64);
        if searched > SEARCH_FREE.saturating_add(SEARCH_FACTOR.saturating_mul(seen)) {
            return Found::Bad(what, len);
        }
        self.searched = searched;
        Found::Bad(what, 1)
    }

    fn skip_all(&mut self) {
        loop {
            let len = self.window.peek_some().len();
            if len == 0 {
                return;
            }
            self.window.advance(len);
        }
    }

    /// Moves to the next place where a block, or another trace, can begin, or to the end.
    fn skip_to_sync(&mut self) {
        loop {
            let bytes = self.window.peek_some();
            if bytes.is_empty() {
                return;
            }
            let first = bytes.iter().position(|&byte| byte == SYNC[0] || byte == MAGIC[0]);
            let skip = first.unwrap_or(bytes.len());
            self.window.advance(skip);
            if first.is_some() {
                if self.window.peek(SYNC.len()) == SYNC || self.window.peek(MAGIC.len()) == MAGIC {
                    return;
                }
                self.window.advance(1);
            }
        }
    }
}

/// Unpacks to exactly `len` bytes, and needs no more memory than these.
fn unpack(unpacker: &mut Option<Decompressor<'static>>, stored: &[u8], len: usize) -> Option<Vec<u8>> {
    if unpacker.is_none() {
        *unpacker = Decompressor::new().ok();
    }
    let payload = unpacker.as_mut()?.decompress(stored, len).ok()?;
    (payload.len() == len).then_some(payload)
}
