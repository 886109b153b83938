//! Signals to the recorder and to its target, several recorders, and names that do harm where they are shown.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use stallscope::demo::monotonic_ns;
use stallscope_tests::{
    Peer, Program, Recorder, assert_between, assert_close, report, require_root, rows, stallscope, sum,
};

const LATE: Duration = Duration::from_millis(40);

/// The one row of what the program received.
#[track_caller]
fn receive<'a>(report: &'a Value, peer: &Peer) -> &'a Value {
    let found = rows(report, "sockets", &[("peer", json!(peer.name())), ("direction", json!("recv"))]);
    assert_eq!(found.len(), 1, "{:#}", report["sockets"]);
    found[0]
}

#[test]
fn a_recorder_that_is_told_to_end_leaves_a_complete_trace() {
    require_root();
    let peer = Peer::silent();
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "1"]);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let recording = Recorder::new().pid(program.pid()).start();
        if signal == Signal::SIGTERM {
            program.go();
        }
        std::thread::sleep(Duration::from_millis(300));
        let trace = recording.end_with(signal);
        assert!(trace.status.success(), "{signal}: {:?} {}", trace.status, trace.stderr);
        let report = trace.report();
        assert_eq!((&report["trace"]["complete"], &report["trace"]["damage"]), (&json!(true), &json!([])));
        assert_eq!(receive(&report, &peer)["in_flight"], 1, "{signal}");
    }
}

#[test]
fn a_killed_recorder_does_no_harm_to_its_target() {
    require_root();
    let peer = Peer::late(LATE);
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "1500"]);
    let recording = Recorder::new().pid(program.pid()).start();
    program.go();
    std::thread::sleep(Duration::from_millis(700));
    let trace = recording.kill();
    // Another recorder finds the target as if there had never been one.
    let second = Recorder::new().pid(program.pid()).start();
    std::thread::sleep(Duration::from_millis(300));
    peer.hurry();
    let values = program.done();
    assert_eq!(values.get::<u64>("looks"), 1500, "each reply came in one piece");
    let after = second.finish();
    assert!(after.status.success(), "{}", after.stderr);
    assert!(sum(&[receive(&after.report(), &peer)], "waits") > 0);
    assert_eq!(report(&trace.path)["trace"]["complete"], false);
}

#[test]
fn two_recorders_of_one_target_see_the_same() {
    require_root();
    let peer = Peer::late(LATE);
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "6"]);
    let recordings = [(); 2].map(|()| Recorder::new().pid(program.pid()).start());
    let values = program.run();
    for recording in recordings {
        let report = recording.finish().report();
        let row = receive(&report, &peer);
        assert_eq!((&row["waits"], &row["in_flight"]), (&json!(6), &json!(0)));
        assert_close("both", sum(&[row], "stalled_ns"), values.measured());
        assert_eq!(report["coverage"]["syscalls_seen"]["recvfrom"], 6);
        assert_eq!(report["coverage"]["lost_events"], 0);
    }
}

#[test]
fn a_target_that_is_stopped_for_a_while_waits_before_and_after() {
    require_root();
    let peer = Peer::late(Duration::from_millis(900));
    // Not epoll_wait: with or without a recorder Linux lets it fail with EINTR then.
    for how in ["blocking", "read", "poll", "select"] {
        let mut program = Program::start(&["recv", how, &peer.name(), "1"]);
        let recording = Recorder::new().pid(program.pid()).start();
        program.go();
        std::thread::sleep(Duration::from_millis(200));
        let stopping = monotonic_ns();
        program.signal(Signal::SIGSTOP);
        program.wait_stopped();
        let stopped = monotonic_ns();
        std::thread::sleep(Duration::from_millis(300));
        let going_on = monotonic_ns();
        program.signal(Signal::SIGCONT);
        let went_on = monotonic_ns();
        let values = program.done();
        let report = recording.finish().report();
        let row = receive(&report, &peer);
        assert_eq!(row["in_flight"], 0, "{how}: {row}");
        // The peer is not to blame for the time in which the program was stopped.
        let least = (values.ns() - (went_on - stopping)).saturating_sub(values.busy_ns());
        assert_between(how, sum(&[row], "stalled_ns"), least, values.ns() - (going_on - stopped));
    }
}

#[test]
fn attaching_to_a_stopped_target_sees_it_go_on() {
    require_root();
    let peer = Peer::silent();
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "1"]);
    program.go();
    peer.wait_asked();
    std::thread::sleep(Duration::from_millis(50));
    program.signal(Signal::SIGSTOP);
    program.wait_stopped();
    let recording = Recorder::new().pid(program.pid()).start();
    let continuing = monotonic_ns();
    let runnable = program.schedstat().1;
    program.signal(Signal::SIGCONT);
    let continued = monotonic_ns();
    std::thread::sleep(Duration::from_millis(500));
    let runnable = program.schedstat().1 - runnable;
    let released = peer.release();
    let end: u64 = program.done().get("end");
    let report = recording.finish().report();
    let row = receive(&report, &peer);
    assert_eq!((&row["waits"], &row["in_flight"]), (&json!(1), &json!(0)));
    let least = (released - continued).saturating_sub(runnable);
    assert_between("from SIGCONT on", sum(&[row], "stalled_ns"), least, end - continuing);
}

#[test]
fn hostile_names_do_no_harm_where_they_are_shown() {
    require_root();
    let peer = Peer::late(LATE);
    // Separators of the folded form, a new line, an escape sequence, markup.
    let name = "a;b 7\n\u{1b}[2J<&";
    let mut program = Program::start(&["named", name, &peer.name(), "3"]);
    let recording = Recorder::new().pid(program.pid()).start();
    program.run();
    let trace = recording.finish();
    assert!(trace.status.success(), "{}", trace.stderr);
    let report = trace.report();
    let row = receive(&report, &peer);
    assert_eq!(row["waits"], 3);
    // `folded` panics on a line that is not `frames weight`.
    let folded = trace.folded();
    let weight: u64 = folded.iter().map(|(_, weight)| weight).sum();
    assert_close("folded", weight, sum(&[row], "stalled_ns"));
    let shown = folded.iter().all(|(frames, _)| frames[0].contains("workload") && frames[1].contains("b 7"));
    assert!(shown, "process and thread are one frame each: {folded:#?}");
    let path = trace.path.to_str().unwrap();
    let svg = trace.folder().join("flame.svg");
    let flame = stallscope(&["flame", path, "-o", svg.to_str().unwrap()]);
    assert!(flame.status.success(), "{}", String::from_utf8_lossy(&flame.stderr));
    let text = stallscope(&["report", path]);
    assert!(text.status.success(), "{}", String::from_utf8_lossy(&text.stderr));
    for (what, bytes) in [("report", text.stdout), ("flame graph", std::fs::read(svg).unwrap())] {
        assert!(!bytes.contains(&0x1b), "no escape character in the {what}");
        // Plain text has no markup.
        let markup = what == "flame graph" && String::from_utf8(bytes).unwrap().contains("[2J<&");
        assert!(!markup, "no markup in the {what}");
    }
}

#[test]
fn a_recorder_that_is_told_to_end_while_it_attaches_ends_in_order() {
    require_root();
    let peer = Peer::silent();
    let program = Program::start(&["recv", "blocking", &peer.name(), "1"]);
    let mut in_order = 0;
    for delay in (0..12).map(|step| Duration::from_millis(20 * step)) {
        let recording = Recorder::new().pid(program.pid()).launch();
        std::thread::sleep(delay);
        let trace = recording.end_with(Signal::SIGTERM);
        // Before its first line of code the recorder is any other process.
        if trace.status.code().is_none() {
            continue;
        }
        assert!(trace.status.success(), "{delay:?}: {:?} {}", trace.status, trace.stderr);
        assert_eq!(trace.report()["trace"]["complete"], true, "{delay:?}");
        in_order += 1;
    }
    assert!(in_order > 0);
}
