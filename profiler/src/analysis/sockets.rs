//! The table of waits on connected peers.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::partition::Piece;
use super::report::{Distribution, SocketRow};
use super::thread_rows::Tally;
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::intern::NameId;
use crate::model::thread::ThreadTrack;
use crate::model::wait::Interest;

/// Rows of one thread by peer and direction. A wait in which segments were retransmitted is a wait on that peer too, so
/// the rows add up to `sock.recv`, `sock.send` and `tcp.retransmit`.
pub(super) fn rows(
    model: &Model,
    track: &ThreadTrack,
    tallies: BTreeMap<(NameId, bool), Tally>,
) -> impl Iterator<Item = SocketRow> {
    tallies.into_iter().map(|((peer, writes), tally)| SocketRow {
        peer: model.names.name(peer).to_owned(),
        direction: if writes { "send" } else { "recv" }.to_owned(),
        waits: tally.waits,
        stalled_ns: tally.stalled_ns,
        in_flight: tally.in_flight,
        duration: Distribution::of(tally.durations),
        pid: track.pid,
        tid: track.tid,
        polls: tally.polls,
        longest_ns: tally.longest.ns,
        began_earlier: tally.longest.began_earlier,
        folded: 0,
    })
}

/// The largest first.
pub(super) fn order(a: &SocketRow, b: &SocketRow) -> Ordering {
    b.stalled_ns
        .cmp(&a.stalled_ns)
        .then_with(|| (&a.peer, &a.direction, a.pid, a.tid).cmp(&(&b.peer, &b.direction, b.pid, b.tid)))
}

/// The peer of a wait on a connection, and whether it is to send.
pub(super) fn key(piece: &Piece) -> Option<(NameId, bool)> {
    matches!(piece.cause, Cause::SockRecv | Cause::SockSend | Cause::TcpRetransmit)
        .then_some((piece.peer, piece.interest == Interest::Write))
}

#[cfg(test)]
mod tests {
    use profiler_common::Call;

    use crate::analysis::report::SocketRow;
    use crate::model::fixture::{Trace, in_flight, readable, spin, tcp, udp, wait};
    use crate::trace::record::Wait;

    fn row(row: &SocketRow) -> (&str, &str, u32, u64, u64, u64) {
        (&row.peer, &row.direction, row.tid, row.waits, row.stalled_ns, row.in_flight)
    }

    #[test]
    fn rows_are_by_peer_direction_and_thread() {
        let peer = || tcp(1, "10.0.1.1:80");
        let analysis = Trace::new()
            .wait(wait(Call::Read, 1000, 1100, vec![peer()]))
            .wait(wait(Call::Read, 1200, 1250, vec![tcp(9, "10.0.1.1:80")]))
            .wait(wait(Call::Write, 1300, 1320, vec![peer()]))
            .wait(Wait { tid: 101, ..in_flight(wait(Call::Read, 1990, 2000, vec![peer()])) })
            .wait(wait(Call::Recvfrom, 1400, 1450, vec![udp(3, "10.0.0.53:53")]))
            .analyse();
        let rows: Vec<_> = analysis.report.sockets.iter().map(row).collect();
        assert_eq!(
            rows,
            [
                ("10.0.1.1:80", "recv", 100, 2, 150, 0),
                ("10.0.1.1:80", "send", 100, 1, 20, 0),
                ("10.0.1.1:80", "recv", 101, 1, 10, 1),
            ]
        );
        assert_eq!(analysis.report.sockets[0].duration.p50_ns, 50);
    }

    #[test]
    fn a_shared_wait_counts_for_each_peer_with_its_whole_duration() {
        let set = vec![readable(tcp(1, "10.0.1.1:80")), readable(tcp(2, "10.0.1.2:80"))];
        let analysis = Trace::new().wait(wait(Call::Poll, 1000, 1100, set)).analyse();
        let rows: Vec<_> = analysis.report.sockets.iter().map(row).collect();
        assert_eq!(rows, [("10.0.1.1:80", "recv", 100, 1, 50, 0), ("10.0.1.2:80", "recv", 100, 1, 50, 0)]);
        assert_eq!(analysis.report.sockets[1].duration.max_ns, 100);
    }

    #[test]
    fn a_wait_with_a_retransmission_stays_one_wait_on_its_peer() {
        let analysis = Trace::new()
            .retransmit(1030, tcp(1, "10.0.1.1:80"))
            .retransmit(1040, tcp(1, "10.0.1.1:80"))
            .wait(wait(Call::Write, 1000, 1100, vec![tcp(1, "10.0.1.1:80")]))
            .analyse();
        let rows: Vec<_> = analysis.report.sockets.iter().map(row).collect();
        assert_eq!(rows, [("10.0.1.1:80", "send", 100, 1, 100, 0)]);
    }

    #[test]
    fn an_event_loop_s_last_look_and_its_sleep_are_one_wait() {
        let peer = || vec![readable(tcp(1, "10.0.1.1:80"))];
        let mut trace = Trace::new();
        trace.wait(spin(wait(Call::Recvfrom, 1100, 1400, peer()))).wait(wait(
            Call::EpollWait,
            1105,
            1395,
            peer(),
        ));
        let analysis = trace.analyse();
        let rows: Vec<_> = analysis.report.sockets.iter().map(row).collect();
        assert_eq!(rows, [("10.0.1.1:80", "recv", 100, 1, 300, 0)]);
        assert_eq!(analysis.report.sockets[0].duration.sum_ns, 290);

        // A sleep on another peer leaves it a wait of its own.
        trace.0.pop();
        trace.wait(wait(Call::EpollWait, 1105, 1395, vec![readable(tcp(2, "10.0.1.2:80"))]));
        let analysis = trace.analyse();
        let rows: Vec<_> = analysis.report.sockets.iter().map(row).collect();
        assert_eq!(rows, [("10.0.1.2:80", "recv", 100, 1, 290, 0), ("10.0.1.1:80", "recv", 100, 1, 10, 0)]);
    }

    #[test]
    fn looks_that_found_nothing_are_added_up() {
        let peer = || vec![tcp(1, "10.0.1.1:80")];
        let analysis = Trace::new()
            .wait(Wait { polls: 1_000_000, ..spin(wait(Call::Recvfrom, 1000, 1100, peer())) })
            .wait(Wait { polls: 5, ..spin(wait(Call::Recvfrom, 1200, 1300, peer())) })
            .analyse();
        assert_eq!(analysis.report.sockets[0].polls, 1_000_005);
    }
}
