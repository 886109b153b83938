//! The executable mappings of a process, from `/proc/PID/maps`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use super::demangle::printable;

/// Longest line that is looked at; the kernel's paths have 4 KiB at most, escapes come on top.
const MAX_LINE: u64 = 32 << 10;
/// Lines of one process that are looked at: above the kernel's default limit of mappings.
const MAX_LINES: usize = 200_000;
/// Executable mappings kept of one process.
const MAX_MAPPINGS: usize = 16_384;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub start: u64,
    pub end: u64,
    /// File offset of `start`.
    pub offset: u64,
    /// Device number as `(major, minor)`.
    pub device: (u32, u32),
    pub inode: u64,
    /// As the kernel prints it; empty for anonymous memory.
    pub path: Vec<u8>,
}

impl Mapping {
    pub(super) fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The file's name without folders, or the kernel's name of the memory (`[vdso]`).
    pub(super) fn module(&self) -> String {
        let path = self.path.strip_suffix(b" (deleted)").unwrap_or(&self.path);
        printable(path.rsplit(|&byte| byte == b'/').next().unwrap_or_default())
    }
}

/// Executable mappings of `pid`, by address.
pub(super) fn read(pid: u32) -> io::Result<Vec<Mapping>> {
    parse(File::open(format!("/proc/{pid}/maps"))?)
}

fn parse(input: impl Read) -> io::Result<Vec<Mapping>> {
    let mut input = BufReader::new(input);
    let mut mappings = Vec::new();
    let mut line = Vec::new();
    for _ in 0..MAX_LINES {
        line.clear();
        if input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if let Some(mapping) = parse_line(line.strip_suffix(b"\n").unwrap_or(&line)) {
            mappings.push(mapping);
        }
        if mappings.len() >= MAX_MAPPINGS {
            break;
        }
    }
    mappings.sort_unstable_by_key(|mapping| mapping.start);
    Ok(mappings)
}

/// `start-end perms offset major:minor inode path`; `None` for other lines and for what is not executable.
fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|&byte| byte != b' ')?;
        let text = rest.get(start..)?;
        let len = text.iter().position(|&byte| byte == b' ').unwrap_or(text.len());
        rest = text.get(len..)?;
        std::str::from_utf8(text.get(..len)?).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    if field()?.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let offset = field()?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?;
    let mapping = Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode: inode.parse().ok()?,
        path: rest.trim_ascii_start().to_vec(),
    };
    (mapping.start < mapping.end).then_some(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
56277f0b5000-56277f0b7000 r--p 00000000 fd:01 1310723                    /usr/bin/cat
56277f0b7000-56277f0bc000 r-xp 00002000 fd:01 1310723                    /usr/bin/cat
7f2d8c000000-7f2d8c021000 rwxp 00000000 00:00 0 
7f2d90a28000-7f2d90b7d000 r-xp 00026000 103:02 1049 /srv/a library (deleted)
7ffc6c5f2000-7ffc6c5f4000 r-xp 00000000 00:00 0                          [vdso]
nonsense
7ffc-7ffb r-xp 0 0:0 0
";

    #[test]
    fn keeps_executable_mappings_with_their_files() {
        let mappings = parse(MAPS.as_bytes()).unwrap();
        let seen: Vec<_> = mappings.iter().map(|m| (m.start, m.offset, m.inode, m.module())).collect();
        assert_eq!(
            seen,
            [
                (0x5627_7f0b_7000, 0x2000, 1_310_723, "cat".to_owned()),
                (0x7f2d_8c00_0000, 0, 0, String::new()),
                (0x7f2d_90a2_8000, 0x26000, 1049, "a library".to_owned()),
                (0x7ffc_6c5f_2000, 0, 0, "[vdso]".to_owned()),
            ]
        );
        assert_eq!(mappings[2].device, (0x103, 2));
        assert!(mappings[3].contains(0x7ffc_6c5f_3fff) && !mappings[3].contains(0x7ffc_6c5f_4000));
    }

    #[test]
    fn endless_lines_end() {
        let line = vec![b'x'; (MAX_LINE * 3) as usize];
        assert_eq!(parse(&line[..]).unwrap(), []);
    }
}
