//! A query and what became of it.

use std::sync::Arc;

use profiler_common::Api;

use super::lookup::LookupId;
use super::message::Question;
use crate::model::socket::Transport;

/// The socket that messages go through.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SocketKey {
    Inode {
        pid: u32,
        ino: u64,
    },
    /// The inode is not known: the messages of one thread with one server.
    Server {
        pid: u32,
        tid: u32,
        server: Arc<str>,
    },
}

impl SocketKey {
    pub fn new(pid: u32, tid: u32, ino: u64, server: &Arc<str>) -> SocketKey {
        match ino {
            0 => SocketKey::Server { pid, tid, server: Arc::clone(server) },
            ino => SocketKey::Inode { pid, ino },
        }
    }
}

/// What became of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No answer, as far as the recording goes.
    Open,
    /// An answer with this query's id and question.
    Answered { rcode: u16, answers: u16 },
    /// The kernel reported this errno for the socket: an ICMP message from the server's machine, or from one
    /// on the way.
    Refused { errno: i32 },
    /// Another server answered the same question first.
    Elsewhere,
    /// This machine did not let it out: the errno of `sendto` or `connect`.
    NotSent { errno: i32 },
    /// Nobody waits for it any more: the question was sent anew, another lookup began, the connection ended.
    GivenUp,
}

impl Outcome {
    /// Whether the server, or the network in its place, said something.
    pub fn is_answer(self) -> bool {
        matches!(self, Outcome::Answered { .. } | Outcome::Refused { .. })
    }
}

/// One question to one server on one socket under one id, with its retransmissions.
#[derive(Clone, Debug)]
pub struct Query {
    pub pid: u32,
    /// The thread that sent it, or received the answer where the sending was not seen.
    pub tid: u32,
    pub api: Api,
    pub lookup: LookupId,
    /// `ip:port`, `[ip]:port`; empty where unknown.
    pub server: Arc<str>,
    pub transport: Transport,
    /// `None` where the message was not captured.
    pub id: Option<u16>,
    pub question: Option<Question>,
    /// Times of sending, inside the window.
    pub sends: Vec<u64>,
    /// Failed attempts to send.
    pub unsent: u64,
    /// First sending; 0 where it was not seen.
    pub opened_ns: u64,
    /// When it was answered, or given up.
    pub closed_ns: Option<u64>,
    pub outcome: Outcome,
    /// The answer had the TC bit.
    pub truncated: bool,
    /// Messages that came in its place: wrong id, wrong question, unreadable.
    pub mismatched: u64,
    pub malformed: bool,
    /// It was sent before the recording (or its record was lost) and is known from the answer alone.
    pub recovered: bool,
}

impl Query {
    /// Query to answer, `None` without an answer or where the sending was not seen.
    pub fn latency_ns(&self) -> Option<u64> {
        let closed = self.closed_ns.filter(|_| self.outcome.is_answer() && self.opened_ns != 0)?;
        Some(closed.saturating_sub(self.opened_ns))
    }

    pub(super) fn last_send(&self) -> u64 {
        self.sends.last().copied().unwrap_or(self.opened_ns)
    }

    pub(super) fn close(&mut self, time_ns: u64, outcome: Outcome) {
        self.outcome = outcome;
        self.closed_ns = Some(time_ns);
    }

    pub(super) fn asks(&self, question: &Question) -> bool {
        self.question.as_ref().is_some_and(|own| own.is_same(question))
    }
}
