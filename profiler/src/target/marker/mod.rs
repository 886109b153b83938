//! The function that the user named as the marker of an iteration: where it lies in the files that targets have mapped.

mod place;

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::place::cheap_place;
use super::maps::{self, FileId};
use super::root::ProcRoot;
use crate::symbols::functions::{self, Function};

/// Files that are looked through at most.
const FILES: usize = 1 << 14;
/// Names that are told at most.
const TOLD: usize = 4;

/// `FUNCTION` or `LIB:FUNCTION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkerName {
    /// File name of the library or executable, also without its version (`libnccl`).
    pub object: Option<String>,
    pub function: String,
}

impl MarkerName {
    /// `None` where a part is empty.
    pub fn parse(text: &str) -> Option<MarkerName> {
        let is_single = |at: &usize| {
            let before = at.checked_sub(1).and_then(|before| text.as_bytes().get(before));
            before != Some(&b':') && text.as_bytes().get(at + 1) != Some(&b':')
        };
        let (library, function) = match text.match_indices(':').map(|(at, _)| at).find(is_single) {
            Some(at) => (Some(text.get(..at)?.to_owned()), text.get(at + 1..)?),
            None => (None, text),
        };
        let is_empty = function.is_empty() || library.as_ref().is_some_and(String::is_empty);
        (!is_empty).then(|| MarkerName { object: library, function: function.to_owned() })
    }

    fn is_of(&self, file_name: &str) -> bool {
        let Some(library) = &self.object else { return true };
        let rest = file_name.strip_prefix(library.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    }
}

impl std::fmt::Display for MarkerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.object {
            Some(library) => write!(f, "{library}:{}", self.function),
            None => f.write_str(&self.function),
        }
    }
}

/// The function in one file.
#[derive(Clone, Debug)]
pub struct MarkerPlace {
    /// Held open, so that `open_path` leads to the file that was read.
    pub file: Arc<File>,
    pub open_path: PathBuf,
    /// File name.
    pub module: String,
    pub function: String,
    /// Offset of the probe in the file.
    pub offset: u64,
    /// Of the function's first instruction.
    pub entry: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum MarkerError {
    #[error("no function {name} in the {files} files that the targets have mapped")]
    Unknown { name: MarkerName, files: usize, near: Vec<String>, stripped: Vec<String> },
    #[error("no target has a file {library} mapped")]
    NoLibrary { library: String },
    #[error("{name} is the name of {count} functions: {places}")]
    Several { name: MarkerName, count: usize, places: String, in_one_file: bool },
}

impl MarkerError {
    pub fn help(&self) -> String {
        match self {
            MarkerError::Unknown { near, .. } if !near.is_empty() => {
                format!("names like it: {}", near.iter().take(TOLD).cloned().collect::<Vec<_>>().join(", "))
            }
            MarkerError::Unknown { stripped, .. } if !stripped.is_empty() => format!(
                "these files tell the names of exported functions only, or none: {}",
                stripped.iter().take(TOLD).cloned().collect::<Vec<_>>().join(", ")
            ),
            MarkerError::Unknown { .. } => {
                "`nm -C FILE` and `nm -DC FILE` list the functions that have names".to_owned()
            }
            MarkerError::NoLibrary { .. } => "/proc/PID/maps lists what a process has mapped".to_owned(),
            MarkerError::Several { in_one_file: false, .. } => "name one of them as LIB:FUNCTION".to_owned(),
            MarkerError::Several { .. } => {
                "name another function, or one of them as `nm FILE` shows it (mangled)".to_owned()
            }
        }
    }
}

/// Looks for the function, each file once.
#[derive(Debug)]
pub struct MarkerFinder {
    root: ProcRoot,
    name: MarkerName,
    seen: HashSet<FileId>,
    near: BTreeSet<String>,
    stripped: BTreeSet<String>,
}

impl MarkerFinder {
    pub fn new(root: ProcRoot, name: MarkerName) -> MarkerFinder {
        let (seen, near, stripped) = (HashSet::new(), BTreeSet::new(), BTreeSet::new());
        MarkerFinder { root, name, seen, near, stripped }
    }

    /// The function in what these processes have mapped: one in each file that has it, all of the same file name.
    pub fn in_processes(&mut self, pids: &[u32]) -> Result<Vec<MarkerPlace>, MarkerError> {
        let mut found = Vec::new();
        for pid in pids {
            found.extend(self.in_process(*pid));
        }
        self.decide(found)
    }

    /// The function in a program that is not running yet; `None` where it is none of the program's own.
    pub fn in_program(&mut self, program: &OsStr) -> Result<Vec<MarkerPlace>, MarkerError> {
        let Some(path) = find_program(program) else { return Ok(Vec::new()) };
        let module = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let Ok(file) = super::rooted::open_regular(&path) else { return Ok(Vec::new()) };
        if !self.name.is_of(&module) {
            return Ok(Vec::new());
        }
        let found = self.in_file(file, &module);
        if found.is_empty() { Ok(found) } else { self.decide(found) }
    }

    /// Size of a process's address space, in pages; `None` where it is gone.
    pub fn mapped_pages(&self, pid: u32) -> Option<u64> {
        let text = std::fs::read_to_string(self.root.process_path(pid, "statm")).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok()
    }

    fn in_process(&mut self, pid: u32) -> Vec<MarkerPlace> {
        // A process that is gone has nothing mapped.
        let maps = maps::mappings(&self.root, pid).unwrap_or_default();
        let mut found = Vec::new();
        for mapping in maps.iter().filter(|mapping| mapping.perms.execute && mapping.is_file()) {
            let module = mapping.file_name();
            if !self.name.is_of(module) || self.seen.len() >= FILES || !self.seen.insert(mapping.file_id()) {
                continue;
            }
            if let Ok(file) = maps::open(&self.root, pid, mapping) {
                found.extend(self.in_file(file, module));
            }
        }
        found
    }

    fn in_file(&mut self, file: File, module: &str) -> Vec<MarkerPlace> {
        let Ok(copy) = file.try_clone() else { return Vec::new() };
        let Ok(search) = functions::find(copy, &self.name.function) else { return Vec::new() };
        self.near.extend(search.near);
        if !search.has_symbols {
            self.stripped.insert(module.to_owned());
        }
        let file = Arc::new(file);
        let place = |function: Function| {
            let is_whole = function.size > 0 && function.size == function.code.len() as u64;
            MarkerPlace {
                open_path: maps::descriptor_path(&file),
                file: Arc::clone(&file),
                module: module.to_owned(),
                offset: function.offset + cheap_place(&function.code, is_whole),
                entry: function.offset,
                function: function.name,
            }
        };
        search.functions.into_iter().map(place).collect()
    }

    fn decide(&self, found: Vec<MarkerPlace>) -> Result<Vec<MarkerPlace>, MarkerError> {
        let Some(first) = found.first() else {
            return Err(match &self.name.object {
                Some(library) if self.seen.is_empty() => MarkerError::NoLibrary { library: library.clone() },
                _ => MarkerError::Unknown {
                    name: self.name.clone(),
                    files: self.seen.len(),
                    near: self.near.iter().cloned().collect(),
                    stripped: self.stripped.iter().cloned().collect(),
                },
            });
        };
        let in_one_file = found.iter().any(|one| {
            found.iter().any(|other| Arc::ptr_eq(&one.file, &other.file) && one.entry != other.entry)
        });
        if in_one_file || found.iter().any(|place| place.module != first.module) {
            let places = found
                .iter()
                .take(TOLD)
                .map(|place| format!("{}:{} at {:#x}", place.module, place.function, place.entry));
            return Err(MarkerError::Several {
                name: self.name.clone(),
                count: found.len(),
                places: places.collect::<Vec<_>>().join(", "),
                in_one_file,
            });
        }
        Ok(found)
    }
}

/// As `execvp` looks for it.
fn find_program(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 || path.is_absolute() {
        return Some(path.to_owned());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(path)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_library_stands_before_a_single_colon() {
        let parse = |text| MarkerName::parse(text).map(|name| (name.object, name.function));
        let name =
            |library: Option<&str>, function: &str| Some((library.map(str::to_owned), function.to_owned()));
        assert_eq!(parse("step"), name(None, "step"));
        assert_eq!(parse("job::step"), name(None, "job::step"));
        assert_eq!(parse("libnccl.so.2:ncclAllReduce"), name(Some("libnccl.so.2"), "ncclAllReduce"));
        assert_eq!(parse("libtorch.so:at::native::add"), name(Some("libtorch.so"), "at::native::add"));
        assert_eq!([parse(""), parse("lib:"), parse(":step")], [None, None, None]);
    }

    #[test]
    fn a_library_may_be_named_without_its_version() {
        let name = MarkerName::parse("libc:getaddrinfo").unwrap();
        assert!(name.is_of("libc.so.6") && name.is_of("libc-2.31.so") && name.is_of("libc"));
        assert!(!name.is_of("libcuda.so.1"));
    }

    #[test]
    fn finds_a_function_of_its_own_libc_and_says_what_is_like_a_wrong_name() {
        let root = ProcRoot::default();
        let own = root.own_pid();
        let find = |name: &str| {
            MarkerFinder::new(root.clone(), MarkerName::parse(name).unwrap()).in_processes(&[own])
        };
        let places = find("libc.so.6:getaddrinfo").unwrap();
        assert_eq!((places.len(), places[0].module.as_str()), (1, "libc.so.6"));
        assert!(places[0].offset >= places[0].entry && places[0].offset <= places[0].entry + 64);
        let error = find("libc.so.6:getadrinfo").unwrap_err();
        assert!(error.help().contains("getaddrinfo"), "{}", error.help());
        assert!(matches!(find("libnothing:x").unwrap_err(), MarkerError::NoLibrary { .. }));
    }

    #[test]
    fn two_functions_of_one_name_are_not_chosen_among() {
        let folder = tempfile::tempdir().unwrap();
        let source = |text: &str, name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let one = source("static int __attribute__((used, noinline)) step(int x) { return x + 1; }", "a.c");
        let two = source(
            "static int __attribute__((used, noinline)) step(int x) { return x + 2; } int main(void) { return 0; }",
            "b.c",
        );
        let program = folder.path().join("job");
        let status = Command::new("gcc").arg("-o").arg(&program).arg(one).arg(two).status().unwrap();
        assert!(status.success());
        let find = |name: &str| {
            let mut finder = MarkerFinder::new(ProcRoot::default(), MarkerName::parse(name).unwrap());
            finder.in_program(program.as_os_str())
        };
        let error = find("step").unwrap_err();
        assert!(error.to_string().starts_with("step is the name of 2 functions: job:step at 0x"), "{error}");
        assert_eq!(find("main").unwrap().len(), 1);
        assert!(find("nothing").unwrap().is_empty());
    }
}
