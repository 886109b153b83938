//! What processes have mapped: from an address to the file, the place in it, and the function's name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::files::{FileId, Files};
use super::maps::{self, Mapping};
use super::perf_map::PerfMap;
use super::unwind::{AddressSpace, Code};
use crate::trace::record::Frame;

/// Between two readings of one process's mappings.
const REREAD: Duration = Duration::from_millis(100);
/// Processes known at a time; the one that was asked for longest ago goes first.
const MAX_PROCESSES: usize = 4096;
/// No user code lies at or above: the upper half belongs to the kernel.
const USER_END: u64 = 1 << 63;
/// The first page is never mapped.
const USER_START: u64 = 4096;

struct Module {
    mapping: Mapping,
    name: String,
    file: Option<FileId>,
}

#[derive(Default)]
struct Process {
    modules: Vec<Module>,
    last_read: Option<Instant>,
    used: u64,
    perf_map: PerfMap,
}

impl Process {
    fn module(&self, address: u64) -> Option<&Module> {
        let after = self.modules.partition_point(|module| module.mapping.start <= address);
        self.modules.get(after.checked_sub(1)?).filter(|module| module.mapping.contains(address))
    }
}

/// All processes under study and the files that they map.
#[derive(Default)]
pub(super) struct Modules {
    files: Files,
    processes: HashMap<u32, Process>,
    clock: u64,
}

impl Modules {
    /// Reads the mappings now and opens their files, as the process may be gone when they are needed.
    pub(super) fn add(&mut self, pid: u32) {
        self.touch(pid);
        self.read(pid);
    }

    pub(super) fn exec(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            *process = Process { used: process.used, ..Process::default() };
        }
    }

    pub(super) fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Names of mapped files that were replaced on disk and cannot be read any more.
    pub(super) fn replaced(&self) -> impl Iterator<Item = &str> {
        self.files.replaced().iter().map(String::as_str)
    }

    /// The process's address space; a process that is not known yet is added.
    pub(super) fn space(&mut self, pid: u32) -> Space<'_> {
        if !self.processes.contains_key(&pid) {
            self.add(pid);
        }
        self.touch(pid);
        Space { modules: self, pid }
    }

    fn touch(&mut self, pid: u32) {
        self.clock += 1;
        if !self.processes.contains_key(&pid) && self.processes.len() >= MAX_PROCESSES {
            let oldest = self.processes.iter().min_by_key(|(_, process)| process.used);
            if let Some(oldest) = oldest.map(|(&pid, _)| pid) {
                self.processes.remove(&oldest);
            }
        }
        self.processes.entry(pid).or_default().used = self.clock;
    }

    fn read(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.last_read = Some(Instant::now());
        // A process that is gone keeps what is known of it: its last stacks may still be on their way.
        let Ok(mappings) = maps::read(pid) else { return };
        if mappings.is_empty() {
            return;
        }
        process.modules = mappings
            .into_iter()
            .map(|mapping| Module { name: mapping.module(), file: self.files.open(pid, &mapping), mapping })
            .collect();
    }

    /// Reads the mappings again unless that was done just now; tells whether it was done.
    fn reread(&mut self, pid: u32, address: u64) -> bool {
        let last = self.processes.get(&pid).and_then(|process| process.last_read);
        let due = last.is_none_or(|last| last.elapsed() >= REREAD);
        if !due || !(USER_START..USER_END).contains(&address) {
            return false;
        }
        self.read(pid);
        true
    }
}

/// The address space of one process.
pub(super) struct Space<'a> {
    modules: &'a mut Modules,
    pid: u32,
}

/// Where an address lies.
struct Place {
    file: Option<FileId>,
    /// Into the module's file.
    offset: u64,
    /// As the file states it.
    stated: Option<u64>,
    /// The file was closed to make room since the mappings were read.
    closed: bool,
}

impl Space<'_> {
    pub(super) fn is_known(&self) -> bool {
        self.modules.processes.get(&self.pid).is_some_and(|process| !process.modules.is_empty())
    }

    fn place(&mut self, address: u64) -> Option<Place> {
        match self.place_as_known(address) {
            Some(place) if !place.closed => Some(place),
            // The retry may find the file closed again; it is still the right module.
            found if self.modules.reread(self.pid, address) => self.place_as_known(address).or(found),
            found => found,
        }
    }

    fn place_as_known(&self, address: u64) -> Option<Place> {
        let module = self.modules.processes.get(&self.pid)?.module(address)?;
        let offset = address.checked_sub(module.mapping.start)?.checked_add(module.mapping.offset)?;
        let files = &self.modules.files;
        let closed = module.file.is_some_and(|id| !files.has(id));
        let file = module.file.filter(|_| !closed);
        let stated = file.and_then(|id| files.address_of(id, offset));
        Some(Place { file, offset, stated, closed })
    }

    /// The functions around the code at `address`, innermost first: those that are inlined there, and the one that
    /// has the code. One frame at least.
    pub(super) fn frames(&mut self, address: u64) -> Vec<Frame> {
        let Some(place) = self.place(address) else { return vec![unnamed(String::new(), address)] };
        let functions = match (place.file, place.stated) {
            (Some(file), Some(stated)) => self.modules.files.functions(file, stated, self.pid),
            _ => Arc::from([]),
        };
        let Some(process) = self.modules.processes.get_mut(&self.pid) else {
            return vec![unnamed(String::new(), address)];
        };
        let module = process.module(address).map(|module| module.name.clone()).unwrap_or_default();
        if !functions.is_empty() {
            let frame = |name: &String| Frame { function: name.clone(), module: module.clone(), offset: 0 };
            return functions.iter().map(frame).collect();
        }
        if place.file.is_none()
            && let Some(function) = process.perf_map.find(self.pid, address)
        {
            return vec![Frame { function, module: "[jit]".to_owned(), offset: 0 }];
        }
        // Anonymous memory has no file: the address itself tells most.
        let offset = if module.is_empty() { address } else { place.offset };
        vec![unnamed(module, offset)]
    }
}

fn unnamed(module: String, offset: u64) -> Frame {
    Frame { function: String::new(), module, offset }
}

impl AddressSpace for Space<'_> {
    fn code(&mut self, address: u64) -> Code {
        let Some(place) = self.place(address) else { return Code::Unmapped };
        let (Some(file), Some(stated)) = (place.file, place.stated) else { return Code::Bare };
        self.modules.files.row(file, stated).map_or(Code::Bare, Code::Rules)
    }

    fn is_start(&mut self, address: u64) -> bool {
        let Some(place) = self.place_as_known(address) else { return false };
        let (Some(file), Some(stated)) = (place.file, place.stated) else { return false };
        self.modules.files.is_start(file, stated)
    }

    fn follows_call(&mut self, address: u64) -> bool {
        // Asked for any word of a stack: most are no addresses, and no reason to read the mappings again.
        let Some(place) = self.place_as_known(address) else { return false };
        let bytes = place.file.and_then(|file| self.modules.files.bytes_before(file, place.offset));
        bytes.is_some_and(is_call)
    }
}

/// Whether code that ends with these bytes ends with a call, as far as that can be told from behind.
fn is_call(code: [u8; 8]) -> bool {
    if cfg!(target_arch = "aarch64") {
        let word = u32::from_le_bytes([code[4], code[5], code[6], code[7]]);
        return word >> 26 == 0x25 || word & 0xffff_fc1f == 0xd63f_0000;
    }
    // `call rel32`, or `call r/m64`: ff /2, two to seven bytes long.
    let indirect = code.windows(2).skip(1).any(|pair| matches!(pair, [0xff, mode] if mode & 0x38 == 0x10));
    code[3] == 0xe8 || indirect
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_file_is_opened_again_when_it_is_needed() {
        let pid = std::process::id();
        let address = is_call as *const () as u64;
        let mut modules = Modules::default();
        modules.add(pid);
        let named = modules.space(pid).frames(address).remove(0);
        assert_eq!(named.function, "stallscope::symbols::modules::is_call");
        modules.files.close_down_to(0, None);
        // Read just now: the frame says where it is, and the mappings are left alone.
        modules.processes.get_mut(&pid).unwrap().last_read = Some(Instant::now());
        let unnamed = modules.space(pid).frames(address).remove(0);
        assert_eq!((unnamed.function.as_str(), &unnamed.module), ("", &named.module));
        assert!(unnamed.offset > 0);
        modules.processes.get_mut(&pid).unwrap().last_read = None;
        assert_eq!(modules.space(pid).frames(address).remove(0), named);
    }

    #[test]
    fn calls_are_told_by_the_bytes_before_the_return_address() {
        if cfg!(target_arch = "x86_64") {
            for code in
                ["9090 90e8 0102 0304", "9090 9090 9090 ffd0", "9090 ff15 0102 0304", "9090 9090 9041 ffd4"]
            {
                assert!(is_call(bytes(code)), "{code}");
            }
            for code in
                ["9090 9090 9090 9090", "9090 9090 9090 ffe0", "0000 0000 0000 0000", "e800 0000 0000 0000"]
            {
                assert!(!is_call(bytes(code)), "{code}");
            }
        }
    }

    fn bytes(hex: &str) -> [u8; 8] {
        u64::from_str_radix(&hex.replace(' ', ""), 16).unwrap().to_be_bytes()
    }

    #[test]
    fn the_process_asked_for_longest_ago_is_forgotten() {
        let mut modules = Modules::default();
        let first = 1 << 30;
        for pid in first..=first + MAX_PROCESSES as u32 {
            modules.add(pid);
        }
        assert_eq!(modules.processes.len(), MAX_PROCESSES);
        assert!(!modules.processes.contains_key(&first));
    }
}
