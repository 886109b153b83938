use std::collections::BTreeMap;

use profiler_common::Call;
use proptest::prelude::*;

use super::*;
use crate::analysis::Analysis;
use crate::model::fixture::{
    Trace, in_flight, listener, no_socket, readable, slept, spin, tcp, udp, unix, wait,
};
use crate::trace::record::{Sched, Wait, WaitFlags};

fn peer(number: u64) -> crate::trace::record::Socket {
    readable(tcp(number, &format!("10.0.1.{number}:80")))
}

/// Start, end and weight of the stalls on one peer.
fn of_peer(analysis: &Analysis, number: u64) -> Vec<(u64, u64, u64)> {
    let name = format!("10.0.1.{number}:80");
    let stalls = analysis.stalls.iter().filter(|stall| stall.peer == name);
    stalls.map(|stall| (stall.start_ns, stall.end_ns, stall.weight_ns)).collect()
}

#[test]
fn waits_are_clipped_to_the_window() {
    let analysis = Trace::new()
        .wait(wait(Call::Read, 500, 1100, vec![peer(1)]))
        .wait(wait(Call::Read, 1900, 2500, vec![peer(2)]))
        .wait(wait(Call::Read, 100, 900, vec![peer(3)]))
        .analyse();
    assert_eq!(of_peer(&analysis, 1), [(1000, 1100, 100)]);
    assert_eq!(of_peer(&analysis, 2), [(1900, 2000, 100)]);
    assert_eq!(of_peer(&analysis, 3), []);
    assert_eq!(analysis.report.totals.stalled_ns, 200);
    let flags: Vec<(bool, bool)> =
        analysis.stalls.iter().map(|stall| (stall.began_earlier, stall.in_flight)).collect();
    assert_eq!(flags, [(true, false), (false, true)]);
}

#[test]
fn of_nested_calls_the_inner_one_wins_and_the_outer_has_the_rest() {
    // A signal handler reads while the outer call waits.
    let analysis = Trace::new()
        .wait(wait(Call::Poll, 1100, 1500, vec![peer(1)]))
        .wait(wait(Call::Read, 1200, 1250, vec![peer(2)]))
        .analyse();
    assert_eq!(of_peer(&analysis, 1), [(1100, 1200, 100), (1250, 1500, 250)]);
    assert_eq!(of_peer(&analysis, 2), [(1200, 1250, 50)]);
    let row = &analysis.report.causes[0];
    assert_eq!((row.count, row.stalled_ns, row.duration.sum_ns), (2, 400, 450));
}

#[test]
fn of_calls_that_cross_the_later_one_wins() {
    let analysis = Trace::new()
        .wait(wait(Call::Read, 1100, 1300, vec![peer(1)]))
        .wait(wait(Call::Read, 1200, 1400, vec![peer(2)]))
        .analyse();
    assert_eq!(of_peer(&analysis, 1), [(1100, 1200, 100)]);
    assert_eq!(of_peer(&analysis, 2), [(1200, 1400, 200)]);
}

#[test]
fn an_idle_call_inside_a_stalled_one_is_idle() {
    let analysis = Trace::new()
        .wait(wait(Call::Read, 1100, 1500, vec![peer(1)]))
        .wait(wait(Call::Nanosleep, 1200, 1300, Vec::new()))
        .analyse();
    let totals = analysis.report.totals;
    assert_eq!((totals.stalled_ns, totals.idle_ns), (300, 100));
}

#[test]
fn descriptors_that_are_polled_by_turns_share_the_time() {
    let analysis = Trace::new()
        .wait(spin(wait(Call::Recvfrom, 1100, 1400, vec![peer(1)])))
        .wait(spin(wait(Call::Recvfrom, 1200, 1301, vec![peer(2)])))
        .analyse();
    // [1100,1200) alone, [1200,1301) halved with the odd nanosecond to the first, [1301,1400) alone.
    assert_eq!(of_peer(&analysis, 1), [(1100, 1400, 100 + 51 + 99)]);
    assert_eq!(of_peer(&analysis, 2), [(1200, 1301, 50)]);
    assert_eq!(analysis.report.totals.stalled_ns, 300);
}

#[test]
fn a_blocking_call_takes_its_time_from_the_spin_around_it() {
    let analysis = Trace::new()
        .wait(spin(wait(Call::Recvfrom, 1100, 1400, vec![peer(1)])))
        .wait(wait(Call::EpollWait, 1150, 1350, vec![peer(2), peer(3)]))
        .analyse();
    assert_eq!(of_peer(&analysis, 1), [(1100, 1150, 50), (1350, 1400, 50)]);
    assert_eq!(of_peer(&analysis, 2), [(1150, 1350, 100)]);
    assert_eq!(of_peer(&analysis, 3), [(1150, 1350, 100)]);
}

#[test]
fn a_blocking_call_that_is_no_stall_takes_its_time_too() {
    let analysis = Trace::new()
        .wait(spin(wait(Call::Recvfrom, 1100, 1400, vec![peer(1)])))
        .wait(Wait { arg: 0, ..wait(Call::Futex, 1150, 1350, Vec::new()) })
        .analyse();
    assert_eq!(of_peer(&analysis, 1), [(1100, 1150, 50), (1350, 1400, 50)]);
    assert_eq!(analysis.report.totals.idle_ns, 0);
}

#[test]
fn naps_between_looks_are_part_of_the_wait_and_other_sleep_is_idle() {
    let analysis = Trace::new()
        .wait(spin(wait(Call::Recvfrom, 1100, 1400, vec![peer(1)])))
        .wait(wait(Call::ClockNanosleep, 1150, 1250, Vec::new()))
        .wait(wait(Call::Select, 1300, 1350, Vec::new()))
        .wait(wait(Call::Nanosleep, 1390, 1500, Vec::new()))
        .times(1000, 0, 0)
        .times(2000, 400, 0)
        .analyse();
    assert_eq!(of_peer(&analysis, 1), [(1100, 1400, 300)]);
    let row = &analysis.report.threads[0];
    // It looked for 300 - 100 - 50 - 10 ns, and only that comes out of its running time.
    assert_eq!((row.stalled_ns, row.idle_ns, row.running_ns), (300, 100, 260));
}

#[test]
fn nested_waits_have_what_their_thread_slept_in_each() {
    let analysis = Trace::new()
        .wait(slept(1110, 1450, wait(Call::Poll, 1100, 1500, vec![peer(1)])))
        .wait(slept(1205, 1240, wait(Call::Read, 1200, 1250, vec![peer(2)])))
        .times(1000, 0, 0)
        .times(2000, 600, 75)
        .analyse();
    assert_eq!(of_peer(&analysis, 1), [(1110, 1200, 90), (1250, 1450, 200)]);
    assert_eq!(of_peer(&analysis, 2), [(1205, 1240, 35)]);
    let row = &analysis.report.threads[0];
    assert_eq!((row.stalled_ns, row.running_ns, row.runnable_ns, row.other_ns), (325, 600, 75, 0));
}

#[test]
fn peers_of_one_wait_share_what_the_thread_slept_in_it() {
    let poll = slept(1100, 1200, wait(Call::Poll, 1090, 1250, vec![peer(1), peer(2)]));
    // It woke up in between, for 40 ns.
    let analysis = Trace::new().wait(Wait { off_cpu_ns: 60, ..poll }).analyse();
    assert_eq!(of_peer(&analysis, 1), [(1100, 1200, 30)]);
    assert_eq!(of_peer(&analysis, 2), [(1100, 1200, 30)]);
    assert_eq!(analysis.report.totals.stalled_ns, 60);
}

#[test]
fn a_call_in_which_the_thread_did_not_sleep_is_no_wait_and_leaves_nothing_to_the_outer_one() {
    let awake = WaitFlags { timed: true, ..WaitFlags::default() };
    let analysis = Trace::new()
        .wait(slept(1100, 1500, wait(Call::Poll, 1100, 1500, vec![peer(1)])))
        .wait(Wait { flags: awake, ..wait(Call::Read, 1200, 1300, vec![peer(2)]) })
        .analyse();
    assert_eq!(of_peer(&analysis, 1), [(1100, 1200, 100), (1300, 1500, 200)]);
    assert_eq!(of_peer(&analysis, 2), []);
}

/// A spin that had no processor for so long.
fn starved(runq_ns: u64, wait: Wait) -> Wait {
    spin(Wait { sched: Sched { runq_ns, ..Sched::default() }, ..wait })
}

#[test]
fn spins_that_share_time_wait_only_while_there_is_a_processor() {
    let analysis = Trace::new()
        .wait(starved(80, wait(Call::Recvfrom, 1100, 1500, vec![peer(1)])))
        .wait(starved(50, wait(Call::Recvfrom, 1200, 1400, vec![peer(2)])))
        .times(1000, 0, 0)
        .times(2000, 500, 80)
        .analyse();
    // Of 100 + 100 + 100 ns four parts in five, and of 100 ns three in four.
    assert_eq!(of_peer(&analysis, 1), [(1100, 1500, 240)]);
    assert_eq!(of_peer(&analysis, 2), [(1200, 1400, 75)]);
    let row = &analysis.report.threads[0];
    assert_eq!((row.stalled_ns, row.runnable_ns, row.running_ns), (315, 80, 500 - 315));
}

#[test]
fn run_queue_time_after_a_nap_is_taken_out_of_the_spin_once() {
    let analysis = Trace::new()
        .wait(starved(60, wait(Call::Recvfrom, 1100, 1400, vec![peer(1)])))
        .wait(slept(1150, 1250, wait(Call::ClockNanosleep, 1150, 1310, Vec::new())))
        .times(1000, 0, 0)
        .times(2000, 500, 60)
        .analyse();
    assert_eq!(of_peer(&analysis, 1), [(1100, 1400, 240)]);
    let row = &analysis.report.threads[0];
    // Of its running time it looked for 300 - 100 - 60 ns.
    assert_eq!((row.stalled_ns, row.idle_ns, row.runnable_ns, row.running_ns), (240, 0, 60, 360));
}

#[test]
fn an_idle_spin_without_a_processor_is_runnable() {
    let analysis = Trace::new()
        .wait(starved(100, wait(Call::Accept, 1100, 1500, vec![listener(9)])))
        .times(1000, 0, 0)
        .times(2000, 700, 100)
        .analyse();
    let row = &analysis.report.threads[0];
    assert_eq!((row.idle_ns, row.runnable_ns, row.running_ns, row.other_ns), (300, 100, 400, 200));
}

#[test]
fn an_idle_spin_has_what_stalled_spins_leave() {
    let analysis = Trace::new()
        .wait(spin(wait(Call::Accept, 1100, 1400, vec![listener(9)])))
        .wait(spin(wait(Call::Recvfrom, 1200, 1300, vec![peer(1)])))
        .wait(wait(Call::Read, 1350, 1360, vec![peer(2)]))
        .analyse();
    let totals = analysis.report.totals;
    assert_eq!((totals.stalled_ns, totals.idle_ns), (110, 190));
}

#[test]
fn spins_that_follow_each_other_are_their_own() {
    let analysis = Trace::new()
        .wait(spin(wait(Call::Recvfrom, 1100, 1200, vec![peer(1)])))
        .wait(spin(wait(Call::Recvfrom, 1200, 1300, vec![peer(2)])))
        .wait(spin(wait(Call::Recvfrom, 1300, 1400, vec![peer(1)])))
        .analyse();
    assert_eq!(of_peer(&analysis, 1), [(1100, 1200, 100), (1300, 1400, 100)]);
    assert_eq!(of_peer(&analysis, 2), [(1200, 1300, 100)]);
}

#[test]
fn a_retransmission_cuts_only_the_share_of_its_socket() {
    let analysis = Trace::new()
        .retransmit(1300, tcp(1, "10.0.1.1:80"))
        .retransmit(1350, tcp(1, "10.0.1.1:80"))
        .wait(wait(Call::Poll, 1100, 1400, vec![peer(1), peer(2)]))
        .analyse();
    assert_eq!(of_peer(&analysis, 1), [(1100, 1300, 100), (1300, 1400, 50)]);
    assert_eq!(of_peer(&analysis, 2), [(1100, 1400, 150)]);
    assert_eq!(analysis.by_cause(), [(Cause::SockRecv, 250), (Cause::TcpRetransmit, 50)]);
}

#[test]
fn more_descriptors_than_nanoseconds_still_add_up() {
    let set: Vec<_> = (1..=7).map(peer).collect();
    let analysis = Trace::new().wait(wait(Call::Poll, 1100, 1103, set)).analyse();
    assert_eq!(analysis.stalls.len(), 3);
    assert_eq!(analysis.report.totals.stalled_ns, 3);
}

#[test]
fn threads_are_apart() {
    let mut trace = Trace::new();
    for number in 0..300_u32 {
        let one = wait(Call::Read, 1000 + u64::from(number), 1500, vec![peer(1)]);
        trace.thread(1000 + number, 1000).wait(Wait { tid: 1000 + number, ..in_flight(one) });
    }
    let analysis = trace.analyse();
    let stalled: Vec<u64> = analysis.report.threads.iter().map(|row| row.stalled_ns).collect();
    assert_eq!(stalled.len(), 301);
    assert_eq!(stalled[1..], (0..300).map(|number| 500 - number).collect::<Vec<u64>>());
    let row = &analysis.report.causes[0];
    assert_eq!((row.count, row.in_flight, row.stalled_ns), (300, 300, 300 * 500 - 299 * 150));
}

const SLEEP: usize = 5;

#[derive(Clone, Debug)]
struct Case {
    start: u64,
    len: u64,
    kind: usize,
    nonblocking: bool,
    /// Where an ordinary call slept, if the scheduler's probes ran.
    asleep: Option<(u64, u64)>,
}

fn case() -> impl Strategy<Value = Case> {
    let asleep = prop::option::of((0_u64..60, 0_u64..120));
    (900_u64..1200, 0_u64..120, 0_usize..9, any::<bool>(), asleep).prop_map(
        |(start, len, kind, nonblocking, asleep)| {
            let inside = |(lead, sleep): (u64, u64)| {
                let begin = start + lead.min(len);
                (begin, (begin + sleep).min(start + len))
            };
            Case { start, len, kind, nonblocking, asleep: asleep.map(inside).filter(|_| !nonblocking) }
        },
    )
}

impl Case {
    fn wait(&self, index: i32) -> Wait {
        let (call, sockets) = match self.kind {
            0 => (Call::Read, vec![peer(1)]),
            1 => (Call::Poll, vec![peer(1), peer(2), peer(3)]),
            2 => (Call::Sendto, vec![tcp(2, "10.0.1.2:80")]),
            3 => (Call::Recvfrom, vec![udp(4, "10.0.0.53:53")]),
            4 => (Call::Connect, vec![tcp(5, "10.0.1.5:80")]),
            SLEEP => (Call::Nanosleep, Vec::new()),
            6 => (Call::Poll, vec![readable(no_socket())]),
            7 => (Call::Read, vec![unix("/run/app")]),
            _ => (Call::EpollWait, vec![peer(6), readable(udp(4, "10.0.0.53:53")), readable(no_socket())]),
        };
        let flags = WaitFlags { nonblocking: self.nonblocking, ..WaitFlags::default() };
        // Descriptors differ, so that none counts as a duplicate of another.
        let wait = Wait { flags, fd: index, ..wait(call, self.start, self.start + self.len, sockets) };
        match self.asleep {
            None => wait,
            Some((begin, end)) if begin < end => slept(begin, end, wait),
            Some(_) => Wait { flags: WaitFlags { timed: true, ..wait.flags }, ..wait },
        }
    }

    fn sleeps(&self, now: u64) -> bool {
        self.asleep.is_none_or(|(begin, end)| begin <= now && now < end)
    }

    fn stalls(&self) -> bool {
        matches!(self.kind, 0..=4 | 8)
    }

    fn idles(&self) -> bool {
        matches!(self.kind, SLEEP | 6)
    }
}

/// Stalled and idle time by looking at every nanosecond.
fn by_hand(cases: &[Case]) -> (u64, u64) {
    let (mut stalled, mut idle) = (0, 0);
    for now in 1000..1300 {
        let active = |case: &&Case| case.start <= now && now < case.start + case.len;
        let ordinary = cases.iter().filter(active).filter(|case| !case.nonblocking);
        let spins = || cases.iter().filter(active).filter(|case| case.nonblocking);
        let stalls = spins().any(Case::stalls);
        // Of those that began last, the one that ends first, and of these the last record.
        let inner = ordinary.min_by_key(|case| (std::cmp::Reverse(case.start), case.len));
        match inner {
            // Sleep leaves its time to a spin that stalls, and what is behind it to any.
            Some(inner) if inner.kind != SLEEP || (!stalls && inner.sleeps(now)) => {
                stalled += u64::from(inner.stalls() && inner.sleeps(now));
                idle += u64::from(inner.idles() && inner.sleeps(now));
            }
            _ => {
                stalled += u64::from(stalls);
                idle += u64::from(!stalls && spins().any(Case::idles));
            }
        }
    }
    (stalled, idle)
}

proptest! {
    #[test]
    fn the_parts_are_exclusive_and_add_up(cases in prop::collection::vec(case(), 0..24), retransmits in prop::collection::vec(950_u64..1350, 0..4)) {
        // Equal ordinary intervals of different kinds have no inner one.
        let mut seen = std::collections::HashSet::new();
        let cases: Vec<Case> = cases.into_iter().filter(|case| case.nonblocking || seen.insert((case.start, case.len))).collect();
        let mut trace = Trace::with_window(1000, 1300);
        for (index, case) in (0..).zip(&cases) {
            trace.wait(case.wait(index));
        }
        for time in retransmits {
            trace.retransmit(time, tcp(1, "10.0.1.1:80"));
        }
        trace.times(1000, 0, 0).times(1300, 250, 40);
        let analysis = trace.analyse();
        let (stalled, idle) = by_hand(&cases);
        let totals = analysis.report.totals;
        prop_assert_eq!((totals.stalled_ns, totals.idle_ns), (stalled, idle));
        prop_assert_eq!(analysis.stalls.iter().map(|stall| stall.weight_ns).sum::<u64>(), stalled);
        let causes = analysis.report.causes.iter().filter(|row| row.cause != Cause::SchedRunq);
        prop_assert_eq!(causes.map(|row| row.stalled_ns).sum::<u64>(), stalled);

        // No stretch of time holds more weight than nanoseconds.
        let mut by_span: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for stall in &analysis.stalls {
            prop_assert!(1000 <= stall.start_ns && stall.start_ns < stall.end_ns && stall.end_ns <= 1300);
            prop_assert!(0 < stall.weight_ns && stall.weight_ns <= stall.end_ns - stall.start_ns);
            *by_span.entry((stall.start_ns, stall.end_ns)).or_default() += stall.weight_ns;
        }
        for (start, _) in by_span.keys() {
            for (_, end) in by_span.keys().filter(|(_, end)| end > start) {
                let inside = by_span.iter().filter(|((s, e), _)| s >= start && e <= end);
                prop_assert!(inside.map(|(_, weight)| weight).sum::<u64>() <= end - start);
            }
        }

        let sum = |cause: &[Cause]| analysis.report.causes.iter().filter(|row| cause.contains(&row.cause)).map(|row| row.stalled_ns).sum::<u64>();
        let sockets: u64 = analysis.report.sockets.iter().map(|row| row.stalled_ns).sum();
        prop_assert_eq!(sockets, sum(&[Cause::SockRecv, Cause::SockSend, Cause::TcpRetransmit]));
        let connects: u64 = analysis.report.connects.iter().map(|row| row.stalled_ns).sum();
        prop_assert_eq!(connects, sum(&[Cause::TcpConnect]));
        for row in &analysis.report.threads {
            let parts = row.running_ns + row.runnable_ns + row.stalled_ns + row.idle_ns + row.other_ns;
            prop_assert_eq!(parts, row.wall_ns);
        }
    }
}
