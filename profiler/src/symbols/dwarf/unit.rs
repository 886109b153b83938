//! Units of a file, and the tables of one of them.

use gimli::{DebugInfoOffset, UnitType, constants};

use super::entry::{Entry, string};
use super::reader::Access;
use super::{Dwarfs, HEADER, Unit};

/// Of one file.
const MAX_UNITS: usize = 256 << 10;
const MAX_UNIT_RANGES: usize = 512 << 10;
/// Of one unit.
const MAX_FUNCTIONS: usize = 64 << 10;
const MAX_ROWS: usize = 128 << 10;
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

/// Where the code of a line begins. A row of line 0 says that nothing is known from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    address: u64,
    pub file: u32,
    pub line: u32,
}

/// Functions and lines of one unit.
#[derive(Debug)]
pub(super) struct Tables {
    /// Offset in `.debug_info`.
    pub unit: usize,
    functions: Vec<Range>,
    rows: Vec<Row>,
}

impl Tables {
    /// What is damaged is left out.
    pub(super) fn read(dwarf: &Dwarfs<'_>, unit: &Unit<'_>, access: &Access<'_>, offset: usize) -> Tables {
        let mut tables = Tables { unit: offset, functions: Vec::new(), rows: Vec::new() };
        let _ = tables.read_functions(dwarf, unit, access);
        tables.functions.sort_unstable();
        let _ = tables.read_rows(unit);
        // Where one sequence ends and another begins, the beginning counts.
        tables.rows.sort_by_key(|row| (row.address, row.line != 0));
        tables
    }

    pub(super) fn memory(&self) -> usize {
        self.functions.capacity() * size_of::<Range>() + self.rows.capacity() * size_of::<Row>()
    }

    /// Offset in the unit of the function around `address`.
    pub(super) fn function(&self, address: u64) -> Option<usize> {
        find(&self.functions, address)
    }

    pub(super) fn row(&self, address: u64) -> Option<Row> {
        let after = self.rows.partition_point(|row| row.address <= address);
        self.rows.get(after.checked_sub(1)?).copied().filter(|row| row.line != 0)
    }

    fn read_functions<'a>(
        &mut self,
        dwarf: &Dwarfs<'a>,
        unit: &Unit<'a>,
        access: &Access<'_>,
    ) -> gimli::Result<()> {
        let mut raw = unit.header.entries_raw(&unit.abbreviations, None)?;
        while !raw.is_empty() && self.functions.len() < MAX_FUNCTIONS {
            let offset = raw.next_offset().0;
            let Some(abbreviation) = raw.read_abbreviation()? else { continue };
            if abbreviation.tag() != constants::DW_TAG_subprogram {
                access.spend(abbreviation.attributes().len())?;
                raw.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let entry = Entry::read(&mut raw, abbreviation, access)?;
            let functions = &mut self.functions;
            // One with damaged ranges says nothing about the next.
            let _ = entry.each_range(dwarf, unit, |begin, end| {
                if is_code(begin, end) {
                    functions.push(Range { begin, end, offset });
                }
                functions.len() < MAX_FUNCTIONS
            });
        }
        Ok(())
    }

    fn read_rows(&mut self, unit: &Unit<'_>) -> gimli::Result<()> {
        let Some(program) = unit.line_program.clone() else { return Ok(()) };
        let mut rows = program.rows();
        let mut sequence = self.rows.len();
        while let Some((_, row)) = rows.next_row()? {
            if self.rows.len() >= MAX_ROWS {
                break;
            }
            let line = row.line().and_then(|line| u32::try_from(line.get()).ok()).unwrap_or(0);
            let file = u32::try_from(row.file_index()).unwrap_or(u32::MAX);
            let next = Row { address: row.address(), file, line };
            if row.end_sequence() {
                self.rows.push(Row { line: 0, ..next });
                if self.rows.get(sequence).is_none_or(|first| !is_code(first.address, next.address)) {
                    self.rows.truncate(sequence);
                }
                sequence = self.rows.len();
                continue;
            }
            let last = self.rows.get(sequence..).and_then(<[Row]>::last);
            if last.is_none_or(|last| (last.file, last.line) != (file, line)) {
                self.rows.push(next);
            }
        }
        Ok(())
    }
}

/// Path of a file of the unit's line table, empty where it has none.
pub(super) fn file_name<'a>(dwarf: &Dwarfs<'a>, unit: &Unit<'a>, index: u64) -> Vec<u8> {
    let find = || {
        let header = unit.line_program.as_ref()?.header();
        let file = header.file(index)?;
        let name = string(dwarf, unit, file.path_name())?;
        if name.starts_with(b"/") {
            return Some(name);
        }
        let folder = file.directory(header).and_then(|folder| string(dwarf, unit, folder));
        let mut path = folder.unwrap_or_default();
        if !path.starts_with(b"/") {
            let base = unit.comp_dir.and_then(|folder| folder.bytes(4096).ok()).unwrap_or_default();
            path = join(base, &path);
        }
        Some(join(path, &name))
    };
    find().unwrap_or_default()
}

fn join(mut folder: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if !folder.is_empty() && !name.is_empty() {
        folder.push(b'/');
    }
    folder.extend_from_slice(name);
    folder
}
