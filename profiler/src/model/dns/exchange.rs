//! Matches queries with what came back on their sockets.

use std::collections::HashMap;
use std::sync::Arc;

use super::lookup::Lookups;
use super::message::{Message, Question};
use super::query::{Outcome, Query, SocketKey};
use super::stream::Streams;
use super::unsent::keeps_from_server;
use crate::model::socket::{self, Transport};
use crate::trace::record::{Direction, DnsMessage, Ends, Window};

/// Open queries of one socket at most; the oldest is given up for a new one.
const OPEN_QUERIES: usize = 128;
/// Queries of a socket that an answer which matches no open one is compared with.
const REMEMBERED: usize = 64;
/// No resolver waits longer than this for one answer (RES_MAXRETRANS of resolv.conf(5)).
const LONGEST_WAIT_NS: u64 = 30_000_000_000;

#[derive(Clone, Debug, Default)]
struct SocketLog {
    /// All queries, by time.
    queries: Vec<usize>,
    /// Those of them that are waited for.
    open: Vec<usize>,
    sent_any: bool,
}

/// All queries of a trace.
#[derive(Clone, Debug, Default)]
pub struct Exchanges {
    pub queries: Vec<Query>,
    sockets: HashMap<SocketKey, SocketLog>,
    lookups: Lookups,
    window: Window,
}

/// What all messages of one record have in common.
struct Envelope<'a> {
    record: &'a DnsMessage,
    key: SocketKey,
    server: Arc<str>,
    transport: Transport,
}

impl Exchanges {
    /// Matches the messages of a trace, in any order; those after the window are left out.
    pub fn from_messages(messages: &[DnsMessage], window: Window) -> Exchanges {
        let mut ordered: Vec<&DnsMessage> = messages
            .iter()
            .filter(|message| window.end_ns == 0 || message.time_ns <= window.end_ns)
            .collect();
        // A send and an answer with the same time can only have happened in this order.
        ordered.sort_by_key(|message| (message.time_ns, message.direction == Direction::Receive));
        let mut exchanges = Exchanges { window, ..Exchanges::default() };
        let mut streams = Streams::default();
        for record in ordered {
            exchanges.take(record, &mut streams);
        }
        exchanges
    }

    /// The queries that went through a socket, by time.
    pub fn of_socket(&self, key: &SocketKey) -> &[usize] {
        self.sockets.get(key).map_or(&[], |log| &log.queries)
    }

    fn take(&mut self, record: &DnsMessage, streams: &mut Streams) {
        let transport = match socket::transport(&record.socket) {
            Transport::Tcp => Transport::Tcp,
            _ => Transport::Udp,
        };
        let server = server_name(&record.socket.ends);
        let key = SocketKey::new(record.pid, record.tid, record.socket.ino, &server);
        let envelope = Envelope { record, key, server, transport };
        let Ok(length) = usize::try_from(record.ret) else {
            return self.failed(&envelope);
        };
        let receives = record.direction == Direction::Receive;
        let messages = match transport {
            Transport::Tcp if length == 0 => {
                if receives {
                    self.give_up_all(&envelope);
                }
                return;
            }
            Transport::Tcp => {
                let descriptor = u64::from(record.socket.fd.unsigned_abs()) | 1 << 63;
                let id = if record.socket.ino == 0 { descriptor } else { record.socket.ino };
                streams.push((record.pid, id, receives), record.time_ns, &record.data, length)
            }
            _ => vec![Message::decode(&record.data, length)],
        };
        for message in messages {
            if receives {
                self.received(&envelope, message.as_ref());
            } else {
                self.sent(&envelope, message);
            }
        }
    }

    fn sent(&mut self, envelope: &Envelope<'_>, message: Option<Message>) {
        let (id, question) = match &message {
            Some(message) => (Some(message.id), message.question.clone()),
            None => (None, None),
        };
        self.give_up_old(envelope, id, question.as_ref());
        let in_window = envelope.record.time_ns >= self.window.start_ns;
        let index = self.open_query(envelope, id, question.as_ref()).unwrap_or_else(|| {
            let index = self.add(envelope, id, question, envelope.record.time_ns);
            self.socket(envelope).open.push(index);
            index
        });
        self.socket(envelope).sent_any = true;
        if let Some(query) = self.queries.get_mut(index) {
            if in_window {
                query.sends.push(envelope.record.time_ns);
            }
            // A message that was cut by the capture is not malformed; one with no room for a header is.
            query.malformed |= message
                .map_or(is_readable(envelope.record), |message| message.malformed || message.is_answer);
        }
    }

    /// An open query of this very socket, server, id and question: the message is a retransmission of it.
    fn open_query(
        &self,
        envelope: &Envelope<'_>,
        id: Option<u16>,
        question: Option<&Question>,
    ) -> Option<usize> {
        let question = question?;
        let open = &self.sockets.get(&envelope.key)?.open;
        open.iter().copied().find(|index| {
            self.queries.get(*index).is_some_and(|query| {
                query.id == id && query.server == envelope.server && query.asks(question)
            })
        })
    }

    /// Ends the wait for queries that the program gave up, as the new message tells.
    fn give_up_old(&mut self, envelope: &Envelope<'_>, id: Option<u16>, question: Option<&Question>) {
        let record = envelope.record;
        let Some(log) = self.sockets.get_mut(&envelope.key) else { return };
        let queries = &mut self.queries;
        let full = log.open.len() >= OPEN_QUERIES;
        let mut first = true;
        log.open.retain(|index| {
            let Some(query) = queries.get_mut(*index) else { return false };
            let another_call = query.tid == record.tid
                && query.lookup.api_start_ns != 0
                && record.api_start_ns != 0
                && query.lookup.api_start_ns != record.api_start_ns;
            let asked_anew = query.tid == record.tid
                && query.id != id
                && query.server == envelope.server
                && question.is_some_and(|question| query.asks(question));
            let too_old = record.time_ns.saturating_sub(query.last_send()) > LONGEST_WAIT_NS;
            let no_room = full && std::mem::take(&mut first);
            let over = another_call || asked_anew || too_old || no_room;
            if over {
                query.close(record.time_ns, Outcome::GivenUp);
            }
            !over
        });
    }

    fn received(&mut self, envelope: &Envelope<'_>, message: Option<&Message>) {
        if let Some(message) = message
            && message.is_answer
        {
            if let Some(index) = self.asked(envelope, message) {
                return self.answered(envelope, index, message);
            }
            if self.is_duplicate(envelope, message) {
                return;
            }
            if !self.socket(envelope).sent_any {
                let index = self.add(envelope, Some(message.id), message.question.clone(), 0);
                if let Some(query) = self.queries.get_mut(index) {
                    query.recovered = true;
                }
                return self.answered(envelope, index, message);
            }
        }
        self.mismatch(envelope, message);
    }

    /// The open query that this answers.
    fn asked(&self, envelope: &Envelope<'_>, message: &Message) -> Option<usize> {
        let open = &self.sockets.get(&envelope.key)?.open;
        open.iter().rev().copied().find(|index| {
            self.queries.get(*index).is_some_and(|query| {
                let server = envelope.server.is_empty() || query.server == envelope.server;
                let id = query.id.is_none_or(|id| id == message.id);
                let question = match (&query.question, &message.question) {
                    (Some(own), Some(other)) => own.is_same(other),
                    // Errors may come back without the question.
                    (Some(_), None) => query.id.is_some() && !message.malformed,
                    (None, _) => true,
                };
                server && id && question
            })
        })
    }

    fn answered(&mut self, envelope: &Envelope<'_>, index: usize, message: &Message) {
        let time_ns = envelope.record.time_ns;
        let Some(query) = self.queries.get_mut(index) else { return };
        query.close(time_ns, Outcome::Answered { rcode: message.rcode, answers: message.answers });
        query.truncated |= message.is_truncated;
        query.malformed |= message.malformed;
        if query.question.is_none() {
            query.question.clone_from(&message.question);
        }
        let (id, question) = (query.id, query.question.clone());
        let Some(log) = self.sockets.get_mut(&envelope.key) else { return };
        let queries = &mut self.queries;
        // The same question, asked at several servers through one socket, is done with the first answer.
        log.open.retain(|other| {
            let Some(query) = queries.get_mut(*other) else { return false };
            let same = query.id == id && question.as_ref().is_some_and(|question| query.asks(question));
            if same && *other != index {
                query.close(time_ns, Outcome::Elsewhere);
            }
            !same && *other != index
        });
    }

    /// A second answer to a question that is done.
    fn is_duplicate(&self, envelope: &Envelope<'_>, message: &Message) -> bool {
        let Some(question) = &message.question else { return false };
        self.of_socket(&envelope.key)
            .iter()
            .rev()
            .take(REMEMBERED)
            .filter_map(|index| self.queries.get(*index))
            .any(|query| query.closed_ns.is_some() && query.id == Some(message.id) && query.asks(question))
    }

    /// Notes a message that no resolver would take for an answer with the query it resembles most.
    fn mismatch(&mut self, envelope: &Envelope<'_>, message: Option<&Message>) {
        let malformed = message.map_or(is_readable(envelope.record), |message| message.malformed);
        let log = self.socket(envelope);
        let candidates = if log.open.is_empty() { &log.queries } else { &log.open };
        let likeness = |query: &Query| {
            let same_question =
                message.and_then(|message| message.question.as_ref()).is_some_and(|asked| query.asks(asked));
            let same_id = message.is_some_and(|message| query.id == Some(message.id));
            (same_question, same_id)
        };
        let recent: Vec<usize> = candidates.iter().rev().take(REMEMBERED).rev().copied().collect();
        let best = recent
            .into_iter()
            .filter_map(|index| self.queries.get(index).map(|query| (likeness(query), index)))
            .max();
        let index = best.map_or_else(
            || {
                let index = self.add(envelope, None, None, 0);
                self.socket(envelope).open.push(index);
                index
            },
            |(_, index)| index,
        );
        if let Some(query) = self.queries.get_mut(index) {
            query.recovered |= query.opened_ns == 0;
            query.mismatched += 1;
            query.malformed |= malformed;
        }
    }

    /// A call that returned an error instead of a message.
    fn failed(&mut self, envelope: &Envelope<'_>) {
        let record = envelope.record;
        let errno = i32::try_from(record.ret.saturating_neg()).unwrap_or(i32::MAX);
        let sends = record.direction == Direction::Send;
        match errno {
            libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT if envelope.transport == Transport::Udp => return,
            libc::EAGAIN | libc::EINTR | libc::EINPROGRESS => return,
            _ => {}
        }
        if envelope.transport == Transport::Tcp {
            return self.give_up_all(envelope);
        }
        let icmp = match errno {
            libc::ECONNREFUSED | libc::ENOPROTOOPT => true,
            // On a send these come from the local routing table.
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EACCES => !sends,
            _ => false,
        };
        if icmp {
            self.refused(envelope, errno);
        }
        if sends {
            self.not_sent(envelope, errno);
        }
    }

    /// The error is the socket's, not one query's: it holds for all that were sent before it.
    fn refused(&mut self, envelope: &Envelope<'_>, errno: i32) {
        let time_ns = envelope.record.time_ns;
        let log = self.socket(envelope);
        let open = std::mem::take(&mut log.open);
        let unseen = !log.sent_any && log.queries.is_empty();
        for index in open {
            if let Some(query) = self.queries.get_mut(index) {
                query.close(time_ns, Outcome::Refused { errno });
            }
        }
        if unseen && envelope.record.direction == Direction::Receive {
            let index = self.add(envelope, None, None, 0);
            if let Some(query) = self.queries.get_mut(index) {
                query.recovered = true;
                query.close(time_ns, Outcome::Refused { errno });
            }
        }
    }

    fn not_sent(&mut self, envelope: &Envelope<'_>, errno: i32) {
        let record = envelope.record;
        let outcome = if keeps_from_server(errno) { Outcome::NotSent { errno } } else { Outcome::GivenUp };
        let (id, question) = match Message::decode(&record.data, record.data.len()) {
            Some(message) if message.is_answer || message.question.is_none() => return,
            Some(message) => (Some(message.id), message.question),
            // Of a `connect` there is no message.
            None if record.data.is_empty() && outcome != Outcome::GivenUp => (None, None),
            None => return,
        };
        let known = self.open_query(envelope, id, question.as_ref());
        let index = known.unwrap_or_else(|| {
            let index = self.add(envelope, id, question, record.time_ns);
            if let Some(query) = self.queries.get_mut(index) {
                query.close(record.time_ns, outcome);
            }
            index
        });
        if let Some(query) = self.queries.get_mut(index) {
            query.unsent += 1;
        }
    }

    /// The connection ended.
    fn give_up_all(&mut self, envelope: &Envelope<'_>) {
        let Some(log) = self.sockets.get_mut(&envelope.key) else { return };
        for index in std::mem::take(&mut log.open) {
            if let Some(query) = self.queries.get_mut(index) {
                query.close(envelope.record.time_ns, Outcome::GivenUp);
            }
        }
    }

    fn socket(&mut self, envelope: &Envelope<'_>) -> &mut SocketLog {
        self.sockets.entry(envelope.key.clone()).or_default()
    }

    fn add(
        &mut self,
        envelope: &Envelope<'_>,
        id: Option<u16>,
        question: Option<Question>,
        opened_ns: u64,
    ) -> usize {
        let record = envelope.record;
        let lookup = self.lookups.of_message(record, id, question.as_ref(), &self.queries);
        let index = self.queries.len();
        self.queries.push(Query {
            pid: record.pid,
            tid: record.tid,
            api: record.api,
            lookup,
            server: Arc::clone(&envelope.server),
            transport: envelope.transport,
            id,
            question,
            sends: Vec::new(),
            unsent: 0,
            opened_ns,
            closed_ns: None,
            outcome: Outcome::Open,
            truncated: false,
            mismatched: 0,
            malformed: false,
            recovered: false,
        });
        self.socket(envelope).queries.push(index);
        index
    }
}

/// Whether what was captured would have been enough for a header.
fn is_readable(record: &DnsMessage) -> bool {
    usize::try_from(record.ret).is_ok_and(|length| record.data.len() >= length.min(12))
}

fn server_name(ends: &Ends) -> Arc<str> {
    match ends {
        Ends::Inet { peer, .. } => {
            socket::known_peer(*peer).map_or_else(|| Arc::from(""), |peer| Arc::from(peer.to_string()))
        }
        _ => Arc::from(""),
    }
}
