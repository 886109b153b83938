use profiler_common::Call;

use super::*;
use crate::analysis::Analysis;
use crate::model::cause::Cause;
use crate::model::fixture::{PID, Trace, wait};
use crate::trace::rdma_setup::RdmaCommandTotals;
use crate::trace::record::{Record, Sched, Wait, WaitFlags};

fn call(op: SetupOp, start_ns: u64, end_ns: u64) -> RdmaSetup {
    RdmaSetup { start_ns, end_ns, pid: PID, tid: PID, op, ..RdmaSetup::default() }
}

/// A registration of 3 GiB that pins from 1200 to 1500 and asks the device for 80 of the rest.
fn registration() -> RdmaSetup {
    RdmaSetup {
        pin_start_ns: 1200,
        pin_end_ns: 1500,
        pin_ns: 300,
        command_ns: 80,
        commands: 1,
        bytes: 3 << 30,
        running_ns: 250,
        ..call(SetupOp::RegisterMemory, 1100, 1600)
    }
}

fn totals(op: SetupOp, calls: u64, ns: u64) -> RdmaSetupTotals {
    RdmaSetupTotals { pid: PID, op, calls, ns, ..RdmaSetupTotals::default() }
}

/// The wait that comes with a call.
fn of_call(call: &RdmaSetup) -> Wait {
    Wait {
        flags: WaitFlags { slept: true, timed: true, ..WaitFlags::default() },
        off_cpu_ns: call.end_ns.saturating_sub(call.start_ns + call.runq_ns),
        sched: Sched { sleep_ns: call.start_ns, wake_ns: call.end_ns, runq_ns: call.runq_ns, owner: 0 },
        ..wait(Call::Uverbs, call.start_ns, call.end_ns, Vec::new())
    }
}

fn analysed(calls: &[RdmaSetup], rows: &[RdmaSetupTotals]) -> Analysis {
    let mut trace = Trace::new();
    for call in calls {
        trace.wait(of_call(call)).add(Record::RdmaSetup(*call));
    }
    for row in rows {
        trace.add(Record::RdmaSetupTotals(row.clone()));
    }
    trace.analyse()
}

#[test]
fn pinning_is_dma_map_and_the_rest_of_the_call_is_set_up() {
    let analysis = analysed(&[registration()], &[]);
    assert_eq!(analysis.by_cause(), [(Cause::DmaMap, 300), (Cause::RdmaSetup, 200)]);
    let labels: Vec<&str> = analysis.stalls.iter().map(|stall| stall.detail.as_str()).collect();
    assert_eq!(labels, ["register 2.00 GiB, pin 60 %"; 3]);
    assert!(analysis.stalls.iter().all(|stall| stall.call == "uverbs"));
}

#[test]
fn what_a_thread_works_inside_of_the_call_is_stalled_and_not_running() {
    let mut trace = Trace::new();
    trace.times(1000, 0, 0).times(2000, 700, 0);
    let call = RdmaSetup { runq_ns: 50, ..registration() };
    trace.wait(of_call(&call)).add(Record::RdmaSetup(call));
    let row = trace.analyse().report.threads[0].clone();
    assert_eq!((row.wall_ns, row.stalled_ns, row.running_ns), (1000, 450, 450));
    assert_eq!(row.running_ns + row.runnable_ns + row.stalled_ns + row.idle_ns + row.other_ns, row.wall_ns);
}

#[test]
fn a_call_without_particulars_is_set_up_as_a_whole() {
    let mut trace = Trace::new();
    trace.wait(of_call(&registration()));
    assert_eq!(trace.analyse().by_cause(), [(Cause::RdmaSetup, 500)]);
}

#[test]
fn a_call_in_an_ordinary_wait_is_counted_once() {
    let mut trace = Trace::new();
    let socket = vec![crate::model::fixture::tcp(1, "10.0.0.2:80")];
    trace.wait(wait(Call::Recvfrom, 1000, 1800, socket));
    trace.wait(of_call(&registration())).add(Record::RdmaSetup(registration()));
    let analysis = trace.analyse();
    assert_eq!(analysis.report.totals.stalled_ns, 800);
    assert_eq!(analysis.cause(Cause::SockRecv).unwrap().stalled_ns, 300);
}

#[test]
fn rows_have_shares_and_the_exact_distribution_where_all_calls_are_known() {
    let row = RdmaSetupTotals {
        bytes: 3 << 30,
        pin_ns: 300,
        command_ns: 80,
        queued_ns: 20,
        commands: 1,
        ..totals(SetupOp::RegisterMemory, 1, 500)
    };
    let section = analysed(&[registration()], &[row]).report.rdma_setup.unwrap();
    let [row] = section.operations.as_slice() else { panic!("{section:?}") };
    assert_eq!((row.op.as_str(), row.pid, row.calls, row.total_ns), ("register", PID, 1, 500));
    assert!((row.pin_share - 0.6).abs() < 1e-9 && (row.command_share - 0.16).abs() < 1e-9);
    assert!(row.exact);
    assert_eq!((row.duration.p50_ns, row.duration.sum_ns), (500, 500));
    assert_eq!(section.slowest[0].bytes, 3 << 30);
}

#[test]
fn short_calls_have_a_distribution_from_the_histogram() {
    let place = |ns| u8::try_from(profiler_common::rdma_kernel::histogram_place(ns)).unwrap();
    let histogram = vec![(place(1_000), 98), (place(50_000), 2)];
    let row = RdmaSetupTotals { below: 100, histogram, ..totals(SetupOp::ToRts, 100, 198_000) };
    let section = analysed(&[], &[row]).report.rdma_setup.unwrap();
    let row = &section.operations[0];
    assert!(!row.exact);
    let within = |seen: u64, true_ns: u64| (seen as f64 / true_ns as f64 - 1.0).abs() < 0.125;
    assert!(within(row.duration.p50_ns, 1_000) && within(row.duration.p99_ns, 50_000), "{row:?}");
    assert_eq!((row.duration.count, row.duration.sum_ns), (100, 198_000));
}

#[test]
fn calls_that_had_not_ended_are_in_the_rows_with_their_age() {
    let open = RdmaSetup { in_flight: true, end_ns: 2000, ..registration() };
    let mut trace = Trace::new();
    let wait = Wait { flags: WaitFlags { in_flight: true, ..WaitFlags::default() }, ..of_call(&open) };
    trace.wait(wait).add(Record::RdmaSetup(open));
    let analysis = trace.analyse();
    let row = &analysis.report.rdma_setup.as_ref().unwrap().operations[0];
    assert_eq!((row.calls, row.in_flight, row.total_ns), (0, 1, 900));
    assert_eq!(analysis.cause(Cause::RdmaSetup).unwrap().in_flight, 1);
}

#[test]
fn commands_and_events_have_names() {
    let mut trace = Trace::new();
    trace.add(Record::RdmaCommandTotals(RdmaCommandTotals {
        opcode: 0x200,
        commands: 4,
        ns: 90,
        queued_ns: 30,
    }));
    trace.add(Record::RdmaCommandTotals(RdmaCommandTotals {
        opcode: 0x9ff,
        commands: 1,
        ns: 9,
        queued_ns: 0,
    }));
    trace.add(Record::RdmaDeviceEvent(RdmaDeviceEvent { time_ns: 1500, event: 10, port: 2 }));
    let section = trace.analyse().report.rdma_setup.unwrap();
    let names: Vec<&str> = section.commands.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["CREATE_MKEY", "0x9ff"]);
    assert_eq!((section.events[0].event.as_str(), section.events[0].port), ("PORT_ERR", 2));
    assert_eq!(Trace::new().analyse().report.rdma_setup, None);
}

#[test]
fn impossible_times_and_places_do_no_harm() {
    let odd = RdmaSetup { pin_start_ns: u64::MAX, pin_end_ns: 3, pin_ns: u64::MAX, ..registration() };
    let row = RdmaSetupTotals {
        histogram: vec![(255, u64::MAX), (3, u64::MAX)],
        ..totals(SetupOp::Other, 0, u64::MAX)
    };
    let analysis = analysed(&[odd, call(SetupOp::Deregister, 5, 2)], &[row]);
    assert_eq!(analysis.report.totals.stalled_ns, 500);
}
