//! Bytes of a module: a file of the target, or a piece of memory that was copied out of it.
//!
//! Files are read with `pread` and never mapped: the target may truncate its files at any time, and a
//! mapping would then kill the recorder with `SIGBUS`. It also keeps the resident memory small.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Larger files are no modules.
pub(super) const MAX_FILE: u64 = 4 << 30;

/// What tells one content of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub dev: u64,
    pub ino: u64,
    pub size: u64,
    pub mtime: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Identity {
        Identity {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size: metadata.size(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

#[derive(Debug)]
pub(super) enum Source {
    File(File),
    Memory(Arc<[u8]>),
}

impl Source {
    /// Opens a regular file of at most [`MAX_FILE`] bytes.
    ///
    /// The path is looked at before it is opened for reading: opening a device or a pipe that the target
    /// put in the place of a file could have effects.
    pub(super) fn open(path: &Path) -> io::Result<(Source, Identity)> {
        let handle = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
        let identity = check(&handle.metadata()?)?;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(format!("/proc/self/fd/{}", handle.as_raw_fd()))?;
        Ok((Source::File(file), identity))
    }

    /// Takes an open file, as [`Source::open`] opens them.
    pub(super) fn of(file: File) -> io::Result<(Source, Identity)> {
        let identity = check(&file.metadata()?)?;
        Ok((Source::File(file), identity))
    }

    /// Identity of the file now; `None` for memory.
    pub(super) fn identity(&self) -> Option<Identity> {
        match self {
            Source::File(file) => file.metadata().ok().map(|metadata| Identity::of(&metadata)),
            Source::Memory(_) => None,
        }
    }

    /// Resident bytes.
    pub(super) fn memory(&self) -> usize {
        match self {
            Source::File(_) => 0,
            Source::Memory(bytes) => bytes.len(),
        }
    }

    /// Fills `buffer` from `offset`; returns how many bytes there were.
    pub(super) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize {
        match self {
            Source::File(file) => read_file(file, offset, buffer),
            Source::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let rest = bytes.get(start..).unwrap_or_default();
                let len = rest.len().min(buffer.len());
                if let (Some(to), Some(from)) = (buffer.get_mut(..len), rest.get(..len)) {
                    to.copy_from_slice(from);
                }
                len
            }
        }
    }

    /// Exactly `len` bytes from `offset`, `None` where the module has fewer. Callers bound `len`.
    pub(super) fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut buffer = vec![0; len];
        (self.read_at(offset, &mut buffer) == len).then_some(buffer)
    }
}

fn check(metadata: &Metadata) -> io::Result<Identity> {
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if metadata.size() > MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 4 GiB"));
    }
    Ok(Identity::of(metadata))
}

fn read_file(file: &File, offset: u64, buffer: &mut [u8]) -> usize {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    done
}

/// Little-endian integers out of a byte slice, `None` past its end.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// As [`u16_at`].
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// As [`u16_at`].
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_regular_file() {
        assert!(Source::open(Path::new("/dev/null")).is_err());
        assert!(Source::open(Path::new("/proc")).is_err());
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(Source::open(&fifo).is_err());
    }

    #[test]
    fn reads_up_to_the_end_and_no_further() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bytes");
        std::fs::write(&path, b"0123456789").unwrap();
        let (file, identity) = Source::open(&path).unwrap();
        assert_eq!(identity.size, 10);
        for source in [file, Source::Memory(Arc::from(&b"0123456789"[..]))] {
            assert_eq!(source.read(2, 3).as_deref(), Some(&b"234"[..]));
            assert_eq!(source.read(8, 3), None);
            assert_eq!(source.read(u64::MAX, 1), None);
            let mut buffer = [0; 8];
            assert_eq!(source.read_at(7, &mut buffer), 3);
        }
    }
}
