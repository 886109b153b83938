//! Comparisons that the tests share.

use serde_json::Value;

/// Live tests load BPF programs and make namespaces. They fail without root; they never skip.
///
/// # Panics
/// When the test does not run as root.
pub fn require_root() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test attaches to processes and makes network namespaces: run it as root (cargo xtask test)"
    );
}

/// A time that a program or a rig measured around the waits that are to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub ns: u64,
    /// How much of it may have been work or waiting for a processor instead: the program's own processor and
    /// run-queue time. Next to nothing on a quiet machine.
    pub busy_ns: u64,
}

impl From<u64> for Measured {
    fn from(ns: u64) -> Measured {
        Measured { ns, busy_ns: 0 }
    }
}

/// Asserts that a recorded time agrees with the rig's own within 5 % or 2 ms, whichever is larger, apart from
/// the time in which the program was busy.
///
/// # Panics
/// When it does not.
#[track_caller]
pub fn assert_close(what: &str, recorded_ns: u64, measured: impl Into<Measured>) {
    let Measured { ns, busy_ns } = measured.into();
    let tolerance = (ns / 20).max(2_000_000);
    let bounds = ns.saturating_sub(busy_ns + tolerance)..=ns + tolerance;
    assert!(
        bounds.contains(&recorded_ns),
        "{what}: recorded {recorded_ns} ns, measured {ns} ns of which {busy_ns} ns busy, tolerance {tolerance} ns"
    );
}

/// Asserts that a recorded time lies between two that the rig measured, with 2 % or 2 ms of tolerance.
///
/// # Panics
/// When it does not.
#[track_caller]
pub fn assert_between(what: &str, recorded_ns: u64, least_ns: u64, most_ns: u64) {
    let tolerance = |ns: u64| (ns / 50).max(2_000_000);
    let bounds = least_ns.saturating_sub(tolerance(least_ns))..=most_ns + tolerance(most_ns);
    assert!(
        bounds.contains(&recorded_ns),
        "{what}: recorded {recorded_ns} ns, not in {least_ns}..={most_ns} ns"
    );
}

/// The rows of `section` whose fields have all these values.
///
/// # Panics
/// When the report has no such section.
#[track_caller]
pub fn rows<'a>(report: &'a Value, section: &str, wanted: &[(&str, Value)]) -> Vec<&'a Value> {
    let all = report[section].as_array().unwrap_or_else(|| panic!("the report has no array {section:?}"));
    all.iter().filter(|row| wanted.iter().all(|(field, value)| &row[field] == value)).collect()
}

/// A field summed over rows; `duration.sum_ns` reaches into a row.
///
/// # Panics
/// When a row has no such count.
#[track_caller]
pub fn sum(rows: &[&Value], field: &str) -> u64 {
    let pointer = format!("/{}", field.replace('.', "/"));
    let count = |row: &&Value| {
        row.pointer(&pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no count {field} in {row}"))
    };
    rows.iter().map(count).sum()
}

/// The finding with this id.
///
/// # Panics
/// When the report does not have it.
#[track_caller]
pub fn finding<'a>(report: &'a Value, id: &str) -> &'a Value {
    let all = report["findings"].as_array().expect("findings are an array");
    all.iter().find(|finding| finding["id"] == id).unwrap_or_else(|| {
        let ids: Vec<&Value> = all.iter().map(|finding| &finding["id"]).collect();
        panic!("no finding {id}, only {ids:?}")
    })
}
