//! What else happened on a socket while a thread waited for it: handshakes, retransmissions, queries.

use std::hash::Hash;

use super::cuda_wait::CudaWaits;
use crate::hash::FastMap;
use crate::model::Model;
use crate::model::intern::NameId;
use crate::model::socket::{SocketId, SocketInfo, known_peer, plain_address};
use crate::model::thread::Interval;
use crate::trace::record::{Direction, Ends, Socket};

/// A segment that is still missing is sent again within this time, or within twice the time since it was sent the last
/// time: the first time-out of TCP is at least 200 ms, and a round trip and a busy machine come on top.
const FIRST_TIMEOUT_NS: u64 = 1_000_000_000;

/// Indices over a model, made once for the classification of all waits.
#[derive(Debug)]
pub struct Context<'m> {
    pub model: &'m Model,
    /// Which waits are for a GPU.
    pub cuda: CudaWaits,
    /// By socket: nothing, for most.
    events: Vec<Events>,
    /// Sorted times of retransmissions of one socket.
    retransmits: Vec<Vec<u64>>,
    /// Indices into `Model::handshakes` of those of one socket, by start.
    handshakes: Vec<Vec<u32>>,
    /// Times and servers of DNS messages sent, by socket inode.
    queries: FastMap<u64, Vec<(u64, NameId)>>,
}

/// What happened on a socket, by index.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    /// In [`Context::retransmits`]: those that came with the socket's inode.
    by_ino: Option<u32>,
    /// The same for sockets without an inode (closed by the program, data still going out), by both ends.
    by_ends: Option<u32>,
    /// In [`Context::handshakes`].
    handshakes: Option<u32>,
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
            cuda: CudaWaits::new(model),
            events: Vec::new(),
            retransmits: Vec::new(),
            handshakes: Vec::new(),
            queries: FastMap::default(),
        };
        context.index_events();
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
    fn index_events(&mut self) {
        let (mut by_ino, mut by_ends) = (Index::default(), Index::default());
        for retransmit in &self.model.retransmits {
            if retransmit.socket.ino != 0 {
                by_ino.push(retransmit.socket.ino, retransmit.time_ns, &mut self.retransmits);
            } else if let Ends::Inet { local, peer } = &retransmit.socket.ends {
                let ends = (plain_address(*local), plain_address(*peer));
                by_ends.push(ends, retransmit.time_ns, &mut self.retransmits);
            }
        }
        let mut handshakes = Index::default();
        for (index, handshake) in (0..).zip(&self.model.handshakes) {
            if handshake.socket.ino != 0 {
                handshakes.push(handshake.socket.ino, index, &mut self.handshakes);
            }
        }
        let events = |info: &SocketInfo| Events {
            by_ino: by_ino.get(&info.ino),
            by_ends: info.local.zip(info.peer).and_then(|ends| by_ends.get(&ends)),
            handshakes: handshakes.get(&info.ino),
        };
        self.events = self.model.sockets.iter().map(events).collect();
    }

    fn events(&self, socket: SocketId) -> Events {
        self.events.get(socket.0 as usize).copied().unwrap_or_default()
    }

    /// The longest time in `[start_ns, end_ns)` in which segments of the socket were lost again and again.
    pub fn loss(&self, socket: SocketId, start_ns: u64, end_ns: u64) -> Option<Interval> {
        let Events { by_ino, by_ends, .. } = self.events(socket);
        let times = |index: Option<u32>| self.retransmits.get(index? as usize);
        let within = |times: &Vec<u64>| {
            let begin = times.partition_point(|time| *time < start_ns);
            let end = times.partition_point(|time| *time < end_ns);
            longest_loss(times.get(begin..end)?)
        };
        [times(by_ino), times(by_ends)].into_iter().flatten().filter_map(within).max_by_key(|loss| loss.len())
    }

    /// The handshake on this socket that was under way in `[start_ns, end_ns)`. A socket has one at a
    /// time, so the last one that began before the end is the one.
    pub fn connecting(&self, socket: SocketId, start_ns: u64, end_ns: u64) -> Option<Connecting> {
        let indices = self.handshakes.get(self.events(socket).handshakes? as usize)?;
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

/// Numbers of lists by what their elements have in common.
struct Index<K>(FastMap<K, u32>);

impl<K> Default for Index<K> {
    fn default() -> Index<K> {
        Index(FastMap::default())
    }
}

impl<K: Eq + Hash> Index<K> {
    fn push<T>(&mut self, key: K, value: T, lists: &mut Vec<Vec<T>>) {
        let next = lists.len() as u32;
        let index = *self.0.entry(key).or_insert(next);
        if index == next {
            lists.push(Vec::new());
        }
        if let Some(list) = lists.get_mut(index as usize) {
            list.push(value);
        }
    }

    fn get(&self, key: &K) -> Option<u32> {
        self.0.get(key).copied()
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
