//! The functions of libibverbs that set things up. They are exported, unlike those that post and poll.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use profiler_common::verbs::{SETUP_CONTEXT, SETUP_QP};

use crate::target::elf::read_image;
use crate::target::maps::{self, FileId, Mapping};
use crate::target::root::ProcRoot;

const NAME: &str = "libibverbs.so";
/// What they are called with is looked at: a context, or a queue pair and its attributes.
const FUNCTIONS: [(&str, u32); 3] =
    [("ibv_alloc_pd", SETUP_CONTEXT), ("ibv_create_cq", SETUP_CONTEXT), ("ibv_modify_qp", SETUP_QP)];
/// Where the loader of this machine looks, as far as is usual.
const FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];

/// A libibverbs.
#[derive(Clone, Debug)]
pub struct Library {
    /// Path to open for probes, valid while `file` lives.
    pub open_path: PathBuf,
    pub file: Arc<File>,
    pub path: String,
    /// File offsets, and `SETUP_*`.
    pub functions: Vec<(u64, u32)>,
}

/// That of this machine, which a program that is started now will most often load.
pub fn of_this_machine() -> Option<(FileId, Library)> {
    let path =
        FOLDERS.iter().map(|folder| Path::new(folder).join("libibverbs.so.1")).find(|path| path.is_file())?;
    let file = File::open(&path).ok()?;
    let id = FileId::of(&file.metadata().ok()?);
    Some((id, read(file, path.to_string_lossy().into_owned())?))
}

/// Those that a process has mapped and that are not `known`.
pub fn of_process(root: &ProcRoot, pid: u32, known: &dyn Fn(FileId) -> bool) -> Vec<(FileId, Library)> {
    let Ok(maps) = maps::mappings(root, pid) else { return Vec::new() };
    let is_new = |mapping: &&Mapping| {
        mapping.perms.execute && mapping.file_name().starts_with(NAME) && !known(mapping.file_id())
    };
    let library = |mapping: &Mapping| {
        let file = maps::open(root, pid, mapping).ok()?;
        Some((mapping.file_id(), read(file, mapping.path.to_string_lossy().into_owned())?))
    };
    maps.iter().filter(is_new).filter_map(library).collect()
}

fn read(file: File, path: String) -> Option<Library> {
    let names = FUNCTIONS.map(|(name, _)| name);
    let image = read_image(&file, &names).ok()?;
    let place = |(name, what): (&str, u32)| Some((*image.functions.get(name)?, what));
    let functions: Vec<(u64, u32)> = FUNCTIONS.into_iter().filter_map(place).collect();
    let open_path = maps::descriptor_path(&file);
    (!functions.is_empty()).then(|| Library { open_path, file: Arc::new(file), path, functions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_the_library_has_none() {
        assert!(of_process(&ProcRoot::default(), std::process::id(), &|_| false).is_empty());
    }

    #[test]
    fn a_file_without_the_functions_is_no_library() {
        assert!(read(File::open("/proc/self/exe").unwrap(), "exe".to_owned()).is_none());
        assert!(read(File::open("/dev/null").unwrap(), "null".to_owned()).is_none());
    }
}
