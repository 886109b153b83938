//! Calls that the program's own time limits end, and a close that lingers: stalls of their peer.

use serde_json::{Value, json};
use stallscope::demo::{Host, Network};
use stallscope_tests::{Peer, Program, Values, assert_close, finding, record_run, require_root, rows, sum};

/// Limit of each call in milliseconds, and how many.
const LIMIT: &str = "400";
const TIMES: &str = "3";

fn silent() -> (Network, Host, &'static str) {
    require_root();
    let network = Network::new().unwrap();
    let client = network.add_host(1).unwrap();
    client.make_silent("10.77.0.99".parse().unwrap()).unwrap();
    (network, client, "10.77.0.99:29500")
}

/// That all time of the program is this cause's and in the rows of this peer.
#[track_caller]
fn assert_stalled(report: &Value, cause: &str, (table, peer): (&str, &str), values: &Values) {
    let of_cause = rows(report, "causes", &[("cause", json!(cause))]);
    assert_close(cause, sum(&of_cause, "stalled_ns"), values.measured());
    assert_close(cause, report["totals"]["stalled_ns"].as_u64().unwrap(), values.measured());
    let of_peer = rows(report, table, &[("peer", json!(peer))]);
    assert_close(table, sum(&of_peer, "stalled_ns"), values.measured());
}

#[test]
fn a_connect_with_a_time_limit_stalls_until_it_is_over() {
    let (_network, client, peer) = silent();
    let mut program = Program::start_on(&client, &["connect-limit", peer, TIMES, LIMIT]);
    let (values, trace) = record_run(&mut program);
    assert_eq!(values.get::<String>("result"), "EINPROGRESS");
    let report = trace.report();
    assert_stalled(&report, "tcp.connect", ("connects", peer), &values);
    let row = rows(&report, "connects", &[]);
    assert_eq!(row.len(), 1, "{row:#?}");
    assert_eq!((&row[0]["result"], &row[0]["count"]), (&json!("timed_out"), &json!(3)));
    finding(&report, "tcp.connect_timeout");
}

#[test]
fn transfers_with_a_time_limit_stall_until_it_is_over() {
    require_root();
    for (how, cause) in [("recv-limit", "sock.recv"), ("send-limit", "sock.send")] {
        let peer = Peer::silent();
        let mut program = Program::start(&[how, &peer.name(), TIMES, LIMIT]);
        let (values, trace) = record_run(&mut program);
        assert_stalled(&trace.report(), cause, ("sockets", &peer.name()), &values);
    }
}

#[test]
fn a_close_that_lingers_stalls_on_the_peer_that_does_not_read() {
    require_root();
    let peer = Peer::silent();
    let mut program = Program::start(&["close-linger", &peer.name(), "1"]);
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    assert!(values.ns() > 500_000_000, "it did not linger: {}", values.ns());
    assert_stalled(&report, "sock.send", ("sockets", &peer.name()), &values);
    let row = rows(&report, "sockets", &[("direction", json!("send"))]);
    assert_eq!(sum(&row, "waits"), 1, "{row:#?}");
}
