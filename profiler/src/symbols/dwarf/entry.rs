//! What is wanted of the entry of a function or of an inlined call.

use gimli::{Abbreviation, AttributeValue, EntriesRaw, constants};

use super::reader::{Access, Reader};
use super::unit::{Units, open_unit};
use super::{Dwarfs, Unit};

/// Longest name that is taken, bytes.
const MAX_NAME: usize = 4096;
/// From an inlined call or a definition to the declaration that has the name.
const MAX_HOPS: usize = 8;
/// Pieces of one function.
const MAX_RANGES: usize = 1024;

type Value<'a> = AttributeValue<Reader<'a>>;

#[derive(Default)]
pub(super) struct Entry<'a> {
    low: Option<Value<'a>>,
    high: Option<Value<'a>>,
    ranges: Option<Value<'a>>,
    origin: Option<Value<'a>>,
    name: Option<Value<'a>>,
    linkage_name: Option<Value<'a>>,
}

impl<'a> Entry<'a> {
    /// Reads the entry whose abbreviation was read.
    pub(super) fn read(
        raw: &mut EntriesRaw<'_, Reader<'a>>,
        abbreviation: &Abbreviation,
        access: &Access<'_>,
    ) -> gimli::Result<Entry<'a>> {
        let mut entry = Entry::default();
        access.spend(abbreviation.attributes().len())?;
        for spec in abbreviation.attributes() {
            let attribute = raw.read_attribute(*spec)?;
            let value = attribute.value();
            match attribute.name() {
                constants::DW_AT_low_pc => entry.low = Some(value),
                constants::DW_AT_high_pc => entry.high = Some(value),
                constants::DW_AT_ranges => entry.ranges = Some(value),
                constants::DW_AT_abstract_origin | constants::DW_AT_specification => {
                    entry.origin = Some(value);
                }
                constants::DW_AT_name => entry.name = Some(value),
                constants::DW_AT_linkage_name | constants::DW_AT_MIPS_linkage_name => {
                    entry.linkage_name = Some(value);
                }
                _ => {}
            }
        }
        Ok(entry)
    }

    /// Calls `add` with the pieces of code that the entry is about, until it returns false.
    pub(super) fn each_range(
        &self,
        dwarf: &Dwarfs<'a>,
        unit: &Unit<'a>,
        mut add: impl FnMut(u64, u64) -> bool,
    ) -> gimli::Result<()> {
        if let Some(value) = self.ranges {
            if let Some(mut ranges) = dwarf.attr_ranges(unit, value)? {
                for _ in 0..MAX_RANGES {
                    match ranges.next()? {
                        Some(range) if add(range.begin, range.end) => {}
                        _ => break,
                    }
                }
            }
            return Ok(());
        }
        let (Some(low), Some(high)) = (self.low, self.high) else { return Ok(()) };
        let Some(low) = dwarf.attr_address(unit, low)? else { return Ok(()) };
        let high = match dwarf.attr_address(unit, high)? {
            Some(high) => Some(high),
            None => high.udata_value().and_then(|size| low.checked_add(size)),
        };
        if let Some(high) = high {
            add(low, high);
        }
        Ok(())
    }

    pub(super) fn contains(&self, dwarf: &Dwarfs<'a>, unit: &Unit<'a>, address: u64) -> gimli::Result<bool> {
        let mut inside = false;
        self.each_range(dwarf, unit, |begin, end| {
            inside = (begin..end).contains(&address);
            !inside
        })?;
        Ok(inside)
    }

    /// The function's name, mangled if it has such a name; looked up in what it refers to.
    pub(super) fn symbol(
        &self,
        dwarf: &Dwarfs<'a>,
        unit: &Unit<'a>,
        access: &Access<'_>,
        units: &Units,
    ) -> Option<Vec<u8>> {
        if let Some(name) = self.linkage_name {
            return string(dwarf, unit, name);
        }
        let mut plain = self.name.and_then(|name| string(dwarf, unit, name));
        let mut origin = self.origin;
        let mut other: Option<Unit<'a>> = None;
        for _ in 0..MAX_HOPS {
            let offset = match origin? {
                AttributeValue::UnitRef(offset) => offset,
                AttributeValue::DebugInfoRef(offset) => {
                    let next = open_unit(dwarf, access, units.around(offset.0)?).ok()?;
                    let offset = offset.to_unit_offset(&next.header)?;
                    other = Some(next);
                    offset
                }
                _ => return plain,
            };
            let from = other.as_ref().unwrap_or(unit);
            let mut raw = from.header.entries_raw(&from.abbreviations, Some(offset)).ok()?;
            let abbreviation = raw.read_abbreviation().ok()??;
            let entry = Entry::read(&mut raw, abbreviation, access).ok()?;
            if let Some(name) = entry.linkage_name {
                return string(dwarf, from, name);
            }
            plain = plain.or_else(|| string(dwarf, from, entry.name?));
            origin = entry.origin;
            if origin.is_none() {
                return plain;
            }
        }
        plain
    }
}

/// The text of an attribute.
fn string<'a>(dwarf: &Dwarfs<'a>, unit: &Unit<'a>, value: Value<'a>) -> Option<Vec<u8>> {
    let bytes = dwarf.attr_string(unit, value).ok()?.bytes(MAX_NAME).ok()?;
    (!bytes.is_empty()).then_some(bytes)
}
