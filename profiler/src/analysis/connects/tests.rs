use profiler_common::Call;

use crate::analysis::Analysis;
use crate::model::fixture::{
    Trace, connecting, in_flight, readable, sample_of, shake, tcp, udp, unix, wait, writable,
};
use crate::trace::record::{Handshake, Socket, Wait, WaitFlags};

const PEER: &str = "10.0.1.1:80";

fn connect(start_ns: u64, end_ns: u64, error: i32, socket: Socket) -> Wait {
    Wait { ret: -i64::from(error), ..wait(Call::Connect, start_ns, end_ns, vec![socket]) }
}

fn closed(ino: u64) -> Socket {
    Socket { state: 7, ..tcp(ino, PEER) }
}

/// Peer, result, count and stalled time.
fn rows(analysis: &Analysis) -> Vec<(&str, &str, u64, u64)> {
    let rows = analysis.report.connects.iter();
    rows.map(|row| (row.peer.as_str(), row.result.as_str(), row.count, row.stalled_ns)).collect()
}

#[test]
fn a_blocking_connect_and_its_handshake_are_one_attempt() {
    let analysis = Trace::new()
        .handshake(Handshake { syn_retransmits: 2, ..shake(1101, 1290, 0, tcp(1, PEER)) })
        .wait(connect(1100, 1300, 0, tcp(1, PEER)))
        .handshake(shake(1401, 1404, libc::ECONNREFUSED, closed(2)))
        .wait(connect(1400, 1405, libc::ECONNREFUSED, Socket { ino: 0, ..closed(2) }))
        .analyse();
    assert_eq!(rows(&analysis), [(PEER, "ok", 1, 200), (PEER, "ECONNREFUSED", 1, 5)]);
    let row = &analysis.report.connects[0];
    assert_eq!((row.syn_retransmits, row.handshake.max_ns), (2, 189));
    assert_eq!((row.family.as_str(), row.local.as_str()), ("inet", "10.0.0.1:40000"));
    assert_eq!((row.pid, row.tid, row.began_earlier), (100, 100, false));
}

#[test]
fn the_own_port_comes_from_a_later_look_at_the_socket() {
    let with_local = |ino, local: &str| sample_of(100, local, Socket { state: 2, ..tcp(ino, PEER) }).socket;
    let hanging = |ino| Handshake { in_flight: true, ..shake(1100, 2000, 0, with_local(ino, "10.0.0.1:0")) };
    let local = |trace: &mut Trace| trace.analyse().report.connects[0].local.clone();
    let mut trace = Trace::new();
    trace.handshake(hanging(1));
    assert_eq!(local(&mut trace), "10.0.0.1", "a port that is not known is not shown");
    trace.retransmit(1300, with_local(2, "10.0.0.1:5002"));
    assert_eq!(local(&mut trace), "10.0.0.1", "of another socket");
    trace.retransmit(1400, with_local(1, "10.0.0.1:5001"));
    assert_eq!(local(&mut trace), "10.0.0.1:5001");
}

#[test]
fn attempts_that_never_sent_anything_are_counted_from_the_call() {
    let analysis = Trace::new()
        .wait(connect(1100, 1103, libc::ENETUNREACH, tcp(1, "[fd00::9]:80")))
        .wait(connect(1200, 1203, libc::ENETUNREACH, tcp(2, "[fd00::9]:80")))
        .wait(connect(1300, 1301, libc::ENETUNREACH, udp(3, "10.0.0.9:80")))
        .wait(connect(1300, 1301, libc::ENOENT, unix("/run/app")))
        .wait(connect(1400, 1401, libc::EINPROGRESS, tcp(4, PEER)))
        .analyse();
    assert_eq!(rows(&analysis), [("[fd00::9]:80", "ENETUNREACH", 2, 6)]);
    assert_eq!(analysis.report.connects[0].family, "inet6");
    assert_eq!(analysis.stalls[0].detail, "unreachable");
}

#[test]
fn a_refusal_in_parallel_to_a_slow_attempt_is_an_attempt_of_its_own() {
    let analysis = Trace::new()
        .handshake(shake(1100, 1900, libc::ETIMEDOUT, closed(1)))
        .wait(connect(1500, 1503, libc::EHOSTUNREACH, closed(2)))
        .wait(wait(Call::Poll, 1600, 1905, vec![writable(closed(1))]))
        .analyse();
    assert_eq!(rows(&analysis), [(PEER, "ETIMEDOUT", 1, 305), (PEER, "EHOSTUNREACH", 1, 3)]);
}

#[test]
fn outcomes_are_read_from_error_and_state() {
    let analysis = Trace::new()
        .handshake(shake(1100, 1110, 0, tcp(1, "10.0.1.1:1")))
        .handshake(shake(1100, 1110, 0, Socket { state: 8, ..tcp(2, "10.0.1.1:2") }))
        .handshake(shake(1100, 1110, 0, Socket { state: 7, ..tcp(3, "10.0.1.1:3") }))
        .handshake(Handshake { in_flight: true, ..shake(1100, 1110, 0, connecting(tcp(4, "10.0.1.1:4"))) })
        .handshake(shake(1100, 1110, 9999, tcp(5, "10.0.1.1:5")))
        .handshake(shake(1900, 2010, 0, tcp(6, "10.0.1.1:6")))
        .handshake(shake(900, 990, 0, tcp(7, "10.0.1.1:7")))
        .analyse();
    let mut results: Vec<(&str, &str)> = analysis
        .report
        .connects
        .iter()
        .map(|row| (row.peer.rsplit(':').next().unwrap(), row.result.as_str()))
        .collect();
    results.sort_unstable();
    assert_eq!(
        results,
        [("1", "ok"), ("2", "ok"), ("3", "aborted"), ("4", "in_flight"), ("5", "E9999"), ("6", "in_flight")]
    );
}

fn slept(wait: Wait) -> Wait {
    Wait { flags: WaitFlags { slept: true, ..wait.flags }, ..wait }
}

#[test]
fn the_program_s_own_time_limit_is_a_result() {
    // Closed thereafter, left open, and one without a handshake.
    let analysis = Trace::new()
        .handshake(Handshake { syn_retransmits: 1, ..shake(1101, 1210, 0, closed(1)) })
        .wait(slept(connect(1100, 1200, libc::EINPROGRESS, connecting(tcp(1, PEER)))))
        .handshake(Handshake { in_flight: true, ..shake(1301, 2000, 0, connecting(tcp(2, PEER))) })
        .wait(slept(connect(1300, 1400, libc::EINPROGRESS, connecting(tcp(2, PEER)))))
        .wait(slept(connect(1500, 1600, libc::EALREADY, connecting(tcp(3, PEER)))))
        .analyse();
    assert_eq!(rows(&analysis), [(PEER, "timed_out", 3, 300)]);
    assert_eq!(analysis.stalls[0].detail, "SYN unanswered until the program's time limit");
}

#[test]
fn an_attempt_that_is_waited_for_after_its_time_limit_goes_on() {
    let analysis = Trace::new()
        .handshake(shake(1101, 1390, 0, tcp(1, PEER)))
        .wait(slept(connect(1100, 1200, libc::EINPROGRESS, connecting(tcp(1, PEER)))))
        .wait(connect(1300, 1400, 0, tcp(1, PEER)))
        .handshake(shake(1501, 1700, 0, closed(2)))
        .wait(slept(connect(1500, 1550, libc::EINPROGRESS, connecting(tcp(2, PEER)))))
        .wait(wait(Call::Poll, 1600, 1700, vec![writable(connecting(tcp(2, PEER)))]))
        .analyse();
    assert_eq!(rows(&analysis), [(PEER, "ok", 1, 200), (PEER, "aborted", 1, 150)]);
}

#[test]
fn a_connect_that_hung_before_the_recording_and_still_hangs_is_in_flight() {
    let flags = WaitFlags { began_earlier: true, in_flight: true, ..WaitFlags::default() };
    let hanging = Wait { flags, ..connect(200, 2000, 0, connecting(tcp(1, PEER))) };
    let analysis = Trace::new().wait(hanging).analyse();
    assert_eq!(rows(&analysis), [(PEER, "in_flight", 1, 1000)]);
    assert!(analysis.report.connects[0].began_earlier);
    let stall = &analysis.stalls[0];
    assert_eq!((stall.detail.as_str(), stall.in_flight, stall.began_earlier), ("SYN unanswered", true, true));
}

#[test]
fn polls_on_a_socket_that_was_connecting_before_are_one_attempt() {
    let socket = || writable(connecting(tcp(1, PEER)));
    let analysis = Trace::new()
        .wait(wait(Call::Poll, 1100, 1200, vec![socket()]))
        .wait(wait(Call::Poll, 1300, 1400, vec![socket()]))
        .wait(in_flight(wait(Call::Poll, 1500, 1990, vec![socket()])))
        .analyse();
    assert_eq!(rows(&analysis), [(PEER, "in_flight", 1, 690)]);
    assert!(analysis.report.connects[0].began_earlier);
}

#[test]
fn parallel_attempts_in_one_poll_set_have_their_share_each() {
    let set = vec![writable(connecting(tcp(1, PEER))), writable(connecting(tcp(2, "10.0.1.2:80")))];
    let analysis = Trace::new()
        .handshake(shake(1100, 1500, libc::ECONNREFUSED, closed(1)))
        .handshake(Handshake { in_flight: true, ..shake(1100, 1990, 0, connecting(tcp(2, "10.0.1.2:80"))) })
        .wait(wait(Call::EpollWait, 1100, 1500, set))
        .analyse();
    assert_eq!(rows(&analysis), [(PEER, "ECONNREFUSED", 1, 200), ("10.0.1.2:80", "in_flight", 1, 200)]);
}

#[test]
fn a_thread_that_waits_for_the_attempt_of_another_has_the_time_and_not_the_count() {
    let analysis = Trace::new()
        .handshake(shake(1100, 1500, 0, tcp(1, PEER)))
        .wait(Wait { tid: 101, ..wait(Call::Poll, 1200, 1500, vec![writable(tcp(1, PEER))]) })
        .analyse();
    assert_eq!(rows(&analysis), [(PEER, "ok", 0, 300), (PEER, "ok", 1, 0)]);
    assert_eq!(analysis.report.connects[0].tid, 101);
}

#[test]
fn a_handshake_without_a_thread_goes_to_the_thread_that_waits_for_it() {
    let unknown = Handshake { tid: 0, in_flight: true, ..shake(500, 2000, 0, connecting(tcp(1, PEER))) };
    let analysis = Trace::new()
        .handshake(unknown)
        .wait(in_flight(wait(Call::Poll, 1200, 2000, vec![readable(connecting(tcp(1, PEER)))])))
        .analyse();
    assert_eq!(rows(&analysis), [(PEER, "in_flight", 1, 800)]);
    assert_eq!(analysis.report.connects[0].tid, 100);
}

#[test]
fn refusals_that_repeat_add_up() {
    let mut trace = Trace::with_window(0, 10_000_000);
    for number in 0..5000 {
        let start = number * 2000;
        let socket = || closed(number + 1);
        trace.handshake(shake(start + 10, start + 900, libc::ECONNREFUSED, socket()));
        trace.wait(connect(start, start + 1000, libc::ECONNREFUSED, socket()));
    }
    assert_eq!(rows(&trace.analyse()), [(PEER, "ECONNREFUSED", 5000, 5_000_000)]);
}
