//! The functions that are inlined around an address.

use gimli::{UnitOffset, constants};

use super::entry::Entry;
use super::reader::Access;
use super::unit::Units;
use super::{Dwarfs, Unit};

/// Calls inlined into each other that are told of one address.
const MAX_DEPTH: usize = 64;

/// Symbols of the function at `offset` of the unit and of those inlined in it around `address`, innermost first. One is
/// empty where it is not known.
pub(super) fn find<'a>(
    dwarf: &Dwarfs<'a>,
    unit: &Unit<'a>,
    access: &Access<'_>,
    units: &Units,
    offset: usize,
    address: u64,
) -> Vec<Vec<u8>> {
    // Damage inside of a function hides what is inlined in it.
    let chain = inlined(dwarf, unit, access, offset, address).unwrap_or_default();
    chain.iter().rev().map(|entry| entry.symbol(dwarf, unit, access, units).unwrap_or_default()).collect()
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
