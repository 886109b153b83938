//! What a shared library wants of its process's libc: libraries by name, functions, and versions of them.

use object::LittleEndian;
use object::elf::DT_NEEDED;
use object::read::elf::{Dyn as _, ElfFile64, SectionHeader as _, Sym as _};

/// Read from the library's own tables.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// `DT_NEEDED`.
    pub(super) libraries: Vec<String>,
    /// Symbols that another library has to define.
    pub(super) functions: Vec<String>,
    /// `library version` of `.gnu.version_r`.
    pub(super) versions: Vec<String>,
}

/// # Errors
///
/// Where a table leads outside of the file.
pub(super) fn needs(library: &[u8]) -> object::read::Result<Needs> {
    let file: ElfFile64<'_, LittleEndian> = ElfFile64::parse(library)?;
    let endian = file.endian();
    let sections = file.elf_section_table();
    let mut needs = Needs::default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if let Some((dynamic, link)) = sections.dynamic(endian, library)? {
        let strings = sections.strings(endian, library, link)?;
        for entry in dynamic.iter().filter(|entry| entry.tag32(endian) == i32::try_from(DT_NEEDED).ok()) {
            needs.libraries.push(text(entry.string(endian, strings)?));
        }
    }
    let symbols = sections.symbols(endian, library, object::elf::SHT_DYNSYM)?;
    for symbol in symbols.iter().skip(1).filter(|symbol| symbol.is_undefined(endian)) {
        needs.functions.push(text(symbol.name(endian, symbols.strings())?));
    }
    for section in sections.iter() {
        let Some((mut list, link)) = section.gnu_verneed(endian, library)? else {
            continue;
        };
        let strings = sections.strings(endian, library, link)?;
        while let Some((need, mut versions)) = list.next()? {
            let library = text(need.file(endian, strings)?);
            while let Some(version) = versions.next()? {
                needs.versions.push(format!("{library} {}", text(version.name(endian, strings)?)));
            }
        }
    }
    needs.functions.sort();
    Ok(needs)
}

/// Whether a version is one of glibc at or below `newest`: `GLIBC_2.2.5` is, where that is 2.28, and a private one is not.
pub(super) fn is_glibc_until(version: &str, newest: (u32, u32)) -> bool {
    let Some(numbers) = version.strip_prefix("GLIBC_") else { return false };
    let mut numbers = numbers.split('.').map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) <= newest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::LIBRARY;

    const NEWEST: (u32, u32) = (2, 28);

    #[test]
    fn the_agent_needs_no_library_no_version_and_no_function_of_libc() {
        if LIBRARY.is_empty() {
            // `cargo xtask test` has built it.
            assert!(std::env::var_os("STALLSCOPE_BIN").is_none(), "the agent is not embedded");
            return;
        }
        let needs = needs(LIBRARY).unwrap();
        assert_eq!(needs.libraries, Vec::<String>::new());
        assert_eq!(needs.functions, Vec::<String>::new());
        let too_new: Vec<&String> = needs
            .versions
            .iter()
            .filter(|need| !need.split_once(' ').is_some_and(|(_, version)| is_glibc_until(version, NEWEST)))
            .collect();
        assert!(too_new.is_empty(), "newer than glibc 2.28: {too_new:?}");
    }

    #[test]
    fn the_needs_of_an_ordinary_program_are_seen() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let needs = needs(&own).unwrap();
        assert!(needs.libraries.iter().any(|library| library.starts_with("libc.so")), "{needs:?}");
        assert!(needs.functions.iter().any(|function| function == "write"), "{needs:?}");
        assert!(needs.versions.iter().any(|version| version.starts_with("libc.so.6 GLIBC_2.")), "{needs:?}");
        assert!(super::needs(&own[..4096]).is_err());
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(is_glibc_until("GLIBC_2.2.5", NEWEST) && is_glibc_until("GLIBC_2.28", NEWEST));
        assert!(!is_glibc_until("GLIBC_2.34", NEWEST) && !is_glibc_until("GLIBC_3.0", NEWEST));
        assert!(!is_glibc_until("GLIBC_PRIVATE", NEWEST) && !is_glibc_until("GCC_3.0", NEWEST));
    }
}
