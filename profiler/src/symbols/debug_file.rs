//! Separate debug files: `/usr/lib/debug/.build-id/xx/yyyy.debug`, and what `.gnu_debuglink` names.
//!
//! A file is taken by the module's build id. A module without one names its debug file and that file's checksum.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::elf::Elf;
use super::sections::Sections;
use super::source::{Source, u32_at};
use crate::target::root::ProcRoot;
use crate::target::rooted;

/// Longest `.gnu_debuglink`: a file's name and four bytes.
const MAX_LINK: u64 = 512;
/// Longest file whose checksum is computed, a second's work. Files found by build id may be longer.
const MAX_CHECKED: u64 = 512 << 20;
const CHUNK: usize = 64 << 10;

/// A root directory under which debug files are looked for.
#[derive(Clone, Debug)]
pub(super) enum Root {
    /// Of this process, which may be a container's: links in it cannot lead out of it.
    Process(u32),
    Folder(PathBuf),
}

impl Root {
    fn open(&self, path: &Path) -> Option<Elf> {
        let (source, _) = match self {
            Root::Process(pid) => Source::of(open_in_process(*pid, path)?).ok()?,
            Root::Folder(folder) => {
                Source::open(&folder.join(path.strip_prefix("/").unwrap_or(path))).ok()?
            }
        };
        Elf::parse(source)
    }
}

fn open_in_process(pid: u32, path: &Path) -> Option<File> {
    rooted::open(&ProcRoot::default(), pid, path).ok()
}

/// The debug file of a module that is mapped as `path`, under the first root that has it.
pub(super) fn open(elf: &Elf, path: &[u8], roots: &[Root]) -> Option<Elf> {
    let by_id = by_build_id(&elf.build_id);
    let found = by_id.and_then(|path| {
        let debug = roots.iter().filter_map(|root| root.open(&path));
        debug.into_iter().find(|debug| is_of(debug, elf))
    });
    found.or_else(|| by_link(elf, path, roots))
}

/// It says the same build id, and has what the module lacks.
fn is_of(debug: &Elf, elf: &Elf) -> bool {
    !elf.build_id.is_empty() && debug.build_id == elf.build_id && has_more(debug)
}

fn has_more(debug: &Elf) -> bool {
    debug.symtab.is_some() || Sections::read(debug).find(".debug_info").is_some()
}

fn by_build_id(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let mut path = format!("/usr/lib/debug/.build-id/{first:02x}/");
    for byte in rest {
        write!(path, "{byte:02x}").ok()?;
    }
    path.push_str(".debug");
    Some(PathBuf::from(path))
}

fn by_link(elf: &Elf, path: &[u8], roots: &[Root]) -> Option<Elf> {
    let link = Sections::read(elf).find(".gnu_debuglink")?.content(elf, MAX_LINK)?;
    let end = link.iter().position(|&byte| byte == 0)?;
    let checksum = u32_at(&link, end.checked_add(1)?.checked_next_multiple_of(4)?)?;
    let name = Path::new(OsStr::from_bytes(link.get(..end)?));
    // A name, and nothing that leads elsewhere.
    if name.file_name() != Some(name.as_os_str()) {
        return None;
    }
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let folder = Path::new(OsStr::from_bytes(path)).parent()?;
    let global = Path::new("/usr/lib/debug").join(folder.strip_prefix("/").ok()?);
    let places = [folder.join(name), folder.join(".debug").join(name), global.join(name)];
    let debug = places.iter().flat_map(|place| roots.iter().filter_map(|root| root.open(place)));
    debug.into_iter().find(|debug| {
        if elf.build_id.is_empty() || debug.build_id.is_empty() {
            has_more(debug) && checksum_of(&debug.source) == Some(checksum)
        } else {
            is_of(debug, elf)
        }
    })
}

/// CRC-32 of the whole file.
fn checksum_of(source: &Source) -> Option<u32> {
    source.identity().filter(|identity| identity.size <= MAX_CHECKED)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    loop {
        let len = source.read_at(offset, &mut buffer);
        hasher.update(buffer.get(..len)?);
        offset += len as u64;
        if len < CHUNK {
            return Some(hasher.finalize());
        }
        if offset > MAX_CHECKED {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::symbols::live_tests::{compile, run};

    fn parse(path: &Path) -> Elf {
        Elf::parse(Source::open(path).unwrap().0).unwrap()
    }

    /// A stripped program that names its debug file, which is in the folder `.debug` beside it.
    fn linked(folder: &Path, id: &str) -> PathBuf {
        let program = compile(folder, "chain.c", &["-O2", "-g", id]);
        let places = folder.join(".debug");
        std::fs::create_dir(&places).unwrap();
        let debug = places.join("program.debug");
        run(Command::new("objcopy").arg("--only-keep-debug").args([&program, &debug]));
        run(Command::new("strip").arg(&program));
        let link = format!("--add-gnu-debuglink={}", debug.display());
        run(Command::new("objcopy").arg(link).arg(&program));
        program
    }

    fn find(program: &Path) -> Option<Elf> {
        let root = Root::Folder(PathBuf::from("/"));
        open(&parse(program), program.as_os_str().as_bytes(), &[root])
    }

    #[test]
    fn a_linked_debug_file_is_told_by_its_checksum_or_build_id() {
        for id in ["-Wl,--build-id=none", "-Wl,--build-id"] {
            let folder = tempfile::tempdir().unwrap();
            let program = linked(folder.path(), id);
            assert!(find(&program).is_some_and(|debug| debug.symtab.is_some()), "{id}");
            let process = Root::Process(std::process::id());
            assert!(open(&parse(&program), program.as_os_str().as_bytes(), &[process]).is_some());
            // Another program's in its place.
            let other = compile(folder.path(), "deep.c", &["-O2", "-g", id]);
            std::fs::copy(other, folder.path().join(".debug/program.debug")).unwrap();
            let stripped = tempfile::tempdir().unwrap();
            let program = linked(stripped.path(), id);
            std::fs::copy(
                folder.path().join(".debug/program.debug"),
                stripped.path().join(".debug/program.debug"),
            )
            .unwrap();
            assert!(find(&program).is_none(), "{id}");
        }
    }

    #[test]
    fn a_link_that_leads_elsewhere_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let program = linked(folder.path(), "-Wl,--build-id=none");
        let debug = folder.path().join(".debug/program.debug");
        std::fs::rename(&debug, folder.path().join("elsewhere")).unwrap();
        let mut bytes = std::fs::read(&program).unwrap();
        let at = bytes.windows(14).position(|window| window == b"program.debug\0").unwrap();
        bytes[at..at + 14].copy_from_slice(b"./elsewhere\0\0\0");
        std::fs::write(&program, bytes).unwrap();
        assert!(find(&program).is_none());
    }
}
