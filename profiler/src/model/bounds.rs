//! How much is kept of what grows with every new name or connection. A trace of a few megabytes can tell of millions of
//! them, one that was forged for that of more than any memory holds.
//!
//! What comes later than the bound is counted ([`Model::losses`](super::Model::losses)) and left out of the tables by
//! name; the waits for it are all kept, so that no time is missing from the sums.

use std::collections::HashMap;

use super::Model;
use super::socket::SocketId;
use crate::trace::record::{ApiCall, Direction, DnsMessage, Handshake, Window};

/// Losses of messages of the resolver, of entries of its functions and of handshakes that are in the trace, and not
/// kept.
pub const DNS_LEFT_OUT: &str = "dns_messages_beyond_bound";
pub const CALLS_LEFT_OUT: &str = "resolver_calls_beyond_bound";
pub const HANDSHAKES_LEFT_OUT: &str = "handshakes_beyond_bound";
/// Sockets that are not told from others with the same peer, or not by their peer either.
pub const SOCKETS_LEFT_OUT: &str = "sockets_beyond_bound";

/// Threads whose latest call of a resolver function is kept beyond the bound.
const LATEST: usize = 1 << 14;
/// Of so many times the messages that are kept it is kept which server was asked on which socket.
const ASKED: usize = 4;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages of the resolver.
    pub messages: usize,
    /// Entries of its functions.
    pub calls: usize,
    /// Handshakes that ended, and as many that did not; also attempts of which a wait alone tells.
    pub handshakes: usize,
    /// Sockets, and as many peers of others.
    pub sockets: usize,
    /// Waits on resolvers that are told apart; the others are added up by thread and server.
    pub dns_waits: usize,
    /// Rows of `dns`, `connects` and `sockets` in the report; the others are one more row.
    pub rows: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            messages: 1 << 18,
            calls: 1 << 18,
            handshakes: 1 << 18,
            sockets: 1 << 19,
            dns_waits: 1 << 18,
            rows: 10_000,
        }
    }
}

/// What of a trace lies beyond the limits.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    pub limits: Limits,
    /// Earliest time of a message that was left out: from then on it is not known what was asked.
    pub dns_until_ns: Option<u64>,
    /// Earliest start of a handshake that was left out.
    pub handshakes_until_ns: Option<u64>,
    /// Time, socket inode and server of messages that were left out: a socket without a peer is known by them to be a
    /// resolver's.
    pub asked: Vec<(u64, u64, SocketId)>,
    messages: u64,
    calls: u64,
    handshakes: u64,
    open_handshakes: usize,
    /// Call by thread.
    latest: HashMap<(u32, u32), ApiCall>,
}

impl Model {
    /// The part of the window of which all messages of the resolver are kept.
    pub fn dns_window(&self) -> Window {
        match self.bounds.dns_until_ns {
            Some(until_ns) => Window { end_ns: self.window.end_ns.min(until_ns.max(1)), ..self.window },
            None => self.window,
        }
    }

    /// Keeps a message, or counts it.
    pub(super) fn add_message(&mut self, message: DnsMessage) {
        let server = self.sockets.intern(&message.socket, &mut self.names);
        if self.dns_messages.len() < self.bounds.limits.messages {
            return self.dns_messages.push(message);
        }
        self.bounds.messages += 1;
        earliest(&mut self.bounds.dns_until_ns, message.time_ns);
        let is_question = message.direction == Direction::Send && message.socket.ino != 0;
        if is_question && self.bounds.asked.len() < self.bounds.limits.messages.saturating_mul(ASKED) {
            self.bounds.asked.push((message.time_ns, message.socket.ino, server));
        }
    }

    /// Keeps a call, or counts it. The latest of each thread is kept in any case: a lookup that hangs at the end of the
    /// recording is the one that is asked about.
    pub(super) fn add_call(&mut self, call: ApiCall) {
        if self.api_calls.len() < self.bounds.limits.calls {
            return self.api_calls.push(call);
        }
        let latest = &mut self.bounds.latest;
        let key = (call.pid, call.tid);
        if latest.len() < LATEST || latest.contains_key(&key) {
            self.bounds.calls += u64::from(latest.insert(key, call).is_some());
        } else {
            self.bounds.calls += 1;
        }
    }

    /// Keeps a handshake, or counts it. Those that had not ended have room of their own, since they come last.
    pub(super) fn add_handshake(&mut self, handshake: Handshake) {
        let Bounds { limits, open_handshakes, .. } = &mut self.bounds;
        let ended = self.handshakes.len().saturating_sub(*open_handshakes);
        let count = if handshake.in_flight { *open_handshakes } else { ended };
        if count < limits.handshakes {
            *open_handshakes += usize::from(handshake.in_flight);
            self.sockets.intern(&handshake.socket, &mut self.names);
            return self.handshakes.push(handshake);
        }
        self.bounds.handshakes += 1;
        earliest(&mut self.bounds.handshakes_until_ns, handshake.start_ns);
    }

    /// When everything was added.
    pub(super) fn finish_bounds(&mut self) {
        self.api_calls.extend(std::mem::take(&mut self.bounds.latest).into_values());
        self.bounds.asked.sort_unstable_by_key(|(time_ns, ..)| *time_ns);
        let Bounds { messages, calls, handshakes, .. } = self.bounds;
        for (what, count, events) in [
            (DNS_LEFT_OUT, messages, true),
            (CALLS_LEFT_OUT, calls, true),
            (HANDSHAKES_LEFT_OUT, handshakes, true),
            (SOCKETS_LEFT_OUT, self.sockets.left_out(), false),
        ] {
            if count > 0 {
                self.losses.insert(what.to_owned(), (count, events));
            }
        }
    }
}

fn earliest(known: &mut Option<u64>, time_ns: u64) {
    *known = Some(known.map_or(time_ns, |known| known.min(time_ns)));
}
