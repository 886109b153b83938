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
    segments: Vec<Segment>,
    /// The segment of `.eh_frame_hdr`.
    pub unwind_table: Option<Segment>,
    /// `.eh_frame`, looked for only where there is no search table (static programs).
    pub unwind_section: Option<Segment>,
    pub symtab: Option<SymbolTable>,
    pub dynsym: Option<SymbolTable>,
    pub build_id: Vec<u8>,
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
            segments: Vec::new(),
            unwind_table: None,
            unwind_section: None,
            symtab: None,
            dynsym: None,
            build_id: Vec::new(),
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
                }
                _ => {}
            }
        }
        Some(())
    }

    fn read_sections(&mut self, header: &[u8]) -> Option<()> {
        const SIZE: usize = SECTION_SIZE;
        let count = u16_at(header, 60)?;
        if usize::from(u16_at(header, 58)?) != SIZE || count > MAX_SECTIONS {
            return None;
        }
        let bytes = self.source.read(u64_at(header, 40)?, usize::from(count) * SIZE)?;
        if self.unwind_table.is_none() {
            let names = usize::from(u16_at(header, 62)?) * SIZE;
            self.unwind_section =
                bytes.get(names..names + SIZE).and_then(|names| self.find_unwind_section(&bytes, names));
        }
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

    /// `names` is the header of the section of section names.
    fn find_unwind_section(&self, headers: &[u8], names: &[u8]) -> Option<Segment> {
        const NAME: &[u8] = b".eh_frame\0";
        let (offset, size) = (u64_at(names, 24)?, u64_at(names, 32)?);
        headers.chunks_exact(SECTION_SIZE).find_map(|entry| {
            let name = u64::from(u32_at(entry, 0)?);
            let name = (name < size).then(|| self.source.read(offset.checked_add(name)?, NAME.len()))??;
            (name == NAME).then_some(Segment {
                offset: u64_at(entry, 24)?,
                vaddr: u64_at(entry, 16)?,
                file_size: u64_at(entry, 32)?,
                executable: false,
            })
        })
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

    /// Inverse of [`Elf::address_of`].
    pub(super) fn offset_of(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let delta = address.checked_sub(segment.vaddr)?;
            (delta < segment.file_size).then_some(())?;
            segment.offset.checked_add(delta)
        })
    }

    /// Whether `address` lies in an executable segment.
    pub(super) fn is_code(&self, address: u64) -> bool {
        self.segments.iter().any(|segment| {
            let delta = address.checked_sub(segment.vaddr);
            segment.executable && delta.is_some_and(|delta| delta < segment.file_size)
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
fn find_build_id(notes: &[u8]) -> Option<Vec<u8>> {
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
