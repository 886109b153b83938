//! Words and figures of summaries.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// Names that a summary or a proof lists at most.
pub(super) const LISTED: usize = 5;

/// `1.25 s`, `3.0 ms`, `12 us`.
pub(super) fn time(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..1_000_000 => format!("{:.0} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        1_000_000_000..120_000_000_000 => format!("{:.1} s", value / 1e9),
        _ => format!("{:.1} min", value / 60e9),
    }
}

/// `1 query`, `3 queries`.
pub(super) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// `a, b and 3 more`.
pub(super) fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 3;
    let items: Vec<&str> = items.into_iter().collect();
    let mut text = items.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if items.len() > SHOWN {
        text.push_str(&format!(" and {} more", items.len() - SHOWN));
    }
    text
}

/// The first few of a set, for a proof.
pub(super) fn some<T: Clone>(items: &BTreeSet<T>) -> Vec<T> {
    items.iter().take(LISTED).cloned().collect()
}

/// `addr` of `addr:port`, or of `addr` alone.
pub(super) fn ip_of(peer: &str) -> Option<IpAddr> {
    peer.parse::<SocketAddr>().map(|address| address.ip()).or_else(|_| peer.parse()).ok()
}

/// A name that can stand in a command as it is; anything else (names come from packets) is a placeholder.
pub(super) fn in_command(name: Option<&str>) -> &str {
    let plain = |name: &&str| {
        !name.is_empty()
            && !name.starts_with('-')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
    };
    name.filter(plain).unwrap_or("NAME")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_reads_best() {
        assert_eq!(time(999), "999 ns");
        assert_eq!(time(250_000), "250 us");
        assert_eq!(time(3_000_000), "3.0 ms");
        assert_eq!(time(5_000_000_000), "5.0 s");
        assert_eq!(time(300_000_000_000), "5.0 min");
    }

    #[test]
    fn names_that_a_shell_would_run_never_stand_in_a_command() {
        assert_eq!(in_command(Some("node01.example")), "node01.example");
        assert_eq!(in_command(Some("$(reboot).example")), "NAME");
        assert_eq!(in_command(Some("-f")), "NAME");
        assert_eq!(in_command(None), "NAME");
    }

    #[test]
    fn long_lists_end_in_a_number() {
        assert_eq!(list(["a", "b"]), "a, b");
        assert_eq!(list(["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }
}
