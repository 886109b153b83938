//! The functions that are inlined around an address.

use gimli::{UnitOffset, constants};

use super::entry::Entry;
use super::reader::Access;
use super::unit::{Tables, Units, file_name};
use super::{Dwarfs, Place, Unit};
use crate::symbols::demangle::printable;

/// Calls inlined into each other that are told of one address.
const MAX_DEPTH: usize = 64;

/// Innermost first; `None` where nothing is known.
pub(super) fn find<'a>(
    dwarf: &Dwarfs<'a>,
    unit: &Unit<'a>,
    access: &Access<'_>,
    units: &Units,
    tables: &Tables,
    address: u64,
) -> Option<Vec<Place>> {
    let row = tables.row(address);
    let chain = match tables.function(address) {
        // Damage inside of a function hides what is inlined in it, not its line.
        Some(function) => inlined(dwarf, unit, access, function, address).unwrap_or_default(),
        None => Vec::new(),
    };
    if chain.is_empty() && row.is_none() {
        return None;
    }
    let file = |index: u64| printable(&file_name(dwarf, unit, index));
    let mut place =
        row.map(|row| Place { file: file(u64::from(row.file)), line: row.line, ..Place::default() });
    let mut places = Vec::with_capacity(chain.len());
    for entry in chain.iter().rev() {
        let here = place.take().unwrap_or_default();
        let symbol = entry.symbol(dwarf, unit, access, units).unwrap_or_default();
        places.push(Place { symbol, ..here });
        // The next one calls it there.
        if entry.call_line != 0 {
            place = Some(Place { file: file(entry.call_file), line: entry.call_line, ..Place::default() });
        }
    }
    // Without entries the line is all that is known.
    places.extend(place.take());
    Some(places)
}

/// The entry of the function at `offset`, and of those inlined around `address`, outermost first.
fn inlined<'a>(
    dwarf: &Dwarfs<'a>,
    unit: &Unit<'a>,
    access: &Access<'_>,
    offset: usize,
    address: u64,
) -> gimli::Result<Vec<Entry<'a>>> {
    let mut raw = unit.header.entries_raw(&unit.abbreviations, Some(UnitOffset(offset)))?;
    let mut chain: Vec<Entry<'a>> = Vec::new();
    let Some(abbreviation) = raw.read_abbreviation()? else { return Ok(chain) };
    chain.push(Entry::read(&mut raw, abbreviation, access)?);
    // Children of entries at this depth are passed over.
    let mut hidden: Option<isize> = None;
    while !raw.is_empty() && raw.next_depth() > 0 && chain.len() < MAX_DEPTH {
        let depth = raw.next_depth();
        let Some(abbreviation) = raw.read_abbreviation()? else { continue };
        hidden = hidden.filter(|&hidden| depth > hidden);
        let tag = abbreviation.tag();
        if hidden.is_none() && tag == constants::DW_TAG_inlined_subroutine {
            let entry: Entry<'a> = Entry::read(&mut raw, abbreviation, access)?;
            if entry.contains(dwarf, unit, address)? {
                chain.push(entry);
            } else {
                hidden = Some(depth);
            }
            continue;
        }
        if hidden.is_none() && tag == constants::DW_TAG_subprogram {
            hidden = Some(depth);
        }
        access.spend(abbreviation.attributes().len())?;
        raw.skip_attributes(abbreviation.attributes())?;
    }
    Ok(chain)
}
