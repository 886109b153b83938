//! Inlined functions, from DWARF 2 to 5.
//!
//! A file's units are listed once; of a unit the places of its functions are kept while it is among those used last. Of
//! the other debug information only what a look-up passes is read, and forgotten.
//!
//! Bounds: a look-up may take [`LOOKUP`] reads (some ten milliseconds in the worst case), opening a unit
//! [`OPENING`], listing the units [`LISTING`], and all of it together [`TOTAL`] for a file, after which its names come
//! from the symbol table alone. Functions of units take [`MAX_FUNCTIONS_SIZE`] bytes for a file, and compressed sections [`MAX_UNPACKED`].
//!
//! Not read: split debug information (`.dwo`), supplementary files (`dwz -m`).

mod chain;
mod entry;
mod reader;
mod unit;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::sync::Arc;

use gimli::SectionId;

pub(super) use self::reader::Blocks;
use self::reader::{Access, Content, Reader};
use self::unit::{Functions, Units, open_unit};
use super::elf::Elf;
use super::sections::Sections;

/// In reads of a field, each about 20 ns.
const LOOKUP: u64 = 1 << 20;
const OPENING: u64 = 16 << 20;
const LISTING: u64 = 32 << 20;
pub(super) const TOTAL: u64 = 96 << 20;
/// Headers and abbreviations of one unit, and the file names that come with them.
const HEADER: u64 = 256 << 10;
const MAX_UNPACKED: u64 = 48 << 20;
const MAX_FUNCTIONS_SIZE: usize = 4 << 20;

type Dwarfs<'a> = gimli::Dwarf<Reader<'a>>;
type Unit<'a> = gimli::Unit<Reader<'a>>;

#[derive(Clone, Debug)]
enum Data {
    File { offset: u64, len: usize },
    Memory(Arc<[u8]>),
}

#[derive(Debug)]
pub(super) struct Dwarf {
    sections: Vec<(SectionId, Data)>,
    units: Option<Units>,
    functions: Vec<Functions>,
    fuel: u64,
}

impl Dwarf {
    /// `None` where the file has no debug information. `fuel` is [`TOTAL`] for a file that is opened first.
    pub(super) fn open(elf: &Elf, fuel: u64) -> Option<Dwarf> {
        const WANTED: [SectionId; 9] = [
            SectionId::DebugInfo,
            SectionId::DebugAbbrev,
            // Its header is read with each unit, which cannot be opened without it.
            SectionId::DebugLine,
            SectionId::DebugLineStr,
            SectionId::DebugStr,
            SectionId::DebugStrOffsets,
            SectionId::DebugAddr,
            SectionId::DebugRanges,
            SectionId::DebugRngLists,
        ];
        let sections = Sections::read(elf);
        sections.find(SectionId::DebugInfo.name())?;
        let mut room = MAX_UNPACKED;
        let mut found = Vec::new();
        for id in WANTED {
            let Some(section) = sections.find(id.name()) else { continue };
            let data = if section.compressed {
                let bytes = section.content(elf, room)?;
                room -= bytes.len() as u64;
                Data::Memory(bytes)
            } else {
                Data::File { offset: section.offset, len: usize::try_from(section.size).ok()? }
            };
            found.push((id, data));
        }
        Some(Dwarf { sections: found, units: None, functions: Vec::new(), fuel })
    }

    /// Resident bytes.
    pub(super) fn memory(&self) -> usize {
        let unpacked = self.sections.iter().map(|(_, data)| match data {
            Data::Memory(bytes) => bytes.len(),
            Data::File { .. } => 0,
        });
        let units = self.units.as_ref().map_or(0, Units::memory);
        unpacked.sum::<usize>() + units + self.functions.iter().map(Functions::memory).sum::<usize>()
    }

    /// What of the budget is left.
    pub(super) fn fuel(&self) -> u64 {
        self.fuel
    }

    /// Symbols of the functions that are inlined around the stated `address` of `elf`, innermost first, and last of the
    /// one that they are inlined in; mangled, if the debug information has them so, and empty where it has none. No
    /// symbols where nothing is known. `file` tells files apart in `blocks`.
    pub(super) fn find(
        &mut self,
        elf: &Elf,
        file: u32,
        blocks: &RefCell<Blocks>,
        address: u64,
    ) -> Vec<Vec<u8>> {
        let access = Access { file, source: &elf.source, blocks, fuel: Cell::new(self.fuel) };
        let sections = self.sections.clone();
        let found = self.find_through(&access, &sections, address);
        self.fuel = access.fuel.get();
        found.unwrap_or_default()
    }

    fn find_through(
        &mut self,
        access: &Access<'_>,
        sections: &[(SectionId, Data)],
        address: u64,
    ) -> Option<Vec<Vec<u8>>> {
        let dwarf = load(access, sections);
        let units = self.units.get_or_insert_with(|| access.within(LISTING, || Units::list(&dwarf, access)));
        let offset = units.find(address)?;
        let unit = open_unit(&dwarf, access, offset).ok()?;
        if !self.functions.iter().any(|functions| functions.unit == offset) {
            let functions = access.within(OPENING, || Functions::read(&dwarf, &unit, access, offset));
            self.functions.push(functions);
            let memory = |all: &[Functions]| all.iter().map(Functions::memory).sum::<usize>();
            while self.functions.len() > 1 && memory(&self.functions) > MAX_FUNCTIONS_SIZE {
                self.functions.remove(0);
            }
        }
        let at = self.functions.iter().position(|functions| functions.unit == offset)?;
        // Used last.
        if let Some(used) = self.functions.get_mut(at..) {
            used.rotate_left(1);
        }
        let function = self.functions.last()?.around(address)?;
        Some(access.within(LOOKUP, || chain::find(&dwarf, &unit, access, units, function, address)))
    }
}

fn load<'a>(access: &'a Access<'a>, sections: &'a [(SectionId, Data)]) -> Dwarfs<'a> {
    let section = |id: SectionId| -> Result<Reader<'a>, Infallible> {
        let data = sections.iter().find(|(other, _)| *other == id).map(|(_, data)| data);
        Ok(match data {
            Some(Data::File { offset, len }) => Reader::new(access, Content::File(*offset), *len),
            Some(Data::Memory(bytes)) => Reader::new(access, Content::Memory(bytes), bytes.len()),
            None => Reader::new(access, Content::Memory(&[]), 0),
        })
    };
    match gimli::Dwarf::load(section) {
        Ok(dwarf) => dwarf,
        Err(never) => match never {},
    }
}
