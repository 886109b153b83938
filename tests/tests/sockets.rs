//! Waits for a connected peer: blocking, polling and spinning; sending to a peer that does not read.

use std::time::Duration;

use serde_json::{Value, json};
use stallscope::demo::{Network, monotonic_ns};
use stallscope_tests::{
    Measured, Peer, Program, Recorder, assert_between, assert_close, record_run, require_root, rows, sum,
};

const MS: u64 = 1_000_000;
/// Exchanges of a program, and how late each reply is.
const TIMES: u64 = 8;
const LATE: Duration = Duration::from_millis(30);

/// The one row of a peer and direction.
#[track_caller]
fn socket<'a>(report: &'a Value, peer: &str, direction: &str) -> &'a Value {
    let found = rows(report, "sockets", &[("peer", json!(peer)), ("direction", json!(direction))]);
    assert_eq!(found.len(), 1, "rows of {peer} {direction}: {:#}", report["sockets"]);
    found[0]
}

#[track_caller]
fn stalled(report: &Value, cause: &str) -> u64 {
    sum(&rows(report, "causes", &[("cause", json!(cause))]), "stalled_ns")
}

/// Receives `TIMES` replies in the way `how`; everything that must hold for each way.
fn check_receiver(how: &str) -> (stallscope_tests::Values, Value) {
    require_root();
    let peer = Peer::late(LATE);
    let mut program = Program::start(&["recv", how, &peer.name(), &TIMES.to_string()]);
    let (values, trace) = record_run(&mut program);
    let report = trace.report();
    let row = socket(&report, &peer.name(), "recv");
    let waits = row["waits"].as_u64().unwrap();
    assert!((TIMES..=TIMES + values.get::<u64>("gaps")).contains(&waits), "{how}: {row}");
    assert_eq!(row["in_flight"], 0, "{how}: {row}");
    assert_eq!((&row["pid"], &row["tid"]), (&json!(program.pid()), &json!(program.pid())));
    assert_eq!(row["duration"]["count"], waits, "{how}: {row}");
    // Never less than the peer was late, but for times in which the program was kept from looking: those that it
    // noticed itself, and those that the kernel counts as waiting for a processor.
    let served: u64 = peer.served_ns().iter().sum();
    let least = served.saturating_sub(values.get::<u64>("kept_ns") + values.get::<u64>("runq"));
    for recorded in [sum(&[row], "stalled_ns"), sum(&[row], "duration.sum_ns"), stalled(&report, "sock.recv")]
    {
        assert_close(how, recorded, values.measured());
        assert_between(how, recorded, least, values.ns());
    }
    assert_eq!(report["coverage"]["lost_events"], 0, "{how}");
    (values, report)
}

#[test]
fn blocking_receivers_wait_as_long_as_the_peer_is_late() {
    for how in ["blocking", "read", "recvmsg"] {
        check_receiver(how);
    }
}

#[test]
fn waits_in_poll_calls_are_the_peers() {
    for how in ["poll", "ppoll", "select", "epoll"] {
        check_receiver(how);
    }
}

#[test]
fn a_spinning_receiver_makes_one_wait_of_all_its_looks() {
    let (values, report) = check_receiver("spin");
    let looks: u64 = values.get("looks");
    assert_eq!(report["coverage"]["syscalls_seen"]["recvfrom"], looks);
    let polls = sum(&rows(&report, "sockets", &[("direction", json!("recv"))]), "polls");
    assert!(polls + TIMES + values.get::<u64>("gaps") >= looks, "{polls} of {looks} looks are in the waits");
}

#[test]
fn a_receiver_that_naps_between_looks_waits_all_the_same() {
    let (values, report) = check_receiver("yield");
    assert_eq!(report["coverage"]["syscalls_seen"]["recvfrom"], values.get::<u64>("looks"));
}

#[test]
fn each_wait_has_its_own_length() {
    require_root();
    let delays: Vec<Duration> = [10, 20, 40, 80].map(Duration::from_millis).to_vec();
    let peer = Peer::late_by(&delays);
    let (values, trace) = record_run(&mut Program::start(&["recv", "blocking", &peer.name(), "4"]));
    let report = trace.report();
    let row = socket(&report, &peer.name(), "recv");
    // By the program's own clock, which sees the wake-ups on a busy machine too.
    let mut each: Vec<u64> = values.get::<String>("each").split(',').map(|ns| ns.parse().unwrap()).collect();
    assert!(
        each.iter().zip(peer.served_ns()).all(|(waited, served)| waited + values.busy_ns() + 2 * MS > served),
        "{each:?}"
    );
    each.sort_unstable();
    for (field, ns) in [("min_ns", each[0]), ("max_ns", each[3]), ("p50_ns", each[1])] {
        let measured = Measured { ns, busy_ns: values.busy_ns() };
        assert_close(field, sum(&[row], &format!("duration.{field}")), measured);
    }
}

#[test]
fn a_silent_peer_is_in_flight_when_attached_before() {
    require_root();
    for how in ["blocking", "poll", "epoll", "spin"] {
        let peer = Peer::silent();
        let mut program = Program::start(&["recv", how, &peer.name(), "1"]);
        let recording = Recorder::new().pid(program.pid()).start();
        let (began, before) = (monotonic_ns(), program.schedstat().1);
        program.go();
        let asked = peer.wait_asked();
        std::thread::sleep(Duration::from_millis(400));
        let closing = monotonic_ns();
        let report = recording.finish().report();
        let waited = monotonic_ns() - began;
        let row = socket(&report, &peer.name(), "recv");
        assert_eq!((&row["in_flight"], &row["waits"]), (&json!(1), &json!(1)), "{how}: {row}");
        let least = (closing - asked).saturating_sub(program.schedstat().1 - before);
        assert_between(how, sum(&[row], "stalled_ns"), least, waited);
    }
}

#[test]
fn attaching_in_the_middle_of_a_silent_receive_reports_it() {
    require_root();
    for how in ["blocking", "read", "recvmsg", "poll", "ppoll", "select", "epoll", "spin"] {
        let peer = Peer::silent();
        let mut program = Program::start(&["recv", how, &peer.name(), "1"]);
        program.go();
        peer.wait_asked();
        std::thread::sleep(Duration::from_millis(50));
        let before = program.schedstat();
        let recording = Recorder::new().pid(program.pid()).start();
        std::thread::sleep(Duration::from_millis(300));
        let report = recording.finish().report();
        let after = program.schedstat();
        // A program that spins is blamed on the peer from its first look in the window on; the others sleep.
        let busy_ns = (after.1 - before.1) + if how == "spin" { 0 } else { after.0 - before.0 };
        let row = socket(&report, &peer.name(), "recv");
        assert_eq!(row["in_flight"], 1, "{how}: {row}");
        let window = report["target"]["duration_ns"].as_u64().unwrap();
        for recorded in [sum(&[row], "stalled_ns"), stalled(&report, "sock.recv")] {
            assert_close(how, recorded, Measured { ns: window, busy_ns });
        }
    }
}

#[test]
fn attaching_in_the_middle_of_a_wait_that_ends_counts_from_the_attach() {
    require_root();
    let peer = Peer::silent();
    let mut program = Program::start(&["recv", "blocking", &peer.name(), "1"]);
    program.go();
    peer.wait_asked();
    std::thread::sleep(Duration::from_millis(50));
    let attaching = monotonic_ns();
    let recording = Recorder::new().pid(program.pid()).start();
    let opened = recording.opened_ns;
    std::thread::sleep(Duration::from_millis(500));
    let released = peer.release();
    let end: u64 = program.done().get("end");
    let report = recording.finish().report();
    let row = socket(&report, &peer.name(), "recv");
    assert_eq!((&row["waits"], &row["in_flight"]), (&json!(1), &json!(0)));
    // The window opened before the test saw that.
    assert_between("from the attach on", sum(&[row], "stalled_ns"), released - opened, end - attaching);
}

#[test]
fn a_sender_waits_until_its_peer_reads() {
    require_root();
    let peer = Peer::reads_late();
    let mut program = Program::start(&["send", &peer.name(), "33554432"]);
    let recording = Recorder::new().pid(program.pid()).start();
    program.go();
    std::thread::sleep(Duration::from_secs(1));
    peer.release();
    let values = program.done();
    let report = recording.finish().report();
    let row = socket(&report, &peer.name(), "send");
    assert_eq!((&row["waits"], &row["in_flight"]), (&json!(1), &json!(0)));
    assert_close("send", sum(&[row], "stalled_ns"), values.measured());
    // Once the peer reads, the kernel may really have to repeat segments for which there was no room.
    let lost = stalled(&report, "tcp.retransmit");
    assert_close("both", stalled(&report, "sock.send") + lost, values.measured());
    let unread = peer.began_reading_ns().unwrap() - values.get::<u64>("start");
    let until_read = stalled(&report, "sock.send").min(unread);
    assert_close("nobody reads", until_read, Measured { ns: unread, busy_ns: values.busy_ns() });
}

#[test]
fn attaching_in_the_middle_of_a_blocked_send_reports_it() {
    require_root();
    let peer = Peer::reads_late();
    let mut program = Program::start(&["send", &peer.name(), "33554432"]);
    program.go();
    std::thread::sleep(Duration::from_millis(100));
    let recording = Recorder::new().pid(program.pid()).start();
    std::thread::sleep(Duration::from_millis(300));
    let report = recording.finish().report();
    let row = socket(&report, &peer.name(), "send");
    assert_eq!(row["in_flight"], 1);
    assert_close("send", sum(&[row], "stalled_ns"), report["target"]["duration_ns"].as_u64().unwrap());
}

#[test]
fn quick_calls_are_counted_without_becoming_events() {
    require_root();
    let (values, trace) = record_run(&mut Program::start(&["udp-loop", "20000"]));
    let report = trace.report();
    let times: u64 = values.get("times");
    let coverage = &report["coverage"];
    assert_eq!(
        (&coverage["syscalls_seen"]["sendto"], &coverage["syscalls_seen"]["recvfrom"]),
        (&json!(times), &json!(times))
    );
    assert_eq!(coverage["lost_events"], 0);
    let below = coverage["below_min_stall"]["count"].as_u64().unwrap();
    assert!(below > 2 * times * 9 / 10, "{below} of {} calls", 2 * times);
    let waits = sum(&rows(&report, "sockets", &[]), "waits");
    assert!(waits < times / 10, "{waits} waits of calls that take microseconds");
}

#[test]
fn stacks_show_the_calling_function_and_end_in_cause_and_peer() {
    require_root();
    let peer = Peer::late(LATE);
    let mut program = Program::start(&["recv", "blocking", &peer.name(), &TIMES.to_string()]);
    let (values, trace) = record_run(&mut program);
    let folded = trace.folded();
    let weight = |wanted: &dyn Fn(&[String]) -> bool| -> u64 {
        folded.iter().filter(|(frames, _)| wanted(frames)).map(|(_, weight)| weight).sum()
    };
    assert_close("everything", weight(&|_| true), trace.report()["totals"]["stalled_ns"].as_u64().unwrap());
    let leaf = format!("[sock.recv] {}", peer.name());
    assert_close(
        "leaf",
        weight(&|frames| frames.last().is_some_and(|frame| frame.starts_with(&leaf))),
        values.measured(),
    );
    assert!(folded.iter().all(|(frames, _)| frames[0].contains("workload")), "{folded:#?}");
    let calling = weight(&|frames| {
        let at = |name: &str| frames.iter().position(|frame| frame.contains(name));
        at("stall_outer").is_some_and(|outer| at("stall_inner").is_some_and(|inner| outer < inner))
    });
    assert_close("below stall_outer and stall_inner", calling, values.measured());
}

#[test]
fn thread_time_is_a_partition_and_its_sums_agree() {
    require_root();
    let peer = Peer::late(LATE);
    let mut program = Program::start(&["recv", "blocking", &peer.name(), &TIMES.to_string()]);
    let report = record_run(&mut program).1.report();
    for thread in rows(&report, "threads", &[]) {
        let parts: u64 = ["running_ns", "runnable_ns", "stalled_ns", "idle_ns", "other_ns"]
            .iter()
            .map(|part| sum(&[thread], part))
            .sum();
        assert_eq!(parts, sum(&[thread], "wall_ns"), "{thread}");
    }
    let threads = rows(&report, "threads", &[]);
    let of_causes: u64 = rows(&report, "causes", &[("domain", json!("thread"))])
        .iter()
        .filter(|row| row["cause"] != "sched.runq")
        .map(|row| sum(&[*row], "stalled_ns"))
        .sum();
    assert_eq!(report["totals"]["stalled_ns"], sum(&threads, "stalled_ns"));
    assert_eq!(report["totals"]["stalled_ns"], of_causes);
    assert_eq!(report["totals"]["idle_ns"], sum(&threads, "idle_ns"));
    assert_eq!(report["totals"]["thread_wall_ns"], sum(&threads, "wall_ns"));
}

#[test]
fn lost_packets_are_retransmissions_of_the_hop() {
    require_root();
    let network = Network::new().unwrap();
    let (client, server) = (network.add_host(1).unwrap(), network.add_host(2).unwrap());
    let peer = Peer::late_on(&server, server.address().into(), Duration::ZERO);
    let mut program = Program::start_on(&client, &["recv", "blocking", &peer.name(), "1"]);
    let recording = Recorder::new().pid(program.pid()).start();
    server.unplug().unwrap();
    program.go();
    std::thread::sleep(Duration::from_millis(1500));
    server.plug().unwrap();
    program.done();
    let report = recording.finish().report();
    let hops = rows(&report, "hops", &[("peer", json!(server.address().to_string()))]);
    assert_eq!(hops.len(), 1, "{:#}", report["hops"]);
    // 200 ms, then 400 ms: at least two while the host was unplugged.
    assert!(sum(&hops, "retransmits") >= 2, "{:#}", hops[0]);
    assert_eq!(hops[0]["transport"], "tcp");
    assert!(sum(&hops, "rtt.count") >= 1, "{:#}", hops[0]);
}

/// Polls that many silent connections, to 16 peers by turns: how long, the report, and the peers.
fn poll_crowd(connections: u64) -> (Measured, Value, Vec<Peer>) {
    require_root();
    let peers: Vec<Peer> = (0..16).map(|_| Peer::silent()).collect();
    let mut arguments = vec!["poll-crowd".to_owned(), connections.to_string()];
    arguments.extend(peers.iter().map(Peer::name));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (values, trace) = record_run(&mut Program::start(&arguments));
    (values.measured(), trace.report(), peers)
}

#[test]
fn a_poll_of_many_peers_is_shared_equally_by_all_also_those_that_are_not_described() {
    let (waited, report, peers) = poll_crowd(100);
    let whole = stalled(&report, "sock.recv");
    assert_close("the whole", whole, waited);
    for peer in &peers {
        let row = socket(&report, &peer.name(), "recv");
        assert_between(&peer.name(), sum(&[row], "stalled_ns"), whole / 100, whole / 100);
    }
    let rest = socket(&report, "", "recv");
    assert_between("the rest", sum(&[rest], "stalled_ns"), whole * 84 / 100, whole * 84 / 100);
}

#[test]
fn a_set_that_is_too_large_to_be_looked_at_is_blamed_on_nobody() {
    let (waited, report, _peers) = poll_crowd(300);
    assert_eq!(report["totals"]["stalled_ns"], 0, "{:#}", report["causes"]);
    // Whatever else the thread waits for in the window comes on top.
    let window = report["target"]["duration_ns"].as_u64().unwrap();
    let least = waited.ns.saturating_sub(waited.busy_ns);
    assert_between("other", sum(&rows(&report, "threads", &[]), "other_ns"), least, window);
}
