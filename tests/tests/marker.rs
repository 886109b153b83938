//! `record --marker`: calls of a function of the target, and a diff by them.

use std::time::Duration;

use serde_json::Value;
use stallscope_tests::{Peer, Program, RecordedTrace, Recorder, require_root, stallscope};

const TIMES: u64 = 60;
/// Called once for each exchange.
const MARKER: &str = "workload::receiving::stall_outer";

fn program(peer: &Peer) -> Program {
    Program::start(&["recv", "blocking", &peer.name(), &TIMES.to_string()])
}

/// One recording, with what the rig measured.
struct Run {
    trace: RecordedTrace,
    /// What the program waited by its own clock, nanoseconds a call.
    above: f64,
    /// What the peer was late by its own clock.
    below: f64,
}

fn recorded(peer: &Peer) -> Run {
    let served = peer.served_ns().len();
    let mut program = program(peer);
    let recording = Recorder::new().pid(program.pid()).args(&["--marker", MARKER]).start();
    let values = program.run();
    let late: u64 = peer.served_ns().iter().skip(served).sum();
    let (above, below) = (values.ns() as f64 / TIMES as f64, late as f64 / TIMES as f64);
    Run { trace: recording.finish(), above, below }
}

fn exported(trace: &RecordedTrace) -> Vec<Value> {
    let output = stallscope(&["export", &trace.path.to_string_lossy(), "--format", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    document["records"].as_array().expect("records").clone()
}

#[test]
fn every_call_of_the_marker_is_counted_and_a_diff_is_per_call() {
    require_root();
    let peer = Peer::late(Duration::from_millis(10));
    let before = recorded(&peer);
    peer.set_delay(Duration::from_millis(20));
    let after = recorded(&peer);
    let records = exported(&before.trace);
    let calls: Vec<&Value> = records.iter().filter(|record| record["kind"] == "marker_calls").collect();
    assert_eq!(calls.iter().map(|call| call["calls"].as_u64().unwrap()).sum::<u64>(), TIMES);
    let function = records.iter().find(|record| record["kind"] == "marker_function").expect("the function");
    assert_eq!((&function["function"], &function["module"]), (&MARKER.into(), &"workload".into()));
    let report = before.trace.report();
    let coverage = report["coverage"]["probes"].as_array().expect("probes");
    let row = coverage.iter().find(|row| row["family"] == "marker").expect("a row");
    assert_eq!(row["state"], "on", "{row}");

    let paths = [&before, &after].map(|run| run.trace.path.to_string_lossy().into_owned());
    let output = stallscope(&["diff", &paths[0], &paths[1], "--format", "json"]);
    let diff: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(diff["normalised_by"], "marker", "{diff:#}");
    assert_eq!(diff["before"]["units"], TIMES as f64, "{diff:#}");
    assert_eq!(diff["after"]["units"], TIMES as f64, "{diff:#}");
    let total = &diff["total"];
    for (field, run) in [("before_ns", &before), ("after_ns", &after)] {
        let told = total[field].as_f64().expect("a number");
        assert!(told <= run.above + 1.0, "{field}: {told} of {}", run.above);
        assert!(told + run.above / 20.0 >= run.below, "{field}: {told}, the peer was late by {}", run.below);
    }
    assert_eq!(total["significant"], true, "{total}");
}

#[test]
fn a_marker_that_does_not_exist_is_an_error_before_anything_is_attached() {
    require_root();
    let peer = Peer::late(Duration::from_millis(1));
    let program = program(&peer);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.stall");
    let record = |marker: &str| {
        let pid = program.pid().to_string();
        let output = stallscope(&["record", "--pid", &pid, "--marker", marker, "-o", path.to_str().unwrap()]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = record("libc.so.6:getadrinfo");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("error: no function libc.so.6:getadrinfo"), "{text}");
    assert!(text.contains("help: names like it:") && text.contains("getaddrinfo"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
    let (code, text) = record("libnothing:x");
    assert_eq!((code, text.starts_with("error: no target has a file libnothing")), (Some(1), true), "{text}");
    assert!(!path.exists());
}

#[test]
fn a_command_is_counted_from_its_first_call() {
    require_root();
    let peer = Peer::late(Duration::from_millis(1));
    let workload = stallscope_tests::process::workload();
    let workload = workload.to_string_lossy();
    let recorder = Recorder::new().args(&["--marker", MARKER]);
    let trace = recorder.command(&[&workload, "recv-now", "blocking", &peer.name(), "20"]).launch().wait();
    let calls = exported(&trace);
    let calls = calls.iter().filter(|record| record["kind"] == "marker_calls");
    assert_eq!(calls.map(|call| call["calls"].as_u64().unwrap()).sum::<u64>(), 20);
}
