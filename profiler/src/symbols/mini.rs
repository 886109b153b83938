//! `.gnu_debugdata`: an xz-packed ELF file with the symbols of the functions that a stripped library does not
//! export. Fedora and its relatives have it in every library.

use std::io::Read;
use std::sync::Arc;

use lzma_rust2::XzReader;

use super::elf::Elf;
use super::sections::Sections;
use super::source::Source;

/// Packed; the largest of a distribution have some hundred kilobytes.
const MAX_PACKED: u64 = 8 << 20;
/// Unpacked, bytes. What is larger is not read at all: its symbols would be cut anywhere.
const MAX_UNPACKED: u64 = 32 << 20;
/// What the decoder may need beside that, KiB: xz files written with the highest preset want 64 MiB, but these are
/// written from a few megabytes, and a dictionary is never longer than the content.
const MAX_DECODER: u32 = 40 << 10;

/// The file that is packed in a module; it stays in memory.
pub(super) fn open(elf: &Elf) -> Option<Elf> {
    let sections = Sections::read(elf);
    let packed = sections.find(".gnu_debugdata")?.content(elf, MAX_PACKED)?;
    Elf::parse(Source::Memory(Arc::from(unpack(&packed)?)))
}

fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let reader = XzReader::new_mem_limit(packed, false, MAX_DECODER);
    reader.take(MAX_UNPACKED + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MAX_UNPACKED).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::symbols::live_tests::random_below;

    fn packed(bytes: &[u8], preset: &str) -> Vec<u8> {
        let mut command = Command::new("xz");
        command.args(["-c", preset]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("xz is there");
        let mut input = child.stdin.take().unwrap();
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || input.write_all(&bytes).unwrap());
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output.stdout
    }

    #[test]
    fn unpacks_up_to_the_bound_and_refuses_more() {
        let text: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(unpack(&packed(&text, "-6")).unwrap(), text);
        let zeros = vec![0; MAX_UNPACKED as usize];
        assert_eq!(unpack(&packed(&zeros, "-6")).map(|bytes| bytes.len()), Some(zeros.len()));
        // 5 KB that stand for more than may be.
        let bomb = packed(&vec![0; MAX_UNPACKED as usize + 1], "-6");
        assert!(bomb.len() < 16 << 10);
        assert_eq!(unpack(&bomb), None);
    }

    #[test]
    fn damaged_data_does_no_harm() {
        let text: Vec<u8> = (0..20_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let whole = packed(&text, "-6");
        let mut next = random_below(0x853c_49e6_748f_ea9b);
        for round in 0..400 {
            let mut bytes = whole.clone();
            // The headers get their share.
            let span = if round % 2 == 0 { 40 } else { bytes.len() };
            for _ in 0..=next(6) {
                let at = next(span);
                bytes[at] = next(256) as u8;
            }
            if round % 5 == 0 {
                bytes.truncate(next(whole.len()));
            }
            if let Some(unpacked) = unpack(&bytes) {
                assert!(unpacked.len() as u64 <= MAX_UNPACKED);
            }
        }
    }
}
