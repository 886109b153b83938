//! `net.slow_peer` where several connections lead to one process or one host.

use super::net::recv;
use super::{found, get, ids, number, report};
use crate::analysis::dns::DnsAnalysis;
use crate::analysis::dns::tests::script::SEC;
use crate::analysis::far_end::FarEnds;
use crate::analysis::report::{Finding, Report, Severity, SocketRow, ThreadRow};
use crate::model::Model;
use crate::model::fixture::{self, tcp};

/// A thread of process 100 waits for these connections to 127.0.0.1, each with the process behind it (0: not recorded);
/// the processes behind them are idle for `idle_ns` of ten seconds.
struct Connections {
    report: Report,
    model: Model,
}

impl Connections {
    fn new(connections: &[(u16, u32, u64)], idle_ns: u64) -> Connections {
        let mut model = Model::default();
        let mut report = report(10 * SEC);
        let thread = |pid| ThreadRow { pid, tid: pid, wall_ns: 10 * SEC, ..ThreadRow::default() };
        report.threads.push(thread(100));
        for (port, end, stalled_ns) in connections {
            let (ours, theirs) = (format!("127.0.0.1:{}", port + 1000), format!("127.0.0.1:{port}"));
            report.sockets.push(SocketRow { pid: 100, tid: 100, ..recv(&theirs, *stalled_ns) });
            model.samples.push(fixture::sample_of(100, &ours, tcp(1, &theirs)));
            if *end != 0 {
                model.samples.push(fixture::sample_of(*end, &theirs, tcp(1, &ours)));
                if !report.threads.iter().any(|row| row.pid == *end) {
                    report.threads.push(ThreadRow { idle_ns, ..thread(*end) });
                }
            }
        }
        Connections { report, model }
    }

    fn find(&self) -> Vec<Finding> {
        found(&self.report, &DnsAnalysis::default(), &[], &FarEnds::new(&self.model))
    }
}

fn on_one_host(connections: &[(u16, u32, u64)], idle_ns: u64) -> Vec<Finding> {
    Connections::new(connections, idle_ns).find()
}

#[test]
fn connections_to_one_recorded_process_are_one_peer() {
    let both = [(7000, 101, 4 * SEC), (7001, 101, 3 * SEC)];
    let findings = on_one_host(&both, 9 * SEC);
    assert_eq!(ids(&findings), ["net.slow_peer"]);
    let late = get(&findings, "net.slow_peer");
    assert_eq!((late.severity, late.stalled_ns), (Severity::Warning, 7 * SEC));
    assert_eq!((late.proof["peer"].as_str(), number(late, "peers")), (Some("127.0.0.1"), 1));
    assert!(
        late.summary.contains("the only peer. That is  (pid 101), recorded too: idle"),
        "{}",
        late.summary
    );
    // Busy with this and that: nobody is to blame.
    let mixed = on_one_host(&both, SEC);
    assert_eq!(get(&mixed, "net.slow_peer").severity, Severity::Info);
    assert!(!get(&mixed, "net.slow_peer").summary.contains("late"));
}

#[test]
fn two_that_wait_for_each_other_alike_are_both_in_time() {
    let pair = |back_ns| {
        let mut scene = Connections::new(&[(7000, 101, 4 * SEC), (7001, 101, 3 * SEC)], 0);
        scene.report.sockets.push(SocketRow { pid: 101, tid: 101, ..recv("127.0.0.1:8000", back_ns) });
        ids(&scene.find()).len()
    };
    assert_eq!((pair(5 * SEC), pair(SEC)), (0, 1));
}

#[test]
fn processes_at_one_host_are_told_apart_where_they_are_recorded() {
    let findings = on_one_host(&[(7000, 101, 3 * SEC), (7001, 101, 3 * SEC), (7002, 102, SEC)], 9 * SEC);
    let late = get(&findings, "net.slow_peer");
    assert_eq!((late.stalled_ns, number(late, "next_peer_ns"), number(late, "peers")), (6 * SEC, SEC, 2));
    assert_eq!(late.proof["far_end"]["pid"], 101);
    // Two that are waited for alike.
    assert_eq!(ids(&on_one_host(&[(7000, 101, 4 * SEC), (7001, 102, 4 * SEC)], 9 * SEC)), Vec::<&str>::new());
    // One of them alone is known: what is behind the other connection may be anybody.
    assert_eq!(ids(&on_one_host(&[(7000, 101, 4 * SEC), (7001, 0, 4 * SEC)], 9 * SEC)), Vec::<&str>::new());
}

#[test]
fn connections_to_the_only_host_are_taken_together_without_blame() {
    let findings = on_one_host(&[(7000, 0, 4 * SEC), (7001, 0, 4 * SEC)], 0);
    let only = get(&findings, "net.slow_peer");
    assert_eq!((only.severity, only.stalled_ns), (Severity::Info, 8 * SEC));
    assert!(only.summary.contains("from 127.0.0.1: 8.0 s of 10.0 s, the only peer (nothing to compare"));
}
