//! Connections: outcome, count, retransmitted SYNs and time, attached before and in the middle.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use serde_json::{Value, json};
use stallscope::demo::{Host, Network, monotonic_ns};
use stallscope_tests::{
    Measured, Peer, Program, Recorder, assert_between, assert_close, finding, record_run, require_root, rows,
    sum,
};

const MS: u64 = 1_000_000;

fn network() -> (Network, Host) {
    require_root();
    let network = Network::new().unwrap();
    let client = network.add_host(1).unwrap();
    (network, client)
}

/// A host, and an address of its link whose SYNs vanish.
fn silent() -> (Host, String) {
    let (_, client) = network();
    client.make_silent("10.77.0.99".parse().unwrap()).unwrap();
    (client, "10.77.0.99:29500".to_owned())
}

/// Makes connections of this host time out after so many repetitions of the SYN: one second, then two, four …
fn syn_retries(client: &Host, retries: &str) {
    client.namespace().sysctl("ipv4/tcp_syn_retries", retries).unwrap();
    // Linux 6.5 and later repeat the SYN each second at first, as often as this says, on top of the retries.
    let linear = "ipv4/tcp_syn_linear_timeouts";
    if std::path::Path::new("/proc/sys/net").join(linear).exists() {
        client.namespace().sysctl(linear, "0").unwrap();
    }
}

/// The rows of a peer, all with this result.
#[track_caller]
fn connects<'a>(report: &'a Value, peer: &str, result: &str) -> Vec<&'a Value> {
    let found = rows(report, "connects", &[("peer", json!(peer))]);
    assert!(
        !found.is_empty() && found.iter().all(|row| row["result"] == result),
        "connections to {peer} are to end with {result}: {:#}",
        report["connects"]
    );
    found
}

#[track_caller]
fn connect<'a>(report: &'a Value, peer: &str, result: &str) -> &'a Value {
    let found = connects(report, peer, result);
    assert_eq!(found.len(), 1, "{found:#?}");
    found[0]
}

#[track_caller]
fn assert_stalled(report: &Value, measured: impl Into<Measured>) {
    let measured = measured.into();
    assert_close("rows", sum(&rows(report, "connects", &[]), "stalled_ns"), measured);
    let cause = rows(report, "causes", &[("cause", json!("tcp.connect"))]);
    assert_close("tcp.connect", sum(&cause, "stalled_ns"), measured);
}

#[test]
fn refused_connections_are_counted_however_quick() {
    let (network, client) = network();
    let other = network.add_host(2).unwrap();
    let peer = SocketAddr::new(other.address().into(), 29500).to_string();
    let mut program = Program::start_on(&client, &["connect", &peer, "30"]);
    let (values, trace) = record_run(&mut program);
    assert_eq!(values.get::<String>("result"), "ECONNREFUSED");
    let report = trace.report();
    let row = connect(&report, &peer, "ECONNREFUSED");
    assert_eq!(
        (&row["count"], &row["family"], &row["syn_retransmits"]),
        (&json!(30), &json!("inet"), &json!(0))
    );
    assert_eq!((&row["pid"], &row["tid"]), (&json!(program.pid()), &json!(program.pid())));
    assert_eq!(row["began_earlier"], false);
    finding(&report, "tcp.connect_refused");
}

#[test]
fn ipv6_peers_are_named_in_brackets() {
    let (network, client) = network();
    let other = network.add_host(2).unwrap();
    let peer = SocketAddr::new(other.address6().into(), 29500).to_string();
    assert!(peer.starts_with("[fd77::2]"));
    let (_, trace) = record_run(&mut Program::start_on(&client, &["connect", &peer, "3"]));
    let report = trace.report();
    let row = connect(&report, &peer, "ECONNREFUSED");
    assert_eq!((&row["count"], &row["family"]), (&json!(3), &json!("inet6")));

    let server = Peer::late_on(&other, other.address6().into(), Duration::ZERO);
    let (_, trace) = record_run(&mut Program::start_on(&client, &["connect", &server.name(), "3"]));
    assert_eq!(connect(&trace.report(), &server.name(), "ok")["count"], 3);
}

#[test]
fn an_unreachable_peer_fails_with_its_errno() {
    let (_, client) = network();
    client.make_unreachable("10.77.0.98".parse().unwrap()).unwrap();
    let (_, trace) = record_run(&mut Program::start_on(&client, &["connect", "10.77.0.98:29500", "5"]));
    let report = trace.report();
    assert_eq!(connect(&report, "10.77.0.98:29500", "EHOSTUNREACH")["count"], 5);
    finding(&report, "tcp.peer_unreachable");
}

#[test]
fn an_address_without_a_machine_stalls_until_the_kernel_gives_up() {
    let (_, client) = network();
    // Nobody answers the ARP requests: EHOSTUNREACH after about three seconds.
    let peer = "10.77.0.97:29500";
    let (values, trace) = record_run(&mut Program::start_on(&client, &["connect", peer]));
    assert_eq!(values.get::<String>("result"), "EHOSTUNREACH");
    let report = trace.report();
    assert_eq!(connect(&report, peer, "EHOSTUNREACH")["count"], 1);
    assert_stalled(&report, values.measured());
    finding(&report, "tcp.peer_unreachable");
}

#[test]
fn a_dropped_syn_is_in_flight_with_its_retransmissions() {
    let (client, peer) = silent();
    let mut program = Program::start_on(&client, &["connect", &peer]);
    let recording = Recorder::new().pid(program.pid()).start();
    let began = monotonic_ns();
    program.go();
    // The kernel sends the SYN again after one second, and after two.
    std::thread::sleep(Duration::from_millis(1600));
    let trace = recording.finish();
    let waited = monotonic_ns() - began;
    let report = trace.report();
    let row = connect(&report, &peer, "in_flight");
    assert_eq!((&row["count"], &row["syn_retransmits"]), (&json!(1), &json!(1)));
    assert_eq!(row["began_earlier"], false);
    let stalled = sum(&[row], "stalled_ns");
    assert!((1500 * MS..=waited).contains(&stalled), "stalled {stalled} of {waited} ns");
    let cause = rows(&report, "causes", &[("cause", json!("tcp.connect"))]);
    assert_eq!(sum(&cause, "in_flight"), 1);
    finding(&report, "tcp.peer_unreachable");
}

#[test]
fn a_dropped_syn_times_out() {
    let (client, peer) = silent();
    syn_retries(&client, "1");
    let (values, trace) = record_run(&mut Program::start_on(&client, &["connect", &peer]));
    assert_eq!(values.get::<String>("result"), "ETIMEDOUT");
    let report = trace.report();
    let row = connect(&report, &peer, "ETIMEDOUT");
    assert_eq!((&row["count"], &row["syn_retransmits"]), (&json!(1), &json!(1)));
    assert_stalled(&report, values.measured());
    finding(&report, "tcp.connect_timeout");
}

#[test]
fn attaching_in_the_middle_of_a_hanging_connect_reports_it() {
    let (client, peer) = silent();
    let mut program = Program::start_on(&client, &["connect", &peer]);
    program.go();
    // The SYN was repeated after a second, before anyone watched; a younger attempt is no finding yet.
    std::thread::sleep(Duration::from_millis(1200));
    let recording = Recorder::new().pid(program.pid()).start();
    std::thread::sleep(Duration::from_millis(300));
    let report = recording.finish().report();
    let row = connect(&report, &peer, "in_flight");
    assert_eq!((&row["count"], &row["began_earlier"]), (&json!(1), &json!(true)));
    assert!(row["syn_retransmits"].as_u64().unwrap() >= 1, "{row}");
    assert_stalled(&report, report["target"]["duration_ns"].as_u64().unwrap());
    finding(&report, "tcp.peer_unreachable");
}

#[test]
fn attaching_in_the_middle_sees_the_time_out_come() {
    let (client, peer) = silent();
    let mut program = Program::start_on(&client, &["connect", &peer]);
    program.go();
    std::thread::sleep(Duration::from_millis(200));
    let attaching = monotonic_ns();
    let recording = Recorder::new().pid(program.pid()).start();
    let opened = recording.opened_ns;
    // The kernel asks how often when the time for the next SYN has come.
    syn_retries(&client, "1");
    let values = program.done();
    let end: u64 = values.get("end");
    let report = recording.finish().report();
    let row = connect(&report, &peer, "ETIMEDOUT");
    assert_eq!((&row["count"], &row["began_earlier"]), (&json!(1), &json!(true)));
    // The window opened before the test saw that.
    let least = (end - opened).saturating_sub(values.busy_ns());
    assert_between("from the attach on", sum(&[row], "stalled_ns"), least, end - attaching);
}

#[test]
fn a_non_blocking_connect_is_timed_until_epoll_tells() {
    let (network, client) = network();
    let server = network.add_host(2).unwrap();
    let peer = Peer::late_on(&server, server.address().into(), Duration::ZERO);
    // Once before: without the peer's link address the SYN would wait for ARP inside this host.
    assert_eq!(Program::start_on(&client, &["connect", &peer.name()]).run().get::<String>("result"), "ok");
    let mut program = Program::start_on(&client, &["connect-epoll", &peer.name(), "20000"]);
    let recording = Recorder::new().pid(program.pid()).start();
    server.unplug().unwrap();
    program.go();
    // The first SYN is lost, the second one comes through.
    std::thread::sleep(Duration::from_millis(400));
    server.plug().unwrap();
    let values = program.done();
    assert_eq!(values.get::<String>("result"), "ok");
    assert!(values.ns() > 500 * MS, "the first SYN was to be lost: {}", values.ns());
    let report = recording.finish().report();
    let row = connect(&report, &peer.name(), "ok");
    assert_eq!(row["count"], 1);
    assert!(row["syn_retransmits"].as_u64().unwrap() >= 1, "{row}");
    assert_close("handshake", sum(&[row], "handshake.sum_ns"), values.measured());
    assert_stalled(&report, values.measured());
}

#[test]
fn attaching_in_the_middle_of_a_non_blocking_connect_reports_it() {
    let (client, peer) = silent();
    let mut program = Program::start_on(&client, &["connect-epoll", &peer, "20000"]);
    program.go();
    std::thread::sleep(Duration::from_millis(1200));
    let recording = Recorder::new().pid(program.pid()).start();
    std::thread::sleep(Duration::from_millis(300));
    let report = recording.finish().report();
    let row = connect(&report, &peer, "in_flight");
    assert_eq!((&row["count"], &row["began_earlier"]), (&json!(1), &json!(true)));
    assert_eq!((&row["pid"], &row["tid"]), (&json!(program.pid()), &json!(program.pid())));
    assert!(row["syn_retransmits"].as_u64().unwrap() >= 1, "{row}");
    assert_stalled(&report, report["target"]["duration_ns"].as_u64().unwrap());
    finding(&report, "tcp.peer_unreachable");
}

#[test]
fn attaching_in_the_middle_of_parallel_connects_tells_the_threads_apart() {
    let (client, peer) = silent();
    let mut program = Program::start_on(&client, &["connect-parallel", &peer, "5"]);
    program.go();
    std::thread::sleep(Duration::from_millis(200));
    let recording = Recorder::new().pid(program.pid()).start();
    std::thread::sleep(Duration::from_millis(300));
    let report = recording.finish().report();
    let found = connects(&report, &peer, "in_flight");
    assert_eq!(found.len(), 5, "{found:#?}");
    assert!(found.iter().all(|row| row["count"] == 1 && row["began_earlier"] == true), "{found:#?}");
    assert_stalled(&report, 5 * report["target"]["duration_ns"].as_u64().unwrap());
}

#[test]
fn an_ipv6_peer_that_is_silent_is_in_flight() {
    let (_, client) = network();
    client.make_silent("fd77::99".parse().unwrap()).unwrap();
    let peer = "[fd77::99]:29500";
    let mut program = Program::start_on(&client, &["connect", peer]);
    let recording = Recorder::new().pid(program.pid()).start();
    program.go();
    std::thread::sleep(Duration::from_millis(1400));
    let report = recording.finish().report();
    let row = connect(&report, peer, "in_flight");
    assert_eq!(row["count"], 1);
    assert!(row["syn_retransmits"].as_u64().unwrap() >= 1, "{row}");
    assert_eq!(row["family"], "inet6");
    finding(&report, "tcp.peer_unreachable");
}

#[test]
fn a_non_blocking_connect_that_fails_has_the_errno_of_the_socket() {
    let (client, peer) = silent();
    syn_retries(&client, "1");
    let mut program = Program::start_on(&client, &["connect-epoll", &peer, "20000"]);
    let (values, trace) = record_run(&mut program);
    assert_eq!(values.get::<String>("result"), "ETIMEDOUT");
    let report = trace.report();
    assert_eq!(connect(&report, &peer, "ETIMEDOUT")["count"], 1);
    assert_stalled(&report, values.measured());
}

#[test]
fn a_non_blocking_connect_that_nobody_waits_for_any_more_is_in_flight() {
    let (client, peer) = silent();
    let mut program = Program::start_on(&client, &["connect-epoll", &peer, "400"]);
    let (values, trace) = record_run(&mut program);
    assert_eq!(values.get::<String>("result"), "timeout");
    let report = trace.report();
    assert_eq!(connect(&report, &peer, "in_flight")["count"], 1);
    // The thread waited as long as it polled; the handshake goes on without it.
    let cause = rows(&report, "causes", &[("cause", json!("tcp.connect"))]);
    assert_close("tcp.connect", sum(&cause, "stalled_ns"), values.measured());
}

#[test]
fn parallel_connects_are_told_apart_by_thread() {
    let (client, peer) = silent();
    syn_retries(&client, "1");
    let mut program = Program::start_on(&client, &["connect-parallel", &peer, "8"]);
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    let found = connects(&report, &peer, "ETIMEDOUT");
    assert_eq!(found.len(), 8, "{found:#?}");
    assert!(found.iter().all(|row| row["count"] == 1 && row["syn_retransmits"] == 1), "{found:#?}");
    assert_stalled(&report, values.measured());
}

#[test]
fn unix_sockets_are_left_alone() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    // The listener's queue has room for 128.
    let mut program = Program::start(&["connect-unix", path.to_str().unwrap(), "100"]);
    let (values, trace) = record_run(&mut program);
    assert_eq!(values.get::<u32>("connected"), 100);
    let report = trace.report();
    assert_eq!(report["connects"], json!([]));
    assert_eq!(report["coverage"]["syscalls_seen"]["connect"], 100);
    assert_eq!(report["totals"]["stalled_ns"], 0);
}

#[test]
fn many_quick_connections_succeed_and_are_all_counted() {
    require_root();
    let peer = Peer::silent();
    assert!(matches!(peer.address().ip(), IpAddr::V4(_)));
    let (_, trace) = record_run(&mut Program::start(&["connect", &peer.name(), "100"]));
    let report = trace.report();
    let row = connect(&report, &peer.name(), "ok");
    assert_eq!((&row["count"], &row["handshake"]["count"]), (&json!(100), &json!(100)));
    assert_eq!(report["findings"], json!([]), "nothing is wrong with these");
}
