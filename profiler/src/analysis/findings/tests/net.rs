use super::{found, get, ids, number, of_report, report};
use crate::analysis::dns::DnsAnalysis;
use crate::analysis::dns::tests::script::{MS, SEC};
use crate::analysis::far_end::FarEnds;
use crate::analysis::report::{Distribution, Finding, HopRow, Report, Severity, SocketRow, ThreadRow};
use crate::model::Model;
use crate::model::fixture::{self, tcp};
use crate::trace::record::Process;

pub(super) fn recv(peer: &str, stalled_ns: u64) -> SocketRow {
    SocketRow {
        peer: peer.to_string(),
        direction: "recv".to_string(),
        waits: 10,
        stalled_ns,
        pid: 100,
        tid: 101,
        ..SocketRow::default()
    }
}

fn sockets(rows: Vec<SocketRow>) -> Vec<Finding> {
    let thread = ThreadRow { pid: 100, tid: 101, wall_ns: 10 * SEC, ..ThreadRow::default() };
    of_report(&Report { sockets: rows, threads: vec![thread], ..report(10 * SEC) })
}

#[test]
fn the_one_peer_of_several_that_is_waited_for_stands_out() {
    let rows = vec![
        recv("10.0.0.2:7000", 200 * MS),
        recv("10.0.0.3:7000", 4 * SEC),
        recv("10.0.0.4:7000", 300 * MS),
    ];
    let findings = sockets(rows);
    assert_eq!(ids(&findings), ["net.slow_peer"]);
    let slow = get(&findings, "net.slow_peer");
    assert_eq!((slow.severity, slow.stalled_ns), (Severity::Warning, 4 * SEC));
    assert_eq!(slow.proof["peer"], "10.0.0.3:7000");
    assert_eq!(slow.proof["evidence"], "inferred");
    assert_eq!((number(slow, "next_peer_ns"), number(slow, "other_peers_ns")), (300 * MS, 500 * MS));
    assert!(slow.summary.contains("cannot be told from this side"));
}

#[test]
fn a_host_with_many_connections_stands_out_as_a_host() {
    let mut rows: Vec<SocketRow> =
        (0..4).map(|port| recv(&format!("10.0.0.3:{}", 7000 + port), SEC)).collect();
    rows.push(recv("10.0.0.2:7000", 100 * MS));
    let findings = sockets(rows);
    assert_eq!(get(&findings, "net.slow_peer").proof["peer"], "10.0.0.3");
    assert_eq!(get(&findings, "net.slow_peer").stalled_ns, 4 * SEC);
}

#[test]
fn peers_that_are_waited_for_alike_are_not_blamed() {
    let rows = vec![recv("10.0.0.2:7000", 3 * SEC), recv("10.0.0.3:7000", 4 * SEC)];
    assert_eq!(ids(&sockets(rows)), Vec::<&str>::new());
}

#[test]
fn the_only_peer_is_a_note_without_blame() {
    let findings = sockets(vec![recv("10.0.0.2:7000", 9 * SEC)]);
    let only = get(&findings, "net.slow_peer");
    assert_eq!(only.severity, Severity::Info);
    assert!(only.summary.contains("nothing to compare with"));
}

/// Rank 0 (pid 100) waits for rank 3 (pid 103), both recorded; rank 1 (pid 101) waits for rank 0.
fn chain(rank3: &ThreadRow) -> Vec<Finding> {
    let thread = |pid, name: &str| ThreadRow {
        pid,
        tid: pid,
        name: name.to_string(),
        wall_ns: 10 * SEC,
        ..ThreadRow::default()
    };
    let waits = |pid, peer: &str, stalled| SocketRow { pid, tid: pid, ..recv(peer, stalled) };
    let report = Report {
        sockets: vec![
            waits(100, "10.0.0.4:5003", 6 * SEC),
            waits(100, "10.0.0.2:5001", 10 * MS),
            waits(101, "10.0.0.1:29500", 6 * SEC),
        ],
        threads: vec![
            thread(100, "rank0"),
            thread(101, "rank1"),
            ThreadRow { pid: 103, tid: 103, name: "rank3".to_string(), wall_ns: 10 * SEC, ..rank3.clone() },
        ],
        ..report(10 * SEC)
    };
    let mut model = Model::default();
    for (pid, local, peer) in [
        (100, "10.0.0.1:29500", "10.0.0.4:5003"),
        (103, "10.0.0.4:5003", "10.0.0.1:29500"),
        (100, "10.0.0.1:29500", "10.0.0.2:5001"),
        (101, "10.0.0.2:5001", "10.0.0.1:29500"),
    ] {
        model.samples.push(fixture::sample_of(pid, local, tcp(1, peer)));
        let process = Process { pid, comm: format!("rank{}", pid - 100), ..Process::default() };
        model.processes.insert(pid, process);
    }
    found(&report, &DnsAnalysis::default(), &[], &FarEnds::new(&model))
}

fn of_peer<'a>(findings: &'a [Finding], peer: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.proof["peer"] == peer).unwrap()
}

#[test]
fn a_recorded_peer_that_slept_is_said_to_be_late_and_who_waits_behind_it_is_a_note() {
    let findings = chain(&ThreadRow { idle_ns: 9 * SEC, ..ThreadRow::default() });
    assert_eq!(ids(&findings), ["net.slow_peer", "net.slow_peer"]);
    let late = of_peer(&findings, "10.0.0.4:5003");
    assert_eq!((late.severity, &late.proof["far_end"]["comm"]), (Severity::Warning, &"rank3".into()));
    assert!(
        late.summary.starts_with("rank0 (pid 100) waits for data from 10.0.0.4:5003"),
        "{}",
        late.summary
    );
    assert!(late.summary.contains("rank3 (pid 103), recorded too: idle"), "{}", late.summary);
    assert!(late.summary.contains("it sends late"), "{}", late.summary);
    let behind = of_peer(&findings, "10.0.0.1:29500");
    assert_eq!(behind.severity, Severity::Info);
    assert!(
        behind
            .summary
            .contains("rank0 (pid 100), recorded too: it waits itself, 6.0 s for data from 10.0.0.4"),
        "{}",
        behind.summary
    );
    assert!(behind.advice.contains("held up by 10.0.0.4:5003"));
}

#[test]
fn a_recorded_peer_without_a_reason_of_its_own_is_not_called_late() {
    let findings = chain(&ThreadRow { idle_ns: 3 * SEC, stalled_ns: 4 * SEC, ..ThreadRow::default() });
    let mixed = of_peer(&findings, "10.0.0.4:5003");
    assert!(!mixed.summary.contains("late"), "{}", mixed.summary);
    assert!(mixed.summary.contains("idle 3.0 s, running 0 ns, stalled 4.0 s of 10.0 s"), "{}", mixed.summary);
}

#[test]
fn short_waits_and_local_sockets_are_no_findings() {
    assert_eq!(ids(&sockets(vec![recv("10.0.0.2:7000", 500 * MS)])), Vec::<&str>::new());
    assert_eq!(ids(&sockets(vec![recv("/run/dbus/system_bus_socket", 9 * SEC)])), Vec::<&str>::new());
}

fn hop(peer: &str, relation: &str, rtt_ns: u64, bytes: u64) -> HopRow {
    HopRow {
        peer: peer.to_string(),
        host: None,
        rack: Some("A".to_string()),
        relation: relation.to_string(),
        relation_evidence: "topology".to_string(),
        transport: "tcp".to_string(),
        device: None,
        rtt: Distribution::of(vec![rtt_ns; 20]),
        jitter_ns: rtt_ns / 10,
        retransmits: 0,
        bytes,
        share_of_bytes: 0.0,
    }
}

/// Ten seconds in which a thread waited 200 times for each of these hops, 10 ms each time: peer, relation, round-trip
/// time.
fn waiting_for(hops: &[(&str, &str, u64)]) -> Vec<Finding> {
    waiting(hops.iter().map(|(peer, relation, rtt)| hop(peer, relation, *rtt, 1000)).collect(), 10 * MS)
}

fn waiting(hops: Vec<HopRow>, each_ns: u64) -> Vec<Finding> {
    let row = |hop: &HopRow| SocketRow {
        duration: Distribution::of(vec![each_ns; 200]),
        waits: 200,
        ..recv(&format!("{}:7000", hop.peer), 200 * each_ns)
    };
    let sockets = hops.iter().map(row).collect();
    of_report(&Report { sockets, hops, ..report(10 * SEC) })
}

/// Without jitter, which has a finding of its own.
fn steady(hops: &[(&str, &str, u64)]) -> Vec<Finding> {
    let of = |(peer, relation, rtt): &(&str, &str, u64)| HopRow {
        jitter_ns: 0,
        ..hop(peer, relation, *rtt, 1000)
    };
    waiting(hops.iter().map(of).collect(), 10 * MS)
}

const NEAR: (&str, &str, u64) = ("10.0.1.2", "same-rack", 100_000);

#[test]
fn slow_hosts_across_racks_and_fast_ones_inside_are_the_crossing() {
    let findings =
        waiting_for(&[NEAR, ("10.0.2.2", "cross-rack", 5 * MS), ("10.0.2.3", "cross-rack", 6 * MS)]);
    // Jitter of half a millisecond explains too little of the waiting.
    assert_eq!(ids(&findings), ["net.cross_rack_latency"]);
    let far = get(&findings, "net.cross_rack_latency");
    assert_eq!((number(far, "cross_rack_ns"), number(far, "same_rack_ns")), (5 * MS, 100_000));
    assert_eq!((number(far, "cross_rack_slow"), number(far, "same_rack_slow")), (2, 0));
    // Of 400 waits of 10 ms the difference of 4.9 ms each.
    assert_eq!((far.stalled_ns, number(far, "waited_ns")), (400 * 49 * MS / 10, 4 * SEC));
    assert_eq!(far.severity, Severity::Warning);
}

#[test]
fn one_slow_host_across_racks_is_itself_to_blame() {
    let findings = steady(&[NEAR, ("10.0.2.2", "cross-rack", 9 * MS), ("10.0.2.3", "cross-rack", 150_000)]);
    assert_eq!(ids(&findings), ["net.slow_peer"]);
    let slow = get(&findings, "net.slow_peer");
    assert_eq!((slow.proof["peer"].as_str(), slow.severity), (Some("10.0.2.2"), Severity::Warning));
    assert_eq!((number(slow, "rtt_ns"), number(slow, "others_rtt_ns")), (9 * MS, 150_000));
    assert!(slow.summary.contains("against 150 us of the other hosts across racks (1)"), "{}", slow.summary);
}

#[test]
fn one_slow_host_inside_the_rack_is_itself_to_blame() {
    let far = ("10.0.2.2", "cross-rack", 150_000);
    let findings = steady(&[NEAR, ("10.0.1.3", "same-rack", 9 * MS), ("10.0.1.4", "same-rack", 90_000), far]);
    assert_eq!(ids(&findings), ["net.slow_peer"]);
    assert_eq!(get(&findings, "net.slow_peer").proof["peer"], "10.0.1.3");
    // Also where it is alone there, and slower than those farther away.
    let findings = steady(&[("10.0.1.3", "same-rack", 9 * MS), far, ("10.0.2.3", "cross-rack", 160_000)]);
    assert_eq!(ids(&findings), ["net.slow_peer"]);
    assert!(get(&findings, "net.slow_peer").summary.contains("of hosts across racks"));
}

#[test]
fn the_only_host_across_racks_does_not_tell_the_way_from_the_host() {
    let findings = steady(&[NEAR, ("10.0.2.2", "cross-rack", 9 * MS)]);
    assert_eq!(ids(&findings), ["net.slow_peer"]);
    let only = get(&findings, "net.slow_peer");
    assert_eq!(only.severity, Severity::Info);
    assert!(only.summary.contains("the only peer across racks"), "{}", only.summary);
}

#[test]
fn two_addresses_of_one_host_are_no_two_hosts() {
    let of = |peer: &str| HopRow {
        host: Some("node07".to_string()),
        jitter_ns: 0,
        ..hop(peer, "cross-rack", 9 * MS, 1000)
    };
    let findings = waiting(vec![hop(NEAR.0, NEAR.1, NEAR.2, 1000), of("10.0.2.2"), of("10.0.3.2")], 10 * MS);
    assert_eq!(ids(&findings), ["net.slow_peer"]);
    assert!(get(&findings, "net.slow_peer").summary.contains("to node07 is 9.0 ms"));
}

#[test]
fn where_everything_is_slow_or_half_of_each_nothing_is_blamed() {
    let slow = |peer, relation| (peer, relation, 9 * MS);
    let all = [
        slow("10.0.1.2", "same-rack"),
        slow("10.0.1.3", "same-rack"),
        slow("10.0.2.2", "cross-rack"),
        slow("10.0.2.3", "cross-rack"),
    ];
    assert_eq!(ids(&steady(&all)), Vec::<&str>::new());
    let half_inside = [
        ("10.0.1.2", "same-rack", 100_000),
        ("10.0.1.4", "same-rack", 100_000),
        slow("10.0.1.3", "same-rack"),
        slow("10.0.1.5", "same-rack"),
        slow("10.0.2.2", "cross-rack"),
        slow("10.0.2.3", "cross-rack"),
    ];
    assert_eq!(ids(&steady(&half_inside)), Vec::<&str>::new());
    let half_across = [
        NEAR,
        ("10.0.2.2", "cross-rack", 120_000),
        ("10.0.2.3", "cross-rack", 120_000),
        slow("10.0.2.4", "cross-rack"),
        slow("10.0.2.5", "cross-rack"),
    ];
    assert_eq!(ids(&steady(&half_across)), Vec::<&str>::new());
}

#[test]
fn hosts_inside_the_rack_may_differ_as_long_as_the_crossing_stands_out() {
    let findings = steady(&[
        NEAR,
        ("10.0.1.3", "same-rack", 350_000),
        ("10.0.2.2", "cross-rack", 5 * MS),
        ("10.0.2.3", "cross-rack", 5 * MS),
    ]);
    assert_eq!(ids(&findings), ["net.cross_rack_latency"]);
    assert_eq!(number(get(&findings, "net.cross_rack_latency"), "same_rack_slow"), 0);
}

#[test]
fn one_fast_host_of_many_across_racks_does_not_acquit_the_crossing() {
    let far: Vec<String> = (2..9).map(|number| format!("10.0.2.{number}")).collect();
    let mut hops: Vec<(&str, &str, u64)> =
        far.iter().map(|peer| (peer.as_str(), "cross-rack", 5 * MS)).collect();
    hops.extend([NEAR, ("10.0.2.9", "cross-rack", 150_000)]);
    let findings = steady(&hops);
    assert_eq!(ids(&findings), ["net.cross_rack_latency"]);
    let far = get(&findings, "net.cross_rack_latency");
    assert_eq!((number(far, "cross_rack_slow"), number(far, "cross_rack_hops")), (7, 8));
}

#[test]
fn differences_below_the_limits_and_too_few_samples_are_no_findings() {
    let far = |rtt| [NEAR, ("10.0.2.2", "cross-rack", rtt), ("10.0.2.3", "cross-rack", rtt)];
    // Not twice as long, and twice as long but by less than the least difference.
    assert_eq!(ids(&steady(&far(190_000))), Vec::<&str>::new());
    let small = [
        ("10.0.1.2", "same-rack", 40_000),
        ("10.0.2.2", "cross-rack", 130_000),
        ("10.0.2.3", "cross-rack", 130_000),
    ];
    assert_eq!(ids(&steady(&small)), Vec::<&str>::new());
    let few = |(peer, relation, rtt): (&str, &str, u64)| HopRow {
        rtt: Distribution::of(vec![rtt; 3]),
        ..hop(peer, relation, rtt, 1000)
    };
    assert_eq!(ids(&waiting(far(9 * MS).map(few).into(), 10 * MS)), Vec::<&str>::new());
}

#[test]
fn jitter_alone_is_a_finding_of_its_own() {
    let of = |(peer, relation, jitter_ns): (&str, &str, u64)| HopRow {
        jitter_ns,
        ..hop(peer, relation, 150_000, 1000)
    };
    let hops = [
        ("10.0.1.2", "same-rack", 10_000),
        ("10.0.2.2", "cross-rack", 4 * MS),
        ("10.0.2.3", "cross-rack", 5 * MS),
    ];
    let findings = waiting(hops.map(of).into(), 10 * MS);
    assert_eq!(ids(&findings), ["net.cross_rack_jitter"]);
    let few = |hop: HopRow| HopRow { rtt: Distribution::of(vec![150_000; 9]), ..hop };
    assert_eq!(ids(&waiting(hops.map(of).map(few).into(), 10 * MS)), Vec::<&str>::new());
    let mut one = hops.map(of);
    one[2].jitter_ns = 20_000;
    assert_eq!(ids(&waiting(one.into(), 10 * MS)), Vec::<&str>::new(), "one host across racks alone");
}

#[test]
fn waiting_that_longer_round_trips_cannot_explain_is_not_blamed_on_them() {
    // Two long waits for a late sender: at most two differences of 4.9 ms are the way's.
    let hops = vec![
        hop(NEAR.0, NEAR.1, NEAR.2, 1000),
        hop("10.0.2.2", "cross-rack", 5 * MS, 1000),
        hop("10.0.2.3", "cross-rack", 5 * MS, 1000),
    ];
    let row = |hop: &HopRow| SocketRow {
        duration: Distribution::of(vec![2 * SEC; 2]),
        ..recv(&format!("{}:7000", hop.peer), 4 * SEC)
    };
    let sockets = hops.iter().map(row).collect();
    assert_eq!(ids(&of_report(&Report { sockets, hops, ..report(20 * SEC) })), Vec::<&str>::new());
    // And nobody waits at all.
    assert_eq!(
        ids(&waiting(
            vec![
                hop(NEAR.0, NEAR.1, NEAR.2, 1000),
                hop("10.0.2.2", "cross-rack", 5 * MS, 1000),
                hop("10.0.2.3", "cross-rack", 5 * MS, 1000),
            ],
            0
        )),
        Vec::<&str>::new()
    );
}

#[test]
fn a_peer_that_is_waited_for_and_slow_has_one_finding_with_both() {
    let hops = vec![
        hop(NEAR.0, NEAR.1, NEAR.2, 1000),
        hop("10.0.2.2", "cross-rack", 9 * MS, 1000),
        hop("10.0.2.3", "cross-rack", 150_000, 1000),
    ];
    let sockets = vec![
        SocketRow { duration: Distribution::of(vec![10 * MS; 400]), ..recv("10.0.2.2:7000", 4 * SEC) },
        recv("10.0.2.3:7000", 100 * MS),
    ];
    let thread = ThreadRow { pid: 100, tid: 101, wall_ns: 10 * SEC, ..ThreadRow::default() };
    let findings = of_report(&Report { hops, sockets, threads: vec![thread], ..report(10 * SEC) });
    assert_eq!(ids(&findings), ["net.slow_peer"]);
    let slow = get(&findings, "net.slow_peer");
    assert_eq!((number(slow, "rtt_ns"), number(slow, "others_rtt_ns")), (9 * MS, 150_000));
    assert!(slow.summary.contains("the way to it is slow"), "{}", slow.summary);
}

#[test]
fn without_racks_no_round_trip_time_is_blamed() {
    let unknown =
        [("10.0.1.2", "unknown", 100_000), ("10.0.2.2", "unknown", 9 * MS), ("10.0.2.3", "unknown", 9 * MS)];
    assert_eq!(ids(&waiting_for(&unknown)), Vec::<&str>::new());
}

/// A near peer and a far one; a thread waits a second for each.
fn shares(near_bytes: u64, far_bytes: u64, stalled: u64) -> Vec<Finding> {
    let hops = vec![
        hop("10.0.1.2", "same-rack", 100_000, near_bytes),
        hop("10.0.2.2", "cross-rack", 110_000, far_bytes),
    ];
    let rows = vec![recv("10.0.1.2:7000", stalled), recv("10.0.2.2:7000", stalled)];
    of_report(&Report { hops, sockets: rows, ..report(10 * SEC) })
}

#[test]
fn bytes_across_racks_are_found_where_there_was_a_choice() {
    let findings = shares(50_000_000, 500_000_000, 2 * SEC);
    assert_eq!(ids(&findings), ["net.cross_rack_share"]);
    assert_eq!(number(get(&findings, "net.cross_rack_share"), "cross_rack_bytes"), 500_000_000);
    let hops = vec![hop("10.0.2.2", "cross-rack", 110_000, 500_000_000)];
    let sockets = vec![recv("10.0.2.2:7000", 2 * SEC)];
    let alone = of_report(&Report { sockets, hops, ..report(10 * SEC) });
    assert!(!ids(&alone).contains(&"net.cross_rack_share"), "{alone:?}");
}

#[test]
fn few_bytes_a_small_share_or_nobody_who_waits_is_no_finding() {
    assert_eq!(ids(&shares(500_000_000, 400_000_000, 2 * SEC)), Vec::<&str>::new());
    assert_eq!(ids(&shares(1_000_000, 90_000_000, 2 * SEC)), Vec::<&str>::new());
    assert_eq!(ids(&shares(50_000_000, 500_000_000, 0)), Vec::<&str>::new());
}
