use super::*;
use crate::model::fixture::{PID, Trace, in_flight, query, readable, shake, spin, tcp, wait};
use crate::model::wait::WaitSpan;
use crate::trace::record::{Coverage, End, FamilyState, Loss};

/// The waits of the first thread.
fn waits_of(model: &Model) -> Vec<WaitSpan> {
    let thread = &model.threads[0];
    let portions = thread.waits.portions(model.portion_len);
    portions.iter().flat_map(|portion| model.portion(thread, portion).0.waits).collect()
}

fn read(start_ns: u64, end_ns: u64) -> Wait {
    wait(Call::Read, start_ns, end_ns, vec![tcp(1, "10.0.1.1:80")])
}

#[test]
fn records_may_come_in_any_order() {
    let mut trace = Trace::new();
    trace
        .wait(read(1100, 1200))
        .wait(read(1300, 1400))
        .wait(spin(read(1150, 1350)))
        .life(LifeEvent::Thread, 101, 1500)
        .life(LifeEvent::Exit, 101, 1700)
        .times(1000, 5, 1)
        .times(2000, 50, 10)
        .retransmit(1330, tcp(1, "10.0.1.1:80"))
        .handshake(shake(1050, 1060, 0, tcp(2, "10.0.1.2:80")));
    let forward = trace.analyse();
    trace.0.reverse();
    let backward = trace.analyse();
    assert_eq!(forward.report, backward.report);
    assert_eq!(forward.stalls, backward.stalls);
}

#[test]
fn records_that_end_before_they_begin_are_dropped_and_counted() {
    let mut trace = Trace::new();
    trace.wait(read(1200, 1100)).handshake(shake(1200, 1100, 0, tcp(1, "10.0.1.1:80")));
    trace.add(Record::Window(Window { start_ns: 9000, end_ns: 10, min_stall_ns: 0 }));
    let analysis = trace.analyse();
    assert_eq!(analysis.report.totals.stalled_ns, 0);
    assert_eq!(analysis.report.connects.len(), 0);
    assert_eq!(analysis.report.coverage.losses.get(INCONSISTENT), Some(&3));
    assert_eq!(analysis.report.coverage.lost_events, 3);
    assert_eq!(analysis.report.target.duration_ns, 1000);
}

#[test]
fn impossible_windows_are_cut_to_what_can_be_added_up() {
    let mut trace = Trace::new();
    trace.add(Record::Window(Window { start_ns: 10, end_ns: u64::MAX, min_stall_ns: 0 }));
    trace.wait(read(20, u64::MAX)).wait(Wait { tid: 101, ..read(20, u64::MAX) });
    let analysis = trace.analyse();
    assert_eq!(analysis.report.target.duration_ns, i64::MAX as u64 / 2);
    assert_eq!(analysis.report.totals.stalled_ns, 2 * (i64::MAX as u64 / 2 - 10));
    assert_eq!(analysis.report.coverage.losses.get(INCONSISTENT), Some(&1));
}

#[test]
fn families_without_end_are_counted_and_left_out() {
    let mut trace = Trace::new();
    for number in 0..300 {
        let reason = String::new();
        trace.add(Record::Coverage(Coverage {
            family: format!("f{number}"),
            state: FamilyState::On,
            reason,
        }));
    }
    let model = trace.model();
    assert_eq!(model.coverage.len(), 256);
    assert_eq!(model.losses.get(INCONSISTENT), Some(&(44, true)));
}

#[test]
fn a_record_that_is_there_twice_counts_once() {
    let mut trace = Trace::new();
    let peer = || readable(tcp(1, "10.0.1.1:80"));
    trace.wait(read(1100, 1200)).wait(read(1100, 1200)).retransmit(1150, peer()).retransmit(1150, peer());
    trace.add(query(1100, peer())).add(query(1100, peer()));
    let model = trace.model();
    assert_eq!(waits_of(&model).len(), 1);
    assert_eq!((model.retransmits.len(), model.dns_messages.len()), (1, 1));
    // Those of waits are found when these are sorted.
    assert_eq!(model.losses.get(DUPLICATE), Some(&(2, false)));
    assert_eq!(trace.analyse().report.coverage.losses.get(DUPLICATE), Some(&3));
}

#[test]
fn of_two_records_of_a_call_the_one_that_saw_its_end_stays() {
    let mut trace = Trace::new();
    trace.wait(in_flight(read(1100, 1900))).wait(read(1100, 1500));
    let waits = waits_of(&trace.model());
    assert_eq!(waits.len(), 1);
    assert_eq!((waits[0].end_ns, waits[0].flags.in_flight), (1500, false));
}

#[test]
fn a_trace_without_a_closed_window_ends_with_its_last_record() {
    let open = |start_ns| Record::Window(Window { start_ns, end_ns: 0, min_stall_ns: 9 });
    let mut trace = Trace(vec![open(1000), Record::Wait(in_flight(read(1100, 1800)))]);
    assert_eq!(trace.model().window, Window { start_ns: 1000, end_ns: 1800, min_stall_ns: 9 });
    trace.add(Record::End(End { time_ns: 1900, reason: "signal".into() }));
    assert_eq!(trace.model().window.end_ns, 1900);
    trace.add(Record::Window(Window { start_ns: 1000, end_ns: 1700, min_stall_ns: 9 })).add(open(1000));
    assert_eq!(trace.model().window.end_ns, 1700);
}

#[test]
fn an_empty_trace_is_an_empty_report() {
    let analysis = Trace::default().analyse();
    assert_eq!(analysis.stalls, []);
    assert_eq!(analysis.report.totals, crate::analysis::report::Totals::default());
}

#[test]
fn names_follow_exec_and_counts_are_the_last_ones() {
    let mut trace = Trace::new();
    trace.add(Record::Life(Life {
        time_ns: 1500,
        event: LifeEvent::Exec,
        pid: PID,
        tid: PID,
        parent: 0,
        comm: "python3".into(),
    }));
    for count in [10, 20] {
        trace.add(Record::Loss(Loss { what: "wait_ring_full".into(), count, events: true }));
        let call = CallCount { call: Call::Read, seen: count * 100, below: count, below_ns: 5 };
        trace.add(Record::CallCount(call));
    }
    let analysis = trace.analyse();
    assert_eq!(analysis.processes.get(&PID).map(String::as_str), Some("python3"));
    assert_eq!(analysis.threads.get(&PID).map(String::as_str), Some("python3"));
    assert_eq!(analysis.report.coverage.lost_events, 20);
    assert_eq!(analysis.report.coverage.syscalls_seen.get("read"), Some(&2000));
}

#[test]
fn a_forked_process_is_part_of_the_target() {
    let mut trace = Trace::new();
    trace.add(Record::Life(Life {
        time_ns: 1500,
        event: LifeEvent::Fork,
        pid: 200,
        tid: 200,
        parent: PID,
        comm: "worker".into(),
    }));
    let analysis = trace.analyse();
    assert_eq!(analysis.report.target.pids, [PID, 200]);
    assert_eq!(analysis.report.target.comm, "train");
    assert_eq!(analysis.report.threads[1].wall_ns, 500);
    assert_eq!(analysis.report.threads[1].name, "worker");
}

#[test]
fn times_at_the_end_of_the_clock_do_not_overflow() {
    let mut trace = Trace::with_window(0, u64::MAX);
    trace.wait(read(0, u64::MAX)).wait(spin(read(1, u64::MAX))).times(0, 0, 0);
    trace.wait(Wait { tid: 5, ..read(0, u64::MAX) }).times(u64::MAX, u64::MAX, u64::MAX);
    trace.handshake(shake(0, u64::MAX, 0, tcp(1, "10.0.1.1:80"))).retransmit(u64::MAX, tcp(1, "10.0.1.1:80"));
    assert_eq!(trace.analyse().report.totals.stalled_ns, i64::MAX as u64 - 1);
}
