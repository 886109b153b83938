//! A trace that is kept in the repository must be read the same by every later version.
//!
//! `STALLSCOPE_BLESS=1 cargo test --test trace_stored` writes it anew: only before the first release of a
//! major version, since afterwards a difference is a broken promise.

#[path = "trace_support/strategies.rs"]
mod strategies;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use stallscope::trace::kind::Kind;
use stallscope::trace::read_all;
use stallscope::trace::record::Record;

use strategies::{by_kind, record, write_trace};

fn stored(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/trace_support").join(name)
}

/// Two records of each kind.
fn bless() {
    let mut runner = TestRunner::deterministic();
    let strategy = record();
    let mut by_kind: BTreeMap<Kind, Vec<Record>> = BTreeMap::new();
    for _ in 0..1000 {
        let record = strategy.new_tree(&mut runner).unwrap().current();
        by_kind.entry(Kind::of(&record)).or_default().push(record);
    }
    let records: Vec<Record> =
        by_kind.into_values().flat_map(|records| records.into_iter().take(2)).collect();
    write_trace(&stored("v1.stall"), &records, 7);
    let (read, _) = read_all(stored("v1.stall")).unwrap();
    fs::write(stored("v1.json"), serde_json::to_string_pretty(&read).unwrap() + "\n").unwrap();
}

#[test]
fn the_stored_trace_of_version_1_reads_as_when_it_was_written() {
    if env::var_os("STALLSCOPE_BLESS").is_some() {
        bless();
    }
    let expected: Vec<Record> =
        serde_json::from_str(&fs::read_to_string(stored("v1.json")).unwrap()).unwrap();
    let (records, state) = read_all(stored("v1.stall")).unwrap();
    assert!(state.complete, "{state:?}");
    assert_eq!(records, expected);
    let mut kinds: Vec<Kind> = by_kind(records).iter().map(Kind::of).collect();
    kinds.dedup();
    let first = Kind::ALL.iter().copied().filter(|kind| *kind as u16 <= Kind::End as u16);
    assert_eq!(kinds, first.collect::<Vec<_>>(), "every kind of version 1.0 is in the stored trace");
}
