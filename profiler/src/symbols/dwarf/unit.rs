//! Units of a file, and the functions of one of them.

use gimli::{DebugInfoOffset, UnitType, constants};

use super::entry::Entry;
use super::reader::Access;
use super::{Dwarfs, HEADER, Unit};

/// Of one file.
const MAX_UNITS: usize = 256 << 10;
const MAX_UNIT_RANGES: usize = 512 << 10;
/// Of one unit.
const MAX_FUNCTIONS: usize = 64 << 10;
/// Pieces of code looked back at for one that encloses an address.
const LOOK_BACK: usize = 16;

/// Code that something begins and ends with, and the offset of what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    begin: u64,
    end: u64,
    offset: usize,
}

/// The innermost of sorted ranges around an address.
fn find(ranges: &[Range], address: u64) -> Option<usize> {
    let after = ranges.partition_point(|range| range.begin <= address);
    let before = ranges.get(after.saturating_sub(LOOK_BACK)..after)?;
    before.iter().rev().find(|range| address < range.end).map(|range| range.offset)
}

/// Linkers leave 0, 1 or the highest addresses where the code was dropped.
fn is_code(begin: u64, end: u64) -> bool {
    begin > 1 && begin < end && end < 1 << 63
}

#[derive(Debug, Default)]
pub(super) struct Units {
    ranges: Box<[Range]>,
    offsets: Box<[usize]>,
}

impl Units {
    /// Goes through the headers and first entries of all units; what is damaged is left out.
    pub(super) fn list(dwarf: &Dwarfs<'_>, access: &Access<'_>) -> Units {
        let (mut ranges, mut offsets) = (Vec::new(), Vec::new());
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let Some(offset) = header.offset().to_debug_info_offset(&header) else { continue };
            if offsets.len() >= MAX_UNITS || ranges.len() >= MAX_UNIT_RANGES {
                break;
            }
            offsets.push(offset.0);
            if header.type_() != UnitType::Compilation {
                continue;
            }
            let Ok(unit) = access.within(HEADER, || dwarf.unit(header)) else { continue };
            let Ok(mut pieces) = dwarf.unit_ranges(&unit) else { continue };
            while let Ok(Some(piece)) = pieces.next() {
                if is_code(piece.begin, piece.end) && ranges.len() < MAX_UNIT_RANGES {
                    ranges.push(Range { begin: piece.begin, end: piece.end, offset: offset.0 });
                }
            }
        }
        ranges.sort_unstable();
        Units { ranges: ranges.into_boxed_slice(), offsets: offsets.into_boxed_slice() }
    }

    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.ranges) + size_of_val(&*self.offsets)
    }

    /// The unit that has the code at `address`.
    pub(super) fn find(&self, address: u64) -> Option<usize> {
        find(&self.ranges, address)
    }

    /// The unit that has the entry at `offset` of `.debug_info`.
    pub(super) fn around(&self, offset: usize) -> Option<usize> {
        let after = self.offsets.partition_point(|&start| start <= offset);
        self.offsets.get(after.checked_sub(1)?).copied()
    }
}

/// Reads the header of the unit at `offset` of `.debug_info`.
pub(super) fn open_unit<'a>(
    dwarf: &Dwarfs<'a>,
    access: &Access<'_>,
    offset: usize,
) -> gimli::Result<Unit<'a>> {
    access.within(HEADER, || dwarf.unit(dwarf.debug_info.header_from_offset(DebugInfoOffset(offset))?))
}

/// Functions of one unit.
#[derive(Debug)]
pub(super) struct Functions {
    /// Offset in `.debug_info`.
    pub unit: usize,
    ranges: Vec<Range>,
}

impl Functions {
    /// What is damaged is left out.
    pub(super) fn read(dwarf: &Dwarfs<'_>, unit: &Unit<'_>, access: &Access<'_>, offset: usize) -> Functions {
        let mut functions = Functions { unit: offset, ranges: Vec::new() };
        // An error ends the reading; what came before it counts.
        let _ = functions.read_all(dwarf, unit, access);
        functions.ranges.sort_unstable();
        functions
    }

    pub(super) fn memory(&self) -> usize {
        self.ranges.capacity() * size_of::<Range>()
    }

    /// Offset in the unit of the function around `address`.
    pub(super) fn around(&self, address: u64) -> Option<usize> {
        find(&self.ranges, address)
    }

    fn read_all<'a>(
        &mut self,
        dwarf: &Dwarfs<'a>,
        unit: &Unit<'a>,
        access: &Access<'_>,
    ) -> gimli::Result<()> {
        let mut raw = unit.header.entries_raw(&unit.abbreviations, None)?;
        while !raw.is_empty() && self.ranges.len() < MAX_FUNCTIONS {
            let offset = raw.next_offset().0;
            let Some(abbreviation) = raw.read_abbreviation()? else { continue };
            if abbreviation.tag() != constants::DW_TAG_subprogram {
                access.spend(abbreviation.attributes().len())?;
                raw.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let entry = Entry::read(&mut raw, abbreviation, access)?;
            let ranges = &mut self.ranges;
            // One with damaged ranges says nothing about the next.
            let _ = entry.each_range(dwarf, unit, |begin, end| {
                if is_code(begin, end) {
                    ranges.push(Range { begin, end, offset });
                }
                ranges.len() < MAX_FUNCTIONS
            });
        }
        Ok(())
    }
}
