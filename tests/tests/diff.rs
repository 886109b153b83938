//! `diff` of two recordings of one program against one peer, which is later the second time, or is not.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use stallscope_tests::{Peer, Program, RecordedTrace, record_run, require_root, stallscope};

/// Exchanges in a recording.
const TIMES: u64 = 100;

/// One recording, with what the rig measured.
struct Run {
    trace: RecordedTrace,
    /// What the program waited by its own clock, nanoseconds an exchange.
    above: f64,
    /// What the peer was late by its own clock.
    below: f64,
}

fn run(peer: &Peer) -> Run {
    let served = peer.served_ns().len();
    let mut program = Program::start(&["recv", "blocking", &peer.name(), &TIMES.to_string()]);
    let (values, trace) = record_run(&mut program);
    let late: u64 = peer.served_ns().iter().skip(served).sum();
    Run { trace, above: values.ns() as f64 / TIMES as f64, below: late as f64 / TIMES as f64 }
}

fn two_runs(first: Duration, second: Duration) -> (String, Run, Run) {
    require_root();
    let peer = Peer::late(first);
    let before = run(&peer);
    peer.set_delay(second);
    let after = run(&peer);
    (peer.name(), before, after)
}

fn diff(before: &Path, after: &Path, more: &[&str]) -> (Option<i32>, String) {
    let paths = [before.to_string_lossy(), after.to_string_lossy()];
    let output = stallscope(&[&["diff", &paths[0], &paths[1]][..], more].concat());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), String::from_utf8(output.stdout).expect("is text"))
}

/// The document, with all that holds for any pair of such runs.
fn checked(peer: &str, before: &Run, after: &Run) -> Value {
    let (code, json) =
        diff(&before.trace.path, &after.trace.path, &["--format", "json", "--fail-above", "5%"]);
    let document: Value = serde_json::from_str(&json).expect("one JSON document");
    assert_eq!(document["schema"], "stallscope.diff/1");
    assert_eq!(document["normalised_by"], "waits", "{document:#}");
    assert_eq!(document["before"]["units"], TIMES as f64, "{document:#}");
    assert_eq!(document["after"]["units"], TIMES as f64, "{document:#}");
    let total = &document["total"];
    let regressed = total["significant"] == true && total["delta_pct"].as_f64().is_some_and(|pct| pct > 5.0);
    assert_eq!(code, Some(if regressed { 3 } else { 0 }), "{total}");

    // All that the program waits for is the peer: not longer than by the program's clock, nor shorter than by the
    // peer's, which begins a little earlier.
    for (field, run) in [("before_ns", before), ("after_ns", after)] {
        let told = total[field].as_f64().expect("a number");
        let slack = run.above / 20.0;
        assert!(told <= run.above + 1.0, "{field}: {told} of {}", run.above);
        assert!(told + slack >= run.below, "{field}: {told}, the peer was late by {}", run.below);
    }
    let delta = total["delta_ns"].as_f64().expect("a number");
    let measured = after.above - before.above;
    let allowed =
        (before.above - before.below).abs() + (after.above - after.below).abs() + after.above / 20.0;
    assert!((delta - measured).abs() <= allowed, "{delta}, measured {measured} +- {allowed}");

    let leaf = format!("[sock.recv] {peer}");
    let stacks = document["stacks"].as_array().expect("stacks");
    let stack = stacks
        .iter()
        .find(|row| row["stack"].as_array().is_some_and(|s| s.last() == Some(&leaf.clone().into())));
    let stack = stack.unwrap_or_else(|| panic!("no {leaf}: {stacks:#?}"));
    assert_eq!(stack["state"], "both", "{stack}");
    let names: Vec<&str> = stack["stack"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(
        names.contains(&"workload") && names.iter().any(|name| name.contains("stall_inner")),
        "{names:?}"
    );
    document
}

fn socket<'d>(document: &'d Value, peer: &str) -> &'d Value {
    let rows = document["sockets"].as_array().expect("sockets");
    let wanted = |row: &&Value| row["peer"] == peer && row["direction"] == "recv";
    rows.iter().find(wanted).unwrap_or_else(|| panic!("no {peer}: {rows:#?}"))
}

#[test]
fn a_later_peer_is_named_with_the_time_by_which_it_is_later() {
    let (peer, before, after) = two_runs(Duration::from_millis(20), Duration::from_millis(30));
    let document = checked(&peer, &before, &after);
    let row = socket(&document, &peer);
    assert_eq!(row["significant"], true, "{row}");
    let (old, new) = (row["before_p50_ns"].as_f64().unwrap(), row["after_p50_ns"].as_f64().unwrap());
    assert!(old >= 19e6 && new >= 29e6, "{row}");
    let text = diff(&before.trace.path, &after.trace.path, &[]).1;
    assert!(text.contains(&peer) && text.contains("ENVIRONMENT CHANGES\n  none"), "{text}");
    let svg = diff(&before.trace.path, &after.trace.path, &["--format", "svg"]).1;
    assert!(svg.contains(&format!("[sock.recv] {peer} +")), "{svg}");
}

#[test]
fn where_nothing_changed_no_change_is_significant() {
    let late = Duration::from_millis(20);
    let (peer, before, after) = two_runs(late, late);
    let document = checked(&peer, &before, &after);
    // A busy machine can make a real difference; then the rig has measured it too.
    let changed = (after.above - before.above).abs() / before.above;
    if changed < 0.01 {
        assert_eq!(document["total"]["significant"], false, "{:#}", document["total"]);
    }
    assert!(document["environment"].as_array().is_some_and(Vec::is_empty), "{document:#}");
}
