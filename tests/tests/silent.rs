//! A peer that says nothing for the whole recording, and one that does.

use std::time::Duration;

use serde_json::{Value, json};
use stallscope_tests::{Peer, Program, RecordedTrace, Recorder, finding, require_root, stallscope};

/// The report with a limit that a short test reaches.
fn report(trace: &RecordedTrace) -> Value {
    let limits = trace.folder().join("limits.toml");
    std::fs::write(&limits, "[general]\nstuck_for = \"200ms\"\n").unwrap();
    let (trace, limits) = (trace.path.to_string_lossy(), limits.to_string_lossy());
    let output = stallscope(&["report", &trace, "--format", "json", "--thresholds", &limits]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_peer_that_is_silent_for_the_whole_recording_is_found() {
    require_root();
    for how in ["blocking", "poll", "epoll"] {
        let peer = Peer::silent();
        let mut program = Program::start(&["recv", how, &peer.name(), "1"]);
        program.go();
        peer.wait_asked();
        let recording = Recorder::new().pid(program.pid()).start();
        std::thread::sleep(Duration::from_millis(400));
        let report = report(&recording.finish());
        let silent = finding(&report, "net.peer_silent");
        assert_eq!(
            (&silent["severity"], &silent["cause"]),
            (&json!("warning"), &json!("sock.recv")),
            "{how}"
        );
        assert_eq!(silent["proof"]["peer"], peer.name(), "{how}: {silent}");
        assert_eq!(silent["proof"]["pid"], program.pid(), "{how}: {silent}");
        assert!(silent["summary"].as_str().unwrap().contains(&peer.name()), "{how}: {silent}");
        let stalled = silent["stalled_ns"].as_u64().unwrap();
        let socket =
            report["sockets"].as_array().unwrap().iter().find(|row| row["peer"] == peer.name()).unwrap();
        assert_eq!(socket["stalled_ns"], stalled, "{how}: {socket}");
        // The same is not told twice.
        let all = report["findings"].as_array().unwrap();
        assert!(all.iter().all(|other| other["id"] != "net.slow_peer"), "{how}: {all:#?}");
    }
}

#[test]
fn a_peer_that_says_something_at_last_is_not_silent() {
    require_root();
    let peer = Peer::silent();
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "1"]);
    program.go();
    peer.wait_asked();
    let recording = Recorder::new().pid(program.pid()).start();
    std::thread::sleep(Duration::from_millis(400));
    peer.release();
    program.done();
    let report = report(&recording.finish());
    let all = report["findings"].as_array().unwrap();
    assert!(all.iter().all(|finding| finding["id"] != "net.peer_silent"), "{all:#?}");
}
