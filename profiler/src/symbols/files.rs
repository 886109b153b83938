//! The module files that processes map, each opened and indexed once however many processes map it.
//!
//! Bounds: [`MAX_FILES`] open files, [`MAX_INDEX`] bytes of indexes (one larger table may stand alone, up
//! to the limits of `names` and `cfi`), of which those used longest ago go first; names of [`MAX_NAMES`]
//! addresses and [`MAX_ROWS`] unwind rows, forgotten all together when there are more.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use gimli::UnwindContext;

use super::cache::Cache;
use super::cfi::{self, Row};
use super::dwarf::Blocks;
use super::elf::{self, Elf};
use super::file::{File, Means};
use super::maps::Mapping;
use super::memory::read_process;
use super::source::{Identity, Source};
use super::vdso;
use crate::target::root::ProcRoot;
use crate::target::rooted;

/// Half of the usual limit of descriptors; a PyTorch process maps about 250 files.
const MAX_FILES: usize = 448;
const MAX_INDEX: usize = 24 << 20;
const MAX_NAMES: usize = 8192;
/// Of all names together, bytes.
const MAX_NAMES_SIZE: usize = 8 << 20;
const MAX_ROWS: usize = 8192;
/// Replaced files that are told.
const MAX_REPLACED: usize = 64;
const DELETED: &[u8] = b" (deleted)";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileId(u32);

/// A file as `/proc/PID/maps` names it. The inode number stays taken as long as the file is open here.
type Key = ((u32, u32), u64);

#[derive(Default)]
pub(super) struct Files {
    by_id: HashMap<FileId, File>,
    keys: HashMap<FileId, Key>,
    by_key: HashMap<Key, FileId>,
    last_id: u32,
    clock: u64,
    names: HashMap<(FileId, u64), Arc<[String]>>,
    /// Bytes of `names`.
    names_size: usize,
    blocks: RefCell<Blocks>,
    cache: Cache,
    rows: HashMap<(FileId, u64), Option<Arc<Row>>>,
    context: UnwindContext<usize>,
    /// Names of files that were replaced.
    replaced: BTreeSet<String>,
}

impl Files {
    /// Mapped files in whose place the disk has another one, or none, and that cannot be read any more.
    pub(super) fn replaced(&self) -> &BTreeSet<String> {
        &self.replaced
    }

    /// The file behind a mapping of `pid`. `None` where it cannot be opened or is no ELF file.
    pub(super) fn open(&mut self, pid: u32, mapping: &Mapping) -> Option<FileId> {
        if mapping.path == b"[vdso]" {
            return self.open_vdso(pid, mapping);
        }
        if mapping.inode == 0 {
            return None;
        }
        let key = (mapping.device, mapping.inode);
        if let Some(&id) = self.by_key.get(&key) {
            let file = self.by_id.get(&id)?;
            if file.elf.source.identity() == file.identity {
                return Some(id);
            }
            // Written to since: what was read of it no longer holds.
            self.remove(id);
        }
        let (source, identity) = match open_mapped(pid, mapping) {
            Ok(opened) => opened,
            Err(NotOpened::Gone) => return None,
            Err(NotOpened::Replaced) => {
                if self.replaced.len() < MAX_REPLACED {
                    self.replaced.insert(mapping.module());
                }
                return None;
            }
        };
        let elf = Elf::parse(source)?;
        Some(self.insert(elf, Some(identity), Some(key), &mapping.path))
    }

    fn open_vdso(&mut self, pid: u32, mapping: &Mapping) -> Option<FileId> {
        let bytes = vdso::read(pid, mapping)?;
        let same = self.by_id.iter().find(|(_, file)| match &file.elf.source {
            Source::Memory(known) => **known == *bytes,
            Source::File(_) => false,
        });
        if let Some((&id, _)) = same {
            return Some(id);
        }
        let elf = Elf::parse(Source::Memory(Arc::from(bytes)))?;
        Some(self.insert(elf, None, None, b""))
    }

    fn insert(&mut self, elf: Elf, identity: Option<Identity>, key: Option<Key>, path: &[u8]) -> FileId {
        self.close_down_to(MAX_FILES - 1, None);
        self.last_id = self.last_id.wrapping_add(1);
        let id = FileId(self.last_id);
        self.clock += 1;
        self.by_id.insert(id, File::new(elf, identity, path, self.clock));
        if let Some(key) = key {
            self.keys.insert(id, key);
            self.by_key.insert(key, id);
        }
        id
    }

    fn remove(&mut self, id: FileId) {
        self.by_id.remove(&id);
        if let Some(key) = self.keys.remove(&id) {
            self.by_key.remove(&key);
        }
    }

    /// Whether `id` is still open.
    pub(super) fn has(&self, id: FileId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Address that the file states for the byte at `offset`.
    pub(super) fn address_of(&self, id: FileId, offset: u64) -> Option<u64> {
        self.by_id.get(&id)?.elf.address_of(offset)
    }

    /// Whether a stated address is in the few instructions with which a program starts.
    pub(super) fn is_start(&self, id: FileId, address: u64) -> bool {
        const LENGTH: u64 = 64;
        let entry = self.by_id.get(&id).map_or(0, |file| file.elf.entry);
        entry != 0 && address.checked_sub(entry).is_some_and(|offset| offset < LENGTH)
    }

    /// The eight bytes before the one at `offset`.
    pub(super) fn bytes_before(&self, id: FileId, offset: u64) -> Option<[u8; 8]> {
        let mut bytes = [0; 8];
        let source = &self.by_id.get(&id)?.elf.source;
        (source.read_at(offset.checked_sub(8)?, &mut bytes) == 8).then_some(bytes)
    }

    /// Unwind rules at a stated address.
    pub(super) fn row(&mut self, id: FileId, address: u64) -> Option<Arc<Row>> {
        if let Some(row) = self.rows.get(&(id, address)) {
            return row.clone();
        }
        self.clock += 1;
        let file = self.by_id.get_mut(&id)?;
        file.used = self.clock;
        let opened = file.unwind.is_none();
        let lookup = file.unwind.get_or_insert_with(|| cfi::Lookup::open(&file.elf));
        let row = cfi::find_row(&file.elf, lookup, address, &mut self.context).map(Arc::new);
        if opened {
            self.shrink(id);
        }
        if self.rows.len() >= MAX_ROWS {
            self.rows.clear();
        }
        self.rows.insert((id, address), row.clone());
        row
    }

    /// Names of the functions around a stated address, innermost first; empty where it has no name. `pid` maps the file: its
    /// root is where a debug file is looked for first.
    pub(super) fn functions(&mut self, id: FileId, address: u64, pid: u32) -> Arc<[String]> {
        if let Some(functions) = self.names.get(&(id, address)) {
            return Arc::clone(functions);
        }
        self.clock += 1;
        let Some(file) = self.by_id.get_mut(&id) else { return Arc::from([]) };
        file.used = self.clock;
        let (before, opened) = (file.memory(), file.descriptors());
        let means = Means { pid, file: id.0, blocks: &self.blocks, cache: &self.cache };
        let functions: Arc<[String]> = file.functions(address, &means).into();
        if file.memory() > before || file.descriptors() > opened {
            self.shrink(id);
        }
        let size = functions.iter().map(|name| name.len() + size_of::<String>()).sum::<usize>();
        self.names_size += size;
        if self.names.len() >= MAX_NAMES || self.names_size > MAX_NAMES_SIZE {
            self.names.clear();
            self.names_size = size;
        }
        self.names.insert((id, address), Arc::clone(&functions));
        functions
    }

    /// Closes the files used longest ago, but `keep`, until so many descriptors are open.
    pub(super) fn close_down_to(&mut self, descriptors: usize, keep: Option<FileId>) {
        while self.by_id.values().map(File::descriptors).sum::<usize>() > descriptors {
            let others = self.by_id.iter().filter(|(id, _)| Some(**id) != keep);
            let Some((&oldest, _)) = others.min_by_key(|(_, file)| file.used) else { break };
            self.remove(oldest);
        }
    }

    /// Drops the indexes used longest ago, but those of `keep`, until the bounds hold.
    fn shrink(&mut self, keep: FileId) {
        self.close_down_to(MAX_FILES, Some(keep));
        while self.by_id.values().map(File::memory).sum::<usize>() > MAX_INDEX {
            let candidates = self.by_id.iter_mut().filter(|(id, file)| **id != keep && file.memory() > 0);
            let Some((_, file)) = candidates.min_by_key(|(_, file)| file.used) else { break };
            file.drop_tables();
        }
    }
}

/// Why the file of a mapping cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotOpened {
    /// Its place has another file, or none.
    Replaced,
    /// The process is gone, or its file cannot be reached.
    Gone,
}

/// Opens the file of a mapping: by the link that the kernel keeps for it, else by its path, if that still
/// leads to the same file.
pub(super) fn open_mapped(pid: u32, mapping: &Mapping) -> Result<(Source, Identity), NotOpened> {
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    if let Ok(opened) = Source::open(Path::new(&link)) {
        return Ok(opened);
    }
    open_by_path(pid, mapping)
}

fn open_by_path(pid: u32, mapping: &Mapping) -> Result<(Source, Identity), NotOpened> {
    // What the kernel writes behind the path of a file that has it no more.
    let has_name =
        ![&b"/memfd:"[..], b"/dev/zero", b"/SYSV"].iter().any(|start| mapping.path.starts_with(start));
    let is_deleted = has_name && mapping.path.ends_with(DELETED);
    let missing = if is_deleted { NotOpened::Replaced } else { NotOpened::Gone };
    let path = Path::new(std::ffi::OsStr::from_bytes(&mapping.path));
    let file = rooted::open(&ProcRoot::default(), pid, path).map_err(|_| missing)?;
    let (source, identity) = Source::of(file).map_err(|_| missing)?;
    let device = libc::makedev(mapping.device.0, mapping.device.1);
    if identity.ino == mapping.inode && identity.dev == device {
        return Ok((source, identity));
    }
    // Some file systems show other numbers in a memory map. Or another file was put in the place of the mapped one.
    let elf = Elf::parse(source).ok_or(NotOpened::Replaced)?;
    if is_what_is_mapped(pid, mapping, &elf) { Ok((elf.source, identity)) } else { Err(NotOpened::Replaced) }
}

/// Whether the process has the file's build id in its memory, at the place where this file would have it.
fn is_what_is_mapped(pid: u32, mapping: &Mapping, elf: &Elf) -> bool {
    let mapped = || {
        let notes = elf.notes?;
        let address =
            mapping.start.wrapping_sub(elf.mapped_address(mapping.offset)?).wrapping_add(notes.vaddr);
        // The parser has bounded it.
        let mut bytes = vec![0; usize::try_from(notes.file_size).ok()?];
        let len = read_process(pid, address, &mut bytes);
        elf::find_build_id(bytes.get(..len)?)
    };
    mapped().is_some_and(|id| !id.is_empty() && id == elf.build_id)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::symbols::live_tests::compile;

    /// A mapping that `/proc/PID/map_files` does not have: the path has to do.
    fn mapping_of(path: &Path) -> Mapping {
        let metadata = std::fs::metadata(path).unwrap();
        let device = metadata.dev();
        Mapping {
            start: 0x1000,
            end: 0x2000,
            offset: 0,
            device: (libc::major(device), libc::minor(device)),
            inode: metadata.ino(),
            path: path.as_os_str().as_bytes().to_vec(),
        }
    }

    #[test]
    fn a_path_that_leads_to_another_file_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = compile(folder.path(), "chain.c", &["-O2"]);
        let pid = std::process::id();
        let mapping = mapping_of(&path);
        let mut files = Files::default();
        assert!(files.open(pid, &mapping).is_some());
        let other = Mapping { inode: mapping.inode + 1, ..mapping.clone() };
        assert_eq!(files.open(pid, &other), None);
        let other = Mapping { device: (mapping.device.0 + 1, mapping.device.1), ..mapping };
        assert_eq!(files.open(pid, &other), None);
    }

    /// A program that sleeps, and the mapping of its code.
    fn sleeping(path: &Path) -> (std::process::Child, Mapping) {
        let child = std::process::Command::new(path).arg("60").spawn().unwrap();
        let mapping = loop {
            let mappings = crate::symbols::maps::read(child.id()).unwrap_or_default();
            let own = |mapping: &Mapping| mapping.path == path.as_os_str().as_bytes();
            if let Some(mapping) = mappings.into_iter().find(own) {
                break mapping;
            }
        };
        (child, mapping)
    }

    #[test]
    fn a_file_that_was_replaced_is_not_misread_and_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job");
        std::fs::copy("/bin/sleep", &path).unwrap();
        let (mut child, mapping) = sleeping(&path);
        let pid = child.id();
        assert!(open_by_path(pid, &mapping).is_ok());
        // As a package manager does it: a new file, and then its name.
        let other = compile(folder.path(), "chain.c", &["-O2", "-Wl,--build-id"]);
        std::fs::rename(other, &path).unwrap();
        assert_eq!(open_by_path(pid, &mapping).map(drop), Err(NotOpened::Replaced));
        let deleted = Mapping { path: [&mapping.path, DELETED].concat(), ..mapping.clone() };
        assert_eq!(open_by_path(pid, &deleted).map(drop), Err(NotOpened::Replaced));
        // The same file under another number is taken by the build id in the process's memory.
        std::fs::copy("/bin/sleep", folder.path().join("again")).unwrap();
        std::fs::rename(folder.path().join("again"), &path).unwrap();
        assert!(open_by_path(pid, &mapping).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_replaced_file_without_a_link_of_the_kernel_s_is_told_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = compile(folder.path(), "chain.c", &["-O2"]);
        let pid = std::process::id();
        let mapping = mapping_of(&path);
        let mut files = Files::default();
        let other = Mapping { inode: mapping.inode + 1, ..mapping.clone() };
        assert_eq!(files.open(pid, &other), None);
        assert_eq!(files.replaced().iter().map(String::as_str).collect::<Vec<_>>(), [mapping.module()]);
        // One that cannot be reached at all may still be there.
        let mut files = Files::default();
        let other = Mapping { path: b"/nowhere/at/all".to_vec(), ..mapping };
        assert_eq!((files.open(pid, &other), files.replaced().len()), (None, 0));
    }

    #[test]
    fn a_file_is_opened_once_until_it_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = compile(folder.path(), "chain.c", &["-O2"]);
        let pid = std::process::id();
        let mut files = Files::default();
        let first = files.open(pid, &mapping_of(&path)).unwrap();
        assert_eq!(files.open(pid, &mapping_of(&path)), Some(first));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.push(0);
        std::fs::write(&path, bytes).unwrap();
        let second = files.open(pid, &mapping_of(&path)).unwrap();
        assert_ne!(first, second);
        assert!(files.has(second) && !files.has(first));
    }

    #[test]
    fn files_used_longest_ago_are_closed_first() {
        let pid = std::process::id();
        let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let mut files = Files::default();
        let open = |folder: &tempfile::TempDir, files: &mut Files| {
            files.open(pid, &mapping_of(&compile(folder.path(), "chain.c", &["-O2"]))).unwrap()
        };
        let ids: Vec<_> = folders.iter().map(|folder| open(folder, &mut files)).collect();
        let code = files.address_of(ids[0], 0x1000).unwrap();
        files.functions(ids[0], code, pid);
        files.close_down_to(2, None);
        assert_eq!(ids.iter().map(|&id| files.has(id)).collect::<Vec<_>>(), [true, false, true]);
        files.close_down_to(0, Some(ids[2]));
        assert_eq!(ids.iter().map(|&id| files.has(id)).collect::<Vec<_>>(), [false, false, true]);
    }
}
