//! What a process has mapped, and the files behind it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::root::{ProcRoot, ReadError};
use super::rooted;

/// Mappings read at most; the kernel's own default limit is 65530 per process.
pub const MAPPINGS: usize = 256 * 1024;
/// A path of `PATH_MAX` bytes, every byte escaped, and the columns before it.
const LINE: u64 = 4 * 4096 + 128;

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    pub file_offset: u64,
    pub perms: Perms,
    pub dev_major: u32,
    pub dev_minor: u32,
    /// 0: no file.
    pub inode: u64,
    /// As the process sees it; `[heap]`, `[vdso]`, `anon_inode:…` where it is no file; may be empty.
    pub path: PathBuf,
    /// The file has no such name any more (removed or replaced), or is an anonymous one.
    pub deleted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the four letters of the column")]
pub struct Perms {
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    pub shared: bool,
}

impl Mapping {
    /// Device and inode: what tells files apart on this machine.
    pub fn file_id(&self) -> FileId {
        FileId { dev_major: self.dev_major, dev_minor: self.dev_minor, inode: self.inode }
    }

    pub fn is_file(&self) -> bool {
        self.inode != 0 && self.path.as_os_str().as_bytes().first() == Some(&b'/')
    }

    /// Last component of the path; empty where it is no file.
    pub fn file_name(&self) -> &str {
        if !self.is_file() {
            return "";
        }
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// Identity of a file as the memory map shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    pub dev_major: u32,
    pub dev_minor: u32,
    pub inode: u64,
}

impl FileId {
    /// Of an open file. Where the file system shows another device in the memory map, two of one file differ.
    pub fn of(metadata: &std::fs::Metadata) -> FileId {
        let dev = metadata.dev();
        FileId { dev_major: libc::major(dev), dev_minor: libc::minor(dev), inode: metadata.ino() }
    }

    fn is_of(self, metadata: &std::fs::Metadata) -> bool {
        let dev = metadata.dev();
        metadata.ino() == self.inode
            && libc::major(dev) == self.dev_major
            && libc::minor(dev) == self.dev_minor
    }
}

/// Reads the memory map; a list that is longer than [`MAPPINGS`] is cut.
pub fn mappings(root: &ProcRoot, pid: u32) -> Result<Vec<Mapping>, ReadError> {
    let path = root.process_path(pid, "maps");
    let file = File::open(&path).map_err(|source| ReadError::new(&path, source))?;
    parse(BufReader::new(file)).map_err(|source| ReadError::new(&path, source))
}

/// Lines that cannot be understood are passed over.
fn parse(mut text: impl BufRead) -> std::io::Result<Vec<Mapping>> {
    let mut found = Vec::new();
    let mut line = Vec::new();
    while found.len() < MAPPINGS {
        line.clear();
        if text.by_ref().take(LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        found.extend(parse_line(&line));
    }
    Ok(found)
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let (start, end) = split_pair(word(&mut rest)?, '-')?;
    let perms = word(&mut rest)?.as_bytes();
    let file_offset = u64::from_str_radix(word(&mut rest)?, 16).ok()?;
    let (major, minor) = split_pair(word(&mut rest)?, ':')?;
    let inode = word(&mut rest)?.parse().ok()?;
    let padding = rest.iter().take_while(|byte| **byte == b' ').count();
    let path = rest.get(padding..)?;
    let (path, deleted) = match path.strip_suffix(b" (deleted)") {
        Some(shorter) => (shorter, true),
        None => (path, false),
    };
    let has = |index: usize, flag: u8| perms.get(index) == Some(&flag);
    Some(Mapping {
        start,
        end: (end >= start).then_some(end)?,
        file_offset,
        perms: Perms { read: has(0, b'r'), write: has(1, b'w'), execute: has(2, b'x'), shared: has(3, b's') },
        dev_major: u32::try_from(major).ok()?,
        dev_minor: u32::try_from(minor).ok()?,
        inode,
        path: PathBuf::from(OsString::from_vec(unescape(path))),
        deleted,
    })
}

/// Takes the next word off the front.
fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let begin = rest.iter().position(|byte| *byte != b' ')?;
    let tail = rest.get(begin..)?;
    let length = tail.iter().position(|byte| *byte == b' ').unwrap_or(tail.len());
    let (found, after) = tail.split_at_checked(length)?;
    *rest = after;
    std::str::from_utf8(found).ok()
}

fn split_pair(text: &str, separator: char) -> Option<(u64, u64)> {
    let (first, second) = text.split_once(separator)?;
    Some((u64::from_str_radix(first, 16).ok()?, u64::from_str_radix(second, 16).ok()?))
}

/// The kernel writes a newline in a path as `\012`, and nothing else that way.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(byte);
            rest = tail;
        }
    }
    plain
}

/// Opens the very file that is mapped, also when its name is gone, belongs to another file now, or is
/// only known in the process's own mount namespace.
///
/// Only regular files are opened.
pub fn open(root: &ProcRoot, pid: u32, mapping: &Mapping) -> Result<File, ReadError> {
    let direct = map_files_path(root, pid, mapping);
    match rooted::open_regular(&direct) {
        Ok(file) => Ok(file),
        // Without CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE the name has to do.
        Err(_) if mapping.is_file() && !mapping.deleted => open_by_name(root, pid, mapping),
        Err(source) => Err(ReadError::new(direct, source)),
    }
}

/// A path under which the mapped file can be opened now; see [`open`] for the way that cannot be fooled
/// by a change between the look and the use.
pub fn open_path(root: &ProcRoot, pid: u32, mapping: &Mapping) -> Result<PathBuf, ReadError> {
    let direct = map_files_path(root, pid, mapping);
    if std::fs::metadata(&direct).is_ok() {
        return Ok(direct);
    }
    open_by_name(root, pid, mapping)?;
    let relative = mapping.path.strip_prefix("/").unwrap_or(&mapping.path);
    Ok(root.process_path(pid, "root").join(relative))
}

/// Path of an open file for those who want a path (the kernel's uprobe interface). Valid in this process
/// as long as the file is open.
pub fn descriptor_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn map_files_path(root: &ProcRoot, pid: u32, mapping: &Mapping) -> PathBuf {
    root.process_path(pid, "map_files").join(format!("{:x}-{:x}", mapping.start, mapping.end))
}

fn open_by_name(root: &ProcRoot, pid: u32, mapping: &Mapping) -> Result<File, ReadError> {
    let shown = root.process_path(pid, "root").join(mapping.path.strip_prefix("/").unwrap_or(Path::new("")));
    let file = rooted::open(root, pid, &mapping.path).map_err(|source| ReadError::new(&shown, source))?;
    let metadata = file.metadata().map_err(|source| ReadError::new(&shown, source))?;
    let same = mapping.file_id().is_of(&metadata)
        || (metadata.ino() == mapping.inode && rooted::has_device_of_its_own(&file));
    if same { Ok(file) } else { Err(ReadError::malformed(shown, "not the file that is mapped any more")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Mapping {
        let mut found = parse(line.as_bytes()).unwrap();
        assert_eq!(found.len(), 1, "{line}");
        found.remove(0)
    }

    #[test]
    fn reads_all_columns() {
        let mapping = one("7f00deadb000-7f00deadc000 r-xp 0001f000 103:0a 4242   /usr/lib/libc.so.6\n");
        assert_eq!((mapping.start, mapping.end), (0x7f00_dead_b000, 0x7f00_dead_c000));
        assert_eq!((mapping.file_offset, mapping.inode), (0x1f000, 4242));
        assert_eq!((mapping.dev_major, mapping.dev_minor), (0x103, 10));
        assert_eq!(mapping.perms, Perms { read: true, write: false, execute: true, shared: false });
        assert_eq!(mapping.path, Path::new("/usr/lib/libc.so.6"));
        assert_eq!(mapping.file_name(), "libc.so.6");
        assert!(
            !mapping.deleted && mapping.contains(0x7f00_dead_bfff) && !mapping.contains(0x7f00_dead_c000)
        );
    }

    #[test]
    fn keeps_spaces_and_newlines_of_a_path_and_strips_the_mark_of_a_deleted_file() {
        let mapping = one("1000-2000 rw-s 0 00:01 7      /tmp/a b\\012c (deleted)");
        assert_eq!(mapping.path, Path::new("/tmp/a b\nc"));
        assert!(mapping.deleted && mapping.perms.shared);
    }

    #[test]
    fn what_is_no_file_has_no_file_name() {
        for line in ["1000-2000 rw-p 0 00:00 0", "1000-2000 rw-p 0 00:00 0   [heap]"] {
            let mapping = one(line);
            assert!(!mapping.is_file());
            assert_eq!(mapping.file_name(), "");
        }
    }

    #[test]
    fn passes_over_lines_it_cannot_understand() {
        let long = format!("1000-2000 r--p 0 00:00 0 /{}\n", "x".repeat(3 * LINE as usize));
        let text = format!("\nnonsense\n2000-1000 r--p 0 00:00 0\n{long}\u{0}\n3000-4000 r--p 0 00:00 0\n");
        let found = parse(text.as_bytes()).unwrap();
        let starts: Vec<u64> = found.iter().map(|mapping| mapping.start).collect();
        assert_eq!(starts, [0x1000, 0x3000]);
    }

    #[test]
    fn stops_at_the_limit() {
        let text = "1000-2000 r--p 0 00:00 0\n".repeat(MAPPINGS + 5);
        assert_eq!(parse(text.as_bytes()).unwrap().len(), MAPPINGS);
    }

    #[test]
    fn opens_its_own_executable_by_the_mapping() {
        let root = ProcRoot::default();
        let own = root.own_pid();
        let exe = std::env::current_exe().unwrap();
        let maps = mappings(&root, own).unwrap();
        let mapping = maps.iter().find(|mapping| mapping.path == exe && mapping.perms.execute).unwrap();
        let file = open(&root, own, mapping).unwrap();
        assert_eq!(file.metadata().unwrap().ino(), std::fs::metadata(&exe).unwrap().ino());
        assert_eq!(std::fs::metadata(descriptor_path(&file)).unwrap().ino(), mapping.inode);
        assert!(open_path(&root, own, mapping).is_ok());
    }

    #[test]
    fn a_name_that_belongs_to_another_file_now_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let inside = ProcRoot::new(directory.path()).process_path(9, "root").join("lib");
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::write(inside.join("libc.so.6"), b"new").unwrap();
        let metadata = std::fs::metadata(inside.join("libc.so.6")).unwrap();
        let root = ProcRoot::new(directory.path());
        let mut mapping = Mapping {
            end: 0x1000,
            dev_major: libc::major(metadata.dev()),
            dev_minor: libc::minor(metadata.dev()),
            inode: metadata.ino(),
            path: PathBuf::from("/lib/libc.so.6"),
            ..Mapping::default()
        };
        assert!(open(&root, 9, &mapping).is_ok());
        mapping.inode += 1;
        let error = open(&root, 9, &mapping).unwrap_err();
        assert!(error.to_string().contains("not the file that is mapped"), "{error}");
    }
}
