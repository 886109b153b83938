//! Functions of a file by a name that a user typed: as it stands in the symbol table, or as a reader writes it.

use std::fs::File;
use std::io;

use object::elf;

use super::demangle::{demangle, is_mangled};
use super::elf::{Elf, SymbolTable};
use super::source::{Source, u16_at, u32_at, u64_at};

const SYMBOL_SIZE: usize = 24;
/// Bytes of one table of symbols, and of its strings, that are looked at. The largest libraries have some 100 MB.
const MAX_TABLE: u64 = 512 << 20;
/// Functions that are told at most.
const MAX_FOUND: usize = 64;
/// Names like the wanted one that are kept.
const MAX_NEAR: usize = 3;
/// Code of one function that is read.
const MAX_CODE: u64 = 64 << 10;

/// A function of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// As a reader writes it.
    pub name: String,
    /// Offset of its first instruction in the file.
    pub offset: u64,
    /// Bytes, 0: not stated.
    pub size: u64,
    /// Its bytes, as far as they are read.
    pub code: Vec<u8>,
}

/// What a file has under a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// No address comes twice.
    pub functions: Vec<Function>,
    /// Of functions with other names, those most like it; the best first. Only where none was found.
    pub near: Vec<String>,
    /// The file has any functions with names.
    pub has_symbols: bool,
}

/// Looks a name up in both symbol tables. A name that stands there literally counts above one that is so only when it is
/// demangled.
pub fn find(file: File, wanted: &str) -> io::Result<Search> {
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let elf = Elf::parse(Source::of(file)?.0).ok_or_else(|| invalid("not an ELF file of this kind"))?;
    let mut seek =
        Seek { wanted, last: last_word(wanted), exact: Vec::new(), read: Vec::new(), near: Vec::new() };
    let mut has_symbols = false;
    for table in [elf.symtab, elf.dynsym].into_iter().flatten() {
        has_symbols |= seek.table(&elf, table).ok_or_else(|| invalid("its symbol table cannot be read"))?;
    }
    let Seek { mut exact, read, mut near, .. } = seek;
    if exact.is_empty() {
        exact = read;
    }
    let mut functions: Vec<Function> = Vec::new();
    for (address, size, name) in exact {
        let Some(offset) = elf.offset_of(address) else { continue };
        let reach = elf.code_end(address).map_or(0, |end| end - address);
        if reach == 0 || functions.iter().any(|known| known.offset == offset) {
            continue;
        }
        let code = elf.source.read(offset, size.min(reach).min(MAX_CODE) as usize).unwrap_or_default();
        functions.push(Function { name, offset, size, code });
    }
    near.sort();
    near.dedup();
    let near = if functions.is_empty() {
        near.into_iter().take(MAX_NEAR).map(|(_, name)| name).collect()
    } else {
        Vec::new()
    };
    Ok(Search { functions, near, has_symbols })
}

/// What every mangled form of the name holds: its last word.
fn last_word(name: &str) -> &str {
    let plain = name.split(['<', '(']).next().unwrap_or(name);
    plain.rsplit("::").next().unwrap_or(plain)
}

struct Seek<'w> {
    wanted: &'w str,
    last: &'w str,
    /// Address, size, and name.
    exact: Vec<(u64, u64, String)>,
    read: Vec<(u64, u64, String)>,
    /// With their distance.
    near: Vec<(usize, String)>,
}

impl Seek<'_> {
    /// Whether the table has functions.
    fn table(&mut self, elf: &Elf, table: SymbolTable) -> Option<bool> {
        if table.size > MAX_TABLE || table.strings_size > MAX_TABLE {
            return None;
        }
        let symbols = elf.source.read(table.offset, usize::try_from(table.size).ok()?)?;
        let strings = elf.source.read(table.strings_offset, usize::try_from(table.strings_size).ok()?)?;
        let mut any = false;
        for symbol in symbols.chunks_exact(SYMBOL_SIZE) {
            let kind = symbol.get(4)? & 0xf;
            let defined = u16_at(symbol, 6)? != elf::SHN_UNDEF;
            if !defined || !matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC) {
                continue;
            }
            let tail = strings.get(u32_at(symbol, 0)? as usize..).unwrap_or_default();
            let name = tail.split(|byte| *byte == 0).next().unwrap_or_default();
            if !name.is_empty() {
                any = true;
                // What an indirect function gives is not what is called.
                if kind == elf::STT_FUNC {
                    self.name(name, u64_at(symbol, 8)?, u64_at(symbol, 16)?);
                }
            }
        }
        Some(any)
    }

    fn name(&mut self, symbol: &[u8], address: u64, size: u64) {
        let plain = symbol.split(|byte| *byte == b'@').next().unwrap_or_default();
        if plain == self.wanted.as_bytes() {
            if self.exact.len() < MAX_FOUND {
                self.exact.push((address, size, demangle(symbol)));
            }
            return;
        }
        if !is_mangled(symbol) {
            self.near_miss(plain);
            return;
        }
        if !contains(symbol, self.last.as_bytes()) {
            return;
        }
        // A piece that was moved away is not where the function is entered.
        if contains(symbol, b".cold") || contains(symbol, b".part.") {
            return;
        }
        let name = demangle(symbol);
        if name == self.wanted {
            if self.read.len() < MAX_FOUND {
                self.read.push((address, size, name));
            }
        } else if last_word(&name) == self.last {
            self.keep_near(1, name);
        }
    }

    fn near_miss(&mut self, name: &[u8]) {
        let wanted = self.wanted.as_bytes();
        let most = wanted.len() / 4 + 1;
        if name.len().abs_diff(wanted.len()) <= most {
            let distance = distance(name, wanted);
            if distance <= most {
                self.keep_near(distance, String::from_utf8_lossy(name).into_owned());
            }
        } else if wanted.len() >= 4 && contains(name, wanted) {
            self.keep_near(most + name.len() - wanted.len(), String::from_utf8_lossy(name).into_owned());
        }
    }

    fn keep_near(&mut self, distance: usize, name: String) {
        self.near.push((distance, name));
        if self.near.len() >= 256 {
            self.near.sort();
            self.near.dedup();
            self.near.truncate(MAX_NEAR);
        }
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && text.windows(part.len()).any(|window| window == part)
}

/// Single-byte changes that make one of the other (Levenshtein).
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, byte) in one.iter().enumerate() {
        let mut diagonal = above;
        let mut left = above + 1;
        for (slot, wanted) in row.iter_mut().skip(1).zip(other) {
            let changed = diagonal + usize::from(byte != wanted);
            diagonal = *slot;
            left = changed.min(left + 1).min(*slot + 1);
            *slot = left;
        }
        if let Some(first) = row.first_mut() {
            *first = above + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn compile(folder: &Path, name: &str, source: &str) -> File {
        let (input, output) = (folder.join(name), folder.join("object"));
        std::fs::write(&input, source).unwrap();
        let is_c = Path::new(name).extension().is_some_and(|ending| ending == "c");
        let compiler = if is_c { "gcc" } else { "g++" };
        let mut command = Command::new(compiler);
        let status = command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&output).arg(&input).status();
        assert!(status.unwrap().success());
        File::open(output).unwrap()
    }

    fn names(search: &Search) -> Vec<&str> {
        search.functions.iter().map(|function| function.name.as_str()).collect()
    }

    #[test]
    fn distances_are_counted_in_changes() {
        assert_eq!(distance(b"train_step", b"train_step"), 0);
        assert_eq!(distance(b"trainstep", b"train_step"), 1);
        assert_eq!(distance(b"tarin_step", b"train_step"), 2);
        assert_eq!(distance(b"", b"abc"), 3);
    }

    #[test]
    fn a_c_function_is_found_by_its_symbol_and_others_are_named_when_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let source = "int train_step(int x) { return x * 3; } static int __attribute__((noinline, used)) local(int x) \
            { return x + 7; } extern int alias(int) __attribute__((alias(\"train_step\")));";
        let file = || compile(folder.path(), "job.c", source);
        let search = find(file(), "train_step").unwrap();
        assert_eq!((names(&search), search.has_symbols), (vec!["train_step"], true));
        assert!(!search.functions[0].code.is_empty());
        assert_eq!(names(&find(file(), "local").unwrap()), ["local"]);
        let missing = find(file(), "trainstep").unwrap();
        assert!(missing.functions.is_empty());
        assert_eq!(missing.near, ["train_step"]);
    }

    #[test]
    fn a_cpp_function_is_found_as_it_is_written_and_overloads_are_several() {
        let folder = tempfile::tempdir().unwrap();
        let source = "namespace job { int step(int x) { return x; } int twice(int x) { return x; } \
            int twice(long x) { return int(x) + 1; } }";
        let file = || compile(folder.path(), "job.cc", source);
        assert_eq!(names(&find(file(), "job::step").unwrap()), ["job::step"]);
        assert_eq!(names(&find(file(), "_ZN3job4stepEi").unwrap()), ["job::step"]);
        assert_eq!(find(file(), "job::twice").unwrap().functions.len(), 2);
        assert_eq!(find(file(), "step").unwrap().near, ["job::step"]);
    }

    #[test]
    fn what_is_no_elf_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert!(find(File::open(path).unwrap(), "main").is_err());
    }
}
