//! Whether a process can be entered, from what can be seen of it without touching it; and where things are in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use profiler_common::agent::PATH_LEN;

use super::error::AgentError;
use crate::target::elf::read_image;
use crate::target::maps::{self, Mapping};
use crate::target::root::{STATUS, read_bounded};
use crate::target::{ProcRoot, rooted, traits};

/// Functions that the agent is handed.
const WANTED: [&str; 6] =
    ["dlopen", "dlsym", "pthread_create", "pthread_detach", "clock_gettime", "__errno_location"];
/// Libraries that have them: one since glibc 2.34, three before.
const HOLDERS: [&str; 3] = ["libc", "libdl", "libpthread"];

/// What is needed of a process to enter it.
#[derive(Debug)]
pub struct Place {
    pub pid: u32,
    /// Addresses of [`WANTED`].
    functions: BTreeMap<String, u64>,
    /// Executable memory of libc, in which there is a `syscall` instruction.
    pub code: (u64, u64),
    /// Writable memory that is private and has no file: stacks are in it.
    stacks: Vec<(u64, u64)>,
    /// The stack of the main thread.
    main: (u64, u64),
    /// Writable memory of the loader, in which its lock lies.
    pub loader: Vec<(u64, u64)>,
    /// CUPTI's path as the target has it.
    pub cupti: PathBuf,
    /// Where the agent's library lies already.
    pub agent: Option<u64>,
    /// Agents of any version, for a name never used before.
    pub agents: usize,
}

impl Place {
    /// Address of a function in the target.
    pub fn function(&self, function: &'static str) -> Result<u64, AgentError> {
        self.functions.get(function).copied().ok_or(AgentError::Function { pid: self.pid, function })
    }

    /// The memory of a thread's stack, where it is that of the main thread or one that glibc made: there the thread's own
    /// record lies at its top. Others may be small, and full.
    pub fn stack_of(&self, sp: u64, record: u64) -> Option<(u64, u64)> {
        let holds = |(start, end): (u64, u64), address| (start..end).contains(&address);
        let stack = self.stacks.iter().copied().find(|stack| holds(*stack, sp))?;
        (holds(stack, record) || stack == self.main).then_some(stack)
    }
}

/// Whether the process has the CUDA driver's library mapped.
pub fn uses_cuda(root: &ProcRoot, pid: u32) -> bool {
    maps::mappings(root, pid).is_ok_and(|maps| has_cuda(&maps))
}

fn has_cuda(maps: &[Mapping]) -> bool {
    maps.iter().any(|mapping| mapping.file_name().starts_with("libcuda.so"))
}

/// Looks at the process, and refuses it where it could come to harm. `image` names the agent's file.
pub fn place(root: &ProcRoot, pid: u32, image: &str) -> Result<Place, AgentError> {
    let maps = maps::mappings(root, pid)?;
    if !has_cuda(&maps) {
        return Err(AgentError::NoCuda { pid });
    }
    if !cfg!(target_arch = "x86_64") {
        return Err(AgentError::Architecture);
    }
    let traits = traits::traits(root, pid)?;
    if traits.is_32_bit == Some(true) {
        return Err(AgentError::Bits { pid });
    }
    if matches!(traits.seccomp, traits::Seccomp::Strict | traits::Seccomp::Filter) {
        return Err(AgentError::Seccomp { pid, mode: traits.seccomp.name() });
    }
    if is_musl(root, pid, &maps) {
        return Err(AgentError::Musl { pid });
    }
    if forbids_all(root) {
        return Err(AgentError::Yama);
    }
    for tid in root.tids(pid)? {
        let guard = guard(root, pid, tid);
        if let Some(tracer) = guard.tracer {
            return Err(AgentError::Traced { pid, tracer });
        }
        // The agent's thread would have the filter of the one that starts it, and any may be that.
        if guard.has_filter {
            return Err(AgentError::Seccomp { pid, mode: "filter" });
        }
    }
    let functions = functions(root, pid, &maps);
    for function in WANTED {
        if !functions.contains_key(function) {
            return Err(AgentError::Function { pid, function });
        }
    }
    let code = maps.iter().find(|mapping| mapping.perms.execute && is_holder(mapping, "libc"));
    let code = code.map(|mapping| (mapping.start, mapping.end));
    let loader = maps.iter().filter(|mapping| mapping.perms.write && is_loader(mapping));
    let agents = maps.iter().filter(|mapping| is_agent(mapping) && mapping.file_offset == 0);
    Ok(Place {
        pid,
        functions,
        code: code.ok_or(AgentError::Function { pid, function: "syscall" })?,
        stacks: maps
            .iter()
            .filter(|mapping| mapping.perms.write && mapping.inode == 0)
            .map(|mapping| (mapping.start, mapping.end))
            .collect(),
        main: maps
            .iter()
            .find(|mapping| mapping.path == Path::new("[stack]"))
            .map_or((0, 0), |mapping| (mapping.start, mapping.end)),
        loader: loader.map(|mapping| (mapping.start, mapping.end)).collect(),
        cupti: cupti(root, pid, &maps).ok_or(AgentError::NoCupti { pid })?,
        agent: agents.clone().find(|mapping| mapping.path == Path::new(image)).map(|mapping| mapping.start),
        agents: agents.count(),
    })
}

/// What keeps others out of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Guard {
    pub(super) tracer: Option<u32>,
    /// A system-call filter, or the strict mode.
    pub(super) has_filter: bool,
}

/// Reads it; nothing of a thread that is gone.
pub(super) fn guard(root: &ProcRoot, pid: u32, tid: u32) -> Guard {
    let Ok(status) = read_bounded(&root.task_path(pid, tid, "status"), STATUS) else {
        return Guard::default();
    };
    let text = String::from_utf8_lossy(&status.bytes);
    let number = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u32>().ok());
    Guard {
        tracer: number("TracerPid:").filter(|tracer| *tracer != 0),
        has_filter: number("Seccomp:").is_some_and(|mode| mode != 0),
    }
}

/// The loader's name is a link to the library on some distributions, so that the memory map shows `libc.so`: the
/// executable says who loads it.
fn is_musl(root: &ProcRoot, pid: u32, maps: &[Mapping]) -> bool {
    const LOADER: &[u8] = b"/ld-musl-";
    let is_mapped = maps.iter().any(|mapping| {
        let name = mapping.file_name();
        name.starts_with("ld-musl") || (name == "libc.so" && mapping.path.to_string_lossy().contains("musl"))
    });
    is_mapped
        || read_bounded(&root.process_path(pid, "exe"), HEAD)
            .is_ok_and(|head| head.bytes.windows(LOADER.len()).any(|piece| piece == LOADER))
}

/// The loader's name stands near the beginning of an executable.
const HEAD: usize = 64 << 10;

/// With 3 nobody may trace anything any more; 1 and 2 let those with `CAP_SYS_PTRACE`, which recording takes anyway.
fn forbids_all(root: &ProcRoot) -> bool {
    let scope = read_bounded(&root.path("sys/kernel/yama/ptrace_scope"), 16);
    scope.is_ok_and(|scope| scope.bytes.trim_ascii() == b"3")
}

/// Where the agent's library of this name lies.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "nothing is loaded there"))]
pub(super) fn agent(root: &ProcRoot, pid: u32, image: &str) -> Result<Option<u64>, AgentError> {
    let maps = maps::mappings(root, pid)?;
    let found = maps
        .iter()
        .find(|mapping| is_agent(mapping) && mapping.file_offset == 0 && mapping.path == Path::new(image));
    Ok(found.map(|mapping| mapping.start))
}

fn is_holder(mapping: &Mapping, holder: &str) -> bool {
    let rest = mapping.file_name().strip_prefix(holder);
    rest.is_some_and(|rest| rest.starts_with(".so.") || rest.starts_with("-2."))
}

fn is_loader(mapping: &Mapping) -> bool {
    let name = mapping.file_name();
    name.starts_with("ld-linux") || name.starts_with("ld-2.")
}

fn is_agent(mapping: &Mapping) -> bool {
    mapping.path.to_string_lossy().starts_with("/memfd:stallscope-agent-")
}

fn functions(root: &ProcRoot, pid: u32, maps: &[Mapping]) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for holder in HOLDERS {
        let pieces: Vec<&Mapping> = maps.iter().filter(|mapping| is_holder(mapping, holder)).collect();
        let Some(file) = pieces.first().and_then(|mapping| maps::open(root, pid, mapping).ok()) else {
            continue;
        };
        let Ok(image) = read_image(&file, &WANTED) else { continue };
        for (name, offset) in image.functions {
            let piece = pieces.iter().find(|mapping| {
                let len = mapping.end - mapping.start;
                mapping.perms.execute && offset >= mapping.file_offset && offset - mapping.file_offset < len
            });
            if let Some(piece) = piece {
                found.entry(name).or_insert(piece.start + (offset - piece.file_offset));
            }
        }
    }
    found
}

/// The CUPTI that is mapped, else the one beside the CUDA runtime that is mapped (as its wheels lie), else the
/// toolkit's.
fn cupti(root: &ProcRoot, pid: u32, maps: &[Mapping]) -> Option<PathBuf> {
    let fits = |path: &Path| path.as_os_str().len() < PATH_LEN;
    let mapped = maps.iter().find(|mapping| mapping.file_name().starts_with("libcupti.so"));
    if let Some(mapping) = mapped.filter(|mapping| fits(&mapping.path)) {
        return Some(mapping.path.clone());
    }
    let runtime = maps.iter().find(|mapping| mapping.file_name().starts_with("libcudart.so"));
    let major = runtime.and_then(|mapping| mapping.file_name().split('.').nth(2)?.parse::<u32>().ok());
    let mut folders = Vec::new();
    if let Some(folder) = runtime.and_then(|mapping| mapping.path.parent()) {
        folders.push(folder.to_owned());
        folders.push(folder.join("../../cuda_cupti/lib"));
        folders.push(folder.join("../extras/CUPTI/lib64"));
        folders.push(folder.join("../../../extras/CUPTI/lib64"));
    }
    for folder in ["/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu"]
    {
        folders.push(PathBuf::from(folder));
    }
    let names: Vec<String> = match major {
        Some(major) => vec![format!("libcupti.so.{major}")],
        None => vec!["libcupti.so.13".to_owned(), "libcupti.so.12".to_owned()],
    };
    let paths = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    paths.filter(|path| fits(path)).find(|path| exists(root, pid, path))
}

fn exists(root: &ProcRoot, pid: u32, path: &Path) -> bool {
    let file: Result<File, _> = rooted::open(root, pid, path);
    file.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process 8 with these files in its folder.
    fn process(files: &[(&str, &str)]) -> (tempfile::TempDir, ProcRoot) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = ProcRoot::new(folder.path());
        (folder, root)
    }

    const CUDA: &str = "1000-2000 r-xp 0 08:01 9 /usr/lib/libcuda.so.1\n";
    const LIBC: &str = "3000-4000 r-xp 0 08:01 8 /usr/lib/x86_64-linux-gnu/libc.so.6\n";
    const STAT: &str = "8 (job) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";

    fn refused(more: &[(&str, &str)]) -> String {
        let maps = format!("{CUDA}{LIBC}");
        let mut files = vec![
            ("8/maps", maps.as_str()),
            ("8/stat", STAT),
            ("8/status", "Tgid:\t8\nSeccomp:\t0\n"),
            ("8/exe", "\x7fELF\x02"),
            ("8/task/8/status", "TracerPid:\t0\nSeccomp:\t0\n"),
        ];
        files.extend(more);
        let (_folder, root) = process(&files);
        place(&root, 8, "").unwrap_err().to_string()
    }

    #[test]
    fn what_forbids_to_enter_is_named() {
        let filtered = "TracerPid:\t0\nSeccomp:\t2\n";
        let traced = "TracerPid:\t77\nSeccomp:\t0\n";
        let musl = format!("{CUDA}3000-4000 r-xp 0 08:01 8 /usr/lib/x86_64-linux-musl/libc.so\n");
        for (files, expected) in [
            (("8/task/9/status", filtered), "seccomp filter"),
            (("8/task/9/status", traced), "traced by process 77"),
            (("8/maps", musl.as_str()), "runs on musl"),
            (("8/exe", "\x7fELF\x02 /lib/ld-musl-x86_64.so.1"), "runs on musl"),
            (("sys/kernel/yama/ptrace_scope", "3\n"), "ptrace_scope is 3"),
            (("8/maps", LIBC), "does not use CUDA"),
        ] {
            let reason = refused(&[files]);
            assert!(reason.contains(expected), "{expected}: {reason}");
        }
    }

    #[test]
    fn where_nothing_forbids_it_the_functions_of_libc_are_looked_for() {
        for scope in ["0\n", "1\n", "2\n"] {
            let reason = refused(&[("sys/kernel/yama/ptrace_scope", scope)]);
            assert!(reason.contains("has no `dlopen`"), "{reason}");
        }
    }
}
