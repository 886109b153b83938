//! Names as a reader writes them.

use std::fmt::{self, Write};

/// Longest name that is kept, bytes. Demanglers can make kilobytes out of templates, and hostile symbols
/// far more.
const MAX_NAME: usize = 1024;

/// What compilers append to the names of pieces and copies of a function.
const CLONES: [&str; 7] = [".cold", ".part.", ".constprop.", ".isra.", ".lto_priv.", ".llvm.", ".localalias"];

/// Text that stops growing at [`MAX_NAME`] and has no control characters.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if self.0.len() + character.len_utf8() > MAX_NAME {
                return Err(fmt::Error);
            }
            self.0.push(if character.is_control() { char::REPLACEMENT_CHARACTER } else { character });
        }
        Ok(())
    }
}

/// Bytes of the target as text: bounded, without control characters.
pub(super) fn printable(bytes: &[u8]) -> String {
    let mut out = Bounded(String::new());
    // An error says that the text was cut, which is what is wanted.
    let _ = out.write_str(&String::from_utf8_lossy(bytes));
    out.0
}

/// The function's name without symbol version, clone suffix, Rust's hash, and (in C++) arguments' types.
pub(super) fn demangle(symbol: &[u8]) -> String {
    let text = String::from_utf8_lossy(symbol);
    let text = without_version(&text);
    let text = without_clone(text);
    if let Some(name) = rust_name(text).or_else(|| cpp_name(text)) {
        return name;
    }
    printable(text.as_bytes())
}

/// Whether the name is mangled, so that its leading underscore means nothing.
pub(super) fn is_mangled(symbol: &[u8]) -> bool {
    symbol.starts_with(b"_Z") || symbol.starts_with(b"_R")
}

fn without_version(symbol: &str) -> &str {
    match symbol.find('@') {
        Some(at) if at > 0 => symbol.get(..at).unwrap_or(symbol),
        _ => symbol,
    }
}

fn without_clone(symbol: &str) -> &str {
    let cuts = CLONES.iter().filter_map(|clone| symbol.find(clone));
    match cuts.filter(|&at| at > 0).min() {
        Some(at) => symbol.get(..at).unwrap_or(symbol),
        None => symbol,
    }
}

fn rust_name(symbol: &str) -> Option<String> {
    // Old Rust names are valid C++ ones; their last element, a hash, tells them apart.
    let has_hash = symbol.starts_with("_ZN") && symbol.contains("17h");
    if !has_hash && !symbol.starts_with("_R") {
        return None;
    }
    let name = rustc_demangle::try_demangle(symbol).ok()?;
    let mut out = Bounded(String::new());
    // Alternate form: without the hash.
    write!(out, "{name:#}").ok()?;
    Some(out.0)
}

fn cpp_name(symbol: &str) -> Option<String> {
    if !symbol.starts_with("_Z") {
        return None;
    }
    let name = cpp_demangle::Symbol::new(symbol).ok()?;
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let mut out = Bounded(String::new());
    name.structured_demangle(&mut out, &options).ok()?;
    (!out.0.is_empty()).then_some(out.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_versions_hashes_clones_and_argument_types() {
        for (symbol, name) in [
            ("getaddrinfo", "getaddrinfo"),
            ("recv@@GLIBC_2.2.5", "recv"),
            ("send_dg.constprop.0", "send_dg"),
            ("worker.part.3.cold", "worker"),
            ("main.(*Server).serve", "main.(*Server).serve"),
            ("_ZN5space3fooEibc", "space::foo"),
            ("_ZN5space3fooEibc.cold", "space::foo"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_Zgarbage", "_Zgarbage"),
            ("_R", "_R"),
            ("", ""),
        ] {
            assert_eq!(demangle(symbol.as_bytes()), name, "{symbol}");
        }
    }

    #[test]
    fn names_from_a_target_are_bounded_and_printable() {
        let long = vec![b'a'; 1 << 20];
        assert_eq!(demangle(&long).len(), MAX_NAME);
        assert_eq!(printable(b"a\x1b[2J\nb\xff"), "a\u{fffd}[2J\u{fffd}b\u{fffd}");
        // Substitutions that double at each step: a few hundred bytes that stand for gigabytes.
        let mut bomb = String::from("_Z1fI1XEv");
        for index in 0..40 {
            bomb.push_str(&format!("St4pairIS{index}_S{index}_E"));
        }
        assert!(demangle(bomb.as_bytes()).len() <= MAX_NAME);
    }
}
