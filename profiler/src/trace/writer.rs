//! Writes a trace: records are collected by kind and leave as compressed blocks.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use zstd::bulk::Compressor;

use super::columns::WaitEncoder;
use super::error::TraceError;
use super::format::{self, BLOCK_MAX, BLOCK_TARGET, BlockHeader, FLAG_ZSTD, Version};
use super::kind::{self, Kind};
use super::record::{End, Loss, Record};

/// Higher levels cost more than they gain on varints.
const ZSTD_LEVEL: i32 = 1;

/// Name of the [`Loss`] that counts records which could not be written.
pub const LOSS_WRITE: &str = "trace_write_failed";

/// Where a trace goes to.
pub trait Sink: Write {
    /// Cuts off what was written behind `len`, and goes on there.
    fn cut_back(&mut self, len: u64) -> io::Result<()>;

    /// Makes sure that nothing that was written fails later on.
    fn settle(&mut self) -> io::Result<()>;
}

impl Sink for File {
    fn cut_back(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)?;
        self.seek(SeekFrom::Start(len)).map(|_| ())
    }

    fn settle(&mut self) -> io::Result<()> {
        match self.sync_data() {
            // Pipes and devices cannot be synchronised.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EROFS | libc::ENOTSUP)) =>
            {
                Ok(())
            }
            result => result,
        }
    }
}

/// Records of one kind that wait for their block, encoded already.
#[derive(Debug, Default)]
struct Rows {
    encoded: Vec<u8>,
    count: u32,
}

/// Writes a trace file. Blocks leave when they are full, at [`flush`](Self::flush) and at
/// [`finish`](Self::finish); a killed process loses what was written since the last of them.
///
/// An error of [`write`](Self::write) or [`flush`](Self::flush) costs the block that could not be written:
/// its records are counted, and the count goes into the trace as soon as it can be written to again. The
/// file stays readable.
pub struct TraceWriter<S: Sink = File> {
    sink: S,
    path: PathBuf,
    waits: WaitEncoder,
    rows: BTreeMap<Kind, Rows>,
    compressor: Compressor<'static>,
    payload: Vec<u8>,
    packed: Vec<u8>,
    block: BytesMut,
    written: u64,
    lost: u64,
    lost_told: u64,
    finished: bool,
}

impl TraceWriter<File> {
    /// Creates the file, readable by its owner alone, or truncates one that exists.
    ///
    /// # Errors
    /// [`TraceError::IsDirectory`], [`TraceError::Create`], or [`TraceError::Write`] for the header.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
        match file {
            Ok(file) => Self::new(file, path),
            Err(_) if path.is_dir() => Err(TraceError::IsDirectory { path: path.to_owned() }),
            Err(source) => Err(TraceError::Create { path: path.to_owned(), source }),
        }
    }
}

impl<S: Sink> TraceWriter<S> {
    /// Writes the file header; `path` is for error messages.
    pub fn new(sink: S, path: impl Into<PathBuf>) -> Result<Self, TraceError> {
        let path = path.into();
        let compressor = match Compressor::new(ZSTD_LEVEL) {
            Ok(compressor) => compressor,
            Err(source) => return Err(TraceError::Create { path, source }),
        };
        let mut writer = TraceWriter {
            sink,
            path,
            waits: WaitEncoder::default(),
            rows: BTreeMap::new(),
            compressor,
            payload: Vec::new(),
            packed: Vec::new(),
            block: format::encode_file_header(Version { major: format::MAJOR, minor: format::MINOR }),
            written: 0,
            lost: 0,
            lost_told: 0,
            finished: false,
        };
        // A header alone that could not be written leaves nothing to finish.
        writer.finished = true;
        writer.write_out(0)?;
        writer.finished = false;
        Ok(writer)
    }

    /// Adds a record; writes a block when one is full.
    ///
    /// # Errors
    /// [`TraceError::Write`] as told above; [`TraceError::RecordTooLarge`] and [`TraceError::Encode`] for a
    /// record that cannot be stored, which is left out.
    pub fn write(&mut self, record: Record) -> Result<(), TraceError> {
        let Record::Wait(wait) = record else { return self.write_row(&record) };
        if let Some(bytes) = WaitEncoder::oversize(&wait) {
            return Err(TraceError::RecordTooLarge { kind: Kind::Wait.name(), bytes });
        }
        // The record is kept even where the block before it is lost.
        let flushed = if self.waits.is_full_for(&wait) { self.flush_waits() } else { Ok(()) };
        self.waits.push(wait);
        flushed
    }

    fn write_row(&mut self, record: &Record) -> Result<(), TraceError> {
        let kind = Kind::of(record);
        let rows = self.rows.entry(kind).or_default();
        let before = rows.encoded.len();
        if let Err(source) = kind::encode(record, &mut rows.encoded) {
            rows.encoded.truncate(before);
            return Err(TraceError::Encode { kind: kind.name(), source });
        }
        let bytes = rows.encoded.len() - before;
        // The count in front of the rows takes up to five bytes.
        if bytes + 5 > BLOCK_MAX {
            rows.encoded.truncate(before);
            return Err(TraceError::RecordTooLarge { kind: kind.name(), bytes });
        }
        if before + bytes + 5 <= BLOCK_TARGET || before == 0 {
            rows.count += 1;
            return Ok(());
        }
        let last = rows.encoded.split_off(before);
        let flushed = self.flush_rows(kind);
        self.rows.insert(kind, Rows { encoded: last, count: 1 });
        flushed
    }

    /// Writes out everything that was added. The recorder calls it at least once a second.
    ///
    /// # Errors
    /// The first [`TraceError::Write`]; the remaining kinds are tried nevertheless.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        let mut result = Ok(());
        for &kind in Kind::ALL {
            let flushed = if kind == Kind::Wait { self.flush_waits() } else { self.flush_rows(kind) };
            result = result.and(flushed);
        }
        result.and(self.tell_losses())
    }

    /// Writes out everything, and the end. Only a trace with an end is complete.
    ///
    /// # Errors
    /// [`TraceError::Write`]; the end is tried nevertheless, unless records are lost and even their number could
    /// not be written.
    pub fn finish(mut self, end: End) -> Result<(), TraceError> {
        self.finished = true;
        let flushed = self.flush();
        // A trace that lacks records and does not say so must not look complete.
        let ended = if self.lost == self.lost_told {
            self.write_row(&Record::End(end)).and_then(|()| self.flush_rows(Kind::End))
        } else {
            Ok(())
        };
        let settled = self.sink.settle().map_err(|source| self.write_error(source));
        flushed.and(ended).and(settled)
    }

    /// Bytes of the file so far. What waits for its block is not counted.
    pub fn bytes_written(&self) -> u64 {
        self.written
    }

    /// Records that could not be written.
    pub fn records_lost(&self) -> u64 {
        self.lost
    }

    fn tell_losses(&mut self) -> Result<(), TraceError> {
        if self.lost == self.lost_told {
            return Ok(());
        }
        let count = self.lost;
        self.write_row(&Record::Loss(Loss { what: LOSS_WRITE.to_owned(), count, events: true }))?;
        self.flush_rows(Kind::Loss)?;
        self.lost_told = count;
        Ok(())
    }

    fn flush_waits(&mut self) -> Result<(), TraceError> {
        let records = self.waits.len() as u32;
        if records == 0 {
            return Ok(());
        }
        self.payload.clear();
        if let Err(source) = self.waits.encode(&mut self.payload) {
            self.lost += u64::from(records);
            return Err(TraceError::Encode { kind: Kind::Wait.name(), source });
        }
        self.write_block(Kind::Wait, records)
    }

    fn flush_rows(&mut self, kind: Kind) -> Result<(), TraceError> {
        let Some(rows) = self.rows.get_mut(&kind).filter(|rows| rows.count > 0) else { return Ok(()) };
        let records = rows.count;
        self.payload.clear();
        // A postcard sequence: the number of elements as a varint, then the elements.
        let counted = postcard::to_io(&records, &mut self.payload).map(|_| ());
        self.payload.extend_from_slice(&rows.encoded);
        rows.encoded.clear();
        rows.count = 0;
        match counted {
            Ok(()) => self.write_block(kind, records),
            Err(source) => Err(TraceError::Encode { kind: kind.name(), source }),
        }
    }

    /// Writes `payload` as a block.
    fn write_block(&mut self, kind: Kind, records: u32) -> Result<(), TraceError> {
        self.packed.clear();
        self.packed.reserve(zstd::zstd_safe::compress_bound(self.payload.len()));
        // Small payloads grow when packed; should packing fail, the payload is stored as it is.
        let packed = self.compressor.compress_to_buffer(&self.payload, &mut self.packed);
        let (flags, stored) = match packed {
            Ok(len) if len < self.payload.len() => (FLAG_ZSTD, &self.packed),
            _ => (0, &self.payload),
        };
        let header = BlockHeader {
            kind: kind as u16,
            flags,
            records,
            unpacked_len: self.payload.len() as u32,
            stored_len: stored.len() as u32,
            payload_crc: crc32fast::hash(stored),
        };
        self.block.clear();
        header.encode(&mut self.block);
        self.block.extend_from_slice(stored);
        self.write_out(records)
    }

    /// Writes `block`, or nothing of it.
    fn write_out(&mut self, records: u32) -> Result<(), TraceError> {
        match self.sink.write_all(&self.block) {
            Ok(()) => {
                self.written += self.block.len() as u64;
                Ok(())
            }
            Err(source) => {
                self.lost += u64::from(records);
                if let Err(error) = self.sink.cut_back(self.written) {
                    // Readers find the next block behind the piece.
                    log::debug!("{}: cannot cut off a partial block: {error}", self.path.display());
                }
                Err(self.write_error(source))
            }
        }
    }

    fn write_error(&self, source: io::Error) -> TraceError {
        TraceError::Write { path: self.path.clone(), bytes_written: self.written, source }
    }
}

impl<S: Sink> Drop for TraceWriter<S> {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = self.flush()
        {
            log::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::read_all;
    use super::super::record::Clock;
    use super::*;

    fn clock(at: u64) -> Record {
        Record::Clock(Clock { monotonic_ns: at, unix_ns: at })
    }

    fn end() -> End {
        End { time_ns: 9, reason: "duration".to_owned() }
    }

    #[test]
    fn a_full_device_is_an_error_with_help() {
        let Err(error) = TraceWriter::create("/dev/full") else { panic!("/dev/full has room") };
        assert!(error.to_string().contains("/dev/full"), "{error}");
        assert!(error.help().unwrap().contains("free some space"));
    }

    #[test]
    fn a_directory_and_a_missing_folder_are_errors_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(TraceWriter::create(folder.path()), Err(TraceError::IsDirectory { .. })));
        let missing = folder.path().join("no/such/folder.stall");
        assert!(matches!(TraceWriter::create(missing), Err(TraceError::Create { .. })));
    }

    #[test]
    fn a_new_file_belongs_to_its_owner_alone_and_an_old_one_is_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.stall");
        let mut writer = TraceWriter::create(&path).unwrap();
        writer.write(clock(1)).unwrap();
        writer.finish(end()).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);

        TraceWriter::create(&path).unwrap().finish(end()).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < meta.len());
    }

    #[test]
    fn a_dropped_writer_leaves_its_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.stall");
        let mut writer = TraceWriter::create(&path).unwrap();
        writer.write(clock(7)).unwrap();
        drop(writer);
        let (records, state) = read_all(&path).unwrap();
        assert_eq!(records, [clock(7)]);
        assert!(!state.complete);
        assert_eq!(state.bytes_unread, 0);
    }
}
