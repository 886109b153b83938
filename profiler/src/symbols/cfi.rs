//! Call frame information: how to get from one frame of a function to its caller's.
//!
//! The look-up reads single entries of `.eh_frame` out of the file, a few hundred bytes at a time, with
//! the search table of `.eh_frame_hdr`; nothing of these sections is kept in memory but the decoded
//! [`Row`]s that stacks really met.

use gimli::{
    BaseAddresses, EhFrame, EhFrameOffset, EndianSlice, LittleEndian, RegisterRule, UnwindContext,
    UnwindExpression, UnwindSection, UnwindTableRow,
};

use super::elf::Elf;
use super::sections::Sections;
use super::source::{Source, u32_at};

/// Longest entry of `.eh_frame` that is looked at, bytes. Compilers make some tens to a few thousand.
const MAX_ENTRY: usize = 64 << 10;
/// Longest expression that is kept, bytes; compilers and linkers write about ten.
const MAX_EXPRESSION: usize = 64;
/// Registers from here on are vectors and flags, which no frame is found by.
const REGISTERS: u16 = 33;
/// `.eh_frame` of a file without a search table, bytes.
const MAX_SECTION: u64 = 16 << 20;
/// How often all of such a section may be read again for the entries that others name. Once is usual.
const COMMON_READS: usize = 16;
/// Read at first; most entries fit.
const FIRST_READ: usize = 512;
/// Rows of the search table read at once when the search has come that near.
const TABLE_BLOCK: u64 = 256;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// How the value of a register in the caller is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// It cannot be had; for the return address: this is the outermost frame.
    Undefined,
    Same,
    /// Saved at CFA + n.
    Offset(i64),
    /// CFA + n.
    ValOffset(i64),
    Register(u16),
    /// Saved at the address that the expression computes.
    Expression(Box<[u8]>),
    /// What the expression computes.
    ValExpression(Box<[u8]>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cfa {
    Register(u16, i64),
    Expression(Box<[u8]>),
}

/// The rules at one program counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub cfa: Cfa,
    pub rules: Vec<(u16, Rule)>,
    /// The frame was made by the kernel to deliver a signal: the caller's address is no return address.
    pub signal: bool,
}

impl Row {
    pub(super) fn rule(&self, register: u16) -> Option<&Rule> {
        self.rules.iter().find(|(number, _)| *number == register).map(|(_, rule)| rule)
    }
}

/// The search table of `.eh_frame_hdr` with the usual encoding: pairs of 32-bit offsets (function, entry)
/// from the start of the section.
#[derive(Debug)]
pub(super) struct SearchTable {
    /// Stated address of the section.
    base: u64,
    /// File offset of the first pair.
    offset: u64,
    count: u64,
}

impl SearchTable {
    fn open(elf: &Elf) -> Option<SearchTable> {
        let section = elf.unwind_table?;
        let mut header = [0; 32];
        let len = elf.source.read_at(section.offset, &mut header);
        let header = header.get(..len)?;
        let &[1, pointer, counter, 0x3b, ..] = header else { return None };
        let skip = 4 + encoded_size(pointer)?;
        let count = match encoded_size(counter)? {
            4 => u64::from(u32_at(header, skip)?),
            8 => super::source::u64_at(header, skip)?,
            _ => return None,
        };
        let start = (skip + encoded_size(counter)?) as u64;
        let room = section.file_size.checked_sub(start)? / 8;
        Some(SearchTable {
            base: section.vaddr,
            offset: section.offset.checked_add(start)?,
            count: count.min(room),
        })
    }

    /// Stated address of the last entry of `.eh_frame` whose function begins at or before `address`.
    fn find(&self, source: &Source, address: u64) -> Option<u64> {
        let key = i32::try_from(address.wrapping_sub(self.base) as i64).ok()?;
        let (mut low, mut high) = (0, self.count);
        while high - low > TABLE_BLOCK {
            let middle = low + (high - low) / 2;
            let pair = source.read(self.offset.checked_add(middle * 8)?, 4)?;
            if u32_at(&pair, 0)? as i32 <= key { low = middle } else { high = middle }
        }
        let block = source.read(self.offset.checked_add(low * 8)?, ((high - low) * 8) as usize)?;
        let pairs = block.chunks_exact(8);
        let pair =
            pairs.take_while(|pair| u32_at(pair, 0).is_some_and(|start| start as i32 <= key)).last()?;
        Some(self.base.wrapping_add_signed(i64::from(u32_at(pair, 4)? as i32)))
    }
}

/// Bytes of a pointer in this `DW_EH_PE_*` encoding, `None` for variable lengths and for none.
fn encoded_size(encoding: u8) -> Option<usize> {
    match encoding & 0x0f {
        0x00 | 0x04 | 0x0c if encoding != 0xff => Some(8),
        0x02 | 0x0a => Some(2),
        0x03 | 0x0b => Some(4),
        _ => None,
    }
}

/// The same for files that have no such table, made by going through `.eh_frame` once: pairs of a
/// function's start and its entry's address, sorted.
type OwnTable = Box<[(u64, u64)]>;

fn make_table(elf: &Elf) -> Option<OwnTable> {
    let sections = Sections::read(elf);
    let section = sections.find(".eh_frame").filter(|section| !section.compressed)?;
    let bytes = section.content(elf, MAX_SECTION)?;
    Some(list_entries(&bytes, section.address))
}

fn list_entries(bytes: &[u8], address: u64) -> OwnTable {
    let mut frames = EhFrame::new(bytes, LittleEndian);
    frames.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut entries = frames.entries(&bases);
    let mut table = Vec::new();
    // Each function's entry has the common one that it names read again; that one could be megabytes long.
    let mut left = bytes.len().saturating_mul(COMMON_READS);
    // Damage ends the list; what came before it is good.
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let at = partial.cie_offset().0;
        let common = u32_at(bytes, at).map_or(0, |length| length as usize).min(bytes.len());
        let Some(rest) = left.checked_sub(common) else { break };
        left = rest;
        if let Ok(fde) = partial.parse(EhFrame::cie_from_offset) {
            table.push((fde.initial_address(), address.wrapping_add(fde.offset() as u64)));
        }
    }
    table.sort_unstable();
    table.into_boxed_slice()
}

/// Finds entries of `.eh_frame` by the address of a function's code.
#[derive(Debug)]
pub(super) enum Lookup {
    InFile(SearchTable),
    Own(OwnTable),
    Missing,
}

impl Lookup {
    pub(super) fn open(elf: &Elf) -> Lookup {
        match SearchTable::open(elf) {
            Some(table) if elf.native => Lookup::InFile(table),
            None if elf.native => make_table(elf).map_or(Lookup::Missing, Lookup::Own),
            _ => Lookup::Missing,
        }
    }

    fn find(&self, source: &Source, address: u64) -> Option<u64> {
        match self {
            Lookup::InFile(table) => table.find(source, address),
            Lookup::Own(table) => {
                let after = table.partition_point(|(start, _)| *start <= address);
                table.get(after.checked_sub(1)?).map(|(_, entry)| *entry)
            }
            Lookup::Missing => None,
        }
    }

    /// Resident bytes.
    pub(super) fn memory(&self) -> usize {
        match self {
            Lookup::Own(table) => size_of_val(&**table),
            Lookup::InFile(_) | Lookup::Missing => 0,
        }
    }
}

/// Rules for the code at the stated `address`, `None` where the file has none for it.
pub(super) fn find_row(
    elf: &Elf,
    lookup: &Lookup,
    address: u64,
    context: &mut UnwindContext<usize>,
) -> Option<Row> {
    let entry = lookup.find(&elf.source, address)?;
    let offset = elf.offset_of(entry)?;
    let fde = read_entry(&elf.source, offset)?;
    let back = u64::from(u32_at(&fde, 4)?);
    let cie = read_entry(&elf.source, offset.checked_add(4)?.checked_sub(back)?)?;
    // A section of these two alone, in which the second one's pointer to the first is put right.
    let at = cie.len();
    let mut section = cie;
    section.extend_from_slice(&fde);
    let pointer = u32::try_from(at.checked_add(4)?).ok()?;
    section.get_mut(at + 4..at + 8)?.copy_from_slice(&pointer.to_le_bytes());
    let start = entry.wrapping_sub(at as u64);
    decode(&section, at, start, address, context)
}

/// An entry of `.eh_frame` with its length field.
fn read_entry(source: &Source, offset: u64) -> Option<Vec<u8>> {
    let mut entry = vec![0; FIRST_READ];
    let len = source.read_at(offset, &mut entry);
    entry.truncate(len);
    let size = (u32_at(&entry, 0)? as usize).checked_add(4)?;
    if !(8..=MAX_ENTRY).contains(&size) {
        return None;
    }
    if size > FIRST_READ {
        return source.read(offset, size);
    }
    (size <= len).then(|| entry.truncate(size))?;
    Some(entry)
}

fn decode(
    section: &[u8],
    at: usize,
    start: u64,
    address: u64,
    context: &mut UnwindContext<usize>,
) -> Option<Row> {
    let mut frames = EhFrame::new(section, LittleEndian);
    frames.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(start);
    let fde = frames.fde_from_offset(&bases, EhFrameOffset(at), EhFrame::cie_from_offset).ok()?;
    if !fde.contains(address) {
        return None;
    }
    let row = fde.unwind_info_for_address(&frames, &bases, context, address).ok()?;
    convert(&frames, row, fde.is_signal_trampoline())
}

fn convert(frames: &EhFrame<Bytes<'_>>, row: &UnwindTableRow<usize>, signal: bool) -> Option<Row> {
    let bytes = |expression: &UnwindExpression<usize>| -> Option<Box<[u8]>> {
        let expression = expression.get::<Bytes<'_>, _>(frames).ok()?;
        let bytes = expression.0.slice();
        (bytes.len() <= MAX_EXPRESSION).then(|| bytes.into())
    };
    let cfa = match row.cfa() {
        gimli::CfaRule::RegisterAndOffset { register, offset } => Cfa::Register(register.0, *offset),
        gimli::CfaRule::Expression(expression) => Cfa::Expression(bytes(expression)?),
    };
    let mut rules = Vec::new();
    for (register, rule) in row.registers().filter(|(register, _)| register.0 < REGISTERS) {
        let rule = match rule {
            RegisterRule::SameValue => Rule::Same,
            RegisterRule::Offset(offset) => Rule::Offset(*offset),
            RegisterRule::ValOffset(offset) => Rule::ValOffset(*offset),
            RegisterRule::Register(other) => Rule::Register(other.0),
            RegisterRule::Expression(expression) => Rule::Expression(bytes(expression)?),
            RegisterRule::ValExpression(expression) => Rule::ValExpression(bytes(expression)?),
            // Architectural rules and constants concern pseudo-registers.
            _ => Rule::Undefined,
        };
        rules.push((register.0, rule));
    }
    Some(Row { cfa, rules, signal })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A common entry whose augmentation has `padding` bytes, and `count` functions that name it.
    fn section(padding: usize, count: u32) -> Vec<u8> {
        let mut common = vec![0, 0, 0, 0, 1, b'z'];
        common.extend(vec![b'S'; padding]);
        // End of the augmentation, both alignments, the register of the return address, no augmentation data.
        common.extend([0, 1, 0x78, 16, 0]);
        let mut bytes = (common.len() as u32).to_le_bytes().to_vec();
        bytes.extend(common);
        for function in 0..count {
            bytes.extend(21_u32.to_le_bytes());
            bytes.extend((bytes.len() as u32).to_le_bytes());
            bytes.extend((u64::from(function) * 16).to_le_bytes());
            bytes.extend(16_u64.to_le_bytes());
            bytes.push(0);
        }
        bytes
    }

    #[test]
    fn functions_of_a_section_without_a_search_table_are_listed() {
        let table = list_entries(&section(1, 5000), 0x1000);
        assert_eq!(table.len(), 5000);
        assert_eq!((table[0].0, table[4999].0), (0, 4999 * 16));
    }

    #[test]
    fn a_huge_common_entry_is_not_read_for_each_function() {
        // In a section of the size that is allowed these would be 10^12 steps.
        let table = list_entries(&section(1 << 20, 2000), 0x1000);
        assert!((1..=COMMON_READS + 1).contains(&table.len()), "{}", table.len());
    }
}
