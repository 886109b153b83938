//! `nccl.late_rank` and `net.peer_silent`.

use super::net::recv;
use super::{found, found_with, get, ids, number, report};
use crate::analysis::dns::DnsAnalysis;
use crate::analysis::dns::tests::script::{MS, SEC};
use crate::analysis::far_end::FarEnds;
use crate::analysis::late::{Late, Lateness};
use crate::analysis::report::{Distribution, Finding, RankRow, Report, Severity, SocketRow, ThreadRow};
use crate::model::Model;
use crate::model::fixture::{self, tcp};

fn lateness(waited_ns: u64, late_ns: u64) -> Lateness {
    Lateness { waited_ns, late_ns }
}

/// Rank 0 is process 100, rank 1 is process 101.
fn judge(there: Lateness, back: Lateness, ranks: bool, nccl: bool) -> Vec<Finding> {
    let mut report = report(10 * SEC);
    if ranks {
        let rank = |pid: u32| RankRow { pid, rank: Some(pid - 100), ..RankRow::default() };
        report.target.ranks = vec![rank(100), rank(101)];
    }
    let late = Late::of(&[(100, 101, there), (101, 100, back)]);
    // The environment of the tests is that of process 100 alone.
    let of = if nccl { vec![("libnccl", "2.28.9")] } else { Vec::new() };
    let (dns, ends) = (DnsAnalysis::default(), FarEnds::default());
    found_with(&report, &dns, &of, &ends, &late)
}

#[test]
fn a_rank_that_is_waited_for_and_waits_for_nobody_is_late_whichever_it_is() {
    let (long, short) = (lateness(6 * SEC, 5 * SEC), lateness(SEC, 100 * MS));
    let one = judge(long, short, true, false);
    assert_eq!(ids(&one), ["net.slow_peer"]);
    let late = get(&one, "net.slow_peer");
    assert!(
        late.summary.starts_with("rank 1 (pid 101) is late: rank 0 (pid 100) waited 6.0 s"),
        "{}",
        late.summary
    );
    assert_eq!((late.severity, number(late, "late_ns")), (Severity::Warning, 5 * SEC));
    // Of the other process NCCL is known, so it has the name of the layer.
    let other = judge(short, long, true, true);
    let late = get(&other, "nccl.late_rank");
    assert!(late.summary.starts_with("rank 0 (pid 100) is late"), "{}", late.summary);
    // A debugger that knows no Python for a process that runs none.
    assert!(late.advice.starts_with("gdb -p 100"), "{}", late.advice);
    assert!(judge(long, short, false, true)[0].summary.starts_with("pid 101 is late"));
}

#[test]
fn two_in_step_and_those_that_wait_for_others_are_not_blamed() {
    let nobody = |there, back| judge(there, back, true, true).is_empty();
    let long = lateness(6 * SEC, 5 * SEC);
    assert!(nobody(long, long));
    assert!(nobody(long, lateness(6 * SEC, 3 * SEC)));
    // The other one waited nearly as long as it was waited for, if not at the same time.
    assert!(nobody(long, lateness(6 * SEC, 0)));
    // It waited itself for most of the time.
    assert!(nobody(lateness(9 * SEC, 2 * SEC), lateness(0, 0)));
    assert!(nobody(lateness(900 * MS, 900 * MS), lateness(0, 0)));
}

const PEER: &str = "10.0.0.2:7000";

/// Process 100 waits for data of [`PEER`] for all of ten seconds, and began before; `running_ns` of CPU time elsewhere.
fn hang(running_ns: u64, edit: impl Fn(&mut SocketRow)) -> Report {
    let mut row = SocketRow {
        in_flight: 1,
        longest_ns: 70 * SEC,
        began_earlier: true,
        duration: Distribution { count: 1, max_ns: 10 * SEC, sum_ns: 10 * SEC, ..Distribution::default() },
        ..recv(PEER, 10 * SEC)
    };
    edit(&mut row);
    let thread =
        |tid, running_ns| ThreadRow { pid: 100, tid, wall_ns: 10 * SEC, running_ns, ..ThreadRow::default() };
    let threads = vec![thread(row.tid, 0), thread(999, running_ns)];
    Report { sockets: vec![row], threads, ..report(10 * SEC) }
}

fn silent(report: &Report, ends: &FarEnds) -> Vec<Finding> {
    found(report, &DnsAnalysis::default(), &[], ends)
}

#[test]
fn a_wait_of_the_whole_recording_is_a_silent_peer_with_its_age_as_a_bound() {
    let findings = silent(&hang(0, |_| ()), &FarEnds::default());
    assert_eq!(ids(&findings), ["net.peer_silent"]);
    let hang = get(&findings, "net.peer_silent");
    assert_eq!((hang.severity, number(hang, "age_ns")), (Severity::Warning, 70 * SEC));
    assert!(hang.summary.contains("at least 70.0 s for data from 10.0.0.2:7000"), "{}", hang.summary);
    assert!(hang.summary.contains("was not recorded"), "{}", hang.summary);
}

#[test]
fn a_thread_that_waits_beside_others_that_work_is_a_note_and_one_that_gets_data_is_none() {
    let beside = silent(&hang(9 * SEC, |_| ()), &FarEnds::default());
    assert_eq!(get(&beside, "net.peer_silent").severity, Severity::Info);
    let silent_with = |edit: &dyn Fn(&mut SocketRow)| {
        ids(&silent(&hang(0, edit), &FarEnds::default())).contains(&"net.peer_silent")
    };
    assert!(silent_with(&|_| ()));
    assert!(!silent_with(&|row| row.in_flight = 0));
    assert!(!silent_with(&|row| row.duration.max_ns = 5 * SEC));
    assert!(!silent_with(&|row| row.longest_ns = SEC));
    assert!(!silent_with(&|row| row.direction = "send".to_owned()));
}

#[test]
fn two_that_wait_for_each_other_for_the_whole_recording_are_stuck() {
    let mut report = hang(0, |_| ());
    let back =
        SocketRow { pid: 101, tid: 101, peer: "10.0.0.1:4000".to_owned(), ..report.sockets[0].clone() };
    report.sockets.push(back);
    report.threads.push(ThreadRow { pid: 101, tid: 101, wall_ns: 10 * SEC, ..ThreadRow::default() });
    let mut model = Model::default();
    model.samples.push(fixture::sample_of(100, "10.0.0.1:4000", tcp(1, PEER)));
    model.samples.push(fixture::sample_of(101, PEER, tcp(2, "10.0.0.1:4000")));
    let findings = silent(&report, &FarEnds::new(&model));
    assert_eq!(ids(&findings), ["net.peer_silent", "net.peer_silent"]);
    for finding in &findings {
        assert_eq!(finding.severity, Severity::Critical);
        assert!(finding.summary.contains("both wait for each other"), "{}", finding.summary);
    }
}

#[test]
fn what_is_said_of_another_peer_stays_beside_a_silent_one() {
    let mut report = hang(0, |_| ());
    report.sockets.push(SocketRow { tid: 998, ..recv("10.0.0.9:7000", 9 * SEC) });
    let thread = ThreadRow { pid: 100, tid: 998, wall_ns: 10 * SEC, ..ThreadRow::default() };
    report.threads.push(thread);
    let mut found =
        ids(&silent(&report, &FarEnds::default())).into_iter().map(str::to_owned).collect::<Vec<_>>();
    found.sort();
    assert_eq!(found, ["net.peer_silent", "net.slow_peer"]);
}
