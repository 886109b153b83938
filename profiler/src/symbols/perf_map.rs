//! Names of just-in-time compiled code: `/tmp/perf-PID.map`, which runtimes (Python's trampoline, V8, the
//! JVM) write on request: lines of `start size name`, both numbers in hexadecimal.

use std::path::Path;
use std::time::{Duration, Instant};

use super::demangle::printable;
use super::source::Source;
use crate::target::root::ProcRoot;
use crate::target::rooted;

const MAX_FILE: u64 = 8 << 20;
const MAX_ENTRIES: usize = 65_536;
/// Between two readings of a map that has no name for an address.
const REREAD: Duration = Duration::from_secs(1);

struct Entry {
    start: u64,
    size: u64,
    name: Box<str>,
}

#[derive(Default)]
pub(super) struct PerfMap {
    entries: Vec<Entry>,
    last_read: Option<Instant>,
}

impl PerfMap {
    /// Name of the code at `address` of `pid`.
    pub(super) fn find(&mut self, pid: u32, address: u64) -> Option<String> {
        if let Some(name) = self.find_read(address) {
            return Some(name);
        }
        if self.last_read.is_some_and(|last| last.elapsed() < REREAD) {
            return None;
        }
        self.last_read = Some(Instant::now());
        self.entries = parse(&read(pid)?);
        self.find_read(address)
    }

    fn find_read(&self, address: u64) -> Option<String> {
        let after = self.entries.partition_point(|entry| entry.start <= address);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        (address - entry.start < entry.size).then(|| entry.name.to_string())
    }
}

/// The map is named by the process's id in its own namespace, and lies in its own root.
fn read(pid: u32) -> Option<Vec<u8>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let own: u32 = ids.split_ascii_whitespace().last()?.parse().ok()?;
    // A link there must not lead to files outside of the target's root.
    let file = rooted::open(&ProcRoot::default(), pid, Path::new(&format!("/tmp/perf-{own}.map"))).ok()?;
    let (source, identity) = Source::of(file).ok()?;
    let mut bytes = vec![0; usize::try_from(identity.size.min(MAX_FILE)).ok()?];
    let len = source.read_at(0, &mut bytes);
    bytes.truncate(len);
    Some(bytes)
}

fn parse(bytes: &[u8]) -> Vec<Entry> {
    let lines = bytes.split(|&byte| byte == b'\n');
    let mut entries: Vec<Entry> = lines.filter_map(parse_line).take(MAX_ENTRIES).collect();
    entries.sort_by_key(|entry| entry.start);
    entries
}

fn parse_line(line: &[u8]) -> Option<Entry> {
    let mut fields = line.splitn(3, |&byte| byte == b' ');
    let mut number = || {
        let text = std::str::from_utf8(fields.next()?).ok()?;
        u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
    };
    let (start, size) = (number()?, number()?);
    let name = printable(fields.next()?);
    (!name.is_empty()).then(|| Entry { start, size, name: name.into_boxed_str() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_addresses_inside_of_entries_only() {
        let text = b"2000 10 py::train:/srv/train.py\nnonsense\n1000 0x20 py::step\n\n3000 zz broken\n";
        let map = PerfMap { entries: parse(text), last_read: None };
        assert_eq!(map.find_read(0x1000).as_deref(), Some("py::step"));
        assert_eq!(map.find_read(0x101f).as_deref(), Some("py::step"));
        assert_eq!(map.find_read(0x1020), None);
        assert_eq!(map.find_read(0x200f).as_deref(), Some("py::train:/srv/train.py"));
        assert_eq!(map.find_read(0xfff), None);
        assert_eq!(map.entries.len(), 2);
    }
}
