//! The exclusive partition of a thread's time: every nanosecond belongs to one wait at most, or is shared
//! in equal parts by descriptors that were awaited at once. The parts are whole nanoseconds and add up
//! exactly to the union of the intervals.
//!
//! Where waits overlap, the ordinary (blocking) call that began last wins: it is the innermost. What
//! ordinary calls leave free belongs to waits on non-blocking descriptors: first those that are stalls, to
//! equal parts among all descriptors awaited at that moment, then idle ones.

mod spin;

use super::classify::{Slot, Verdict, classify};
use super::context::Context;
use crate::model::cause::Cause;
use crate::model::intern::NameId;
use crate::model::socket::SocketId;
use crate::model::thread::{Interval, ThreadTrack};
use crate::model::wait::{Interest, WaitSpan};

/// A part of a wait that is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index into the thread's waits.
    pub wait: u32,
    pub socket: SocketId,
    pub peer: NameId,
    pub cause: Cause,
    pub interest: Interest,
    pub span: Interval,
    /// Nanoseconds of `span` that are this piece's.
    pub weight_ns: u64,
}

/// What the waits of one thread add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadPartition {
    /// Stalls, by start.
    pub pieces: Vec<Piece>,
    pub stalled_ns: u64,
    pub idle_ns: u64,
    /// Part of the stalled and idle time in which the thread looked again and again instead of sleeping.
    pub spin_ns: u64,
}

/// The wait as far as it lies in the window and in the thread's presence.
pub fn clipped(track: &ThreadTrack, wait: &WaitSpan) -> Interval {
    Interval { start_ns: wait.start_ns, end_ns: wait.end_ns }.clip(track.presence)
}

/// Splits the thread's presence among its waits.
pub fn partition(context: &Context, track: &ThreadTrack) -> ThreadPartition {
    let mut result = ThreadPartition::default();
    let mut slots = Vec::new();
    let spins = track.waits.iter().any(|wait| wait.flags.nonblocking);
    let mut taken = Vec::new();
    innermost(track, |index, wait, span| {
        match classify(context, wait, &mut slots) {
            Verdict::Other => {}
            Verdict::Idle => result.idle_ns += span.len(),
            Verdict::Stall => {
                result.stalled_ns += span.len();
                share_out(index, &slots, span, &mut result.pieces);
            }
        }
        if spins {
            taken.push(span);
        }
    });
    if spins {
        spin::partition(context, track, &taken, &mut result);
    }
    result.pieces.sort_by_key(|piece| (piece.span.start_ns, piece.wait));
    result
}

/// Calls `emit` with the disjoint intervals, in order of time, in which each ordinary call is the innermost.
fn innermost<'t>(track: &'t ThreadTrack, mut emit: impl FnMut(u32, &'t WaitSpan, Interval)) {
    // Calls that have begun and may not have ended, by start; the last one is the innermost.
    let mut open: Vec<(u32, &WaitSpan, u64)> = Vec::new();
    let mut now = track.presence.start_ns;
    let mut advance = |open: &mut Vec<(u32, &'t WaitSpan, u64)>, to_ns: u64| {
        while let Some((index, wait, end_ns)) = open.last().copied() {
            let span = Interval { start_ns: now, end_ns: end_ns.min(to_ns) };
            if !span.is_empty() {
                emit(index, wait, span);
                now = span.end_ns;
            }
            if end_ns > to_ns {
                break;
            }
            open.pop();
        }
        now = now.max(to_ns);
    };
    for (index, wait) in (0..).zip(&track.waits) {
        let span = clipped(track, wait);
        if wait.flags.nonblocking || span.is_empty() {
            continue;
        }
        advance(&mut open, span.start_ns);
        open.push((index, wait, span.end_ns));
    }
    advance(&mut open, track.presence.end_ns);
}

/// Divides `span` equally among the slots, what is left of the division to the first ones, with a cut
/// wherever a slot's cause changes.
fn share_out(wait: u32, slots: &[Slot], span: Interval, pieces: &mut Vec<Piece>) {
    let count = slots.len() as u64;
    if count == 0 {
        return;
    }
    let mut cuts = vec![span.start_ns, span.end_ns];
    for slot in slots {
        let inside = |time: &u64| *time > span.start_ns && *time < span.end_ns;
        cuts.extend([slot.connected_ns, slot.retransmit_ns].into_iter().filter(inside));
    }
    cuts.sort_unstable();
    cuts.dedup();
    for (index, slot) in (0_u64..).zip(slots) {
        let mut open: Option<Piece> = None;
        for pair in cuts.windows(2) {
            let &[start_ns, end_ns] = pair else { continue };
            let part = Interval { start_ns, end_ns };
            let weight_ns = part.len() / count + u64::from(index < part.len() % count);
            let cause = slot.cause_at(part.start_ns);
            match &mut open {
                Some(piece) if piece.cause == cause => {
                    piece.span.end_ns = end_ns;
                    piece.weight_ns += weight_ns;
                }
                _ => keep(open.replace(piece(wait, slot, cause, part, weight_ns)), pieces),
            }
        }
        keep(open, pieces);
    }
}

/// Leaves out shares that came out empty because there are more descriptors than nanoseconds.
fn keep(piece: Option<Piece>, pieces: &mut Vec<Piece>) {
    pieces.extend(piece.filter(|piece| piece.weight_ns > 0));
}

fn piece(wait: u32, slot: &Slot, cause: Cause, span: Interval, weight_ns: u64) -> Piece {
    Piece { wait, socket: slot.socket, peer: slot.peer, cause, interest: slot.interest, span, weight_ns }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use profiler_common::Call;
    use proptest::prelude::*;

    use super::*;
    use crate::analysis::Analysis;
    use crate::model::fixture::{
        Trace, in_flight, listener, no_socket, readable, spin, tcp, udp, unix, wait,
    };
    use crate::trace::record::{Wait, WaitFlags};

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

    #[derive(Clone, Debug)]
    struct Case {
        start: u64,
        len: u64,
        kind: usize,
        nonblocking: bool,
    }

    fn case() -> impl Strategy<Value = Case> {
        (900_u64..1200, 0_u64..120, 0_usize..9, any::<bool>())
            .prop_map(|(start, len, kind, nonblocking)| Case { start, len, kind, nonblocking })
    }

    impl Case {
        fn wait(&self, index: i32) -> Wait {
            let (call, sockets) = match self.kind {
                0 => (Call::Read, vec![peer(1)]),
                1 => (Call::Poll, vec![peer(1), peer(2), peer(3)]),
                2 => (Call::Sendto, vec![tcp(2, "10.0.1.2:80")]),
                3 => (Call::Recvfrom, vec![udp(4, "10.0.0.53:53")]),
                4 => (Call::Connect, vec![tcp(5, "10.0.1.5:80")]),
                5 => (Call::Nanosleep, Vec::new()),
                6 => (Call::Poll, vec![readable(no_socket())]),
                7 => (Call::Read, vec![unix("/run/app")]),
                _ => {
                    (Call::EpollWait, vec![peer(6), readable(udp(4, "10.0.0.53:53")), readable(no_socket())])
                }
            };
            let flags = WaitFlags { nonblocking: self.nonblocking, ..WaitFlags::default() };
            // Descriptors differ, so that none counts as a duplicate of another.
            Wait { flags, fd: index, ..wait(call, self.start, self.start + self.len, sockets) }
        }

        fn stalls(&self) -> bool {
            matches!(self.kind, 0..=4 | 8)
        }

        fn idles(&self) -> bool {
            matches!(self.kind, 5 | 6)
        }
    }

    /// Stalled and idle time by looking at every nanosecond.
    fn by_hand(cases: &[Case]) -> (u64, u64) {
        let (mut stalled, mut idle) = (0, 0);
        for now in 1000..1300 {
            let active = |case: &&Case| case.start <= now && now < case.start + case.len;
            let ordinary = cases.iter().filter(active).filter(|case| !case.nonblocking);
            // Of those that began last, the one that ends first, and of these the last record.
            let inner = ordinary.min_by_key(|case| (std::cmp::Reverse(case.start), case.len));
            if let Some(inner) = inner {
                stalled += u64::from(inner.stalls());
                idle += u64::from(inner.idles());
            } else {
                let spins: Vec<&Case> = cases.iter().filter(active).collect();
                let stalls = spins.iter().any(|case| case.stalls());
                stalled += u64::from(stalls);
                idle += u64::from(!stalls && spins.iter().any(|case| case.idles()));
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
}
