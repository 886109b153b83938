//! Symbol tables, as compact indexes over the file.
//!
//! An index holds twelve bytes a function; names stay in the file until one is asked for.
//!
//! Where several symbols share an address, as the aliases of a C library do, the one that a programmer
//! would write wins: fewer leading underscores first (`recv` before `__recv` and `__libc_recv`; those of
//! mangled names do not count), then functions before untyped labels, then global before weak before
//! local, then the shorter name, then the alphabet.
//!
//! A symbol's size is respected: an address between two functions has no name. Symbols of size 0
//! (hand-written assembly) reach to the next symbol, and 4 KiB at most; where only exported functions are known,
//! 64 bytes at most.
//!
//! Stubs of the procedure linkage table are not read.

use std::cmp::Reverse;

use object::elf;

use super::demangle::is_mangled;
use super::elf::{Elf, SymbolTable};
use super::source::{Source, u16_at, u32_at, u64_at};

const SYMBOL_SIZE: usize = 24;
/// Symbols read at once.
const CHUNK: usize = 2048;
/// Symbols of one table that are looked at; the largest libraries have about one million.
const MAX_SYMBOLS: u64 = 8 << 20;
/// Functions of one table that are kept: 24 MiB.
const MAX_ENTRIES: usize = 2 << 20;
/// Names of one address that are compared.
const MAX_ALIASES: usize = 64;
/// Longest symbol, bytes; longer ones are cut, and not demangled then.
const MAX_SYMBOL: usize = 4096;
/// Reach of a symbol without a size, bytes.
const UNSIZED_REACH: u32 = 4096;
/// The same in `.dynsym`, which lacks the functions between: few pieces of assembly are longer.
const UNSIZED_EXPORTED_REACH: u32 = 64;
/// Symbols looked back at for one that encloses an address.
const LOOK_BACK: usize = 16;
/// String table read at once to compare names, bytes, and how often.
const WINDOW: usize = 4 << 10;
const MAX_WINDOWS: u32 = 200_000;

/// Addresses relative to the image's base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    address: u32,
    size: u32,
    /// Offset into the string table.
    name: u32,
}

/// Functions of one symbol table, by address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    base: u64,
    strings_offset: u64,
    strings_size: u64,
    entries: Box<[Entry]>,
}

/// An entry while the index is built.
#[derive(Clone, Copy)]
struct Candidate {
    entry: Entry,
    kind: u8,
    binding: u8,
}

impl Index {
    /// Reads `table` of `source`; `image` is the module that it describes (another file than `source`
    /// where the symbols come from a separate debug file).
    pub(super) fn build(source: &Source, table: SymbolTable, image: &Elf) -> Index {
        let mut candidates = read_candidates(source, table, image);
        candidates.sort_unstable_by_key(|candidate| candidate.entry.address);
        let mut strings = Strings::new(source, table);
        let mut entries = Vec::with_capacity(candidates.len());
        for group in candidates.chunk_by(|a, b| a.entry.address == b.entry.address) {
            let best = if let [only] = group {
                Some(only)
            } else {
                let aliases = group.iter().take(MAX_ALIASES);
                aliases.min_by_key(|candidate| preference(candidate, &mut strings))
            };
            entries.extend(best.map(|candidate| candidate.entry));
        }
        let exported = image.dynsym == Some(table);
        give_sizes(&mut entries, image, if exported { UNSIZED_EXPORTED_REACH } else { UNSIZED_REACH });
        Index {
            base: image.base(),
            strings_offset: table.strings_offset,
            strings_size: table.strings_size,
            entries: entries.into_boxed_slice(),
        }
    }

    /// Resident bytes.
    pub(super) fn memory(&self) -> usize {
        self.entries.len() * size_of::<Entry>()
    }

    /// Appends the entries, twelve bytes each.
    pub(super) fn pack(&self, out: &mut Vec<u8>) {
        out.reserve(self.memory());
        for entry in &self.entries {
            for number in [entry.address, entry.size, entry.name] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
    }

    /// Longest result of [`Index::pack`] for a table.
    pub(super) fn packed_size(table: SymbolTable) -> usize {
        let symbols = usize::try_from(table.size / SYMBOL_SIZE as u64).unwrap_or(usize::MAX);
        symbols.min(MAX_ENTRIES + CHUNK) * size_of::<Entry>()
    }

    /// The index of `table` that was packed. `None` where it is none.
    pub(super) fn unpack(bytes: &[u8], table: SymbolTable, base: u64) -> Option<Index> {
        let (entries, rest) = bytes.as_chunks::<12>();
        let number = |entry: &[u8; 12], at| u32_at(entry, at).unwrap_or_default();
        let entries: Box<[Entry]> = entries
            .iter()
            .map(|entry| Entry { address: number(entry, 0), size: number(entry, 4), name: number(entry, 8) })
            .collect();
        (rest.is_empty() && entries.is_sorted_by_key(|entry| entry.address)).then_some(Index {
            base,
            strings_offset: table.strings_offset,
            strings_size: table.strings_size,
            entries,
        })
    }

    /// Where the name of the function around the stated `address` is.
    pub(super) fn find(&self, address: u64) -> Option<u32> {
        let relative = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let after = self.entries.partition_point(|entry| entry.address <= relative);
        let before = self.entries.get(after.saturating_sub(LOOK_BACK)..after)?;
        before.iter().rev().find(|entry| relative - entry.address < entry.size).map(|entry| entry.name)
    }

    /// The symbol at this offset of the string table.
    pub(super) fn name(&self, source: &Source, name: u32) -> Option<Vec<u8>> {
        let name = u64::from(name);
        let room = usize::try_from(self.strings_size.checked_sub(name)?).unwrap_or(usize::MAX);
        let mut bytes = vec![0; room.min(MAX_SYMBOL)];
        let len = source.read_at(self.strings_offset.checked_add(name)?, &mut bytes);
        bytes.truncate(len);
        if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
            bytes.truncate(end);
        }
        (!bytes.is_empty()).then_some(bytes)
    }
}

/// Symbols without a size get one: up to the next symbol or the segment's end.
fn give_sizes(entries: &mut [Entry], image: &Elf, reach: u32) {
    let mut next = u32::MAX;
    for entry in entries.iter_mut().rev() {
        if entry.size == 0 {
            let address = image.base().saturating_add(u64::from(entry.address));
            let room = image.code_end(address).map_or(0, |end| end.saturating_sub(address));
            let room = u32::try_from(room).unwrap_or(u32::MAX);
            entry.size = reach.min(next.saturating_sub(entry.address)).min(room);
        }
        next = entry.address;
    }
}

fn read_candidates(source: &Source, table: SymbolTable, image: &Elf) -> Vec<Candidate> {
    let base = image.base();
    let mut candidates = Vec::new();
    let mut buffer = vec![0; CHUNK * SYMBOL_SIZE];
    let mut left = (table.size / SYMBOL_SIZE as u64).min(MAX_SYMBOLS);
    let mut offset = table.offset;
    while left > 0 && candidates.len() < MAX_ENTRIES {
        let wanted = left.min(CHUNK as u64) as usize * SYMBOL_SIZE;
        let Some(chunk) = buffer.get_mut(..wanted) else { break };
        let len = source.read_at(offset, chunk);
        let symbols = chunk.get(..len).unwrap_or_default().chunks_exact(SYMBOL_SIZE);
        candidates.extend(symbols.filter_map(|symbol| candidate(symbol, base, image)));
        if len < wanted {
            break;
        }
        offset = offset.saturating_add(wanted as u64);
        left = left.saturating_sub(CHUNK as u64);
    }
    candidates
}

fn candidate(symbol: &[u8], base: u64, image: &Elf) -> Option<Candidate> {
    let info = *symbol.get(4)?;
    let (binding, kind) = (info >> 4, info & 0xf);
    let is_function = matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC);
    // Local labels without a type name no function, they are marks inside of one.
    let is_label = kind == elf::STT_NOTYPE && binding != elf::STB_LOCAL;
    let address = u64_at(symbol, 8)?;
    let name = u32_at(symbol, 0)?;
    if !(is_function || is_label) || name == 0 || u16_at(symbol, 6)? == 0 || image.code_end(address).is_none()
    {
        return None;
    }
    let entry = Entry {
        address: u32::try_from(address.checked_sub(base)?).ok()?,
        size: u32::try_from(u64_at(symbol, 16)?).unwrap_or(u32::MAX),
        name,
    };
    Some(Candidate { entry, kind, binding })
}

/// Smallest is best; see the head of this file.
fn preference(candidate: &Candidate, strings: &mut Strings<'_>) -> impl Ord + use<> {
    let name = strings.get(candidate.entry.name);
    let underscores = if is_mangled(&name) {
        0
    } else {
        name.iter().take_while(|&&byte| byte == b'_').count() + usize::from(name.is_empty()) * MAX_SYMBOL
    };
    let binding = match candidate.binding {
        elf::STB_GLOBAL => 0,
        elf::STB_WEAK => 1,
        _ => 2,
    };
    let label = candidate.kind == elf::STT_NOTYPE;
    (underscores, label, binding, Reverse(candidate.entry.size > 0), name.len(), name)
}

/// A string table read through a window, since aliases' names lie close together mostly.
struct Strings<'a> {
    source: &'a Source,
    table: SymbolTable,
    start: u64,
    window: Vec<u8>,
    windows: u32,
}

impl<'a> Strings<'a> {
    fn new(source: &'a Source, table: SymbolTable) -> Strings<'a> {
        Strings { source, table, start: 0, window: Vec::new(), windows: 0 }
    }

    /// The first bytes of a name: enough to compare by.
    fn get(&mut self, name: u32) -> Vec<u8> {
        const ENOUGH: usize = 256;
        let name = u64::from(name);
        let covered = |start: u64, len: usize| {
            name.checked_sub(start).is_some_and(|offset| offset + ENOUGH as u64 <= len as u64)
        };
        if !covered(self.start, self.window.len()) {
            self.windows += 1;
            if self.windows > MAX_WINDOWS {
                return Vec::new();
            }
            let room = self.table.strings_size.saturating_sub(name).min(WINDOW as u64);
            self.window.resize(room as usize, 0);
            let len = self.source.read_at(self.table.strings_offset.saturating_add(name), &mut self.window);
            self.window.truncate(len);
            self.start = name;
        }
        let offset = usize::try_from(name - self.start).unwrap_or(usize::MAX);
        let rest = self.window.get(offset..).unwrap_or_default();
        let rest = rest.get(..ENOUGH).unwrap_or(rest);
        rest.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
    }
}
