//! `--probes`: what was not asked for is not recorded.

use std::time::Duration;

use serde_json::{Value, json};
use stallscope::demo::{Action, Rule};
use stallscope_tests::{Peer, Program, Recorder, Resolver, require_root, rows, sum};

/// Records the program's work with these families.
#[track_caller]
fn record(program: &mut Program, families: &str) -> Value {
    let recording = Recorder::new().pid(program.pid()).args(&["--probes", families]).start();
    program.run();
    let trace = recording.finish();
    assert!(trace.status.success(), "record: {:?}: {}", trace.status, trace.stderr);
    trace.report()
}

/// State and reason of a family.
#[track_caller]
fn family<'a>(report: &'a Value, name: &str) -> (&'a str, &'a str) {
    let all = report["coverage"]["probes"].as_array().unwrap();
    let row = all.iter().find(|row| row["family"] == name).unwrap_or_else(|| panic!("no {name} in {all:?}"));
    (row["state"].as_str().unwrap(), row["reason"].as_str().unwrap())
}

const NOT_ASKED: (&str, &str) = ("off", "not asked for (--probes)");

fn late_peer() -> (Peer, Program) {
    require_root();
    let peer = Peer::late(Duration::from_millis(40));
    let program = Program::start(&["recv", "blocking", &peer.name(), "5"]);
    (peer, program)
}

#[test]
fn without_net_no_socket_wait_is_recorded() {
    let (_peer, mut program) = late_peer();
    let report = record(&mut program, "dns");
    for section in ["sockets", "connects", "hops", "dns"] {
        assert_eq!(report[section], json!([]), "{section}");
    }
    assert_eq!(report["totals"]["stalled_ns"], 0, "{:#}", report["causes"]);
    for name in ["net", "tcp", "rtt"] {
        assert_eq!(family(&report, name), NOT_ASKED, "{name}");
    }
}

#[test]
fn with_net_the_same_waits_are_recorded() {
    let (peer, mut program) = late_peer();
    let report = record(&mut program, "net");
    let found = rows(&report, "sockets", &[("peer", json!(peer.name())), ("direction", json!("recv"))]);
    assert!(sum(&found, "stalled_ns") > 0, "{:#}", report["sockets"]);
    assert_eq!(family(&report, "net").0, "on");
    assert_eq!(family(&report, "dns"), NOT_ASKED);
}

#[test]
fn without_any_family_of_sockets_their_calls_are_not_even_counted() {
    let (_peer, mut program) = late_peer();
    let report = record(&mut program, "sched");
    assert_eq!(report["totals"]["stalled_ns"], 0, "{:#}", report["causes"]);
    let calls = report["coverage"]["syscalls_seen"].as_object().unwrap();
    let of_sockets = ["recvfrom", "sendto", "read", "write", "connect", "poll"];
    assert!(of_sockets.iter().all(|call| !calls.contains_key(*call)), "{calls:?}");
    for name in ["net", "tcp", "rtt", "dns"] {
        assert_eq!(family(&report, name), NOT_ASKED, "{name}");
    }
}

#[test]
fn dns_alone_has_lookups_and_without_it_there_are_none() {
    let answer = Action::Answer { delay: Duration::from_millis(60) };
    let rig = Resolver::start(vec![Rule::new("test", answer)]);
    let arguments = ["getaddrinfo", "a.test", "2", "0", "inet"];
    let report = record(&mut rig.program(&arguments), "dns");
    let found = rows(&report, "dns", &[("name", json!("a.test"))]);
    assert_eq!((sum(&found, "attempts"), sum(&found, "answered")), (2, 2), "{:#}", report["dns"]);
    assert!(sum(&found, "stalled_ns") > 0);
    assert_eq!(found[0]["api"], "getaddrinfo");
    assert_eq!(report["totals"]["stalled_ns"], sum(&found, "stalled_ns"));

    let report = record(&mut rig.program(&arguments), "net");
    assert_eq!(report["dns"], json!([]));
    assert_eq!(rows(&report, "causes", &[("cause", json!("dns.resolve"))]), [&json!(null); 0]);
    assert_eq!(family(&report, "dns"), NOT_ASKED);
}
