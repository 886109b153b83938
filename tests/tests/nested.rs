//! Epoll sets inside of other sets: what they hold is what is waited for.

use std::time::Duration;

use serde_json::json;
use stallscope_tests::{Peer, Program, Recorder, assert_close, record_run, require_root, rows, sum};

#[test]
fn a_connection_in_a_nested_set_is_a_stall_on_its_peer() {
    require_root();
    for (how, levels) in [("epoll", "2"), ("epoll", "4"), ("poll", "1"), ("poll", "2"), ("select", "1")] {
        let peer = Peer::silent();
        let mut program = Program::start(&["nested-recv", &peer.name(), how, levels, "400"]);
        let (values, trace) = record_run(&mut program);
        let report = trace.report();
        let found = rows(&report, "sockets", &[("peer", json!(peer.name())), ("direction", json!("recv"))]);
        assert_eq!(sum(&found, "waits"), 1, "{how} {levels}: {:#}", report["sockets"]);
        assert_close(how, sum(&found, "stalled_ns"), values.measured());
    }
}

#[test]
fn a_listening_socket_in_a_nested_set_is_idle() {
    require_root();
    for how in ["epoll", "poll", "select"] {
        let peer = Peer::silent();
        let mut program = Program::start(&["nested-listener", &peer.name(), how]);
        let recording = Recorder::new().pid(program.pid()).start();
        program.go();
        std::thread::sleep(Duration::from_millis(700));
        let report = recording.finish().report();
        assert_eq!(report["totals"]["stalled_ns"], 0, "{how}: {:#}", report["causes"]);
        let thread = rows(&report, "threads", &[("tid", json!(program.pid()))]);
        assert!(sum(&thread, "idle_ns") > 0, "{how}: {thread:#?}");
    }
}
