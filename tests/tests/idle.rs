//! Waits for work are idle time, never stalls.

use std::time::Duration;

use serde_json::{Value, json};
use stallscope::demo::monotonic_ns;
use stallscope_tests::{Peer, Program, Recorder, require_root, rows, sum};

/// Records a program that idles, attached before its work begins and in the middle of it; with how long, at least, it was
/// recorded at its work.
fn record_idle(arguments: &[&str]) -> Vec<(Program, Value, u64)> {
    require_root();
    let record = |early: bool| {
        let mut program = Program::start(arguments);
        if !early {
            program.go();
            std::thread::sleep(Duration::from_millis(50));
        }
        let recording = Recorder::new().pid(program.pid()).start();
        if early {
            program.go();
        }
        // The window is open, and the program was told to go on: a busy machine may have let both wait until now.
        let from = monotonic_ns();
        std::thread::sleep(Duration::from_millis(600));
        let worked_ns = monotonic_ns() - from;
        let report = recording.finish().report();
        (program, report, worked_ns)
    };
    vec![record(true), record(false)]
}

#[track_caller]
fn assert_idle(report: &Value, threads: &[&Value], worked_ns: u64) {
    assert_eq!(report["totals"]["stalled_ns"], 0, "{:#}", report["causes"]);
    assert!(!threads.is_empty(), "{:#}", report["threads"]);
    for thread in threads {
        // A thread that was woken on a busy machine waits for a CPU, and that is no part of its sleep.
        let awake = sum(&[thread], "runnable_ns") + sum(&[thread], "running_ns");
        let asleep = worked_ns.saturating_sub(awake);
        let idle = sum(&[thread], "idle_ns");
        assert!(idle >= asleep * 9 / 10, "idle for {idle} of {asleep} ns: {thread}");
    }
}

/// Checks the first thread of the program.
#[track_caller]
fn assert_first_thread_idle(arguments: &[&str]) {
    for (program, report, worked_ns) in record_idle(arguments) {
        let first = rows(&report, "threads", &[("tid", json!(program.pid()))]);
        assert_idle(&report, &first, worked_ns);
    }
}

#[test]
fn an_accept_loop_is_idle() {
    assert_first_thread_idle(&["accept"]);
}

#[test]
fn polling_a_listening_socket_is_idle_whoever_else_is_in_the_set() {
    let peer = Peer::silent();
    assert_first_thread_idle(&["poll-listener", &peer.name()]);
}

#[test]
fn a_listening_socket_at_the_end_of_a_large_array_is_found() {
    let peer = Peer::silent();
    assert_first_thread_idle(&["poll-sparse", &peer.name()]);
}

#[test]
fn a_listening_socket_among_hundreds_of_connections_is_found() {
    let peer = Peer::silent();
    assert_first_thread_idle(&["epoll-crowd", &peer.name(), "200"]);
}

#[test]
fn sleep_is_idle() {
    assert_first_thread_idle(&["sleep", "20"]);
}

#[test]
fn pool_threads_on_a_condition_variable_are_idle() {
    for (program, report, worked_ns) in record_idle(&["pool", "6"]) {
        let all = rows(&report, "threads", &[("pid", json!(program.pid()))]);
        let pool: Vec<&Value> =
            all.into_iter().filter(|thread| thread["tid"] != json!(program.pid())).collect();
        assert_eq!(pool.len(), 6);
        assert_idle(&report, &pool, worked_ns);
    }
}
