//! Where a function ends, by the unwind table of its file: what a call that never returns is followed by belongs to
//! another one.

use std::fs::File;
use std::os::unix::fs::FileExt;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindSection};
use object::{Object, ObjectSection, ObjectSegment};

/// Files larger are not read: providers have half a megabyte.
const FILE_MAX: u64 = 64 << 20;
/// Entries looked at, at most.
const ENTRIES_MAX: usize = 1 << 20;

/// Bytes of the function that begins at this offset of the file; `None` where no table says so.
pub(super) fn function_len(file: &File, offset: u64) -> Option<u64> {
    let len = file.metadata().ok()?.len();
    if len > FILE_MAX {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    file.read_exact_at(&mut bytes, 0).ok()?;
    len_in(&bytes, offset)
}

fn len_in(bytes: &[u8], offset: u64) -> Option<u64> {
    let object = object::File::parse(bytes).ok()?;
    let address = object.segments().find_map(|segment| {
        let (start, len) = segment.file_range();
        let inside = offset.checked_sub(start).filter(|inside| *inside < len)?;
        segment.address().checked_add(inside)
    })?;
    let section = object.section_by_name(".eh_frame")?;
    let table = EhFrame::from(EndianSlice::new(section.data().ok()?, LittleEndian));
    let text = object.section_by_name(".text").map_or(0, |text| text.address());
    let bases = BaseAddresses::default().set_eh_frame(section.address()).set_text(text);
    let mut entries = table.entries(&bases);
    for _ in 0..ENTRIES_MAX {
        let CieOrFde::Fde(partial) = entries.next().ok()?? else { continue };
        let entry = partial.parse(EhFrame::cie_from_offset).ok()?;
        if entry.initial_address() == address {
            return Some(entry.len());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::maps;
    use crate::target::root::ProcRoot;

    #[inline(never)]
    extern "C" fn known(value: u64) -> u64 {
        std::hint::black_box(value).wrapping_mul(3)
    }

    #[test]
    fn a_function_of_this_program_has_an_end_and_its_middle_has_none() {
        let maps = maps::mappings(&ProcRoot::default(), std::process::id()).unwrap();
        let address = known as *const () as u64;
        let mapping = maps.iter().find(|mapping| mapping.contains(address)).unwrap();
        let offset = mapping.file_offset + (address - mapping.start);
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        let len = len_in(&bytes, offset).unwrap();
        assert!((1..4096).contains(&len), "{len}");
        assert_eq!(len_in(&bytes, offset + 1), None);
        // What is cut or is no such file has none.
        bytes.truncate(1 << 10);
        assert_eq!(len_in(&bytes, offset), None);
        assert_eq!(len_in(&[], 0), None);
    }
}
