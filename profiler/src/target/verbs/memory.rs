//! The writable memory of a process that goes on running, page by page as far as it is resident.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::target::maps::Mapping;
use crate::target::root::{ProcRoot, ReadError};

const PAGE: u64 = 4096;
/// Entries of `pagemap` read at once: 2 MiB of address space per 4 KiB.
const ENTRIES: usize = 64 << 10;
const PRESENT: u64 = 1 << 63;
/// Bytes of one piece that is handed out.
const PIECE: u64 = 1 << 20;

/// Where a search looks; a process, or a forgery in tests.
pub trait Memory {
    /// Fills `buffer` from `address`; whether all of it could be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool;

    /// Resident pieces of `start..end`, at most [`PIECE`] bytes each, in order. `take` says whether to go on.
    fn resident(&self, start: u64, end: u64, take: &mut dyn FnMut(u64, u64) -> bool);
}

#[derive(Debug)]
pub struct ProcessMemory {
    pid: Pid,
    pagemap: File,
}

impl ProcessMemory {
    pub fn open(root: &ProcRoot, pid: u32) -> Result<ProcessMemory, ReadError> {
        let path = root.process_path(pid, "pagemap");
        let pagemap = File::open(&path).map_err(|source| ReadError::new(&path, source))?;
        Ok(ProcessMemory { pid: Pid::from_raw(i32::try_from(pid).unwrap_or(0)), pagemap })
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        let Ok(base) = usize::try_from(address) else { return false };
        let len = buffer.len();
        let remote = RemoteIoVec { base, len };
        process_vm_readv(self.pid, &mut [IoSliceMut::new(buffer)], &[remote]) == Ok(len)
    }

    fn resident(&self, start: u64, end: u64, take: &mut dyn FnMut(u64, u64) -> bool) {
        let mut entries = vec![0; ENTRIES * 8];
        let mut page = start / PAGE;
        let last = end / PAGE;
        let mut runs = Runs { open: None, take };
        while page < last {
            let wanted = usize::try_from(last - page).unwrap_or(ENTRIES).min(ENTRIES) * 8;
            let Some(buffer) = entries.get_mut(..wanted) else { return };
            let Some(at) = page.checked_mul(8) else { return };
            let read = self.pagemap.read_at(buffer, at).unwrap_or(0) / 8;
            if read == 0 {
                return;
            }
            for entry in buffer.chunks_exact(8).take(read) {
                let entry = entry.try_into().map_or(0, u64::from_ne_bytes);
                if !runs.page(page * PAGE, entry & PRESENT != 0) {
                    return;
                }
                page += 1;
            }
        }
        runs.close();
    }
}

/// Puts neighbouring pages together.
struct Runs<'a> {
    open: Option<(u64, u64)>,
    take: &'a mut dyn FnMut(u64, u64) -> bool,
}

impl Runs<'_> {
    fn page(&mut self, address: u64, present: bool) -> bool {
        match &mut self.open {
            Some((start, end)) if present && *end == address && *end - *start < PIECE => {
                *end += PAGE;
                true
            }
            _ => {
                let on = self.close();
                if present {
                    self.open = Some((address, address + PAGE));
                }
                on
            }
        }
    }

    fn close(&mut self) -> bool {
        self.open.take().is_none_or(|(start, end)| (self.take)(start, end))
    }
}

/// Whether verbs objects can lie there: the heap, and what allocators map. Files and devices are left out.
pub(super) fn is_searched(mapping: &Mapping) -> bool {
    let path = mapping.path.as_os_str().as_encoded_bytes();
    let anonymous = path.is_empty() || path == b"[heap]" || path.starts_with(b"[anon:");
    mapping.perms.read && mapping.perms.write && !mapping.perms.shared && mapping.inode == 0 && anonymous
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_pages_of_this_process_are_found_and_absent_ones_are_not() {
        let len = 64 << 12;
        // SAFETY: a new private mapping, unmapped below.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        for page in [3, 4, 9] {
            // SAFETY: inside of the mapping.
            unsafe { base.cast::<u8>().add(page << 12).write_volatile(1) };
        }
        let memory = ProcessMemory::open(&ProcRoot::default(), std::process::id()).unwrap();
        let mut found = Vec::new();
        let start = base as u64;
        memory.resident(start, start + len as u64, &mut |from, to| {
            found.push(((from - start) >> 12, (to - start) >> 12));
            true
        });
        let mut byte = [0];
        assert!(memory.read(start + (3 << 12), &mut byte));
        // SAFETY: the mapping from above.
        unsafe { libc::munmap(base, len) };
        assert_eq!(byte, [1]);
        // Huge pages may make neighbours resident too.
        assert!(found.iter().any(|(from, to)| (*from..*to).contains(&3)), "{found:?}");
        assert!(found.iter().any(|(from, to)| (*from..*to).contains(&9)), "{found:?}");
        assert!(!memory.read(0, &mut byte));
    }
}
