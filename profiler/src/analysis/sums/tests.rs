//! How many waits are analysed at once is seen nowhere.

use profiler_common::{Api, Call};
use proptest::prelude::*;

use crate::analysis::diff::document::Diff;
use crate::analysis::diff::{compare, profile_of};
use crate::analysis::report::TraceState;
use crate::analysis::{Analysis, AnalysisOptions, analyse_model};
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::fixture::{
    PID, Trace, connecting, in_flight, readable, sample_of, shake, slept, spin, tcp, udp, wait, writable,
};
use crate::model::packed::PortionLen;
use crate::trace::record::{Ends, Process, Record, Socket, Thread, Wait, WaitFlags};

const OURS: &str = "10.0.0.1:4000";
const FAR: &str = "10.0.0.2:29500";
const FAR_PID: u32 = 200;
const FIRST_NS: u64 = 1_000_000;

/// One wait of one of three threads, some time after the one before.
#[derive(Clone, Copy, Debug)]
struct Case {
    thread: usize,
    gap: u64,
    len: u64,
    kind: u8,
    peer: u64,
    stack: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let len = prop_oneof![8 => 1..40_u64, 1 => 40..400_u64];
    (0..3_usize, 0..30_u64, len, 0..24_u8, 1..5_u64, 1..4_u64)
        .prop_map(|(thread, gap, len, kind, peer, stack)| Case { thread, gap, len, kind, peer, stack })
}

/// Between the two processes.
fn connection(pid: u32) -> Socket {
    let (local, peer) = if pid == PID { (OURS, FAR) } else { (FAR, OURS) };
    let ends = Ends::Inet { local: local.parse().unwrap(), peer: peer.parse().unwrap() };
    Socket { ends, ..tcp(u64::from(pid), peer) }
}

impl Case {
    fn wait(self, pid: u32, start_ns: u64) -> Wait {
        let Case { len, peer, stack, .. } = self;
        let end_ns = start_ns + len;
        let of = |call: Call, sockets: Vec<Socket>| Wait {
            user_stack: stack,
            kernel_stack: stack % 2,
            polls: peer as u32,
            ..wait(call, start_ns, end_ns, sockets)
        };
        let socket = |number: u64| readable(tcp(number, &format!("10.0.1.{number}:80")));
        match self.kind {
            0 => of(Call::Poll, vec![socket(1), writable(tcp(2, "10.0.1.2:80")), udp(3, "10.0.0.53:53")]),
            1 => Wait {
                api: Api::Getaddrinfo,
                api_start_ns: start_ns - 3,
                ..of(Call::Poll, vec![readable(udp(5, "10.0.0.53:53"))])
            },
            2 => of(Call::Connect, vec![connecting(tcp(10 + peer, "10.0.1.9:80"))]),
            3 => spin(of(Call::Recvfrom, vec![socket(peer)])),
            4 => in_flight(of(Call::Read, vec![socket(peer)])),
            5 => Wait {
                flags: WaitFlags { began_earlier: true, ..WaitFlags::default() },
                ..of(Call::Read, vec![socket(peer)])
            },
            6 => of(Call::Sendto, vec![socket(peer)]),
            7 => slept(start_ns + len / 4, start_ns + len - len / 4, of(Call::Read, vec![socket(peer)])),
            8..16 => of(Call::Read, vec![connection(pid)]),
            _ => of(Call::Read, vec![socket(peer)]),
        }
    }
}

/// The records come as a recorder writes them: in the order of their ends.
fn trace_of(cases: &[Case]) -> Trace {
    let mut ends = [(PID, PID, FIRST_NS), (PID, 101, FIRST_NS), (FAR_PID, FAR_PID, FIRST_NS)];
    let mut waits: Vec<Wait> = Vec::new();
    for case in cases {
        let (pid, tid, now_ns) = &mut ends[case.thread];
        let start_ns = *now_ns + case.gap;
        waits.push(Wait { pid: *pid, tid: *tid, ..case.wait(*pid, start_ns) });
        // A long one is still awaited when the next ones begin.
        *now_ns = start_ns + case.len.min(40);
    }
    // Some are there twice.
    waits.extend(waits.clone().into_iter().step_by(97));
    waits.sort_by_key(|wait| wait.end_ns);
    let last_ns = waits.last().map_or(FIRST_NS, |wait| wait.end_ns);
    // The window begins and ends within waits.
    let mut trace = Trace::with_window(FIRST_NS + 50, last_ns.saturating_sub(20).max(FIRST_NS + 60));
    trace.thread(101, FIRST_NS + 50);
    let far = Process { pid: FAR_PID, comm: "far".into(), seen_ns: FIRST_NS, ..Process::default() };
    let thread = Thread { pid: FAR_PID, tid: FAR_PID, seen_ns: FIRST_NS, ..Thread::default() };
    trace.add(Record::Process(far)).add(Record::Thread(thread));
    for (pid, local, peer) in [(PID, OURS, FAR), (FAR_PID, FAR, OURS)] {
        trace.add(Record::Socket(sample_of(pid, local, tcp(u64::from(pid), peer))));
    }
    for at in 1..20 {
        let time_ns = FIRST_NS + at * (last_ns - FIRST_NS) / 20;
        trace.handshake(shake(time_ns, time_ns + 30, 0, tcp(11, "10.0.1.9:80")));
    }
    for (at, wait) in waits.into_iter().enumerate() {
        if let Some(socket) = wait.sockets.first().filter(|_| at % 20 == 0) {
            // Lost again and again, or it is no loss that one waits for.
            for time_ns in [wait.start_ns, wait.end_ns - 1] {
                trace.retransmit(time_ns, socket.clone());
            }
        }
        trace.wait(wait);
    }
    trace
}

fn in_portions(trace: &Trace, least: u32) -> Model {
    Model { portion_len: PortionLen(least), ..trace.model() }
}

fn analysed(trace: &Trace, least: u32, merge_stalls: bool) -> Analysis {
    let options = AnalysisOptions { merge_stalls, ..AnalysisOptions::default() };
    analyse_model(in_portions(trace, least), TraceState::default(), &options)
}

fn difference(before: &Trace, after: &Trace, least: u32) -> Diff {
    let profile = |trace| profile_of(in_portions(trace, least), TraceState::default(), &|_, _| ());
    compare(&[profile(before)], &[profile(after)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn the_same_comes_out_in_one_portion_and_in_many(
        cases in prop::collection::vec(case(), 1600..2600), least in 0..600_u32
    ) {
        let trace = trace_of(&cases);
        for merge_stalls in [false, true] {
            let (whole, parts) = (analysed(&trace, u32::MAX, merge_stalls), analysed(&trace, least, merge_stalls));
            prop_assert_eq!(&whole.report, &parts.report);
            prop_assert_eq!(&whole.stalls, &parts.stalls);
            prop_assert_eq!(&whole.merged, &parts.merged);
        }
        let half = trace_of(&cases[..cases.len() / 2]);
        prop_assert_eq!(difference(&half, &trace, u32::MAX), difference(&half, &trace, least));
    }
}

#[test]
fn such_recordings_have_several_portions_and_everything_that_is_added_up() {
    let mut random = crate::random::Random(3);
    let mut below = |most: usize| random.below(most) as u64;
    let cases: Vec<Case> = (0..2600)
        .map(|_| Case {
            thread: below(3) as usize,
            gap: below(30),
            len: 1 + below(40),
            kind: below(24) as u8,
            peer: 1 + below(4),
            stack: 1 + below(3),
        })
        .collect();
    let trace = trace_of(&cases);
    assert_eq!(in_portions(&trace, u32::MAX).portions().len(), 3);
    assert!(in_portions(&trace, 0).portions().len() > 6);
    let analysis = analysed(&trace, 0, true);
    let report = &analysis.report;
    let causes: Vec<Cause> = report.causes.iter().map(|row| row.cause).collect();
    for cause in
        [Cause::SockRecv, Cause::SockSend, Cause::TcpRetransmit, Cause::TcpConnect, Cause::DnsResolve]
    {
        assert!(causes.contains(&cause), "{cause:?} {causes:?}");
    }
    assert!(report.connects.iter().any(|row| row.stalled_ns > 0), "{:?}", report.connects);
    assert!(report.sockets.iter().any(|row| row.longest_ns > 0) && report.stalls.len() > 10);
    assert!(report.coverage.losses.get("duplicate_records").is_some_and(|count| *count > 10));
    assert!(analysis.merged.iter().any(|(_, count)| *count > 20));
}
