//! Indexes of large symbol tables, kept from one recording to the next in the user's cache folder.
//!
//! A file of the cache is named by the build id of the module and by which of its tables it is about. It is written
//! under another name and then renamed, so that recordings that run at the same time see a whole file or none. What is
//! read is checked, and anything that is not as it should be is a file that is not there: the index is made again.
//! Nothing is read or written where the folder is not ours alone, as under `sudo` with another user's home.

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::elf::{Elf, SymbolTable};
use super::names::Index;

/// Smaller tables are read as fast as the cache.
const MIN_TABLE: u64 = 1 << 20;
const MAGIC: &[u8; 8] = b"STSYMS\x00\x01";
/// Files in the folder, each 12 bytes a function; the oldest go first.
const MAX_FILES: usize = 64;
const SUFFIX: &str = ".index";
/// Build ids have 16 or 20 bytes; a shorter one tells nothing.
const MIN_BUILD_ID: usize = 8;

/// Where indexes are kept.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: Option<PathBuf>,
    min_table: u64,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache { folder: folder(|name| std::env::var_os(name)), min_table: MIN_TABLE }
    }
}

/// `$XDG_CACHE_HOME/stallscope`, else `$HOME/.cache/stallscope`.
fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let home = || Some(variable("HOME").and_then(absolute)?.join(".cache"));
    Some(variable("XDG_CACHE_HOME").and_then(absolute).or_else(home)?.join("stallscope"))
}

impl Cache {
    #[cfg(test)]
    pub(super) fn in_folder(folder: &Path) -> Cache {
        Cache { folder: Some(folder.to_path_buf()), min_table: 0 }
    }

    /// The index of `table` of `file`, which describes `image`.
    pub(super) fn index(&self, file: &Elf, table: SymbolTable, image: &Elf) -> Index {
        let key = Key::of(file, table, image).filter(|_| table.size >= self.min_table);
        if let Some(found) = key.as_ref().and_then(|key| self.read(key, table)) {
            return found;
        }
        let index = Index::build(&file.source, table, image);
        if let Some(key) = key {
            // Without a cache it is only slower.
            let _ = self.write(&key, &index);
        }
        index
    }

    fn read(&self, key: &Key, table: SymbolTable) -> Option<Index> {
        let folder = open_folder(self.folder.as_deref()?)?;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(inside(&folder, &key.name))
            .ok()?;
        let metadata = file.metadata().ok()?;
        let head = key.head();
        let room = (head.len() + Index::packed_size(table) + 4) as u64;
        if !metadata.is_file() || !is_ours(&metadata) || metadata.size() > room {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(room).read_to_end(&mut bytes).ok()?;
        let (rest, checksum) = bytes.split_last_chunk::<4>()?;
        let packed = rest.strip_prefix(head.as_slice())?;
        (crc32fast::hash(rest) == u32::from_le_bytes(*checksum)).then_some(())?;
        Index::unpack(packed, table, key.base)
    }

    fn write(&self, key: &Key, index: &Index) -> std::io::Result<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let Some(path) = &self.folder else { return Ok(()) };
        // Only the last folder is made, and only for us.
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let Some(folder) = open_folder(path) else { return Ok(()) };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = inside(&folder, &format!("{}-{number}.new", std::process::id()));
        let mut bytes = key.head();
        index.pack(&mut bytes);
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        let written = write_new(&temporary, &bytes)
            .and_then(|()| std::fs::rename(&temporary, inside(&folder, &key.name)));
        if written.is_err() {
            // It may not exist; the error that counts is the first one.
            let _ = std::fs::remove_file(&temporary);
        }
        shrink(&folder);
        written
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // Left by a process of the same number that was killed.
    let _ = std::fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

/// What an index is about.
struct Key {
    name: String,
    build_id: Vec<u8>,
    table: SymbolTable,
    base: u64,
}

impl Key {
    fn of(file: &Elf, table: SymbolTable, image: &Elf) -> Option<Key> {
        let build_id = image.build_id.clone();
        if build_id.len() < MIN_BUILD_ID || file.build_id != build_id {
            return None;
        }
        let id = build_id.iter().fold(String::new(), |id, byte| id + &format!("{byte:02x}"));
        let name = format!("{id}-{:x}-{:x}{SUFFIX}", table.offset, table.size);
        Some(Key { name, build_id, table, base: image.base() })
    }

    /// The beginning of its file.
    fn head(&self) -> Vec<u8> {
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&(self.build_id.len() as u32).to_le_bytes());
        head.extend_from_slice(&self.build_id);
        let SymbolTable { offset, size, strings_offset, strings_size } = self.table;
        for number in [offset, size, strings_offset, strings_size, self.base] {
            head.extend_from_slice(&number.to_le_bytes());
        }
        head
    }
}

/// The folder, if it is ours and no one else may write to it.
fn open_folder(path: &Path) -> Option<OwnedFd> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    is_ours(&folder.metadata().ok()?).then(|| folder.into())
}

/// A path that leads through the open folder, wherever its name leads by now.
fn inside(folder: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name)
}

fn is_ours(metadata: &std::fs::Metadata) -> bool {
    metadata.uid() == nix::unistd::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

/// Removes the oldest files where there are too many.
fn shrink(folder: &OwnedFd) {
    let Ok(entries) = std::fs::read_dir(inside(folder, ".")) else { return };
    let mut files: Vec<_> = entries
        .take(16 * MAX_FILES)
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(SUFFIX))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    for (_, path) in files.iter().take(files.len().saturating_sub(MAX_FILES)) {
        // Another recorder may have removed it.
        let _ = std::fs::remove_file(path);
    }
}
