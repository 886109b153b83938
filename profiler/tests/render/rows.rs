//! The report's rows of the training job.

use std::collections::BTreeMap;

use serde_json::json;
use stallscope::analysis::Analysis;
use stallscope::analysis::report::{
    BelowMinStall, ConnectRow, CoverageRow, DnsRow, Finding, HopRow, ProbeRow, Severity, SocketRow,
};
use stallscope::model::cause::Cause;
use stallscope::trace::record::FamilyState;

use super::{GATHER, GATHER_2, LATE, MAIN, MASTER, MS, RESOLVER, S, STORE, distribution, lengths};

pub fn coverage() -> CoverageRow {
    let probe = |family: &str, state, reason: &str| ProbeRow {
        family: family.to_owned(),
        state,
        reason: reason.to_owned(),
    };
    CoverageRow {
        probes: vec![
            probe("net", FamilyState::On, ""),
            probe("dns", FamilyState::On, ""),
            probe("io_uring", FamilyState::Partial, "tracepoint io_uring_complete is missing in this kernel"),
            probe("verbs", FamilyState::Off, "the target maps no libibverbs"),
        ],
        lost_events: 12,
        truncated_stacks: 41,
        unmatched_completions: 0,
        unresolved_frames: 2,
        below_min_stall: BelowMinStall { count: 81_234, sum_ns: 312 * MS },
        syscalls_seen: BTreeMap::from([
            ("recvfrom".to_owned(), 61_020),
            ("sendto".to_owned(), 20_311),
            ("poll".to_owned(), 4),
            ("connect".to_owned(), 2),
        ]),
        losses: BTreeMap::from([("ring full".to_owned(), 12), ("stack map full".to_owned(), 0)]),
        python: None,
    }
}

pub fn dns() -> Vec<DnsRow> {
    vec![
        DnsRow {
            name: Some("node01.cluster.local".to_owned()),
            qtype: Some("A".to_owned()),
            api: "getaddrinfo".to_owned(),
            server: RESOLVER.to_owned(),
            transport: "udp".to_owned(),
            attempts: 2,
            stalled_ns: 4_995 * MS,
            in_flight: 1,
            pid: MAIN,
            tid: MAIN,
            lookups: 1,
            ..DnsRow::default()
        },
        DnsRow {
            name: Some("node01.cluster.local".to_owned()),
            qtype: Some("AAAA".to_owned()),
            api: "getaddrinfo".to_owned(),
            server: RESOLVER.to_owned(),
            transport: "udp".to_owned(),
            attempts: 2,
            stalled_ns: 4_995 * MS,
            in_flight: 1,
            pid: MAIN,
            tid: MAIN,
            lookups: 1,
            ..DnsRow::default()
        },
        DnsRow {
            api: "getnameinfo".to_owned(),
            server: "[fd00:1::53]:53".to_owned(),
            transport: "tcp".to_owned(),
            attempts: 12,
            answered: 12,
            rcode: Some("SERVFAIL".to_owned()),
            began_earlier: true,
            malformed: true,
            pid: MAIN,
            tid: MAIN,
            lookups: 12,
            latency: distribution(vec![800_000, 900_000, 2 * MS]),
            ..DnsRow::default()
        },
    ]
}

pub fn connects() -> Vec<ConnectRow> {
    vec![
        ConnectRow {
            peer: MASTER.to_owned(),
            family: "inet".to_owned(),
            result: "in_flight".to_owned(),
            count: 1,
            syn_retransmits: 4,
            stalled_ns: 10 * S,
            began_earlier: true,
            pid: MAIN,
            tid: STORE,
            local: "10.0.0.7:51234".to_owned(),
            ..ConnectRow::default()
        },
        ConnectRow {
            peer: "[fd00:1::17]:43210".to_owned(),
            family: "inet6".to_owned(),
            result: "ok".to_owned(),
            count: 1,
            handshake: distribution(vec![310_000]),
            pid: MAIN,
            tid: GATHER_2,
            ..ConnectRow::default()
        },
    ]
}

pub fn sockets(analysis: &Analysis) -> Vec<SocketRow> {
    let row = |peer: &str, direction: &str, cause, tid| {
        let duration = distribution(lengths(analysis, |stall| stall.cause == cause && stall.tid == tid));
        SocketRow {
            peer: peer.to_owned(),
            direction: direction.to_owned(),
            waits: duration.count,
            stalled_ns: duration.sum_ns,
            in_flight: 0,
            duration,
            pid: MAIN,
            tid,
            polls: 3 * duration.count,
            longest_ns: duration.max_ns,
            began_earlier: false,
            folded: 0,
        }
    };
    vec![
        row(LATE, "recv", Cause::SockRecv, GATHER),
        row(LATE, "recv", Cause::SockRecv, GATHER_2),
        row("[fd00:1::17]:43210", "send", Cause::SockSend, GATHER_2),
    ]
}

pub fn hops() -> Vec<HopRow> {
    vec![HopRow {
        peer: "10.0.1.17".to_owned(),
        host: Some("node17".to_owned()),
        rack: Some("B".to_owned()),
        relation: "cross-rack".to_owned(),
        relation_evidence: "topology".to_owned(),
        transport: "tcp".to_owned(),
        device: Some("eth0".to_owned()),
        rtt: distribution(vec![310_000, 330_000, 2_400_000]),
        jitter_ns: 980_000,
        retransmits: 3,
        bytes: 64 << 20,
        share_of_bytes: 0.93,
    }]
}

pub fn findings() -> Vec<Finding> {
    let proof = |value: serde_json::Value| value.as_object().cloned().unwrap_or_default();
    vec![
        Finding {
            id: "dns.resolver_unreachable".to_owned(),
            severity: Severity::Critical,
            summary: "The resolver 127.0.0.53:53 answered none of 4 queries for node01.cluster.local; \
                      getaddrinfo in python3 waits for it since 9.99 s."
                .to_owned(),
            cause: Cause::DnsResolve,
            stalled_ns: 9_990 * MS,
            proof: proof(json!({"server": RESOLVER, "attempts": 4, "answered": 0, "icmp_refused": 0})),
            advice: "Look whether anything listens there: ss -lunp 'sport = 53'\n\
                     Ask it directly: dig +time=2 @127.0.0.53 node01.cluster.local\n\
                     If systemd-resolved is off, put the cluster's resolver into /etc/resolv.conf, or name \
                     the hosts in /etc/hosts."
                .to_owned(),
        },
        Finding {
            id: "tcp.peer_unreachable".to_owned(),
            severity: Severity::Critical,
            summary: "10.0.0.9:29500 does not answer SYNs: 1 connect of pt_tcpstore in flight.".to_owned(),
            cause: Cause::TcpConnect,
            stalled_ns: 10 * S,
            proof: proof(
                json!({"peer": MASTER, "syn_retransmits": 4, "age_at_least_ns": 10_000_000_000_u64}),
            ),
            advice: "ip route get 10.0.0.9; check the firewall between node07 and it.".to_owned(),
        },
        Finding {
            id: "net.slow_peer".to_owned(),
            severity: Severity::Warning,
            summary: "10.0.1.17:43210 sends late: 2 threads waited 5.18 s for it.".to_owned(),
            cause: Cause::SockRecv,
            stalled_ns: 5_180 * MS,
            proof: proof(json!({"waits": 40, "p50_ns": 129_000_000})),
            advice: "Record that host too.".to_owned(),
        },
    ]
}
