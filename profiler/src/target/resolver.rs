//! The resolver functions that a process can call: in its libc, in the libresolv of older systems, or in
//! the executable itself where that is statically linked.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use profiler_common::Api;

use super::elf::{ElfError, read_image};
use super::maps::{self, FileId, Mapping};
use super::root::{ProcRoot, ReadError};

/// Files remembered at most, so that a process that maps ever new ones cannot fill our memory.
const REMEMBERED: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    Glibc,
    Musl,
    /// The executable itself.
    Static,
}

/// A file with resolver functions.
#[derive(Clone, Debug)]
pub struct ResolverLibrary {
    /// Path to open for probes, valid while this value (or a clone of it) lives: the file is held open,
    /// so that it is the one that was read, whatever happens to its name or to the process.
    pub open_path: PathBuf,
    pub file: Arc<File>,
    pub file_id: FileId,
    /// As the process sees it.
    pub path_in_target: String,
    pub flavour: Flavour,
    /// File offset of each function's first instruction. No offset occurs twice.
    pub functions: Vec<(Api, u64)>,
}

/// A file that should have resolver functions and could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ResolverError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{path}: {source}")]
    Elf { path: String, source: ElfError },
}

impl ResolverError {
    /// The process ended: nothing to tell the user about.
    pub fn is_gone(&self) -> bool {
        matches!(self, ResolverError::Read(error) if error.is_gone())
    }
}

/// What one process added.
#[derive(Debug, Default)]
pub struct Scan {
    /// Libraries that no process scanned before had mapped.
    pub new: Vec<ResolverLibrary>,
    /// Libraries that could not be used.
    pub errors: Vec<ResolverError>,
}

/// All resolver libraries of the processes scanned so far, each file once.
#[derive(Debug)]
pub struct ResolverLibraries {
    root: ProcRoot,
    seen: HashSet<FileId>,
}

impl ResolverLibraries {
    pub fn new(root: ProcRoot) -> ResolverLibraries {
        ResolverLibraries { root, seen: HashSet::new() }
    }

    /// Looks through the executable mappings of a process; to be called again after it executed another
    /// program or may have loaded a library.
    ///
    /// # Errors
    ///
    /// When the memory map cannot be read. Files that cannot be read are in [`Scan::errors`].
    pub fn scan(&mut self, pid: u32) -> Result<Scan, ResolverError> {
        let mut scan = Scan::default();
        let maps = maps::mappings(&self.root, pid)?;
        let program = program_file(&self.root, pid, &maps);
        for mapping in maps.iter().filter(|mapping| mapping.perms.execute && mapping.is_file()) {
            let id = mapping.file_id();
            let named = library_flavour(mapping.file_name());
            let Some(flavour) = named.or((program == Some(id)).then_some(Flavour::Static)) else { continue };
            if self.seen.contains(&id) {
                continue;
            }
            match read_library(&self.root, pid, mapping, flavour) {
                Ok(library) => scan.new.extend(library),
                Err(error) if error.is_gone() => continue,
                // A program that cannot be read is no loss where a libc is mapped.
                Err(_) if flavour == Flavour::Static => {}
                Err(error) => scan.errors.push(error),
            }
            if self.seen.len() < REMEMBERED {
                self.seen.insert(id);
            }
        }
        Ok(scan)
    }
}

/// The mapping's file that `/proc/PID/exe` is.
fn program_file(root: &ProcRoot, pid: u32, maps: &[Mapping]) -> Option<FileId> {
    let exe = std::fs::read_link(root.process_path(pid, "exe")).ok()?;
    let deleted = PathBuf::from(exe.to_string_lossy().trim_end_matches(" (deleted)"));
    let found =
        maps.iter().find(|mapping| mapping.is_file() && (mapping.path == exe || mapping.path == deleted));
    found.map(Mapping::file_id)
}

/// What a file is by its name; `None` for one that holds no resolver.
fn library_flavour(name: &str) -> Option<Flavour> {
    let is_versioned = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    // `libc.so.6`, and `libc-2.31.so` of older systems.
    if !name.split('.').skip(1).any(|part| part == "so") {
        return None;
    }
    if name.starts_with("ld-musl-") || name.starts_with("libc.musl-") || name == "libc.so" {
        return Some(Flavour::Musl);
    }
    let glibc = ["libc.so.", "libresolv.so."].iter().any(|prefix| name.starts_with(prefix))
        || ["libc-", "libresolv-"].iter().any(|prefix| is_versioned(prefix));
    glibc.then_some(Flavour::Glibc)
}

/// `None` for a file that defines no resolver function.
fn read_library(
    root: &ProcRoot,
    pid: u32,
    mapping: &Mapping,
    flavour: Flavour,
) -> Result<Option<ResolverLibrary>, ResolverError> {
    let file = maps::open(root, pid, mapping)?;
    let path = mapping.path.to_string_lossy().into_owned();
    let names = names();
    let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
    let image =
        read_image(&file, &wanted).map_err(|source| ResolverError::Elf { path: path.clone(), source })?;
    // A dynamically linked program that defines one of the names calls libc's in the end.
    if flavour == Flavour::Static && image.has_interpreter {
        return Ok(None);
    }
    let functions = functions(&image.functions);
    if functions.is_empty() {
        return Ok(None);
    }
    Ok(Some(ResolverLibrary {
        open_path: maps::descriptor_path(&file),
        file: Arc::new(file),
        file_id: mapping.file_id(),
        path_in_target: path,
        flavour,
        functions,
    }))
}

/// All names that are looked for: those of the API, and with underscores in front, the names that
/// glibc's `<resolv.h>` gave them before 2.34.
fn names() -> Vec<String> {
    Api::ALL.iter().flat_map(|api| [api.symbol().to_owned(), format!("__{}", api.symbol())]).collect()
}

fn functions(found: &BTreeMap<String, u64>) -> Vec<(Api, u64)> {
    let mut taken = HashSet::new();
    let mut functions = Vec::new();
    for api in Api::ALL {
        let plain = found.get(api.symbol());
        let offset = plain.or_else(|| found.get(&format!("__{}", api.symbol())));
        // musl's res_search is res_query under another name: one probe, not two.
        if let Some(&offset) = offset.filter(|offset| taken.insert(**offset)) {
            functions.push((api, offset));
        }
    }
    functions
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    use super::super::blocked::{Activity, thread_activity};
    use super::*;

    #[test]
    fn knows_a_libc_by_its_name() {
        for (name, flavour) in [
            ("libc.so.6", Some(Flavour::Glibc)),
            ("libc-2.31.so", Some(Flavour::Glibc)),
            ("libresolv.so.2", Some(Flavour::Glibc)),
            ("libresolv-2.28.so", Some(Flavour::Glibc)),
            ("ld-musl-x86_64.so.1", Some(Flavour::Musl)),
            ("libc.musl-x86_64.so.1", Some(Flavour::Musl)),
            ("libc.so", Some(Flavour::Musl)),
            ("libc10.so", None),
            ("libc-client.so.2007", None),
            ("libcuda.so.1", None),
            ("libresolver.so.1", None),
            ("libc-2.31.txt", None),
            ("", None),
        ] {
            assert_eq!(library_flavour(name), flavour, "{name}");
        }
    }

    #[test]
    fn an_alias_stands_in_only_where_the_plain_name_is_missing_and_no_offset_comes_twice() {
        let found = BTreeMap::from(
            [("res_query", 10), ("__res_query", 11), ("__res_nquery", 12), ("res_search", 10)]
                .map(|(name, offset)| (name.to_owned(), offset)),
        );
        assert_eq!(functions(&found), [(Api::ResQuery, 10), (Api::ResNquery, 12)]);
    }

    #[test]
    fn finds_its_own_libc_once_with_the_offsets_the_loader_uses() {
        let root = ProcRoot::default();
        let own = root.own_pid();
        let mut libraries = ResolverLibraries::new(root.clone());
        let scan = libraries.scan(own).unwrap();
        assert!(scan.errors.is_empty(), "{:?}", scan.errors);
        let library = scan.new.iter().find(|library| library.flavour == Flavour::Glibc).unwrap();
        let address = libc::getaddrinfo as *const () as u64;
        let maps = maps::mappings(&root, own).unwrap();
        let mapping = maps.iter().find(|mapping| mapping.contains(address)).unwrap();
        let expected = address - mapping.start + mapping.file_offset;
        assert!(library.functions.contains(&(Api::Getaddrinfo, expected)), "{expected:#x} {library:?}");
        assert_eq!(std::fs::metadata(&library.open_path).unwrap().ino(), library.file_id.inode);
        assert!(library.functions.iter().any(|(api, _)| *api == Api::ResNquery));
        assert!(libraries.scan(own).unwrap().new.is_empty());
    }

    /// Until the child waits for its input: by then everything is mapped.
    fn wait_for_read(root: &ProcRoot, pid: u32) {
        loop {
            let look = thread_activity(root, pid, pid).unwrap();
            match look.activity {
                Some(Activity::InCall(call)) if call.number == libc::SYS_read as u64 && look.state == 'S' => {
                    return;
                }
                _ => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn a_static_executable_is_its_own_library_also_when_it_was_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (source, program) = (directory.path().join("job.c"), directory.path().join("job"));
        let text = "#include <unistd.h>\nint getaddrinfo(void) { return 7; }\n\
            int main(void) { char c; return read(0, &c, 1) + getaddrinfo(); }\n";
        std::fs::write(&source, text).unwrap();
        let flags = ["-static", "-fno-builtin", "-o"];
        assert!(Command::new("gcc").args(flags).arg(&program).arg(&source).status().unwrap().success());
        let mut child = Command::new(&program).stdin(Stdio::piped()).spawn().unwrap();
        let root = ProcRoot::default();
        wait_for_read(&root, child.id());
        std::fs::remove_file(&program).unwrap();
        let scan = ResolverLibraries::new(root).scan(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        // Opening a removed file needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
        let scan = scan.unwrap();
        if nix::unistd::geteuid().is_root() {
            let library = scan.new.first().unwrap();
            assert_eq!(library.flavour, Flavour::Static);
            assert_eq!(library.path_in_target, program.to_string_lossy());
            assert_eq!(library.functions[0].0, Api::Getaddrinfo);
        } else {
            assert!(scan.new.is_empty());
        }
    }

    #[test]
    fn a_process_that_is_gone_is_no_error_to_report() {
        let error = ResolverLibraries::new(ProcRoot::default()).scan(u32::MAX).unwrap_err();
        assert!(error.is_gone());
    }
}
