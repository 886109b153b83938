//! Memory of a process that is not stopped.

use std::collections::HashMap;
use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::registers::Memory;

const PAGE: u64 = 4096;
/// Stack that one unwinding reads at most: 1 MiB.
const MAX_PAGES: usize = 256;

/// Fills `buffer` from `address` of `pid`; returns how many bytes could be read.
pub(super) fn read_process(pid: u32, address: u64, buffer: &mut [u8]) -> usize {
    let (Ok(pid), Ok(base)) = (i32::try_from(pid), usize::try_from(address)) else { return 0 };
    let remote = RemoteIoVec { base, len: buffer.len() };
    process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(buffer)], &[remote]).unwrap_or(0)
}

/// The stack of a blocked thread, read page by page as the unwinder asks for it.
pub(super) struct LiveMemory {
    tid: u32,
    pages: HashMap<u64, Option<Box<[u8]>>>,
}

impl LiveMemory {
    pub(super) fn new(tid: u32) -> LiveMemory {
        LiveMemory { tid, pages: HashMap::new() }
    }
}

impl Memory for LiveMemory {
    fn read(&mut self, address: u64) -> Option<u64> {
        let page = address & !(PAGE - 1);
        if !self.pages.contains_key(&page) {
            if self.pages.len() >= MAX_PAGES {
                return None;
            }
            let mut bytes = vec![0; PAGE as usize];
            let whole = read_process(self.tid, page, &mut bytes) == bytes.len();
            self.pages.insert(page, whole.then(|| bytes.into_boxed_slice()));
        }
        // A word across two pages is no stack slot.
        super::source::u64_at(self.pages.get(&page)?.as_deref()?, (address - page) as usize)
    }
}
