//! The parts of an ELF file that unwinding and naming need. Only 64-bit little-endian files.

use object::elf;

use super::source::{Source, u16_at, u32_at, u64_at};

const MAX_SEGMENTS: u16 = 256;
/// Linked files have some dozens of sections.
const MAX_SECTIONS: u16 = 8192;
/// Of one section header.
const SECTION_SIZE: usize = 64;
/// Of one note segment.
const MAX_NOTES: u64 = 64 << 10;
const MAX_BUILD_ID: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub offset: u64,
    pub vaddr: u64,
    pub file_size: u64,
    pub executable: bool,
}

/// Where a symbol table and its strings lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SymbolTable {
    pub offset: u64,
    pub size: u64,
    pub strings_offset: u64,
    pub strings_size: u64,
}

#[derive(Debug)]
pub(super) struct Elf {
    pub source: Source,
    /// Written for this machine, so that its unwind tables can be used.
    pub native: bool,
    /// Stated address of the first instruction of a program, 0: none.
    pub entry: u64,
    segments: Vec<Segment>,
    /// The segment of `.eh_frame_hdr`.
    pub unwind_table: Option<Segment>,
    pub symtab: Option<SymbolTable>,
    pub dynsym: Option<SymbolTable>,
    pub build_id: Vec<u8>,
    /// The segment in which the build id was found.
    pub notes: Option<Segment>,
}

impl Elf {
    /// `None` where it is no ELF file of the supported kind.
    pub(super) fn parse(source: Source) -> Option<Elf> {
        let header = source.read(0, 64)?;
        let ident = header.get(..7)?;
        if ident != [0x7f, b'E', b'L', b'F', elf::ELFCLASS64, elf::ELFDATA2LSB, 1] {
            return None;
        }
        let mut file = Elf {
            native: u16_at(&header, 18)? == NATIVE_MACHINE,
            entry: u64_at(&header, 24)?,
            segments: Vec::new(),
            unwind_table: None,
            symtab: None,
            dynsym: None,
            build_id: Vec::new(),
            notes: None,
            source,
        };
        file.read_segments(&header)?;
        // A file without usable section headers can still be unwound.
        let _ = file.read_sections(&header);
        Some(file)
    }

    fn read_segments(&mut self, header: &[u8]) -> Option<()> {
        const SIZE: usize = 56;
        let count = u16_at(header, 56)?;
        if usize::from(u16_at(header, 54)?) != SIZE || count > MAX_SEGMENTS {
            return None;
        }
        let bytes = self.source.read(u64_at(header, 32)?, usize::from(count) * SIZE)?;
        for entry in bytes.chunks_exact(SIZE) {
            let segment = Segment {
                offset: u64_at(entry, 8)?,
                vaddr: u64_at(entry, 16)?,
                file_size: u64_at(entry, 32)?,
                executable: u32_at(entry, 4)? & elf::PF_X != 0,
            };
            match u32_at(entry, 0)? {
                elf::PT_LOAD => self.segments.push(segment),
                elf::PT_GNU_EH_FRAME => self.unwind_table = Some(segment),
                elf::PT_NOTE if self.build_id.is_empty() && segment.file_size <= MAX_NOTES => {
                    let notes = self.source.read(segment.offset, segment.file_size as usize);
                    self.build_id = notes.and_then(|notes| find_build_id(&notes)).unwrap_or_default();
                    self.notes = (!self.build_id.is_empty()).then_some(segment);
                }
                _ => {}
            }
        }
        Some(())
    }

    fn read_sections(&mut self, header: &[u8]) -> Option<()> {
        const SIZE: usize = SECTION_SIZE;
        let bytes = self.read_section_headers(header)?;
        for entry in bytes.chunks_exact(SIZE) {
            let kind = u32_at(entry, 4)?;
            if kind != elf::SHT_SYMTAB && kind != elf::SHT_DYNSYM {
                continue;
            }
            let link = (u32_at(entry, 40)? as usize).checked_mul(SIZE)?;
            let Some(strings) = link.checked_add(SIZE).and_then(|end| bytes.get(link..end)) else {
                continue;
            };
            let table = SymbolTable {
                offset: u64_at(entry, 24)?,
                size: u64_at(entry, 32)?,
                strings_offset: u64_at(strings, 24)?,
                strings_size: u64_at(strings, 32)?,
            };
            if kind == elf::SHT_SYMTAB {
                self.symtab = Some(table);
            } else {
                self.dynsym = Some(table);
            }
        }
        Some(())
    }

    fn read_section_headers(&self, header: &[u8]) -> Option<Vec<u8>> {
        let count = u16_at(header, 60)?;
        if usize::from(u16_at(header, 58)?) != SECTION_SIZE || count > MAX_SECTIONS {
            return None;
        }
        self.source.read(u64_at(header, 40)?, usize::from(count) * SECTION_SIZE)
    }

    /// The section headers, and the number of the section that has their names.
    pub(super) fn section_headers(&self) -> Option<(Vec<u8>, usize)> {
        let header = self.source.read(0, 64)?;
        Some((self.read_section_headers(&header)?, usize::from(u16_at(&header, 62)?)))
    }

    /// Address that the file states for the byte at `offset`, looked for in executable segments first.
    pub(super) fn address_of(&self, offset: u64) -> Option<u64> {
        let matches = |segment: &&Segment| {
            offset.checked_sub(segment.offset).is_some_and(|delta| delta < segment.file_size)
        };
        let mut executable = self.segments.iter().filter(|segment| segment.executable);
        let segment = executable.find(matches).or_else(|| self.segments.iter().find(matches))?;
        (offset - segment.offset).checked_add(segment.vaddr)
    }

    /// Address that the file states for a place where a mapping of its code begins: a whole page, whose first bytes
    /// need not be the segment's.
    pub(super) fn mapped_address(&self, offset: u64) -> Option<u64> {
        const PAGE: u64 = 64 << 10;
        let mut executable = self.segments.iter().filter(|segment| segment.executable);
        executable.find_map(|segment| {
            let end = segment.offset.checked_add(segment.file_size)?;
            let reached = offset < end && segment.offset < offset.checked_add(PAGE)?;
            let inside = offset >= segment.offset && offset < end;
            (inside || reached).then(|| offset.wrapping_sub(segment.offset).wrapping_add(segment.vaddr))
        })
    }

    /// Inverse of [`Elf::address_of`].
    pub(super) fn offset_of(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let delta = address.checked_sub(segment.vaddr)?;
            (delta < segment.file_size).then_some(())?;
            segment.offset.checked_add(delta)
        })
    }

    /// End of the executable segment that `address` lies in.
    pub(super) fn code_end(&self, address: u64) -> Option<u64> {
        self.segments.iter().filter(|segment| segment.executable).find_map(|segment| {
            let delta = address.checked_sub(segment.vaddr)?;
            (delta < segment.file_size).then(|| segment.vaddr.saturating_add(segment.file_size))
        })
    }

    /// The lowest address of the image; symbols are kept relative to it.
    pub(super) fn base(&self) -> u64 {
        self.segments.iter().map(|segment| segment.vaddr).min().unwrap_or(0)
    }
}

#[cfg(target_arch = "aarch64")]
const NATIVE_MACHINE: u16 = elf::EM_AARCH64;
#[cfg(not(target_arch = "aarch64"))]
const NATIVE_MACHINE: u16 = elf::EM_X86_64;

/// Walks notes (name size, descriptor size, type, name, descriptor; padded to 4 bytes).
pub(super) fn find_build_id(notes: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0usize;
    loop {
        let name_size = u32_at(notes, at)? as usize;
        let size = u32_at(notes, at.checked_add(4)?)? as usize;
        let kind = u32_at(notes, at.checked_add(8)?)?;
        let name = at.checked_add(12)?;
        let body = name.checked_add(name_size.checked_next_multiple_of(4)?)?;
        if kind == 3 && notes.get(name..name.checked_add(name_size)?)? == b"GNU\0" {
            return notes.get(body..body.checked_add(size.min(MAX_BUILD_ID))?).map(<[u8]>::to_vec);
        }
        at = body.checked_add(size.checked_next_multiple_of(4)?)?;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use gimli::UnwindContext;

    use super::*;
    use crate::symbols::cfi;
    use crate::symbols::live_tests::{compile, random_below, run};
    use crate::symbols::names::Index;

    fn parse(path: &Path) -> Elf {
        Elf::parse(Source::open(path).unwrap().0).unwrap()
    }

    #[test]
    fn addresses_are_not_taken_for_file_offsets() {
        let folder = tempfile::tempdir().unwrap();
        // Text at an address far from its place in the file.
        let flags = ["-O2", "-no-pie", "-Wl,-Ttext-segment=0x7000000"];
        let elf = parse(&compile(folder.path(), "chain.c", &flags));
        let index = Index::build(&elf.source, elf.symtab.unwrap(), &elf);
        let segment = *elf.segments.iter().find(|segment| segment.executable).unwrap();
        assert!(segment.vaddr >= 0x700_0000 && segment.offset < 0x10_0000);
        let offset = segment.offset + segment.file_size / 2;
        let address = elf.address_of(offset).unwrap();
        assert_eq!(address, segment.vaddr + segment.file_size / 2);
        assert_eq!(elf.offset_of(address), Some(offset));
        assert_eq!(elf.address_of(u64::MAX), None);
        let named = |address| {
            let name = index.find(address)?;
            String::from_utf8(index.name(&elf.source, name)?).ok()
        };
        let code = segment.vaddr..segment.vaddr + segment.file_size;
        let names: Vec<_> = code.clone().filter_map(named).collect();
        for function in ["inner", "middle", "outer", "main", "_start"] {
            assert!(names.iter().any(|name| name == function), "{function}");
        }
        assert_eq!(named(segment.offset), None);
        assert_eq!(named(code.end), None);
    }

    #[test]
    fn sizes_end_functions_and_aliases_have_an_order() {
        let folder = tempfile::tempdir().unwrap();
        let object = compile(folder.path(), "aliases.c", &["-shared", "-fPIC", "-O1"]);
        let elf = parse(&object);
        let index = Index::build(&elf.source, elf.dynsym.unwrap(), &elf);
        let named = |address| {
            let name = index.find(address)?;
            String::from_utf8(index.name(&elf.source, name)?).ok()
        };
        let mut names: Vec<_> = (0..0x5000).filter_map(named).collect();
        names.dedup();
        names.sort();
        // `__libc_receive` and `__receive` are the same code as `receive`; `padded` is followed by a gap.
        assert_eq!(names, ["padded", "receive"]);
    }

    /// Everything that is done with a module's file.
    fn exercise(bytes: Vec<u8>, context: &mut UnwindContext<usize>) -> usize {
        let Some(elf) = Elf::parse(Source::Memory(Arc::from(bytes))) else { return 0 };
        let lookup = cfi::Lookup::open(&elf);
        let mut found = 0;
        let indexes: Vec<_> = [elf.symtab, elf.dynsym].into_iter().flatten().collect();
        let indexes: Vec<_> = indexes.iter().map(|&table| Index::build(&elf.source, table, &elf)).collect();
        for address in (0..0x4000).step_by(19).chain([u64::MAX, 1 << 63]) {
            let stated = elf.address_of(address).unwrap_or(address);
            found += usize::from(cfi::find_row(&elf, &lookup, stated, context).is_some());
            for index in &indexes {
                let name = index.find(stated).and_then(|name| index.name(&elf.source, name));
                found += usize::from(name.is_some());
            }
        }
        found
    }

    #[test]
    fn damaged_files_do_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let path = compile(folder.path(), "aligned.c", &["-O2"]);
        let with_table = std::fs::read(&path).unwrap();
        run(std::process::Command::new("strip").args(["-R", ".eh_frame_hdr"]).arg(&path));
        let without_table = std::fs::read(&path).unwrap();
        let mut context = UnwindContext::new();
        let mut next = random_below(0x2545_f491_4f6c_dd1d);
        for whole in [with_table, without_table] {
            assert!(exercise(whole.clone(), &mut context) > 10);
            for round in 0..600 {
                let mut bytes = whole.clone();
                // The headers, the tables of symbols and the unwind tables get their share of the damage.
                let span = if round % 2 == 0 { 1024 } else { bytes.len() };
                for _ in 0..=next(24) {
                    let at = next(span);
                    bytes[at] = if next(2) == 0 { 0xff } else { next(256) as u8 };
                }
                if round % 3 == 0 {
                    bytes.truncate(next(whole.len()));
                }
                exercise(bytes, &mut context);
            }
        }
    }
}
