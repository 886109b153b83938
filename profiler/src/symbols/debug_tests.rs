//! Debug information of real programs, whole and damaged.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::dwarf::{self, Blocks, Dwarf};
use super::elf::Elf;
use super::live_tests::{Program, compile, random_below, run};
use super::names::Index;
use super::source::Source;
use super::*;

/// Debug information as compilers and linkers write it.
const FORMS: [&[&str]; 6] = [
    &["-gdwarf-5"],
    &["-gdwarf-4"],
    &["-gdwarf-3"],
    &["-gdwarf-5", "-gz=zlib"],
    &["-gdwarf-5", "-flto"],
    &["-gdwarf-5", "-ffunction-sections", "-freorder-blocks-and-partition"],
];

const FRAMES: [&str; 5] = ["innermost", "between", "called", "outermost", "main"];

fn with<'a>(form: &[&'a str], flags: &[&'a str]) -> Vec<&'a str> {
    [&["-O2", "-fomit-frame-pointer"], form, flags].concat()
}

/// Names of the program's own frames.
fn own_frames(pid: u32) -> Vec<String> {
    let mut symbolizer = Symbolizer::new();
    let mut space = symbolizer.modules.space(pid);
    let walk = live::walk(&mut space, pid, pid, Registers::default()).unwrap();
    let frames = walk.frames.iter().flat_map(|pc| space.frames(pc.site()));
    let own = frames.filter(|frame| frame.module == "program" && frame.function != "_start");
    own.map(|frame| frame.function).collect()
}

#[test]
fn inlined_functions_are_told_whatever_the_form_of_the_debug_information() {
    for form in FORMS {
        let program = Program::start("inlined.c", &with(form, &[]));
        assert_eq!(own_frames(program.pid()), FRAMES, "{form:?}");
    }
}

#[test]
fn without_debug_information_inlined_functions_are_not_told() {
    let program = Program::start("inlined.c", &with(&[], &[]));
    assert_eq!(own_frames(program.pid()), ["called", "main"]);
}

#[test]
fn debug_information_that_is_elsewhere_leaves_the_names_of_the_symbol_table() {
    // In `.dwo` files.
    for form in [&["-gdwarf-5", "-gsplit-dwarf"][..], &["-gdwarf-4", "-gsplit-dwarf"]] {
        let program = Program::start("inlined.c", &with(form, &[]));
        assert_eq!(own_frames(program.pid()), ["called", "main"], "{form:?}");
    }
}

#[test]
fn a_link_to_a_supplementary_file_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), "inlined.c", &with(&["-gdwarf-5"], &[]));
    let expected = look_everywhere(&parse(&path));
    assert!(expected.iter().any(|names| !names.is_empty()));
    let link = folder.path().join("link");
    // A name without an end, one that leads elsewhere, and nothing at all.
    for content in [&[b'x'; 5000][..], b"../../etc/passwd\0\x01\x02", b""] {
        std::fs::write(&link, content).unwrap();
        let linked = folder.path().join("linked");
        let add = format!(".gnu_debugaltlink={}", link.display());
        run(Command::new("objcopy").args(["--add-section", &add]).arg(&path).arg(&linked));
        assert_eq!(look_everywhere(&parse(&linked)), expected);
    }
}

fn parse(path: &Path) -> Elf {
    Elf::parse(Source::open(path).unwrap().0).unwrap()
}

/// Looks every few addresses of the code up.
fn look_everywhere(elf: &Elf) -> Vec<Vec<Vec<u8>>> {
    let blocks = RefCell::new(Blocks::default());
    let Some(mut dwarf) = Dwarf::open(elf, dwarf::TOTAL) else { return Vec::new() };
    (0x1000..0x1400).step_by(5).map(|address| dwarf.find(elf, 1, &blocks, address)).collect()
}

#[test]
fn damaged_debug_information_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let mut next = random_below(0x9e37_79b9_7f4a_7c15);
    for form in [&["-gdwarf-5"][..], &["-gdwarf-4"], &["-gdwarf-5", "-gz=zlib"]] {
        let path = compile(folder.path(), "inlined.c", &with(form, &[]));
        let whole = std::fs::read(&path).unwrap();
        let sections = super::sections::Sections::read(&parse(&path));
        let debug: Vec<_> =
            [".debug_info", ".debug_abbrev", ".debug_line", ".debug_rnglists", ".debug_ranges"]
                .iter()
                .filter_map(|name| sections.find(name))
                .map(|section| (section.offset as usize, section.size as usize))
                .collect();
        assert!(debug.len() >= 3);
        let symbols: Vec<_> = look_everywhere(&parse(&path)).concat();
        assert!(symbols.iter().any(|symbol| symbol == b"innermost"));
        for _ in 0..300 {
            let mut bytes = whole.clone();
            for _ in 0..=next(8) {
                let (offset, size) = debug[next(debug.len())];
                let at = offset + next(size);
                bytes[at] = if next(3) == 0 { 0xff } else { next(256) as u8 };
            }
            let elf = Elf::parse(Source::Memory(Arc::from(bytes))).unwrap();
            for symbols in look_everywhere(&elf) {
                assert!(symbols.len() <= 66 && symbols.iter().all(|symbol| symbol.len() <= 4096));
            }
        }
    }
}

/// A C library without debug information whose own symbols are in `.gnu_debugdata`, as in Fedora.
fn pack(path: &Path) {
    let folder = path.parent().unwrap();
    let mini = folder.join("mini");
    run(Command::new("objcopy")
        .args(["-S", "--remove-section", ".comment", "--keep-symbol=called"])
        .args(["--keep-symbol=main", "--keep-symbol=_start"])
        .arg(path)
        .arg(&mini));
    run(Command::new("xz").arg(&mini));
    run(Command::new("strip").arg(path));
    let section = format!(".gnu_debugdata={}", folder.join("mini.xz").display());
    run(Command::new("objcopy").args(["--add-section", &section]).arg(path));
}

#[test]
fn packed_symbols_name_a_stripped_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), "inlined.c", &with(&[], &[]));
    pack(&path);
    let elf = parse(&path);
    assert!(elf.symtab.is_none());
    let program = Program::spawn(folder, &path);
    assert_eq!(own_frames(program.pid()), ["called", "main"]);
}

/// A program with its symbols, and room for a copy.
fn program_with_id(folder: &Path, source: &str) -> PathBuf {
    compile(folder, source, &["-O2", "-Wl,--build-id"])
}

#[test]
fn an_index_is_taken_from_the_cache_and_anything_else_in_its_place_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let elf = parse(&program_with_id(folder.path(), "chain.c"));
    let table = elf.symtab.unwrap();
    let cached = folder.path().join("cache");
    let cache = super::cache::Cache::in_folder(&cached);
    let index = cache.index(&elf, table, &elf);
    assert_eq!(index, Index::build(&elf.source, table, &elf));
    let files: Vec<_> = std::fs::read_dir(&cached).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let written = std::fs::read(file).unwrap();

    // An entry under another name, with the right checksum: that it is told shows where it came from.
    let mut other = written.clone();
    let at = other.len() - 8;
    other[at] ^= 1;
    let body = other.len() - 4;
    let checksum = crc32fast::hash(&other[..body]);
    other[body..].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(file, &other).unwrap();
    assert_ne!(cache.index(&elf, table, &elf), index);

    // Whatever else is there is a miss, and is put right.
    let mut next = random_below(0x9e37_79b9_7f4a_7c15);
    for round in 0..200 {
        let mut bytes = written.clone();
        let at = next(bytes.len());
        bytes[at] ^= 1 + next(255) as u8;
        match round % 4 {
            0 => bytes.truncate(next(written.len())),
            1 => bytes.extend_from_slice(&written),
            _ => {}
        }
        std::fs::write(file, bytes).unwrap();
        assert_eq!(cache.index(&elf, table, &elf), index, "round {round}");
        assert_eq!(std::fs::read(file).unwrap(), written, "round {round}");
    }
    std::fs::remove_file(file).unwrap();
    std::fs::create_dir(file).unwrap();
    assert_eq!(cache.index(&elf, table, &elf), index);
}

#[test]
fn a_cache_that_others_can_write_to_is_not_used() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let elf = parse(&program_with_id(folder.path(), "chain.c"));
    let table = elf.symtab.unwrap();
    let open = folder.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let linked = folder.path().join("linked");
    std::fs::create_dir(folder.path().join("other")).unwrap();
    symlink(folder.path().join("other"), &linked).unwrap();
    for place in [&open, &linked] {
        let index = super::cache::Cache::in_folder(place).index(&elf, table, &elf);
        assert_eq!(index, Index::build(&elf.source, table, &elf));
        assert_eq!(std::fs::read_dir(place).unwrap().count(), 0, "{}", place.display());
    }
}

#[test]
fn recordings_at_the_same_time_share_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = program_with_id(folder.path(), "chain.c");
    let cached = folder.path().join("cache");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let elf = parse(&path);
                let table = elf.symtab.unwrap();
                let expected = Index::build(&elf.source, table, &elf);
                for round in 0..50 {
                    let cache = super::cache::Cache::in_folder(&cached);
                    assert_eq!(cache.index(&elf, table, &elf), expected);
                    if round % 8 == 0 {
                        for entry in std::fs::read_dir(&cached).unwrap() {
                            let _ = std::fs::remove_file(entry.unwrap().path());
                        }
                    }
                }
            });
        }
    });
    for entry in std::fs::read_dir(&cached).unwrap() {
        let path = entry.unwrap().path();
        assert!(path.extension().is_some_and(|extension| extension == "index"), "{}", path.display());
    }
}
