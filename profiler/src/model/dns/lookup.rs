//! Which messages belong to one lookup: one call of a resolver function, or what looks like one.

use std::collections::HashMap;

use super::message::Question;
use super::query::Query;
use crate::trace::record::{Direction, DnsMessage};

/// A question that is repeated under a new id within this time continues the lookup: no resolver waits
/// longer for one answer.
const RETRY_NS: u64 = 30_000_000_000;
/// Another type of the same name within this time belongs to the same lookup.
const SIBLING_NS: u64 = 5_000_000_000;

/// Names a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LookupId {
    pub pid: u32,
    pub tid: u32,
    /// Entry of the resolver function; 0 where unknown.
    pub api_start_ns: u64,
    /// Without an entry: time of the first message, or 0 where that was not seen.
    pub burst_ns: u64,
}

impl LookupId {
    /// The best known time of its begin.
    pub fn start_ns(&self) -> u64 {
        if self.api_start_ns != 0 { self.api_start_ns } else { self.burst_ns }
    }
}

/// Messages of a name that came close together, outside of known calls.
#[derive(Clone, Debug)]
struct Burst {
    start_ns: u64,
    last_ns: u64,
    /// The questions in it, the latest of each type and id.
    asked: Vec<Asked>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    id: Option<u16>,
    qtype: u16,
    /// Place in the list of queries.
    query: usize,
}

/// Questions of one burst at most.
const ASKED: usize = 16;

/// Puts messages outside of known calls together by name and time.
#[derive(Clone, Debug, Default)]
pub struct Lookups {
    bursts: HashMap<(u32, u32, String), Burst>,
}

impl Lookups {
    /// The lookup that a new query belongs to, which will be the next one of `queries`.
    pub fn of_message(
        &mut self,
        record: &DnsMessage,
        id: Option<u16>,
        question: Option<&Question>,
        queries: &[Query],
    ) -> LookupId {
        let mut lookup =
            LookupId { pid: record.pid, tid: record.tid, api_start_ns: record.api_start_ns, burst_ns: 0 };
        if record.api_start_ns == 0
            && record.direction == Direction::Send
            && let Some(question) = question
        {
            lookup.burst_ns = self.burst(record, id, question, queries);
        }
        lookup
    }

    fn burst(&mut self, record: &DnsMessage, id: Option<u16>, question: &Question, queries: &[Query]) -> u64 {
        let now = record.time_ns;
        let key = (record.pid, record.tid, question.name.to_ascii_lowercase());
        let burst = self.bursts.entry(key).or_insert_with(|| Burst::new(now));
        if !burst.continues(now, id, question.qtype, queries) {
            *burst = Burst::new(now);
        }
        burst.last_ns = now;
        burst.asked.retain(|asked| (asked.id, asked.qtype) != (id, question.qtype));
        burst.asked.push(Asked { id, qtype: question.qtype, query: queries.len() });
        burst.start_ns
    }
}

impl Burst {
    fn new(now: u64) -> Burst {
        Burst { start_ns: now, last_ns: now, asked: Vec::new() }
    }

    fn continues(&self, now: u64, id: Option<u16>, qtype: u16, queries: &[Query]) -> bool {
        let age = now.saturating_sub(self.last_ns);
        if self.asked.len() >= ASKED || age > RETRY_NS {
            return false;
        }
        let mut same_type = self.asked.iter().filter(|asked| asked.qtype == qtype).peekable();
        if same_type.peek().is_none() {
            return age <= SIBLING_NS;
        }
        same_type.any(|asked| {
            let unanswered = queries.get(asked.query).is_some_and(|query| !query.outcome.is_answer());
            asked.id == id || unanswered
        })
    }
}
