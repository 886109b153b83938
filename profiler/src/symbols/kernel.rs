//! Names of kernel functions, from `/proc/kallsyms`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use super::demangle::printable;
use crate::trace::record::Frame;

const KALLSYMS: &str = "/proc/kallsyms";
const MAX_LINE: u64 = 4096;
/// Lines that are looked at; a kernel with all drivers has some 300 000.
const MAX_LINES: usize = 2_000_000;
const MAX_NAMES: usize = 32 << 20;
/// A function of the kernel does not reach further, bytes.
const MAX_REACH: u64 = 1 << 20;
/// The kernel's own symbols.
const KERNEL: &str = "[kernel]";

struct Symbol {
    address: u64,
    name: u32,
    len: u16,
    module: u16,
}

/// Text symbols of the running kernel, by address.
struct Table {
    symbols: Vec<Symbol>,
    names: Vec<u8>,
    modules: Vec<String>,
}

/// Reads the symbols when the first address is asked for.
#[derive(Default)]
pub(super) struct Kernel {
    table: Option<Table>,
}

impl Kernel {
    /// Name of the kernel code at `address`. Without one where the kernel hides its addresses
    /// (`kernel.kptr_restrict`, or no privilege).
    pub(super) fn frame(&mut self, address: u64) -> Frame {
        let table = self.table.get_or_insert_with(|| {
            File::open(KALLSYMS).and_then(parse).unwrap_or_else(|error| {
                log::debug!("{KALLSYMS}: {error}");
                Table::empty()
            })
        });
        table.frame(address)
    }
}

impl Table {
    fn empty() -> Table {
        Table { symbols: Vec::new(), names: Vec::new(), modules: vec![KERNEL.to_owned()] }
    }

    fn frame(&self, address: u64) -> Frame {
        self.find(address).unwrap_or_else(|| Frame {
            function: String::new(),
            module: KERNEL.to_owned(),
            offset: address,
        })
    }

    fn find(&self, address: u64) -> Option<Frame> {
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        if address - symbol.address > MAX_REACH {
            return None;
        }
        let start = symbol.name as usize;
        let name = self.names.get(start..start + usize::from(symbol.len))?;
        let module = self.modules.get(usize::from(symbol.module))?;
        Some(Frame { function: printable(name), module: module.clone(), offset: 0 })
    }

    /// `address type name [module]`, for text only.
    fn add(&mut self, line: &[u8]) -> Option<()> {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let address = u64::from_str_radix(std::str::from_utf8(fields.next()?).ok()?, 16).ok()?;
        if address == 0 || !matches!(fields.next()?, b"t" | b"T" | b"w" | b"W") {
            return None;
        }
        let name = fields.next()?;
        if self.names.len() + name.len() > MAX_NAMES {
            return None;
        }
        let module = fields.next().map_or(KERNEL.to_owned(), printable);
        let module = self.module(module)?;
        let start = u32::try_from(self.names.len()).ok()?;
        self.names.extend_from_slice(name);
        self.symbols.push(Symbol { address, name: start, len: u16::try_from(name.len()).ok()?, module });
        Some(())
    }

    /// Number of this module; the same one comes many times in a row.
    fn module(&mut self, name: String) -> Option<u16> {
        let known = self.modules.iter().rposition(|module| *module == name);
        let index = known.unwrap_or_else(|| {
            self.modules.push(name);
            self.modules.len() - 1
        });
        u16::try_from(index).ok()
    }
}

fn parse(input: impl Read) -> io::Result<Table> {
    let mut input = BufReader::new(input);
    let mut table = Table::empty();
    let mut line = Vec::new();
    for _ in 0..MAX_LINES {
        line.clear();
        if input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        // Lines that are no text symbols are left out.
        let _ = table.add(&line);
    }
    // Stable: of several names of one address the last one in the kernel's order is found.
    table.symbols.sort_by_key(|symbol| symbol.address);
    table.symbols.shrink_to_fit();
    table.names.shrink_to_fit();
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "\
ffffffff81000000 T _stext
ffffffff81000100 t do_one
ffffffff81000200 D a_variable
ffffffff81000300 W weak_one
ffffffffc0000000 t mlx5_cmd_exec\t[mlx5_core]
ffffffffc0000100 t bpf_prog_6deef7357e7b4530_sd_fw\t[bpf]
";

    fn named(table: &Table, address: u64) -> (String, String, u64) {
        let frame = table.frame(address);
        (frame.function, frame.module, frame.offset)
    }

    #[test]
    fn names_functions_with_their_modules() {
        let table = parse(KALLSYMS.as_bytes()).unwrap();
        let kernel = |name: &str| (name.to_owned(), KERNEL.to_owned(), 0);
        assert_eq!(named(&table, 0xffff_ffff_8100_0100), kernel("do_one"));
        assert_eq!(named(&table, 0xffff_ffff_8100_02ff), kernel("do_one"));
        assert_eq!(named(&table, 0xffff_ffff_8100_0300), kernel("weak_one"));
        let module = ("mlx5_cmd_exec".to_owned(), "[mlx5_core]".to_owned(), 0);
        assert_eq!(named(&table, 0xffff_ffff_c000_0010), module);
        let unknown = (String::new(), KERNEL.to_owned(), 0xffff_ffff_9000_0000);
        assert_eq!(named(&table, 0xffff_ffff_9000_0000), unknown);
        assert_eq!(named(&table, 0x1000), (String::new(), KERNEL.to_owned(), 0x1000));
    }

    #[test]
    fn hidden_addresses_and_noise_give_no_names() {
        let hidden = "0000000000000000 T _stext\n0000000000000000 t do_one\n";
        for text in [hidden, "", "x", "\u{0}\n\n T", "ffffffff81000000"] {
            let table = parse(text.as_bytes()).unwrap();
            assert!(table.symbols.is_empty());
            assert_eq!(table.frame(0xffff_ffff_8100_0000).function, "");
        }
    }
}
