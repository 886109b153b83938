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

/// Asserts that a recorded time agrees with the rig's own within 5 % or 2 ms, whichever is larger.
///
/// # Panics
/// When it does not.
#[track_caller]
pub fn assert_close(what: &str, recorded_ns: u64, measured_ns: u64) {
    assert_close_to(what, recorded_ns, measured_ns, (measured_ns / 20).max(2_000_000));
}

/// Asserts that a recorded time agrees with the rig's own within `tolerance_ns`: for times that are bounded by
/// the recording window, whose edges the test knows less well than the waits inside of it.
///
/// # Panics
/// When it does not.
#[track_caller]
pub fn assert_close_to(what: &str, recorded_ns: u64, measured_ns: u64, tolerance_ns: u64) {
    assert!(
        recorded_ns.abs_diff(measured_ns) <= tolerance_ns,
        "{what}: recorded {recorded_ns} ns, measured {measured_ns} ns, allowed difference {tolerance_ns} ns"
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
