//! The agent's library as it lies in memory. It is mapped by hand, so that nothing of the target's loader is used: it
//! needs no other library, and of relocations only those that add where it lies.

use std::sync::OnceLock;

use object::elf::{DT_INIT, DT_INIT_ARRAY, DT_NEEDED, PF_W, PT_LOAD, PT_TLS, R_X86_64_RELATIVE};
use object::read::elf::{Dyn as _, ElfFile64, ProgramHeader as _, Rela as _, SectionHeader as _};
use object::{LittleEndian, Object as _, ObjectSymbol as _};

use super::LIBRARY;

const PAGE: u64 = 4096;
/// More than it has.
const LARGEST: u64 = 1 << 20;

/// The library, laid out from address 0 on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Image {
    /// Its beginning, code and all that is only read; whole pages.
    pub(super) code: Vec<u8>,
    /// What lies behind that and is not 0.
    data: Vec<u8>,
    /// Where the library's own address is to be added, from the beginning, and to what.
    relocations: Vec<(u64, u64)>,
    /// Bytes in all, whole pages.
    pub(super) len: u64,
    /// Offset of `stallscope_start`.
    pub(super) entry: u64,
    /// Offset of `stallscope_active`.
    pub(super) active: u64,
    /// Offset of `stallscope_left`.
    pub(super) left: u64,
}

impl Image {
    /// The embedded one; `None` where there is none, or one that cannot be mapped by hand.
    pub(super) fn embedded() -> Option<&'static Image> {
        static IMAGE: OnceLock<Option<Image>> = OnceLock::new();
        IMAGE.get_or_init(|| Image::read(LIBRARY)).as_ref()
    }

    fn read(library: &[u8]) -> Option<Image> {
        let file: ElfFile64<'_, LittleEndian> = ElfFile64::parse(library).ok()?;
        let (split, len) = extent(&file)?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        let endian = file.endian();
        for segment in file.elf_program_headers().iter().filter(|one| one.p_type(endian) == PT_LOAD) {
            let piece = segment.data(endian, library).ok()?;
            let at = usize::try_from(segment.p_vaddr(endian)).ok()?;
            bytes.get_mut(at..at.checked_add(piece.len())?)?.copy_from_slice(piece);
        }
        let data = bytes.split_off(usize::try_from(split).ok()?);
        let filled = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let relocations = relocations(&file, library)?;
        let inside = |offset: u64| offset >= split && offset.checked_add(8).is_some_and(|end| end <= len);
        if !relocations.iter().all(|(offset, _)| inside(*offset)) {
            return None;
        }
        let end = relocations.iter().map(|(offset, _)| offset + 8 - split).max().unwrap_or(0);
        let filled = filled.max(usize::try_from(end).ok()?);
        let symbol = |name: &str| {
            let found = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name))?;
            Some(found.address()).filter(|address| *address < len)
        };
        Some(Image {
            code: bytes,
            data: data.get(..filled)?.to_vec(),
            relocations,
            len,
            entry: symbol("stallscope_start")?,
            active: symbol("stallscope_active")?,
            left: symbol("stallscope_left")?,
        })
    }

    /// What is to be written behind the code when the library lies at `base`.
    pub(super) fn data_at(&self, base: u64) -> Vec<u8> {
        let mut data = self.data.clone();
        for (offset, addend) in &self.relocations {
            let at = (*offset as usize).wrapping_sub(self.code.len());
            if let Some(place) = data.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
                *place = base.wrapping_add(*addend).to_le_bytes();
            }
        }
        data
    }
}

/// Where the writable part begins and where all ends. `None` where they are not in this order, or where the library asks
/// for more than memory.
fn extent(file: &ElfFile64<'_, LittleEndian>) -> Option<(u64, u64)> {
    let endian = file.endian();
    let (mut read_only, mut writable, mut end) = (0, u64::MAX, 0);
    for segment in file.elf_program_headers() {
        let (at, behind) = (
            segment.p_vaddr(endian),
            segment.p_vaddr(endian).checked_add(segment.p_memsz(endian))?.next_multiple_of(PAGE),
        );
        match segment.p_type(endian) {
            PT_TLS => return None,
            PT_LOAD if segment.p_flags(endian) & PF_W != 0 => writable = writable.min(at & !(PAGE - 1)),
            PT_LOAD => read_only = read_only.max(behind),
            _ => continue,
        }
        end = end.max(behind);
    }
    (read_only <= writable && writable < end && end <= LARGEST).then_some((writable, end))
}

fn relocations(file: &ElfFile64<'_, LittleEndian>, library: &[u8]) -> Option<Vec<(u64, u64)>> {
    let endian = file.endian();
    let sections = file.elf_section_table();
    if let Some((dynamic, _)) = sections.dynamic(endian, library).ok()? {
        let more = [DT_NEEDED, DT_INIT, DT_INIT_ARRAY].map(|tag| i32::try_from(tag).ok());
        if dynamic.iter().any(|entry| more.contains(&entry.tag32(endian))) {
            return None;
        }
    }
    let mut found = Vec::new();
    for section in sections.iter() {
        let Some((list, _)) = section.rela(endian, library).ok()? else { continue };
        for one in list {
            if one.r_type(endian, false) != R_X86_64_RELATIVE || one.r_sym(endian, false) != 0 {
                return None;
            }
            found.push((one.r_offset(endian), one.r_addend(endian).cast_unsigned()));
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_library_can_be_mapped_by_hand() {
        if LIBRARY.is_empty() {
            // `cargo xtask test` has built it.
            assert!(std::env::var_os("STALLSCOPE_BIN").is_none(), "the agent is not embedded");
            return;
        }
        let image = Image::embedded().unwrap();
        let code = image.code.len() as u64;
        assert!(code.is_multiple_of(PAGE) && image.len.is_multiple_of(PAGE) && code < image.len);
        assert!(image.entry < code && image.active >= code && image.left >= code);
        let (here, there) = (image.data_at(0), image.data_at(0x7f00_0000_0000));
        assert_eq!(here.len(), there.len());
        for (offset, addend) in &image.relocations {
            let at = *offset as usize - image.code.len();
            assert_eq!(there[at..at + 8], (0x7f00_0000_0000 + addend).to_le_bytes());
        }
    }

    #[test]
    fn an_ordinary_program_cannot() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(Image::read(&own), None);
        assert_eq!(Image::read(&own[..4096.min(own.len())]), None);
        assert_eq!(Image::read(&[]), None);
    }
}
