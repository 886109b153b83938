//! TCP connection attempts: handshakes as the kernel saw them, and attempts that never came that far or
//! whose beginning lies before the recording.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use nix::errno::Errno;
use profiler_common::Call;

use super::classify::is_still_under_way;
use super::context::peer_name;
use super::partition::{Piece, ThreadPartition};
use super::report::{ConnectRow, Distribution};
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::intern::NameId;
use crate::model::socket::{SocketInfo, Transport, known_peer, plain_address, state, transport};
use crate::model::thread::{Interval, ThreadTrack};
use crate::model::wait::WaitSpan;
use crate::trace::record::{Ends, Handshake};

/// Attempts of one thread to one peer that are looked through for the one that a wait belongs to.
const LOOK_BACK: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Ok,
    /// Closed by the program before there was an answer.
    Aborted,
    InFlight,
    Errno(i32),
}

impl Outcome {
    /// The `result` of a row.
    fn name(self) -> String {
        match self {
            Outcome::Ok => "ok".to_owned(),
            Outcome::Aborted => "aborted".to_owned(),
            Outcome::InFlight => "in_flight".to_owned(),
            Outcome::Errno(number) => match Errno::from_raw(number) {
                Errno::UnknownErrno => format!("E{number}"),
                errno => format!("{errno:?}"),
            },
        }
    }

    /// What the leaf of a flame graph says.
    pub fn detail(self) -> String {
        match self {
            Outcome::Ok => String::new(),
            Outcome::InFlight | Outcome::Errno(libc::ETIMEDOUT) => "SYN unanswered".to_owned(),
            Outcome::Aborted => "SYN unanswered, given up".to_owned(),
            Outcome::Errno(libc::ECONNREFUSED) => "refused".to_owned(),
            Outcome::Errno(libc::EHOSTUNREACH | libc::ENETUNREACH) => "unreachable".to_owned(),
            Outcome::Errno(_) => self.name(),
        }
    }
}

#[derive(Clone, Debug)]
struct Attempt {
    pid: u32,
    /// 0: unknown.
    tid: u32,
    /// 0: unknown.
    ino: u64,
    peer: NameId,
    local: Option<SocketAddr>,
    /// `end_ns` is `u64::MAX` in flight.
    span: Interval,
    outcome: Outcome,
    syn_retransmits: u32,
    began_earlier: bool,
    /// From SYN to outcome, where the kernel told it.
    handshake_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Ino(u64),
    Thread(u32, u32, NameId),
}

/// Peer, result, pid and tid.
type RowKey = (NameId, Outcome, u32, u32);

/// All attempts in the window, each once.
#[derive(Debug, Default)]
pub struct Connects {
    attempts: Vec<Attempt>,
    /// With the start and the index of the attempt.
    index: BTreeSet<(Key, u64, usize)>,
}

impl Connects {
    pub fn new(model: &Model) -> Connects {
        let mut connects = Connects::default();
        for handshake in &model.handshakes {
            if let Some(attempt) = of_handshake(model, handshake) {
                connects.add(attempt);
            }
        }
        for track in &model.threads {
            for wait in &track.waits {
                connects.join_wait(model, track, wait);
            }
        }
        connects
    }

    fn add(&mut self, attempt: Attempt) {
        let next = self.attempts.len();
        let start_ns = attempt.span.start_ns;
        if attempt.ino != 0 {
            self.index.insert((Key::Ino(attempt.ino), start_ns, next));
        }
        self.index.insert((Key::Thread(attempt.pid, attempt.tid, attempt.peer), start_ns, next));
        self.attempts.push(attempt);
    }

    /// Finds the attempts that a wait is about among those that are known already, or adds them.
    fn join_wait(&mut self, model: &Model, track: &ThreadTrack, wait: &WaitSpan) {
        for awaited in model.sets.get(wait.set) {
            let Some(info) = model.sockets.get(awaited.socket) else { continue };
            let connects = wait.call == Call::Connect || awaited.state == state::SYN_SENT;
            if info.transport != Transport::Tcp || !connects {
                continue;
            }
            let span = Interval { start_ns: wait.start_ns, end_ns: wait.end_ns };
            let found = self.find(track, info.ino, info.name, span);
            if let Some(attempt) = found.and_then(|index| self.attempts.get_mut(index)) {
                if attempt.tid == 0 {
                    (attempt.pid, attempt.tid) = (track.pid, track.tid);
                }
            } else if let Some(attempt) = of_wait(model, track, wait, info) {
                self.add(attempt);
            }
        }
    }

    /// The attempt on this socket (or, where one side does not know its socket, of this thread to this
    /// peer) that was under way in `span`; the last of several.
    fn find(&self, track: &ThreadTrack, ino: u64, peer: NameId, span: Interval) -> Option<usize> {
        let by_ino = (ino != 0).then_some(Key::Ino(ino));
        let by_thread = Some(Key::Thread(track.pid, track.tid, peer));
        [by_ino, by_thread].into_iter().flatten().find_map(|key| {
            let before = self.index.range((key, 0, 0)..=(key, span.end_ns, usize::MAX)).rev();
            before.take(LOOK_BACK).map(|(_, _, index)| *index).find(|index| {
                self.attempts.get(*index).is_some_and(|attempt| {
                    let same = attempt.ino == ino || attempt.ino == 0 || ino == 0;
                    same && attempt.span.end_ns >= span.start_ns
                })
            })
        })
    }

    /// How the attempt ended that a `tcp.connect` stall waited for.
    pub fn outcome(&self, model: &Model, track: &ThreadTrack, piece: &Piece) -> Outcome {
        let ino = model.sockets.get(piece.socket).map_or(0, |info| info.ino);
        self.find(track, ino, piece.peer, piece.span)
            .and_then(|index| self.attempts.get(index))
            .map_or(Outcome::InFlight, |attempt| attempt.outcome)
    }

    /// Rows by peer, result and thread, the largest first. A thread that waited for an attempt of another
    /// thread has a row with a count of 0, so that the rows add up to `tcp.connect`.
    pub fn rows(&self, model: &Model, partitions: &[ThreadPartition]) -> Vec<ConnectRow> {
        let mut rows: BTreeMap<RowKey, (ConnectRow, Vec<u64>)> = BTreeMap::new();
        for attempt in &self.attempts {
            let key = (attempt.peer, attempt.outcome, attempt.pid, attempt.tid);
            let (row, handshakes) = rows.entry(key).or_default();
            row.count += 1;
            row.syn_retransmits += u64::from(attempt.syn_retransmits);
            row.began_earlier |= attempt.began_earlier;
            handshakes.extend(attempt.handshake_ns);
            if let Some(local) = attempt.local.filter(|_| row.local.is_empty()) {
                row.local = local.to_string();
            }
        }
        for (track, partition) in model.threads.iter().zip(partitions) {
            for piece in partition.pieces.iter().filter(|piece| piece.cause == Cause::TcpConnect) {
                let key = (piece.peer, self.outcome(model, track, piece), track.pid, track.tid);
                let (row, _) = rows.entry(key).or_default();
                row.stalled_ns = row.stalled_ns.saturating_add(piece.weight_ns);
            }
        }
        let mut rows: Vec<ConnectRow> = rows.into_iter().map(|(key, row)| finish(model, key, row)).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.stalled_ns));
        rows
    }
}

fn finish(
    model: &Model,
    (peer, outcome, pid, tid): RowKey,
    (row, handshakes): (ConnectRow, Vec<u64>),
) -> ConnectRow {
    let peer = model.names.name(peer).to_owned();
    let family = match peer.as_bytes().first() {
        None => "",
        Some(b'[') => "inet6",
        Some(_) => "inet",
    };
    ConnectRow {
        peer,
        family: family.to_owned(),
        result: outcome.name(),
        pid,
        tid,
        handshake: Distribution::of(handshakes),
        ..row
    }
}

/// `None` for one outside of the window.
fn of_handshake(model: &Model, handshake: &Handshake) -> Option<Attempt> {
    let window = model.window;
    let in_flight = handshake.in_flight || handshake.end_ns > window.end_ns;
    let outside = handshake.start_ns > window.end_ns || handshake.end_ns < window.start_ns;
    if (outside && !handshake.in_flight) || transport(&handshake.socket) != Transport::Tcp {
        return None;
    }
    let outcome = match (handshake.error, handshake.socket.state) {
        _ if in_flight => Outcome::InFlight,
        (0, state::CLOSE | state::SYN_SENT) => Outcome::Aborted,
        (0, _) => Outcome::Ok,
        (error, _) => Outcome::Errno(error.saturating_abs()),
    };
    let local = match &handshake.socket.ends {
        Ends::Inet { local, .. } => known_peer(*local).map(plain_address),
        _ => None,
    };
    let handshake_ns = (!in_flight).then(|| handshake.end_ns.saturating_sub(handshake.start_ns));
    Some(Attempt {
        pid: handshake.pid,
        tid: handshake.tid,
        ino: handshake.socket.ino,
        peer: peer_name(model, &handshake.socket),
        local,
        span: Interval {
            start_ns: handshake.start_ns,
            end_ns: if in_flight { u64::MAX } else { handshake.end_ns },
        },
        outcome,
        syn_retransmits: handshake.syn_retransmits,
        began_earlier: handshake.began_earlier || handshake.start_ns < window.start_ns,
        handshake_ns,
    })
}

/// An attempt of which no handshake is known: `connect` that failed at once or is stuck since before the
/// recording, or another wait on a socket that is still connecting. `None` where the call says nothing
/// about an outcome.
fn of_wait(model: &Model, track: &ThreadTrack, wait: &WaitSpan, info: &SocketInfo) -> Option<Attempt> {
    let window = model.window;
    if wait.end_ns < window.start_ns || wait.start_ns > window.end_ns {
        return None;
    }
    let in_flight = wait.flags.in_flight || wait.end_ns > window.end_ns;
    let outcome = match wait.ret {
        _ if wait.call != Call::Connect || in_flight => Outcome::InFlight,
        ret if is_still_under_way(ret) => return None,
        ret if ret >= 0 => Outcome::Ok,
        ret => Outcome::Errno(ret.saturating_neg()),
    };
    let earlier = wait.flags.began_earlier || wait.start_ns < window.start_ns;
    Some(Attempt {
        pid: track.pid,
        tid: track.tid,
        ino: info.ino,
        peer: info.name,
        local: info.local.and_then(known_peer),
        span: Interval {
            start_ns: wait.start_ns,
            end_ns: if outcome == Outcome::InFlight { u64::MAX } else { wait.end_ns },
        },
        outcome,
        syn_retransmits: 0,
        // A handshake that began in the recording would have been seen.
        began_earlier: earlier || wait.call != Call::Connect,
        handshake_ns: None,
    })
}

#[cfg(test)]
mod tests {
    use profiler_common::Call;

    use crate::analysis::Analysis;
    use crate::model::fixture::{
        Trace, connecting, in_flight, readable, shake, tcp, udp, unix, wait, writable,
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
            .handshake(Handshake {
                in_flight: true,
                ..shake(1100, 1110, 0, connecting(tcp(4, "10.0.1.1:4")))
            })
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
            [
                ("1", "ok"),
                ("2", "ok"),
                ("3", "aborted"),
                ("4", "in_flight"),
                ("5", "E9999"),
                ("6", "in_flight")
            ]
        );
    }

    #[test]
    fn a_connect_that_hung_before_the_recording_and_still_hangs_is_in_flight() {
        let flags = WaitFlags { began_earlier: true, in_flight: true, ..WaitFlags::default() };
        let hanging = Wait { flags, ..connect(200, 2000, 0, connecting(tcp(1, PEER))) };
        let analysis = Trace::new().wait(hanging).analyse();
        assert_eq!(rows(&analysis), [(PEER, "in_flight", 1, 1000)]);
        assert!(analysis.report.connects[0].began_earlier);
        let stall = &analysis.stalls[0];
        assert_eq!(
            (stall.detail.as_str(), stall.in_flight, stall.began_earlier),
            ("SYN unanswered", true, true)
        );
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
            .handshake(Handshake {
                in_flight: true,
                ..shake(1100, 1990, 0, connecting(tcp(2, "10.0.1.2:80")))
            })
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
}
