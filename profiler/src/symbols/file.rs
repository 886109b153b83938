//! A module's file, and where the names of its functions come from.
//!
//! In this order: `.symtab` of the module, or of its separate debug file where the module has none, or of
//! `.gnu_debugdata`; then `.dynsym`. What is inlined comes from DWARF of the module or of its debug file.

use std::cell::RefCell;
use std::path::PathBuf;

use super::cache::Cache;
use super::cfi;
use super::debug_file::{self, Root};
use super::demangle::demangle;
use super::dwarf::{self, Blocks, Dwarf};
use super::elf::Elf;
use super::mini;
use super::names::Index;
use super::source::Identity;

/// Functions of a symbol table.
#[derive(Debug)]
enum Names {
    Unread,
    /// The names are in the module itself.
    Own(Index),
    /// In its separate debug file.
    Debug(Index),
    /// In what was packed in it.
    Packed(Index, Box<Elf>),
    Missing,
}

/// A separate debug file, looked for when the first name is wanted.
#[derive(Debug)]
enum Debug {
    Unsought,
    Found(Box<Elf>),
    Missing,
}

/// What tells of inlined functions, opened when the first name is wanted.
#[derive(Debug)]
enum Inlined {
    Unread,
    Own(Dwarf),
    Debug(Dwarf),
    Missing,
}

#[derive(Debug)]
pub(super) struct File {
    pub elf: Elf,
    pub identity: Option<Identity>,
    /// As it is mapped.
    path: Vec<u8>,
    debug: Debug,
    full: Names,
    /// `.dynsym`, read when the former has no name for an address.
    exported: Names,
    inlined: Inlined,
    /// What reading it may still cost.
    inlined_fuel: u64,
    /// Opened when the first address is to be unwound.
    pub unwind: Option<cfi::Lookup>,
    /// When it was used last.
    pub used: u64,
}

/// What look-ups share.
pub(super) struct Means<'a> {
    /// Whose root is where a debug file is looked for first.
    pub pid: u32,
    /// Tells files apart in `blocks`.
    pub file: u32,
    pub blocks: &'a RefCell<Blocks>,
    pub cache: &'a Cache,
}

impl File {
    pub(super) fn new(elf: Elf, identity: Option<Identity>, path: &[u8], used: u64) -> File {
        File {
            elf,
            identity,
            path: path.to_vec(),
            debug: Debug::Unsought,
            full: Names::Unread,
            exported: Names::Unread,
            inlined: Inlined::Unread,
            inlined_fuel: dwarf::TOTAL,
            unwind: None,
            used,
        }
    }

    pub(super) fn descriptors(&self) -> usize {
        1 + usize::from(matches!(self.debug, Debug::Found(_)))
    }

    /// Resident bytes.
    pub(super) fn memory(&self) -> usize {
        let size = |names: &Names| match names {
            Names::Own(index) | Names::Debug(index) => index.memory(),
            Names::Packed(index, elf) => index.memory() + elf.source.memory(),
            Names::Unread | Names::Missing => 0,
        };
        let inlined = match &self.inlined {
            Inlined::Own(dwarf) | Inlined::Debug(dwarf) => dwarf.memory(),
            Inlined::Unread | Inlined::Missing => 0,
        };
        let unwind = self.unwind.as_ref().map_or(0, cfi::Lookup::memory);
        size(&self.full) + size(&self.exported) + inlined + unwind
    }

    /// Forgets what can be read again.
    pub(super) fn drop_tables(&mut self) {
        (self.full, self.exported, self.unwind) = (Names::Unread, Names::Unread, None);
        // What was spent on inlined functions stays spent: a file that was given up is not begun again.
        let inlined = std::mem::replace(&mut self.inlined, Inlined::Unread);
        if let Inlined::Own(dwarf) | Inlined::Debug(dwarf) = inlined {
            self.inlined_fuel = dwarf.fuel();
        }
    }

    /// Names of the functions that are inlined around a stated address, innermost first, and last of the one that has
    /// the code. Empty where that has no name.
    pub(super) fn functions(&mut self, address: u64, means: &Means<'_>) -> Vec<String> {
        let symbol = self.symbol(address, means);
        let mut symbols = self.inlined(address, means);
        // The symbol table knows the function best; debug information tells what is inside of it.
        let outer = symbols.pop().unwrap_or_default();
        symbols.push(symbol.unwrap_or(outer));
        let mut names: Vec<_> = symbols.iter().map(|symbol| demangle(symbol)).collect();
        if names.last().is_none_or(String::is_empty) {
            return Vec::new();
        }
        // Inlined functions without a name say nothing: their callers tell the rest.
        names.retain(|name| !name.is_empty());
        names
    }

    fn seek_debug(&mut self, pid: u32) {
        if matches!(self.debug, Debug::Unsought) {
            let roots = [Root::Process(pid), Root::Folder(PathBuf::from("/"))];
            let found = debug_file::open(&self.elf, &self.path, &roots);
            self.debug = found.map_or(Debug::Missing, |debug| Debug::Found(Box::new(debug)));
        }
    }

    /// Symbol of the function around `address`.
    fn symbol(&mut self, address: u64, means: &Means<'_>) -> Option<Vec<u8>> {
        if matches!(self.full, Names::Unread) {
            self.full = self.read_full(means);
        }
        if let Some(found) = self.look_up(&self.full, address) {
            return Some(found);
        }
        if matches!(self.exported, Names::Unread) {
            let index = self.elf.dynsym.map(|table| means.cache.index(&self.elf, table, &self.elf));
            self.exported = index.map_or(Names::Missing, Names::Own);
        }
        self.look_up(&self.exported, address)
    }

    fn read_full(&mut self, means: &Means<'_>) -> Names {
        if let Some(table) = self.elf.symtab {
            return Names::Own(means.cache.index(&self.elf, table, &self.elf));
        }
        self.seek_debug(means.pid);
        if let Debug::Found(debug) = &self.debug
            && let Some(table) = debug.symtab
        {
            return Names::Debug(means.cache.index(debug, table, &self.elf));
        }
        let packed = mini::open(&self.elf).and_then(|packed| Some((packed.symtab?, packed)));
        packed.map_or(Names::Missing, |(table, packed)| {
            Names::Packed(Index::build(&packed.source, table, &self.elf), Box::new(packed))
        })
    }

    fn look_up(&self, names: &Names, address: u64) -> Option<Vec<u8>> {
        let (index, source) = match (names, &self.debug) {
            (Names::Own(index), _) => (index, &self.elf.source),
            (Names::Debug(index), Debug::Found(debug)) => (index, &debug.source),
            (Names::Packed(index, packed), _) => (index, &packed.source),
            _ => return None,
        };
        index.name(source, index.find(address)?)
    }

    fn open_inlined(&mut self, pid: u32) -> Inlined {
        if let Some(dwarf) = Dwarf::open(&self.elf, self.inlined_fuel) {
            return Inlined::Own(dwarf);
        }
        self.seek_debug(pid);
        let Debug::Found(debug) = &self.debug else { return Inlined::Missing };
        Dwarf::open(debug, self.inlined_fuel).map_or(Inlined::Missing, Inlined::Debug)
    }

    fn inlined(&mut self, address: u64, means: &Means<'_>) -> Vec<Vec<u8>> {
        if matches!(self.inlined, Inlined::Unread) {
            self.inlined = self.open_inlined(means.pid);
        }
        match (&mut self.inlined, &self.debug) {
            (Inlined::Own(dwarf), _) => dwarf.find(&self.elf, means.file, means.blocks, address),
            (Inlined::Debug(dwarf), Debug::Found(debug)) => {
                dwarf.find(debug, means.file, means.blocks, address)
            }
            _ => Vec::new(),
        }
    }
}
