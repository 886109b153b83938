//! Where functions lie in an ELF file: offsets into the FILE, which is what uprobes take, as against
//! addresses, which differ from them wherever a segment was placed elsewhere.
//!
//! The file is the target's and may be malformed or change while it is read: it is read in pieces (a
//! memory map would crash us when the file shrinks), and only a bounded amount of it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;

use object::elf;
use object::endian::Endianness;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::read::{ReadCache, ReadRef};

/// Files that are larger are not looked at.
pub const FILE_SIZE: u64 = 1 << 30;
/// Bytes read of one file at most.
const READ: u64 = 256 << 20;
/// The bit of a version index that marks an old version of a symbol, kept for old programs.
const HIDDEN: u16 = 0x8000;

type Header = elf::FileHeader64<Endianness>;
type Symbol = elf::Sym64<Endianness>;
type Sections<'data, R> = SectionTable<'data, Header, R>;

/// Why a file has no functions to be found.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    #[error("not readable: {0}")]
    Io(#[from] io::Error),
    #[error("larger than {FILE_SIZE} bytes: {0}")]
    TooLarge(u64),
    #[error("not an ELF file")]
    NotElf,
    #[error("a program of another architecture (ELF class {class}, machine {machine})")]
    OtherArchitecture { class: u8, machine: u16 },
    #[error("malformed: {0}")]
    Malformed(#[from] object::read::Error),
}

/// What is known of one ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Asks for a dynamic loader; an executable without this is statically linked.
    pub has_interpreter: bool,
    /// Wanted functions that the file defines, by file offset of their first instruction.
    pub functions: BTreeMap<String, u64>,
    /// Newest `GLIBC_*` version that the file defines or needs, for instance `2.36`.
    pub glibc: Option<String>,
}

/// Looks up functions by their exported names, in the full symbol table too where the file is
/// statically linked. Of several versions of a symbol the default one is taken, an older one only where
/// there is no default.
pub fn read_image(file: &File, wanted: &[&str]) -> Result<Image, ElfError> {
    let size = file.metadata()?.len();
    if size > FILE_SIZE {
        return Err(ElfError::TooLarge(size));
    }
    let cache = ReadCache::new(file);
    let left = Cell::new(READ);
    let data = Bounded { cache: &cache, left: &left };
    let endian = check_architecture(data)?;
    let header = Header::parse(data)?;
    let segments = header.program_headers(endian, data)?;
    let mut image = Image {
        has_interpreter: segments.iter().any(|segment| segment.p_type(endian) == elf::PT_INTERP),
        ..Image::default()
    };
    // An error in one table leaves the other one: a partly stripped file is still of use.
    let sections = header.sections(endian, data)?;
    let mut found = Candidates::new(wanted);
    image.glibc = found.read_table(&sections, endian, data, elf::SHT_DYNSYM);
    if found.is_empty() && !image.has_interpreter {
        found.read_table(&sections, endian, data, elf::SHT_SYMTAB);
    }
    for (name, address) in found.chosen() {
        let offset = segments.iter().find_map(|segment| file_offset(segment, endian, address));
        image.functions.extend(offset.map(|offset| (name.to_owned(), offset)));
    }
    Ok(image)
}

/// File offset of an address that lies in this segment, where the segment is executable code.
fn file_offset(segment: &elf::ProgramHeader64<Endianness>, endian: Endianness, address: u64) -> Option<u64> {
    let executable = segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian) & elf::PF_X != 0;
    let inside = address.checked_sub(segment.p_vaddr(endian))?;
    if !executable || inside >= segment.p_filesz(endian) {
        return None;
    }
    segment.p_offset(endian).checked_add(inside)
}

/// The byte order of a file for this machine; an error for any other.
fn check_architecture<'a>(data: impl ReadRef<'a>) -> Result<Endianness, ElfError> {
    let ident = data.read_bytes_at(0, 20).map_err(|()| ElfError::NotElf)?;
    if !ident.starts_with(&elf::ELFMAG) {
        return Err(ElfError::NotElf);
    }
    let native = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
    let class = ident.get(4).copied().unwrap_or(0);
    let machine = match ident.get(18..20) {
        Some(&[low, high]) => u16::from_le_bytes([low, high]),
        _ => 0,
    };
    let little = ident.get(5) == Some(&elf::ELFDATA2LSB);
    if class == elf::ELFCLASS64 && little && machine == native {
        Ok(Endianness::Little)
    } else {
        Err(ElfError::OtherArchitecture { class, machine })
    }
}

/// Definitions found so far: address, and whether it is the default version.
struct Candidates<'w> {
    wanted: &'w [&'w str],
    found: BTreeMap<&'w str, (u64, bool)>,
}

impl<'w> Candidates<'w> {
    fn new(wanted: &'w [&'w str]) -> Candidates<'w> {
        Candidates { wanted, found: BTreeMap::new() }
    }

    fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    fn chosen(self) -> impl Iterator<Item = (&'w str, u64)> {
        self.found.into_iter().map(|(name, (address, _))| (name, address))
    }

    /// Goes through the first symbol table of this type; returns the newest glibc version among its
    /// strings.
    fn read_table<'data, R: ReadRef<'data>>(
        &mut self,
        sections: &Sections<'data, R>,
        endian: Endianness,
        data: R,
        kind: u32,
    ) -> Option<String> {
        let (index, section) =
            sections.iter().enumerate().find(|(_, section)| section.sh_type(endian) == kind)?;
        let symbols: &[Symbol] = section.data_as_array(endian, data).ok()?;
        let strings = sections.section(section.link(endian)).ok()?.data(endian, data).ok()?;
        let versions: &[elf::Versym<Endianness>] = sections
            .iter()
            .find(|other| other.sh_type(endian) == elf::SHT_GNU_VERSYM && other.link(endian).0 == index)
            .and_then(|other| other.data_as_array(endian, data).ok())
            .unwrap_or_default();
        for (number, symbol) in symbols.iter().enumerate() {
            let Some(name) = defined_function(symbol, endian, strings) else { continue };
            let default = versions.get(number).is_none_or(|version| version.0.get(endian) & HIDDEN == 0);
            self.add(name, symbol.st_value(endian), default);
        }
        newest_glibc(strings)
    }

    fn add(&mut self, name: &[u8], address: u64, default: bool) {
        let Some(&name) = self.wanted.iter().find(|wanted| wanted.as_bytes() == name) else { return };
        let known = self.found.entry(name).or_insert((address, default));
        if default && !known.1 {
            *known = (address, default);
        }
    }
}

fn defined_function<'data>(symbol: &Symbol, endian: Endianness, strings: &'data [u8]) -> Option<&'data [u8]> {
    let defined = !matches!(symbol.st_shndx(endian), elf::SHN_UNDEF | elf::SHN_ABS | elf::SHN_COMMON);
    let public = matches!(symbol.st_bind(), elf::STB_GLOBAL | elf::STB_WEAK);
    if symbol.st_type() != elf::STT_FUNC || !defined || !public {
        return None;
    }
    let tail = strings.get(usize::try_from(symbol.st_name(endian)).ok()?..)?;
    let length = tail.iter().position(|byte| *byte == 0)?;
    tail.get(..length)
}

/// `GLIBC_2.36` among the strings gives `2.36`.
fn newest_glibc(strings: &[u8]) -> Option<String> {
    let (major, minor) = strings
        .split(|byte| *byte == 0)
        .filter_map(|word| {
            let version = std::str::from_utf8(word.strip_prefix(b"GLIBC_")?).ok()?;
            let (major, rest) = version.split_once('.')?;
            let minor = rest.split('.').next()?;
            Some((major.parse::<u16>().ok()?, minor.parse::<u16>().ok()?))
        })
        .max()?;
    Some(format!("{major}.{minor}"))
}

/// A file of which only so many bytes may be read.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    cache: &'a ReadCache<&'a File>,
    left: &'a Cell<u64>,
}

impl<'a> ReadRef<'a> for Bounded<'a> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.left.set(self.left.get().checked_sub(size).ok_or(())?);
        self.cache.read_bytes_at(offset, size)
    }

    /// Strings are taken out of whole tables here.
    fn read_bytes_at_until(self, _range: Range<u64>, _delimiter: u8) -> Result<&'a [u8], ()> {
        Err(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::*;

    /// Builds C with the system's compiler and leaves the result in `directory`.
    fn compile(directory: &Path, source: &str, flags: &[&str]) -> PathBuf {
        let (input, output) = (directory.join("input.c"), directory.join("output"));
        std::fs::write(&input, source).unwrap();
        let status = Command::new("gcc").args(["-o"]).arg(&output).arg(&input).args(flags).status().unwrap();
        assert!(status.success());
        output
    }

    /// The function's code loads this number, so that its bytes show that the offset is right.
    const MARKED: &str = "int getaddrinfo(void) { return 0x5ca11a11; }";

    fn has_mark(file: &File, offset: u64) -> bool {
        let mut code = [0; 32];
        file.read_exact_at(&mut code, offset).unwrap();
        let mark = 0x5ca1_1a11_u32.to_le_bytes();
        code.windows(4).any(|window| window == mark)
    }

    #[test]
    fn gives_the_offset_in_the_file_where_the_text_address_differs() {
        let directory = tempfile::tempdir().unwrap();
        let library =
            compile(directory.path(), MARKED, &["-shared", "-O1", "-Wl,--section-start=.text=0x7654000"]);
        let file = File::open(library).unwrap();
        let image = read_image(&file, &["getaddrinfo", "getnameinfo"]).unwrap();
        let offset = image.functions["getaddrinfo"];
        assert!(offset < file.metadata().unwrap().len(), "{offset:#x} is an address");
        assert!(has_mark(&file, offset));
        assert_eq!(image.functions.len(), 1);
    }

    #[test]
    fn takes_the_default_of_two_versions() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("versions");
        std::fs::write(&script, "OLD { }; NEW { global: getaddrinfo; } OLD;").unwrap();
        let source = "int first(void) { return 1; } int second(void) { return 0x5ca11a11; } \
            __asm__(\".symver first,getaddrinfo@OLD\"); __asm__(\".symver second,getaddrinfo@@NEW\");";
        let version = format!("-Wl,--version-script={}", script.display());
        let library = compile(directory.path(), source, &["-shared", "-fPIC", "-O1", &version]);
        let file = File::open(library).unwrap();
        let image = read_image(&file, &["getaddrinfo"]).unwrap();
        assert!(has_mark(&file, image.functions["getaddrinfo"]));
    }

    #[test]
    fn finds_functions_of_a_static_executable_in_the_full_table() {
        let directory = tempfile::tempdir().unwrap();
        let source = format!("{MARKED} int main(void) {{ return getaddrinfo(); }}");
        let flags = ["-static", "-O1", "-fno-builtin", "-fno-inline"];
        let file = File::open(compile(directory.path(), &source, &flags)).unwrap();
        let image = read_image(&file, &["getaddrinfo"]).unwrap();
        assert!(!image.has_interpreter);
        assert!(has_mark(&file, image.functions["getaddrinfo"]));
    }

    #[test]
    fn a_function_that_is_only_imported_is_not_found() {
        let directory = tempfile::tempdir().unwrap();
        let source = "int getaddrinfo(void); int main(void) { return getaddrinfo(); }";
        let file = File::open(compile(directory.path(), source, &["-fno-builtin"])).unwrap();
        let image = read_image(&file, &["getaddrinfo", "main"]).unwrap();
        assert!(image.has_interpreter);
        assert!(image.functions.is_empty(), "{image:?}");
    }

    #[test]
    fn refuses_what_is_no_program_of_this_machine() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for (bytes, expected) in [
            (b"text".to_vec(), "not an ELF file"),
            (vec![0; 64], "not an ELF file"),
            (
                [b"\x7fELF\x01\x01\x01".as_slice(), &[0; 11], &[3, 0], &[0; 32]].concat(),
                "ELF class 1, machine 3",
            ),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = read_image(&File::open(&path).unwrap(), &["x"]).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn refuses_a_huge_file_without_reading_it() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(FILE_SIZE + 1).unwrap();
        assert!(matches!(read_image(&file, &["x"]), Err(ElfError::TooLarge(_))));
    }

    #[test]
    fn a_damaged_file_is_an_error_or_has_fewer_functions_and_never_panics() {
        let directory = tempfile::tempdir().unwrap();
        let library = compile(directory.path(), MARKED, &["-shared", "-O1"]);
        let good = std::fs::read(&library).unwrap();
        let path = directory.path().join("damaged");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let section_headers = u64::from_le_bytes(good[40..48].try_into().unwrap()) as usize;
        // Every byte of the file header, the program headers and the section headers.
        for position in (0..0x240).chain(section_headers..good.len()) {
            let mut bad = good.clone();
            bad[position] ^= 0xff;
            file.write_all_at(&bad, 0).unwrap();
            let _ = read_image(&file, &["getaddrinfo"]);
        }
        for length in (0..good.len()).step_by(97) {
            file.write_all_at(&good, 0).unwrap();
            file.set_len(length as u64).unwrap();
            let _ = read_image(&file, &["getaddrinfo"]);
        }
    }

    #[test]
    fn the_newest_version_is_compared_by_numbers() {
        let strings =
            b"\0getaddrinfo\0GLIBC_2.9\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_PRIVATE\0GLIBC_ABI_DT_RELR\0";
        assert_eq!(newest_glibc(strings).as_deref(), Some("2.34"));
        assert_eq!(newest_glibc(b"\0x\0"), None);
    }
}
