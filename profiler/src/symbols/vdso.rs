//! The kernel's code in every process: no file, so it is read out of the process's memory.

use super::maps::Mapping;
use super::memory::read_process;

/// The kernel maps two pages.
const MAX_SIZE: u64 = 64 << 10;

pub(super) fn read(pid: u32, mapping: &Mapping) -> Option<Vec<u8>> {
    let size = mapping.end.checked_sub(mapping.start).filter(|&size| size <= MAX_SIZE)?;
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    (read_process(pid, mapping.start, &mut bytes) == bytes.len()).then_some(bytes)
}
