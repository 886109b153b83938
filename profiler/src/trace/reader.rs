//! Reads a trace record by record, around damage, in bounded memory and linear time.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::block::{Block, BlockReader, Damage};
use super::budget::{self, Budget};
use super::columns::WaitDecoder;
use super::columns::rows::WaitBlock;
use super::error::TraceError;
use super::format::{self, FILE_HEADER, MAGIC, MAJOR, SYNC, Version};
use super::kind::Kind;
use super::record::{Loss, Record};
use super::window::Window;
use super::writer::LOSS_WRITE;
use crate::analysis::report::TraceState;
use crate::parallel::in_order;

/// Name of the [`Loss`] that counts the records of kinds which this version does not know.
pub const LOSS_UNKNOWN: &str = "unknown_record_kind";
/// What a trace without an end is told by.
pub const UNENDED: &str = "it did not end in order (killed, or still running): waits open then are not known";

/// Yields the records of a trace; afterwards [`state`](Self::state) says how whole it was.
///
/// The order within a kind is the order in which they were written; between kinds it means nothing.
pub struct TraceReader<R = File> {
    blocks: BlockReader<R>,
    seen: Seen,
    version: Version,
    exhausted: bool,
}

/// What the blocks so far were like.
#[derive(Default)]
struct Seen {
    current: Current,
    damage: Damage,
    /// For the rows inside of records.
    budget: Budget,
    unknown: u64,
    /// Records that the writer could not write, by its own account.
    unwritten: u64,
    ended_in_order: bool,
}

#[derive(Default)]
enum Current {
    #[default]
    Nothing,
    Waits(Box<WaitDecoder>),
    Rows(Rows),
}

/// Encoded records of one kind.
struct Rows {
    kind: Kind,
    payload: Vec<u8>,
    at: usize,
    left: u32,
    block_offset: u64,
}

impl TraceReader<File> {
    /// Opens a file and checks that it is a trace of a version that can be read.
    ///
    /// # Errors
    /// A variant of its own for each: cannot be opened, a directory, empty, not a trace, ends inside the
    /// header, newer.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let open_error = |source| TraceError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(open_error)?;
        if file.metadata().map_err(open_error)?.is_dir() {
            return Err(TraceError::IsDirectory { path: path.to_owned() });
        }
        TraceReader::new(file, path)
    }
}

impl<R: Read> TraceReader<R> {
    /// Reads the file header; `path` is for error messages.
    pub fn new(source: R, path: impl Into<PathBuf>) -> Result<Self, TraceError> {
        let mut window = Window::new(source);
        let header = match read_file_header(&mut window) {
            Ok(header) => header,
            Err(bad) => return Err(bad.into_error(path.into())),
        };
        let mut reader = TraceReader {
            blocks: BlockReader::new(window),
            seen: Seen::default(),
            version: header.unwrap_or(Version { major: MAJOR, minor: format::MINOR }),
            exhausted: false,
        };
        if header.is_none() {
            reader.seen.damage.add(0, "the checksum of the file header does not match", 0);
        }
        Ok(reader)
    }

    /// The file's format version; this stallscope's own where the header is damaged.
    pub fn version(&self) -> Version {
        self.version
    }

    /// How whole the trace is, as far as it was read.
    pub fn state(&self) -> TraceState {
        let Seen { damage, unwritten, ended_in_order, .. } = &self.seen;
        let mut lines = damage.lines();
        if self.exhausted && !ended_in_order {
            // Waits are recorded when they end, and those that are open when the recording ends.
            lines.push(UNENDED.to_owned());
        }
        if *unwritten > 0 {
            lines.push(format!("{unwritten} records could not be written when this was recorded"));
        }
        TraceState {
            complete: *ended_in_order && *unwritten == 0 && damage.is_none(),
            damage: lines,
            bytes_unread: damage.bytes_unread(),
        }
    }

    /// The next record, `None` at the end.
    pub fn next_record(&mut self) -> Option<Record> {
        while !self.exhausted {
            if let Some(record) = self.seen.next_of_block() {
                return Some(record);
            }
            let block = self.blocks.next_block();
            self.seen.damage.append(std::mem::take(&mut self.blocks.damage));
            let Some(block) = block else {
                self.exhausted = true;
                return self.seen.told_unknown();
            };
            self.seen.enter(block.decode());
        }
        None
    }
}

impl<R: Read + Send> TraceReader<R> {
    /// Hands over all that is left, the waits block by block, in the order of [`next_record`](Self::next_record).
    /// Blocks are unpacked, decoded and made into something else by `fold` on other threads. `progress` is told how many
    /// bytes of the source were read.
    pub fn for_each<W: Send>(
        &mut self,
        progress: &(dyn Fn(u64) + Sync),
        fold: impl Fn(WaitBlock) -> W + Sync,
        mut take: impl FnMut(Piece<W>),
    ) {
        let TraceReader { blocks, seen, exhausted, .. } = self;
        while let Some(record) = seen.next_of_block() {
            take(Piece::Record(record));
        }
        if std::mem::replace(exhausted, true) {
            return;
        }
        let parts = std::iter::from_fn(|| {
            let block = blocks.next_block();
            progress(blocks.offset());
            let damage = std::mem::take(&mut blocks.damage);
            (block.is_some() || !damage.is_none()).then_some((block, damage))
        });
        let decode = |(block, damage): (Option<Block>, Damage)| {
            let Some(mut decoded) = block.map(Block::decode) else { return (None, None, damage) };
            let is_wait = decoded.waits.is_some();
            let folded = decoded.waits.take().map(|waits| fold(WaitBlock(waits)));
            (Some(decoded).filter(|_| !is_wait), folded, damage)
        };
        in_order(parts, decode, |(decoded, folded, damage)| {
            seen.damage.append(damage);
            if let Some(decoded) = decoded {
                seen.enter(decoded);
                while let Some(record) = seen.next_of_block() {
                    take(Piece::Record(record));
                }
            }
            if let Some(folded) = folded {
                take(Piece::Waits(folded));
            }
        });
        if let Some(record) = seen.told_unknown() {
            take(Piece::Record(record));
        }
    }
}

/// A part of a trace.
#[derive(Debug)]
pub enum Piece<W> {
    /// Anything but a wait.
    Record(Record),
    /// What a block of waits was made into.
    Waits(W),
}

/// A block whose waits are decoded; `None` where they cannot be.
struct Decoded {
    block: Block,
    waits: Option<Box<WaitDecoder>>,
}

impl Block {
    fn decode(mut self) -> Decoded {
        let mut waits = None;
        if self.header.kind == Kind::Wait as u16
            && let Some(payload) = &mut self.payload
        {
            waits = WaitDecoder::new(payload, self.header.records).map(Box::new);
            *payload = Vec::new();
        }
        Decoded { block: self, waits }
    }
}

impl Seen {
    /// What was skipped is a loss of this reading.
    fn told_unknown(&self) -> Option<Record> {
        let loss = Loss { what: LOSS_UNKNOWN.to_owned(), count: self.unknown, events: false };
        (self.unknown > 0).then_some(Record::Loss(loss))
    }

    fn next_of_block(&mut self) -> Option<Record> {
        let record = match &mut self.current {
            Current::Nothing => None,
            Current::Waits(waits) => waits.next().map(Record::Wait),
            Current::Rows(rows) => match rows.next()? {
                Ok(record) if self.budget.spend(budget::of_rows(&record)) => Some(record),
                Ok(_) => {
                    self.budget.exhaust();
                    let what = format!("a record of kind {} {}", rows.kind.name(), budget::BEYOND);
                    self.damage.add(rows.block_offset, &what, rows.skip());
                    None
                }
                Err(unread) => {
                    let what = format!("records of kind {} cannot be decoded", rows.kind.name());
                    self.damage.add(rows.block_offset, &what, unread);
                    rows.left = 0;
                    None
                }
            },
        };
        match &record {
            Some(Record::End(_)) => self.ended_in_order = true,
            Some(Record::Loss(loss)) if loss.what == LOSS_WRITE => self.unwritten = loss.count,
            _ => {}
        }
        record
    }

    fn enter(&mut self, Decoded { block, waits }: Decoded) {
        let records = block.header.records;
        self.current = Current::Nothing;
        let (Some(kind), Some(payload)) = (Kind::from_number(block.header.kind), block.payload) else {
            self.unknown = self.unknown.saturating_add(u64::from(records));
            return;
        };
        self.budget.earn(&block.header);
        if budget::has_rows(kind) && !self.budget.has(u64::from(block.header.unpacked_len)) {
            let what = format!("a block of kind {} {}", kind.name(), budget::BEYOND);
            self.damage.add(block.offset, &what, u64::from(block.header.stored_len));
            return;
        }
        let current = if kind == Kind::Wait {
            waits.map(Current::Waits)
        } else {
            Rows::new(kind, payload, records, block.offset).map(Current::Rows)
        };
        if let Some(current) = current {
            self.current = current;
        } else {
            let what = format!("a block of kind {} cannot be decoded", kind.name());
            self.damage.add(block.offset, &what, u64::from(block.header.stored_len));
        }
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        self.next_record()
    }
}

impl Rows {
    fn new(kind: Kind, payload: Vec<u8>, records: u32, block_offset: u64) -> Option<Rows> {
        let (count, rest) = postcard::take_from_bytes::<u32>(&payload).ok()?;
        let at = payload.len() - rest.len();
        (count == records).then_some(Rows { kind, payload, at, left: records, block_offset })
    }

    /// Leaves the rest, and says how many bytes of the payload it is.
    fn skip(&mut self) -> u64 {
        self.left = 0;
        self.payload.len().saturating_sub(self.at) as u64
    }

    /// The next record, or the number of bytes that are left where they make none.
    fn next(&mut self) -> Option<Result<Record, u64>> {
        self.left = self.left.checked_sub(1)?;
        let bytes = self.payload.get(self.at..).unwrap_or_default();
        match self.kind.decode(bytes) {
            Ok((record, rest)) => {
                self.at = self.payload.len() - rest.len();
                Some(Ok(record))
            }
            Err(_) => Some(Err(bytes.len() as u64)),
        }
    }
}

/// Why a file cannot be read as a trace at all.
enum BadFile {
    Empty,
    Truncated(u64),
    Foreign(&'static str),
    Version(Version),
    Read(io::Error),
}

impl BadFile {
    fn into_error(self, path: PathBuf) -> TraceError {
        match self {
            BadFile::Empty => TraceError::Empty { path },
            BadFile::Truncated(bytes) => TraceError::TruncatedHeader { path, bytes },
            BadFile::Foreign(looks_like) => TraceError::NotATrace { path, looks_like },
            BadFile::Version(Version { major, minor }) if major > MAJOR => {
                TraceError::NewerVersion { path, major, minor }
            }
            BadFile::Version(Version { major, minor }) => TraceError::OlderVersion { path, major, minor },
            BadFile::Read(source) => TraceError::Read { path, source },
        }
    }
}

/// Moves behind the file header. `None`: it is damaged, but this is a trace all the same.
fn read_file_header<R: Read>(window: &mut Window<R>) -> Result<Option<Version>, BadFile> {
    let start = window.peek(FILE_HEADER + SYNC.len()).to_vec();
    if start.len() < FILE_HEADER {
        if let Some(error) = window.take_error() {
            return Err(BadFile::Read(error));
        }
        return Err(match start.get(..MAGIC.len().min(start.len())) {
            None | Some([]) => BadFile::Empty,
            Some(piece) if MAGIC.starts_with(piece) => BadFile::Truncated(start.len() as u64),
            Some(_) => BadFile::Foreign(describe(&start)),
        });
    }
    let block_follows = start.get(FILE_HEADER..) == Some(&SYNC[..]);
    if !start.starts_with(&MAGIC) && !block_follows {
        return Err(BadFile::Foreign(describe(window.peek(512))));
    }
    let len = format::file_header_len(&start).unwrap_or(FILE_HEADER);
    let header = window.peek(len);
    let version = format::decode_file_header(header);
    match version {
        Some(version) if version.major != MAJOR => return Err(BadFile::Version(version)),
        Some(_) => window.advance(len),
        // The length is not to be trusted either; blocks are searched for from here.
        None if header.len() < len && !block_follows => return Err(BadFile::Truncated(header.len() as u64)),
        None => window.advance(if block_follows { FILE_HEADER } else { MAGIC.len() }),
    }
    Ok(version)
}

/// What a foreign file seems to be, from its first bytes.
fn describe(start: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 6] = [
        (b"\x28\xb5\x2f\xfd", "a zstd file (unpack it first)"),
        (b"\x1f\x8b", "a gzip file (unpack it first)"),
        (b"\x7fELF", "an ELF file"),
        (b"PERFILE2", "a recording of perf"),
        (b"\x89PNG", "a PNG image"),
        (b"PK\x03\x04", "a zip archive"),
    ];
    if let Some((_, name)) = KNOWN.iter().find(|(magic, _)| start.starts_with(magic)) {
        return name;
    }
    let is_text = |&byte: &u8| byte >= b' ' && byte != 0x7f || matches!(byte, b'\t' | b'\n' | b'\r' | 0x1b);
    if start.iter().all(is_text) { "a text file" } else { "another kind of file" }
}

/// All records of a file, and how whole it was.
///
/// # Errors
/// Those of [`TraceReader::open`].
pub fn read_all(path: impl AsRef<Path>) -> Result<(Vec<Record>, TraceState), TraceError> {
    let mut reader = TraceReader::open(path)?;
    let records = reader.by_ref().collect();
    Ok((records, reader.state()))
}
