//! Sections of an ELF file by name, unpacked where they are compressed.

use std::sync::Arc;

use object::elf;
use object::read::{CompressedData, CompressionFormat};

use super::elf::Elf;
use super::source::{u32_at, u64_at};

/// Of one section header.
const SECTION_SIZE: usize = 64;
/// Names of all sections together.
const MAX_NAMES: u64 = 256 << 10;
const MAX_NAME: usize = 64;
/// Before the data of a compressed section: kind, padding, size, alignment.
const COMPRESSION_HEADER: u64 = 24;

/// Where a section lies in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    name: Vec<u8>,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub compressed: bool,
    /// It has no content in this file, as code in a separate debug file.
    empty: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sections(Vec<Section>);

impl Sections {
    /// Reads the section headers; nothing where they are damaged.
    pub(super) fn read(elf: &Elf) -> Sections {
        Sections(read(elf).unwrap_or_default())
    }

    /// The section of this name, if it has content.
    pub(super) fn find(&self, name: &str) -> Option<&Section> {
        self.0.iter().find(|section| section.name == name.as_bytes() && !section.empty)
    }
}

impl Section {
    /// The content, unpacked. `None` where it is longer than `max` bytes or damaged.
    pub(super) fn content(&self, elf: &Elf, max: u64) -> Option<Arc<[u8]>> {
        if self.size > max {
            return None;
        }
        if !self.compressed {
            return elf.source.read(self.offset, usize::try_from(self.size).ok()?).map(Arc::from);
        }
        let bytes = elf.source.read(self.offset, usize::try_from(self.size).ok()?)?;
        let format = match u32_at(&bytes, 0)? {
            elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
            elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
            _ => return None,
        };
        let data = bytes.get(COMPRESSION_HEADER as usize..)?;
        let uncompressed_size = u64_at(&bytes, 8).filter(|&size| size <= max)?;
        let content = CompressedData { format, data, uncompressed_size }.decompress().ok()?;
        (content.len() as u64 <= max).then(|| Arc::from(content.as_ref()))
    }
}

fn read(elf: &Elf) -> Option<Vec<Section>> {
    let (headers, names) = elf.section_headers()?;
    let at = names.checked_mul(SECTION_SIZE)?;
    let names = headers.get(at..at.checked_add(SECTION_SIZE)?)?;
    let (offset, size) = (u64_at(names, 24)?, u64_at(names, 32)?.min(MAX_NAMES));
    let names = elf.source.read(offset, usize::try_from(size).ok()?)?;
    headers.chunks_exact(SECTION_SIZE).map(|header| section(header, &names)).collect()
}

fn section(header: &[u8], names: &[u8]) -> Option<Section> {
    let name = names.get(u32_at(header, 0)? as usize..).unwrap_or_default();
    let name = name.get(..MAX_NAME).unwrap_or(name).split(|&byte| byte == 0).next().unwrap_or_default();
    Some(Section {
        name: name.to_vec(),
        address: u64_at(header, 16)?,
        offset: u64_at(header, 24)?,
        size: u64_at(header, 32)?,
        compressed: u64_at(header, 8)? & u64::from(elf::SHF_COMPRESSED) != 0,
        empty: u32_at(header, 4)? == elf::SHT_NOBITS,
    })
}
