//! What else happened on a socket while a thread waited for it: handshakes, retransmissions, queries.

use std::net::SocketAddr;

use crate::hash::FastMap;
use crate::model::Model;
use crate::model::intern::NameId;
use crate::model::socket::{SocketInfo, known_peer, plain_address};
use crate::model::thread::Interval;
use crate::trace::record::{Direction, Ends, Socket};

/// A segment that is still missing is sent again within this time, or within twice the time since it was sent the last
/// time: the first time-out of TCP is at least 200 ms, and a round trip and a busy machine come on top.
const FIRST_TIMEOUT_NS: u64 = 1_000_000_000;

/// Indices over a model, made once for the classification of all waits.
#[derive(Debug)]
pub struct Context<'m> {
    pub model: &'m Model,
    /// Times, sorted, by socket inode.
    retransmits: FastMap<u64, Vec<u64>>,
    /// The same by the two ends, for sockets without an inode (closed by the program, data still going out).
    retransmits_by_ends: FastMap<(SocketAddr, SocketAddr), Vec<u64>>,
    /// Indices into `Model::handshakes` by socket inode, by start.
    handshakes: FastMap<u64, Vec<u32>>,
    /// Times and servers of DNS messages sent, by socket inode.
    queries: FastMap<u64, Vec<(u64, NameId)>>,
}

/// The part of a handshake that concerns a wait on its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connecting {
    /// `u64::MAX` where it had not ended.
    pub end_ns: u64,
    pub peer: NameId,
}

impl<'m> Context<'m> {
    pub fn new(model: &'m Model) -> Context<'m> {
        let mut context = Context {
            model,
            retransmits: FastMap::default(),
            retransmits_by_ends: FastMap::default(),
            handshakes: FastMap::default(),
            queries: FastMap::default(),
        };
        context.index_retransmits();
        for (index, handshake) in (0..).zip(&model.handshakes) {
            if handshake.socket.ino != 0 {
                context.handshakes.entry(handshake.socket.ino).or_default().push(index);
            }
        }
        for message in &model.dns_messages {
            if message.direction == Direction::Send && message.socket.ino != 0 {
                let query = (message.time_ns, peer_name(model, &message.socket));
                context.queries.entry(message.socket.ino).or_default().push(query);
            }
        }
        for (time_ns, ino, server) in &model.bounds.asked {
            let name = model.sockets.get(*server).map_or_else(NameId::default, |info| info.name);
            context.queries.entry(*ino).or_default().push((*time_ns, name));
        }
        context
    }

    /// A segment that came with an inode is found by it alone, any other by its ends.
    fn index_retransmits(&mut self) {
        for retransmit in &self.model.retransmits {
            if retransmit.socket.ino != 0 {
                self.retransmits.entry(retransmit.socket.ino).or_default().push(retransmit.time_ns);
            } else if let Ends::Inet { local, peer } = &retransmit.socket.ends {
                let ends = (plain_address(*local), plain_address(*peer));
                self.retransmits_by_ends.entry(ends).or_default().push(retransmit.time_ns);
            }
        }
    }

    /// The longest time in `[start_ns, end_ns)` in which segments of the socket were lost again and again.
    pub fn loss(&self, socket: &SocketInfo, start_ns: u64, end_ns: u64) -> Option<Interval> {
        let by_ino = self.retransmits.get(&socket.ino).filter(|_| socket.ino != 0);
        let by_ends = match (socket.local, socket.peer) {
            (Some(local), Some(peer)) if !self.retransmits_by_ends.is_empty() => {
                self.retransmits_by_ends.get(&(local, peer))
            }
            _ => None,
        };
        let within = |times: &Vec<u64>| {
            let begin = times.partition_point(|time| *time < start_ns);
            let end = times.partition_point(|time| *time < end_ns);
            longest_loss(times.get(begin..end)?)
        };
        [by_ino, by_ends].into_iter().flatten().filter_map(within).max_by_key(|loss| loss.len())
    }

    /// The handshake on this socket that was under way in `[start_ns, end_ns)`. A socket has one at a
    /// time, so the last one that began before the end is the one.
    pub fn connecting(&self, ino: u64, start_ns: u64, end_ns: u64) -> Option<Connecting> {
        let indices = self.handshakes.get(&ino)?;
        let handshakes = &self.model.handshakes;
        let begun = indices.partition_point(|index| {
            handshakes.get(*index as usize).is_some_and(|handshake| handshake.start_ns < end_ns)
        });
        let index = *indices.get(begun.checked_sub(1)?)?;
        let handshake = handshakes.get(index as usize)?;
        let until = if handshake.in_flight { u64::MAX } else { handshake.end_ns };
        (until > start_ns)
            .then(|| Connecting { end_ns: until, peer: peer_name(self.model, &handshake.socket) })
    }

    /// The server that was last asked on this socket before a wait, or first within it. `None`: no query
    /// was sent.
    pub fn asked_server(&self, ino: u64, start_ns: u64, end_ns: u64) -> Option<NameId> {
        let queries = self.queries.get(&ino).filter(|_| ino != 0)?;
        let after = queries.partition_point(|(time, _)| *time <= start_ns);
        let query = match after.checked_sub(1) {
            Some(last) => queries.get(last)?,
            None => queries.first().filter(|(time, _)| *time <= end_ns)?,
        };
        Some(query.1)
    }
}

/// The longest row of retransmissions that follow from each other, and the time until the next one would have come. One
/// alone repaired the loss, if there was any: TCP also sends the last segment again when only an acknowledgement is late.
fn longest_loss(times: &[u64]) -> Option<Interval> {
    let mut longest: Option<Interval> = None;
    let (mut start_ns, mut last, mut gap) = (*times.first()?, *times.first()?, 0_u64);
    for time in times.get(1..)? {
        let next = time.saturating_sub(last);
        let follows = next <= FIRST_TIMEOUT_NS.max(gap.saturating_mul(5) / 2);
        (start_ns, gap) = if follows { (start_ns, next) } else { (*time, 0) };
        last = *time;
        let row = Interval { start_ns, end_ns: last.saturating_add(gap.saturating_mul(2)) };
        if row.len() > longest.map_or(0, Interval::len) {
            longest = Some(row);
        }
    }
    longest
}

/// The number of the socket's peer; 0 where it has none.
pub fn peer_name(model: &Model, socket: &Socket) -> NameId {
    let name = match &socket.ends {
        Ends::Inet { peer, .. } => known_peer(*peer).map(|peer| peer.to_string()),
        Ends::Unix { path } => Some(path.clone()),
        Ends::Other { .. } => None,
    };
    name.and_then(|name| model.names.find(&name)).unwrap_or_default()
}
