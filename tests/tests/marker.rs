//! `record --marker`: calls of a function of the target, and a diff by them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

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
    exported_from(&trace.path)
}

fn exported_from(trace: &Path) -> Vec<Value> {
    let output = stallscope(&["export", &trace.to_string_lossy(), "--format", "json"]);
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

/// Compiles `programs/markers.c` to a file of the folder.
fn compile(flags: &[&str], folder: &Path, name: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/markers.c");
    let built = folder.join(name);
    let status = Command::new("cc").arg("-O1").args(flags).arg(source).arg("-o").arg(&built).status();
    assert!(status.expect("starts cc").success());
    built.to_string_lossy().into_owned()
}

/// Calls by process.
fn calls_of(records: &[Value]) -> BTreeMap<u64, u64> {
    let mut calls = BTreeMap::new();
    for record in records.iter().filter(|record| record["kind"] == "marker_calls") {
        *calls.entry(record["pid"].as_u64().unwrap()).or_default() += record["calls"].as_u64().unwrap();
    }
    calls
}

#[test]
fn a_library_that_is_loaded_late_has_its_marker_counted() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let text = |name: &str| file(name).to_string_lossy().into_owned();
    let program = compile(&["-ldl"], folder.path(), "program");
    let library = compile(&["-shared", "-fPIC", "-DLIBRARY"], folder.path(), "liblate.so");
    let (go, stop, count) = (text("go"), text("stop"), text("count"));
    let trace = file("run.stall");
    let recorder = Recorder::new().args(&["--marker", "liblate.so:library_step"]).output(&trace);
    let recording = recorder.command(&[&program, "load", &library, &go, &stop, &count]).start();
    // Later than the looks that follow the start of a process.
    std::thread::sleep(Duration::from_secs(3));
    std::fs::write(&go, "").unwrap();
    let patience = Instant::now() + Duration::from_mins(1);
    while calls_of(&exported_from(&trace)).is_empty() {
        assert!(Instant::now() < patience, "the library's function was not found");
        std::thread::sleep(Duration::from_millis(200));
    }
    std::fs::write(&stop, "").unwrap();
    let records = exported(&recording.wait());
    let made: u64 = std::fs::read_to_string(&count).unwrap().parse().unwrap();
    let calls = calls_of(&records);
    let seen: u64 = calls.values().sum();
    assert!(calls.len() == 1 && seen >= 1 && seen <= made, "{calls:?} of {made}");
    let function = records.iter().find(|record| record["kind"] == "marker_function").expect("the function");
    assert_eq!((&function["function"], &function["module"]), (&"library_step".into(), &"liblate.so".into()));
}

#[test]
fn calls_of_several_processes_that_are_too_fast_to_be_told_one_by_one_are_all_counted() {
    const PROCESSES: usize = 3;
    const CALLS: u64 = 200_000;
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let program = compile(&["-ldl"], folder.path(), "program");
    let recorder = Recorder::new().args(&["--marker", "program_step"]);
    let (processes, count) = (PROCESSES.to_string(), CALLS.to_string());
    let trace = recorder.command(&[&program, "processes", &processes, &count]).launch().wait();
    let records = exported(&trace);
    let calls = calls_of(&records);
    assert_eq!(calls.values().copied().collect::<Vec<_>>(), [CALLS; PROCESSES]);
    let report = trace.report();
    // Of each slice of 134 ms that a process was there for, 1342 calls are told one by one, and the rest together.
    let slices = (report["target"]["duration_ns"].as_u64().expect("a duration") >> 27) + 2;
    let told = records.iter().filter(|record| record["kind"] == "marker_calls").count() as u64;
    let most = PROCESSES as u64 * slices * 1343;
    assert!(told <= most && told < PROCESSES as u64 * CALLS, "{told} records, {most} at most");
    let rows = report["coverage"]["probes"].as_array().expect("probes");
    let row = rows.iter().find(|row| row["family"] == "marker").expect("a row");
    assert!(row["reason"].as_str().unwrap().contains("came faster than 10000 a second"), "{row}");
}
