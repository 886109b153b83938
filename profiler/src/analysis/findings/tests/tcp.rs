use super::{get, ids, number, of_report, report, strings, with_environment};
use crate::analysis::dns::tests::script::{MS, SEC};
use crate::analysis::report::{
    CauseRow, ConnectRow, Distribution, Domain, Finding, HopRow, Report, Severity,
};
use crate::model::cause::Cause;

fn row(peer: &str, result: &str, count: u64) -> ConnectRow {
    ConnectRow {
        peer: peer.to_string(),
        family: "inet".to_string(),
        result: result.to_string(),
        count,
        pid: 100,
        tid: 101,
        local: "172.17.0.2:40000".to_string(),
        ..ConnectRow::default()
    }
}

fn connects(rows: Vec<ConnectRow>) -> Vec<Finding> {
    of_report(&Report { connects: rows, ..report(10 * SEC) })
}

#[test]
fn a_hanging_connect_gives_peer_own_address_and_age() {
    let findings = connects(vec![ConnectRow {
        syn_retransmits: 3,
        stalled_ns: 10 * SEC,
        span_ns: 12 * SEC,
        began_earlier: true,
        ..row("10.9.9.9:29500", "in_flight", 1)
    }]);
    assert_eq!(ids(&findings), ["tcp.peer_unreachable"]);
    let hangs = get(&findings, "tcp.peer_unreachable");
    assert_eq!((hangs.severity, hangs.stalled_ns), (Severity::Critical, 10 * SEC));
    assert_eq!((number(hangs, "age_ns"), number(hangs, "syn_retransmits")), (12 * SEC, 3));
    assert_eq!(strings(hangs, "local"), ["172.17.0.2:40000"]);
    assert!(hangs.summary.contains("at least 12.0 s"), "{}", hangs.summary);
    assert!(hangs.advice.contains("ip route get 10.9.9.9"));
    assert!(hangs.advice.contains("NCCL_SOCKET_IFNAME=^docker"), "the own address is Docker's");
}

#[test]
fn the_interface_of_a_hanging_connect_is_named_and_a_local_one_is_advised_against() {
    let hanging = |local: &str, interface: &str| {
        let hangs = ConnectRow {
            syn_retransmits: 3,
            stalled_ns: 10 * SEC,
            span_ns: 10 * SEC,
            local: local.to_string(),
            ..row("10.9.9.9:29500", "in_flight", 1)
        };
        let report = Report { connects: vec![hangs], ..report(10 * SEC) };
        with_environment(&report, &[("interface.10.9.0.1", interface)])
    };
    let findings = hanging("10.9.0.1:40000", "veth12ab");
    let veth = get(&findings, "tcp.peer_unreachable");
    assert!(veth.summary.contains("10.9.0.1:40000 on veth12ab"), "{}", veth.summary);
    assert_eq!(strings(veth, "interfaces"), ["veth12ab"]);
    assert!(veth.advice.contains("It goes out of veth12ab") && veth.advice.contains("NCCL_SOCKET_IFNAME=^"));
    let findings = hanging("10.9.0.1:40000", "eth0");
    assert!(!get(&findings, "tcp.peer_unreachable").advice.contains("goes out of"));
    let findings = hanging("10.9.0.2:40000", "veth12ab");
    assert_eq!(strings(get(&findings, "tcp.peer_unreachable"), "interfaces"), Vec::<&str>::new());
}

#[test]
fn a_connect_that_has_only_begun_is_no_finding() {
    let young = ConnectRow { span_ns: 300 * MS, stalled_ns: 300 * MS, ..row("10.9.9.9:1", "in_flight", 1) };
    assert_eq!(ids(&connects(vec![young])), Vec::<&str>::new());
}

#[test]
fn a_peer_that_accepted_another_connection_is_not_unreachable() {
    let hangs = ConnectRow { span_ns: 4 * SEC, syn_retransmits: 2, ..row("10.9.9.9:1", "in_flight", 1) };
    assert_eq!(ids(&connects(vec![hangs, row("10.9.9.9:1", "ok", 1)])), Vec::<&str>::new());
}

#[test]
fn a_timed_out_connect_gives_both_the_peer_and_the_time_out() {
    let findings = connects(vec![ConnectRow {
        syn_retransmits: 2,
        stalled_ns: 7 * SEC,
        span_ns: 7 * SEC,
        handshake: Distribution::of(vec![7 * SEC]),
        ..row("10.9.9.9:1", "ETIMEDOUT", 1)
    }]);
    assert_eq!(ids(&findings), ["tcp.connect_timeout", "tcp.peer_unreachable"]);
    assert_eq!(number(get(&findings, "tcp.connect_timeout"), "longest_ns"), 7 * SEC);
}

#[test]
fn no_route_is_said_as_such() {
    let findings = connects(vec![row("10.9.9.9:1", "ENETUNREACH", 1)]);
    let no_route = get(&findings, "tcp.peer_unreachable");
    assert!(no_route.summary.contains("no way there (ENETUNREACH)"), "{}", no_route.summary);
    assert_eq!(no_route.severity, Severity::Info, "once and at no cost");
}

#[test]
fn repeated_refusals_count_by_their_span() {
    let findings = connects(vec![ConnectRow {
        stalled_ns: MS,
        span_ns: 9 * SEC,
        ..row("10.0.0.2:29500", "ECONNREFUSED", 90)
    }]);
    let refused = get(&findings, "tcp.connect_refused");
    assert_eq!((refused.severity, refused.stalled_ns), (Severity::Critical, MS));
    assert_eq!((number(refused, "refused"), number(refused, "span_ns")), (90, 9 * SEC));
    assert_eq!(refused.proof["per_second"], 10.0);
}

#[test]
fn a_refusal_before_a_connection_to_the_same_port_is_ordinary() {
    let refused = row("[::1]:29500", "ECONNREFUSED", 1);
    assert_eq!(ids(&connects(vec![refused.clone(), row("127.0.0.1:29500", "ok", 1)])), Vec::<&str>::new());
    assert_eq!(ids(&connects(vec![refused])), ["tcp.connect_refused"]);
}

#[test]
fn successful_connects_are_no_findings() {
    let slow = ConnectRow { stalled_ns: 50 * MS, ..row("10.0.0.2:1", "ok", 40) };
    assert_eq!(ids(&connects(vec![slow, row("10.0.0.3:1", "aborted", 1)])), Vec::<&str>::new());
}

fn hop(peer: &str, retransmits: u64) -> HopRow {
    HopRow {
        peer: peer.to_string(),
        host: None,
        rack: None,
        relation: "unknown".to_string(),
        relation_evidence: "none".to_string(),
        transport: "tcp".to_string(),
        device: None,
        rtt: Distribution::default(),
        jitter_ns: 0,
        retransmits,
        bytes: 0,
        share_of_bytes: 0.0,
    }
}

#[test]
fn retransmissions_that_threads_waited_for_are_told_by_peer() {
    let mut report = Report { hops: vec![hop("10.0.0.2", 3), hop("10.0.0.3", 40)], ..report(10 * SEC) };
    assert_eq!(ids(&of_report(&report)), Vec::<&str>::new(), "a few lost segments are ordinary");
    report.causes.push(CauseRow {
        cause: Cause::TcpRetransmit,
        domain: Domain::Thread,
        count: 5,
        stalled_ns: 2 * SEC,
        in_flight: 0,
        duration: Distribution::default(),
        longest_ns: 0,
        began_earlier: false,
    });
    let findings = of_report(&report);
    let lost = get(&findings, "tcp.retransmits");
    assert_eq!(
        (lost.severity, lost.stalled_ns, number(lost, "retransmits")),
        (Severity::Warning, 2 * SEC, 43)
    );
    assert_eq!(lost.proof["peers"][0]["peer"], "10.0.0.3", "most first");
}
