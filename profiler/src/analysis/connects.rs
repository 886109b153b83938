//! TCP connection attempts: handshakes as the kernel saw them, and attempts that never came that far or
//! whose beginning lies before the recording.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use nix::errno::Errno;
use profiler_common::Call;

use super::classify::{has_timed_out, is_still_under_way};
use super::context::peer_name;
use super::partition::Piece;
use super::report::{ConnectRow, Distribution};
use crate::model::Model;
use crate::model::intern::NameId;
use crate::model::packed::Portion;
use crate::model::socket::{SocketInfo, Transport, known_peer, plain_address, state, transport};
use crate::model::thread::{Interval, ThreadTrack};
use crate::model::wait::WaitSpan;
use crate::parallel::in_order;
use crate::trace::record::{Ends, Handshake};

/// Attempts of one thread to one peer that are looked through for the one that a wait belongs to.
const LOOK_BACK: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    Ok,
    /// Closed by the program before there was an answer.
    Aborted,
    InFlight,
    /// The program waited for it as long as it wanted to (`SO_SNDTIMEO`), and went on without an answer.
    TimedOut,
    Errno(i32),
    /// Its handshake is among those that were too many to keep.
    Unknown,
}

impl Outcome {
    /// The `result` of a row.
    fn name(self) -> String {
        match self {
            Outcome::Ok => "ok".to_owned(),
            Outcome::Aborted => "aborted".to_owned(),
            Outcome::InFlight => "in_flight".to_owned(),
            Outcome::TimedOut => "timed_out".to_owned(),
            Outcome::Unknown => "unknown".to_owned(),
            Outcome::Errno(number) => match Errno::from_raw(number) {
                Errno::UnknownErrno => format!("E{number}"),
                errno => format!("{errno:?}"),
            },
        }
    }

    /// What the leaf of a flame graph says.
    pub fn detail(self) -> String {
        match self {
            Outcome::Ok | Outcome::Unknown => String::new(),
            Outcome::InFlight | Outcome::Errno(libc::ETIMEDOUT) => "SYN unanswered".to_owned(),
            Outcome::Aborted => "SYN unanswered, given up".to_owned(),
            Outcome::TimedOut => "SYN unanswered until the program's time limit".to_owned(),
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
    /// End of the last wait for it, and whether that one ended by the program's own time limit.
    last_wait: (u64, bool),
}

impl Attempt {
    /// A wait for it.
    fn is_awaited(&mut self, wait: &WaitSpan) {
        if wait.end_ns >= self.last_wait.0 {
            self.last_wait = (wait.end_ns, has_timed_out(wait));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Ino(u64),
    Thread(u32, u32, NameId),
}

/// Whether a connection attempt may be what is waited for.
fn is_about_attempts(model: &Model, wait: &WaitSpan) -> bool {
    wait.call == Call::Connect
        || model.sets.get(wait.set).iter().any(|awaited| awaited.state == state::SYN_SENT)
}

/// Peer, result, pid and tid.
pub type RowKey = (NameId, Outcome, u32, u32);

/// All attempts in the window, each once.
#[derive(Debug, Default)]
pub struct Connects {
    attempts: Vec<Attempt>,
    /// With the start and the index of the attempt.
    index: BTreeSet<(Key, u64, usize)>,
    /// Attempts of which a wait alone tells; no more of them are kept than of handshakes.
    of_waits: usize,
}

impl Connects {
    pub fn new(model: &Model) -> Connects {
        let mut connects = Connects::default();
        for handshake in &model.handshakes {
            if let Some(attempt) = of_handshake(model, handshake) {
                connects.add(attempt);
            }
        }
        let portions = model.portions().into_iter().filter(|(_, portion)| portion.connects);
        let about_attempts = |(thread, portion): (usize, Portion)| {
            let (mut track, _) = model.portion(model.threads.get(thread)?, &portion);
            track.waits.retain(|wait| is_about_attempts(model, wait));
            Some(track)
        };
        in_order(portions, about_attempts, |track| {
            if let Some(track) = &track {
                track.waits.iter().for_each(|wait| connects.join_wait(model, track, wait));
            }
        });
        connects.complete_own_addresses(model);
        connects.end_by_time_limits();
        connects
    }

    /// The kernel goes on with a handshake behind a `connect` that has given up, until the program closes the socket.
    fn end_by_time_limits(&mut self) {
        for attempt in &mut self.attempts {
            if attempt.last_wait.1 && matches!(attempt.outcome, Outcome::Aborted | Outcome::InFlight) {
                attempt.outcome = Outcome::TimedOut;
            }
        }
    }

    /// The kernel tells of a handshake before the socket has its port: later looks at the socket have it.
    fn complete_own_addresses(&mut self, model: &Model) {
        let is_complete = |local: Option<SocketAddr>| local.is_some_and(|local| local.port() != 0);
        let wanted: BTreeSet<u64> = self
            .attempts
            .iter()
            .filter(|attempt| attempt.ino != 0 && !is_complete(attempt.local))
            .map(|attempt| attempt.ino)
            .collect();
        let samples = model.samples.iter().map(|sample| &sample.socket);
        let sockets = samples.chain(model.retransmits.iter().map(|retransmit| &retransmit.socket));
        let mut seen: BTreeMap<(u64, SocketAddr), SocketAddr> = BTreeMap::new();
        for socket in sockets.filter(|socket| wanted.contains(&socket.ino)) {
            if let Ends::Inet { local, peer } = &socket.ends
                && let (Some(local), Some(peer)) = (known_peer(*local), known_peer(*peer))
            {
                seen.entry((socket.ino, peer)).or_insert(local);
            }
        }
        for attempt in self.attempts.iter_mut().filter(|attempt| !is_complete(attempt.local)) {
            let peer = model.names.name(attempt.peer).parse().ok();
            let local = peer.and_then(|peer| seen.get(&(attempt.ino, peer)));
            attempt.local = local.copied().or(attempt.local);
        }
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
                attempt.is_awaited(wait);
                if attempt.tid == 0 {
                    (attempt.pid, attempt.tid) = (track.pid, track.tid);
                }
            } else if self.of_waits < model.bounds.limits.handshakes
                && let Some(attempt) = of_wait(model, track, wait, info)
            {
                self.of_waits += 1;
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
    pub fn outcome(&self, model: &Model, track: &ThreadTrack, wait: &WaitSpan, piece: &Piece) -> Outcome {
        let ino = model.sockets.get(piece.socket).map_or(0, |info| info.ino);
        let found = self.find(track, ino, piece.peer, piece.span).and_then(|index| self.attempts.get(index));
        match found {
            Some(attempt) => attempt.outcome,
            None if self.is_whole(model) => Outcome::InFlight,
            None => outcome_of_wait(model, wait).unwrap_or(Outcome::Unknown),
        }
    }

    /// Whether all attempts of the trace are kept.
    fn is_whole(&self, model: &Model) -> bool {
        let bounds = &model.bounds;
        bounds.handshakes_until_ns.is_none() && self.of_waits < bounds.limits.handshakes
    }

    /// Rows by peer, result and thread, the largest first. A thread that waited for an attempt of another
    /// thread has a row with a count of 0, so that the rows add up to `tcp.connect`.
    /// `stalled` is the stalled time of each row.
    pub fn rows(&self, model: &Model, stalled: &BTreeMap<RowKey, u64>) -> Vec<ConnectRow> {
        let mut rows: BTreeMap<RowKey, (ConnectRow, Vec<u64>)> = BTreeMap::new();
        let mut spans: BTreeMap<RowKey, Interval> = BTreeMap::new();
        for attempt in &self.attempts {
            let key = (attempt.peer, attempt.outcome, attempt.pid, attempt.tid);
            let (row, handshakes) = rows.entry(key).or_default();
            row.count += 1;
            row.syn_retransmits += u64::from(attempt.syn_retransmits);
            row.began_earlier |= attempt.began_earlier;
            let span = spans.entry(key).or_insert(attempt.span);
            span.start_ns = span.start_ns.min(attempt.span.start_ns);
            span.end_ns = span.end_ns.max(attempt.span.end_ns);
            row.span_ns = span.end_ns.min(model.window.end_ns).saturating_sub(span.start_ns);
            handshakes.extend(attempt.handshake_ns);
            if let Some(local) = attempt.local.filter(|_| row.local.is_empty()) {
                row.local = match local.port() {
                    0 => local.ip().to_string(),
                    _ => local.to_string(),
                };
            }
        }
        for (key, stalled_ns) in stalled {
            rows.entry(*key).or_default().0.stalled_ns = *stalled_ns;
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
        Ends::Inet { local, .. } => Some(plain_address(*local)).filter(|local| !local.ip().is_unspecified()),
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
        last_wait: (0, false),
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
    let outcome = outcome_of_wait(model, wait)?;
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
        last_wait: (wait.end_ns, has_timed_out(wait)),
    })
}

/// What the call alone says of the attempt; `None` where it says nothing.
fn outcome_of_wait(model: &Model, wait: &WaitSpan) -> Option<Outcome> {
    let in_flight = wait.flags.in_flight || wait.end_ns > model.window.end_ns;
    let left_out = model.bounds.handshakes_until_ns.is_some_and(|until_ns| wait.end_ns >= until_ns);
    match wait.ret {
        _ if in_flight => Some(Outcome::InFlight),
        _ if wait.call != Call::Connect && left_out => Some(Outcome::Unknown),
        _ if wait.call != Call::Connect => Some(Outcome::InFlight),
        _ if has_timed_out(wait) => Some(Outcome::TimedOut),
        _ if is_still_under_way(wait) => None,
        ret if ret >= 0 => Some(Outcome::Ok),
        ret => Some(Outcome::Errno(ret.saturating_neg())),
    }
}

#[cfg(test)]
mod tests;
