//! Finds the interpreter that a process has mapped.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use crate::symbols::elf::{Elf, SymbolTable};
use crate::symbols::files::open_mapped;
use crate::symbols::maps::{self, Mapping};
use crate::symbols::source::{u16_at, u32_at, u64_at};

/// Bytes of a table of symbols, and of its strings, that are looked at.
const MAX_TABLE: u64 = 16 << 20;
/// Files of one process that are opened.
const MAX_FILES: usize = 16;
const SYMBOL_SIZE: usize = 24;

/// Symbols that tell where the runtime is and what version it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Wanted {
    Runtime,
    CodeType,
    /// 3.11 and newer.
    Version,
    /// From 3.10, 3.9 and 3.8 on.
    Since10,
    Since9,
    Since8,
}

const NAMES: [&[u8]; 6] = [
    b"_PyRuntime\0",
    b"PyCode_Type\0",
    b"Py_Version\0",
    b"PyIter_Send\0",
    b"PyFrame_GetBack\0",
    b"PyCode_NewWithPosOnlyArgs\0",
];

/// An interpreter in the memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Located {
    /// Addresses, by [`Wanted`].
    addresses: [Option<u64>; NAMES.len()],
}

impl Located {
    pub(super) fn get(&self, wanted: Wanted) -> Option<u64> {
        self.addresses.get(wanted as usize).copied().flatten()
    }

    /// The minor version by what is exported, for those before 3.11.
    pub(super) fn minor_by_exports(&self) -> Option<u8> {
        let since = [(Wanted::Since10, 10), (Wanted::Since9, 9), (Wanted::Since8, 8)];
        since.into_iter().find(|(wanted, _)| self.get(*wanted).is_some()).map(|(_, minor)| minor)
    }
}

/// Looks through the program and the libraries called after Python. `None` where none of them is an interpreter.
pub(super) fn locate(pid: u32) -> Option<Located> {
    let program = std::fs::metadata(format!("/proc/{pid}/exe")).map(|metadata| metadata.ino()).ok();
    let mut opened = HashSet::new();
    let mappings = maps::read(pid).ok()?;
    let mut candidates: Vec<(u8, &Mapping)> = mappings
        .iter()
        .filter(|mapping| mapping.inode != 0)
        .filter_map(|mapping| Some((rank(&mapping.module(), Some(mapping.inode) == program)?, mapping)))
        .filter(|(_, mapping)| opened.insert((mapping.device, mapping.inode)))
        .collect();
    candidates.sort_by_key(|(rank, _)| *rank);
    candidates.into_iter().take(MAX_FILES).find_map(|(_, mapping)| locate_in(pid, mapping))
}

/// In what order a file is looked at, if at all. Extension modules are called after Python too, and there are many.
fn rank(module: &str, is_program: bool) -> Option<u8> {
    match module {
        _ if is_program => Some(0),
        name if name.starts_with("libpython") => Some(1),
        name if name.contains("python") && !name.contains(".cpython-") => Some(2),
        _ => None,
    }
}

fn locate_in(pid: u32, mapping: &Mapping) -> Option<Located> {
    let elf = Elf::parse(open_mapped(pid, mapping).ok()?.0)?;
    let bias = mapping.start.wrapping_sub(elf.address_of(mapping.offset)?);
    // The longer table only where the other has nothing: statically linked programs.
    let found = [elf.dynsym, elf.symtab].into_iter().flatten().find_map(|table| {
        let found = find_symbols(&elf, table)?;
        found.get(Wanted::Runtime).map(|_| found)
    })?;
    Some(Located { addresses: found.addresses.map(|address| Some(address?.wrapping_add(bias))) })
}

/// Addresses as the file states them.
fn find_symbols(elf: &Elf, table: SymbolTable) -> Option<Located> {
    if table.size > MAX_TABLE || table.strings_size > MAX_TABLE {
        return None;
    }
    let symbols = elf.source.read(table.offset, table.size as usize)?;
    let strings = elf.source.read(table.strings_offset, table.strings_size as usize)?;
    let mut located = Located::default();
    for symbol in symbols.chunks_exact(SYMBOL_SIZE) {
        let (Some(name), Some(section), Some(value)) =
            (u32_at(symbol, 0), u16_at(symbol, 6), u64_at(symbol, 8))
        else {
            continue;
        };
        let Some(name) =
            strings.get(name as usize..).filter(|name| name.starts_with(b"Py") || name.starts_with(b"_Py"))
        else {
            continue;
        };
        if section != 0
            && let Some(index) = NAMES.iter().position(|wanted| name.starts_with(wanted))
            && let Some(slot) = located.addresses.get_mut(index)
        {
            *slot = Some(value);
        }
    }
    Some(located)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_goes_first_and_extension_modules_never() {
        assert_eq!(rank("python3.11", true), Some(0));
        assert_eq!(rank("libpython3.11.so.1.0", false), Some(1));
        assert_eq!(rank("embedded-python.so", false), Some(2));
        assert_eq!(rank("_socket.cpython-311-x86_64-linux-gnu.so", false), None);
        assert_eq!(rank("libc.so.6", false), None);
    }
}
