use super::{found, get, ids, number, of_report, report};
use crate::analysis::dns::DnsAnalysis;
use crate::analysis::dns::tests::script::{MS, SEC};
use crate::analysis::far_end::FarEnds;
use crate::analysis::report::{Distribution, Finding, HopRow, Report, Severity, SocketRow, ThreadRow};
use crate::model::Model;
use crate::model::fixture::{self, tcp};
use crate::trace::record::Process;

fn recv(peer: &str, stalled_ns: u64) -> SocketRow {
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

fn racks(far_rtt: u64, far_bytes: u64, stalled: u64) -> Vec<Finding> {
    let hops = vec![
        hop("10.0.1.2", "same-rack", 100_000, 50_000_000),
        hop("10.0.2.2", "cross-rack", far_rtt, far_bytes),
    ];
    let rows = vec![recv("10.0.1.2:7000", stalled), recv("10.0.2.2:7000", stalled)];
    of_report(&Report { hops, sockets: rows, ..report(10 * SEC) })
}

#[test]
fn a_way_across_racks_that_is_slower_and_waited_for_is_found() {
    let findings = racks(2 * MS, 1000, 2 * SEC);
    assert_eq!(ids(&findings), ["net.cross_rack_jitter", "net.cross_rack_latency"]);
    let far = get(&findings, "net.cross_rack_latency");
    assert_eq!((number(far, "cross_rack_ns"), number(far, "same_rack_ns")), (2 * MS, 100_000));
    assert_eq!(far.stalled_ns, 2 * SEC);
}

#[test]
fn bytes_across_racks_are_found_where_there_was_a_choice() {
    let findings = racks(110_000, 500_000_000, 2 * SEC);
    assert_eq!(ids(&findings), ["net.cross_rack_share"]);
    assert_eq!(number(get(&findings, "net.cross_rack_share"), "cross_rack_bytes"), 500_000_000);
}

#[test]
fn nobody_waits_nothing_to_find() {
    assert_eq!(ids(&racks(2 * MS, 500_000_000, 0)), Vec::<&str>::new());
}
