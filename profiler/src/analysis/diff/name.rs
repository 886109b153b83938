//! Names that differ from run to run by nature are given one name, so that two recordings compare:
//! numbers of pool threads, addresses without a symbol, ports that a client was given by chance.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::render::tree::{FrameKind, ViewFrame};

/// Ports from here on are given by chance where a program asks for none (`net.ipv4.ip_local_port_range`).
const CHANCE_PORTS: u16 = 32_768;
/// Hexadecimal digits from which on a number in a function's name is an address.
const ADDRESS_DIGITS: usize = 6;

/// The peers that have the same name on both sides.
#[derive(Debug, Default)]
pub struct PeerNames<'n> {
    common: BTreeSet<&'n str>,
}

impl<'n> PeerNames<'n> {
    pub fn new(before: &BTreeSet<&'n str>, after: &BTreeSet<&'n str>) -> PeerNames<'n> {
        PeerNames { common: before.intersection(after).copied().collect() }
    }

    /// The name itself where both sides have it, or where its port was chosen; else the address alone.
    pub fn name(&self, peer: &str) -> String {
        if self.common.contains(peer) {
            return peer.to_owned();
        }
        match peer.parse::<SocketAddr>() {
            Ok(SocketAddr::V4(address)) if address.port() >= CHANCE_PORTS => format!("{}:*", address.ip()),
            Ok(SocketAddr::V6(address)) if address.port() >= CHANCE_PORTS => format!("[{}]:*", address.ip()),
            _ => peer.to_owned(),
        }
    }
}

/// The frames with names that another run has too. The first is the process, the second the thread, without ids.
pub fn plain_frames(frames: &[ViewFrame]) -> Vec<String> {
    let process = frames.first().map(|frame| &frame.name);
    let plain = |(at, frame): (usize, &ViewFrame)| match (at, frame.kind) {
        (1, FrameKind::Task) if process != Some(&frame.name) => without_numbers(&frame.name),
        (_, FrameKind::User | FrameKind::Kernel) => without_address(&frame.name),
        _ => frame.name.clone(),
    };
    frames.iter().enumerate().map(plain).collect()
}

/// `pt_autograd_3`, `Thread-12 (gather)` and `worker7` with `#` for the number. A number inside of a word stays.
fn without_numbers(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (head, tail) = rest.split_at(at);
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (digits, after) = tail.split_at(end);
        out.push_str(head);
        let is_apart = out.chars().next_back().is_some_and(|c| !c.is_alphanumeric());
        out.push_str(if is_apart || after.is_empty() { "#" } else { digits });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// An offset into no file, and addresses in the names that compilers at run time make up, differ in each run.
/// Offsets into a file stay: the same build has the same.
fn without_address(name: &str) -> String {
    if let Some((module, _)) = name.rsplit_once("+0x")
        && module.starts_with('[')
        && module.ends_with(']')
    {
        return module.to_owned();
    }
    // An offset behind a file's name.
    let offset = name.rfind("+0x");
    let mut out = String::with_capacity(name.len());
    let mut from = 0;
    while let Some(at) = name.get(from..).and_then(|rest| rest.find("0x")).map(|at| from + at) {
        let digits = name.get(at + 2..).unwrap_or_default();
        let length = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
        out.push_str(name.get(from..at + 2).unwrap_or_default());
        from = at + 2 + length;
        let is_address = length >= ADDRESS_DIGITS && offset.map(|offset| offset + 1) != Some(at);
        out.push_str(if is_address { "#" } else { digits.get(..length).unwrap_or_default() });
    }
    out.push_str(name.get(from..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(process: &str, thread: &str, function: &str) -> Vec<String> {
        plain_frames(&[
            ViewFrame::new(process, FrameKind::Task),
            ViewFrame::new(thread, FrameKind::Task),
            ViewFrame::new(function, FrameKind::User),
        ])
    }

    #[test]
    fn numbered_threads_are_one_and_names_with_digits_stay() {
        for (thread, expected) in [
            ("pt_autograd_3", "pt_autograd_#"),
            ("worker12", "worker#"),
            ("Thread-12 (gathe", "Thread-# (gathe"),
            ("h2-reactor", "h2-reactor"),
            ("python3", "python3"),
            ("7", "#"),
        ] {
            assert_eq!(plain("python3", thread, "main")[1], expected);
        }
    }

    #[test]
    fn addresses_without_a_file_are_left_out_and_offsets_into_files_stay() {
        for (function, expected) in [
            ("[unknown]+0x7f12aa00", "[unknown]"),
            ("[anon]+0x10", "[anon]"),
            ("libfoo.so+0x1234567", "libfoo.so+0x1234567"),
            ("jit_0x7f12aa0010_stub", "jit_0x#_stub"),
            ("flag_0x12", "flag_0x12"),
            ("0x", "0x"),
            ("größe0x", "größe0x"),
        ] {
            assert_eq!(plain("p", "t", function)[2], expected);
        }
    }

    #[test]
    fn a_port_given_by_chance_is_left_out_unless_both_sides_have_it() {
        let before = BTreeSet::from(["10.0.0.2:40112", "10.0.0.3:50000", "10.0.0.4:29500", "/run/x"]);
        let after = BTreeSet::from(["10.0.0.2:40999", "10.0.0.3:50000", "[fd00::2]:41000"]);
        let names = PeerNames::new(&before, &after);
        for (peer, expected) in [
            ("10.0.0.2:40112", "10.0.0.2:*"),
            ("10.0.0.2:40999", "10.0.0.2:*"),
            ("10.0.0.3:50000", "10.0.0.3:50000"),
            ("10.0.0.4:29500", "10.0.0.4:29500"),
            ("[fd00::2]:41000", "[fd00::2]:*"),
            ("/run/x", "/run/x"),
            ("", ""),
        ] {
            assert_eq!(names.name(peer), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_name_stays_a_name(name in "\\PC{0,40}|[0-9x+\\[\\]_ -]{0,30}") {
            let names = plain("p", &name, &name);
            proptest::prop_assert!(names.iter().all(|name| !name.is_empty()));
            proptest::prop_assert!(!without_numbers(&names[1]).ends_with(|c: char| c.is_ascii_digit()));
        }
    }
}
