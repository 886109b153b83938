//! RDMA verbs in a process that runs: its open devices, their queue pairs, and the provider's functions behind
//! `ibv_post_send` and `ibv_poll_cq`. The target is neither stopped nor changed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::maps::{self, FileId, Mapping};
use super::root::{ProcRoot, ReadError};

pub mod code;
pub mod counters;
mod extent;
mod layout;
pub mod library;
pub mod memory;
pub mod resource;
pub mod returns;
pub mod scan;

pub use code::{CodeError, CompletionPoint};
pub use layout::MakerRole;
pub use scan::{Context, Found, QueuePair};

/// Code of one function that is looked at, at most.
const FUNCTION_MAX: usize = 64 << 10;

/// A function in a file.
#[derive(Clone, Debug)]
pub struct Place {
    /// Path to open for probes, valid while `file` lives.
    pub open_path: PathBuf,
    pub file: Arc<File>,
    pub file_id: FileId,
    /// As the process sees it.
    pub path_in_target: String,
    /// Offset into the file.
    pub offset: u64,
}

/// The functions of one provider that this process calls.
#[derive(Clone, Debug)]
pub struct Functions {
    pub post_send: Place,
    pub poll_cq: Place,
    pub completion: Completions,
}

/// Where completions are seen, the best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completions {
    /// Where one was found.
    Found(CompletionPoint),
    /// Where `poll_cq` returns: offsets from its beginning.
    Returns(Vec<u64>),
    /// By a return probe, since its returns are not all known.
    Return(CodeError),
}

/// A function by which requests are made through the extended interface.
#[derive(Clone, Debug)]
pub struct Maker {
    pub role: MakerRole,
    pub place: Place,
}

/// What a process does with verbs.
#[derive(Clone, Debug, Default)]
pub struct Verbs {
    pub found: Found,
    /// Different ones.
    pub functions: Vec<Functions>,
    pub makers: Vec<Maker>,
    /// What is executable in the process.
    code: Vec<Mapping>,
}

impl Verbs {
    /// The queue pair at this address of the process's memory, if there is one.
    pub fn queue_pair_at(&self, root: &ProcRoot, pid: u32, address: u64) -> Option<QueuePair> {
        let memory = memory::ProcessMemory::open(root, pid).ok()?;
        let surroundings = scan::Surroundings { maps: &self.code, devices: &[] };
        scan::queue_pair_at(&memory, surroundings, &self.found.contexts, address)
    }

    /// Functions by which requests are made for this queue pair and that were not known.
    pub fn new_makers(&mut self, root: &ProcRoot, pid: u32, address: u64) -> Vec<Maker> {
        let Ok(memory) = memory::ProcessMemory::open(root, pid) else { return Vec::new() };
        let surroundings = scan::Surroundings { maps: &self.code, devices: &[] };
        let found = scan::makers_at(&memory, surroundings, address);
        let new: Vec<(MakerRole, u64)> =
            found.into_iter().filter(|maker| self.found.makers.insert(*maker)).collect();
        makers(root, pid, &self.code, &new)
    }

    /// Takes in the context at this address; the functions that are new with it. `None` where there is no context.
    pub fn add_context(&mut self, root: &ProcRoot, pid: u32, address: u64) -> Option<Vec<Functions>> {
        let memory = memory::ProcessMemory::open(root, pid).ok()?;
        let maps = maps::mappings(root, pid).ok()?;
        let devices = device_files(root, pid);
        let surroundings = scan::Surroundings { maps: &maps, devices: &devices };
        let context = scan::context_at(&memory, surroundings, address)?;
        let new: Vec<Functions> = functions(root, pid, &maps, &context)
            .filter(|one| !self.functions.iter().any(|known| known.is_same(one)))
            .into_iter()
            .collect();
        self.functions.extend(new.iter().cloned());
        self.found.contexts.push(context);
        self.code = maps.into_iter().filter(|mapping| mapping.perms.execute).collect();
        Some(new)
    }
}

impl Functions {
    fn is_same(&self, other: &Functions) -> bool {
        let key = |one: &Functions| (one.post_send.file_id, one.post_send.offset, one.poll_cq.offset);
        key(self) == key(other)
    }
}

/// The context that the queue pair at this address belongs to, as its first word says.
pub fn context_of(root: &ProcRoot, pid: u32, queue_pair: u64) -> Option<u64> {
    let memory = memory::ProcessMemory::open(root, pid).ok()?;
    let mut word = [0; 8];
    memory::Memory::read(&memory, queue_pair, &mut word).then(|| u64::from_le_bytes(word))
}

/// Looks for verbs in a process.
///
/// # Errors
///
/// When its memory cannot be read, for instance because it has ended.
pub fn look(root: &ProcRoot, pid: u32) -> Result<Verbs, ReadError> {
    let devices = device_files(root, pid);
    if devices.is_empty() {
        return Ok(Verbs::default());
    }
    let maps = maps::mappings(root, pid)?;
    let memory = memory::ProcessMemory::open(root, pid)?;
    let found = scan::scan(&memory, scan::Surroundings { maps: &maps, devices: &devices });
    let mut all: Vec<Functions> = Vec::new();
    for context in &found.contexts {
        if let Some(one) = functions(root, pid, &maps, context)
            && !all.iter().any(|known| known.is_same(&one))
        {
            all.push(one);
        }
    }
    let addresses: Vec<(MakerRole, u64)> = found.makers.iter().copied().collect();
    let makers = makers(root, pid, &maps, &addresses);
    let code = maps.into_iter().filter(|mapping| mapping.perms.execute).collect();
    Ok(Verbs { found, functions: all, makers, code })
}

fn functions(root: &ProcRoot, pid: u32, maps: &[Mapping], context: &Context) -> Option<Functions> {
    let post_send = place(root, pid, maps, context.post_send)?;
    let poll_cq = place(root, pid, maps, context.poll_cq)?;
    let completion = completion(&poll_cq);
    Some(Functions { post_send, poll_cq, completion })
}

fn makers(root: &ProcRoot, pid: u32, maps: &[Mapping], addresses: &[(MakerRole, u64)]) -> Vec<Maker> {
    let maker = |(role, address): &(MakerRole, u64)| {
        let place = place(root, pid, maps, *address)?;
        Some(Maker { role: *role, place })
    };
    addresses.iter().filter_map(maker).collect()
}

/// Descriptors of verbs device files. A process that opened them in a container's file system shows the path
/// without what is above it.
fn device_files(root: &ProcRoot, pid: u32) -> Vec<(i32, String)> {
    let Ok(entries) = std::fs::read_dir(root.process_path(pid, "fd")) else { return Vec::new() };
    let device = |entry: std::fs::DirEntry| {
        let fd = entry.file_name().to_str()?.parse().ok()?;
        let name = device_name(&std::fs::read_link(entry.path()).ok()?)?;
        Some((fd, name))
    };
    entries.flatten().take(1 << 20).filter_map(device).take(1024).collect()
}

fn device_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let number = name.strip_prefix("uverbs")?;
    let folder = path.parent()?.file_name();
    let fits = !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && folder.is_none_or(|folder| folder == "infiniband");
    fits.then(|| name.to_owned())
}

fn place(root: &ProcRoot, pid: u32, maps: &[Mapping], address: u64) -> Option<Place> {
    let mapping = maps.iter().find(|mapping| mapping.contains(address))?;
    if !mapping.perms.execute || !mapping.is_file() {
        return None;
    }
    let file = maps::open(root, pid, mapping).ok()?;
    Some(Place {
        open_path: maps::descriptor_path(&file),
        file: Arc::new(file),
        file_id: mapping.file_id(),
        path_in_target: mapping.path.to_string_lossy().into_owned(),
        offset: mapping.file_offset.checked_add(address - mapping.start)?,
    })
}

/// Reads the function from its file, where no probe has changed it.
fn completion(function: &Place) -> Completions {
    let name =
        Path::new(&function.path_in_target).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(len) = extent::function_len(&function.file, function.offset) else {
        return Completions::Return(CodeError::Extent);
    };
    let len = usize::try_from(len).unwrap_or(FUNCTION_MAX).min(FUNCTION_MAX);
    let mut code = vec![0; len];
    let read = function.file.read_at(&mut code, function.offset).unwrap_or(0);
    code.truncate(read);
    // Other adapters' completions look different.
    if name.starts_with("libmlx5")
        && let Ok(point) = code::completion_point(&code)
    {
        return Completions::Found(point);
    }
    returns::returns(&code).map_or_else(Completions::Return, Completions::Returns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_files_are_known_by_their_paths() {
        let name = |path: &str| device_name(Path::new(path));
        assert_eq!(name("/dev/infiniband/uverbs0").as_deref(), Some("uverbs0"));
        assert_eq!(name("/uverbs12").as_deref(), Some("uverbs12"));
        for other in [
            "/dev/infiniband/rdma_cm",
            "/dev/infiniband/uverbs",
            "/tmp/uverbs0",
            "/dev/infiniband/uverbs0x",
            "/",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn a_process_without_devices_has_no_verbs() {
        let verbs = look(&ProcRoot::default(), std::process::id()).unwrap();
        assert!(verbs.functions.is_empty() && verbs.found == Found::default());
    }
}
