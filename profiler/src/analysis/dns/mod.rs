//! Lookups: what was asked of whom, what came back, and how long threads waited for it.

use std::collections::{BTreeMap, HashMap};

use profiler_common::Api;

use super::dns_wait::DnsWait;
use super::report::DnsRow;
use crate::model::dns::exchange::Exchanges;
use crate::model::dns::lookup::LookupId;
use crate::model::dns::name::present_text;
use crate::model::dns::query::Outcome;
use crate::trace::record::{ApiCall, DnsMessage, Window};

mod label;
mod row;
mod share;
#[cfg(test)]
pub(crate) mod tests;

/// An answer that takes longer than this is called late where no threshold is at hand.
pub const LATE_NS: u64 = 100_000_000;

/// The resolver's part of a trace.
#[derive(Clone, Debug, Default)]
pub struct DnsAnalysis {
    /// By stalled time, largest first. Their `stalled_ns` add up to the weights of the waits.
    pub rows: Vec<DnsRow>,
    /// What the leaf frame of each wait says: `node01 A+AAAA no answer`.
    pub labels: Vec<String>,
    /// By start.
    pub lookups: Vec<Lookup>,
}

/// One call of a resolver function, or a burst of queries outside of a known one.
#[derive(Clone, Debug)]
pub struct Lookup {
    pub pid: u32,
    pub tid: u32,
    /// Empty: unknown.
    pub api: &'static str,
    /// What the program asked for, where the call's argument was read.
    pub argument: Option<String>,
    pub start_ns: u64,
    /// Its last message or wait.
    pub end_ns: u64,
    /// Sum over `asked`.
    pub stalled_ns: u64,
    /// It was not over when the recording stopped.
    pub in_flight: bool,
    /// Age of the wait that is in flight, or of the longest one.
    pub longest_wait_ns: u64,
    pub began_earlier: bool,
    pub asked: Vec<Asked>,
}

/// One question of a lookup to one server (with its retransmissions on one socket), or a wait without one.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Index into [`DnsAnalysis::rows`].
    pub row: usize,
    pub name: Option<String>,
    pub qtype: Option<String>,
    pub server: String,
    /// `udp`, `tcp`, `unix`.
    pub transport: &'static str,
    /// Times of sending.
    pub sends: Vec<u64>,
    pub unsent: u64,
    /// `Open` too where no message was seen at all.
    pub outcome: Outcome,
    pub closed_ns: Option<u64>,
    pub latency_ns: Option<u64>,
    pub truncated: bool,
    pub stalled_ns: u64,
    pub in_flight: bool,
}

/// Rows, labels and lookups from the messages, the calls and the waits of a trace.
///
/// `waits` are exclusive shares of thread time; each one's weight goes to the queries that its socket was
/// owed an answer to, in equal parts at any instant. After the end of `window` messages are not known, and a wait that
/// reaches beyond it is for an unknown name.
pub fn rows(
    messages: &[DnsMessage],
    api_calls: &[ApiCall],
    waits: &[DnsWait],
    window: Window,
) -> DnsAnalysis {
    let exchanges = Exchanges::from_messages(messages, window);
    let calls = Calls::new(api_calls);
    let shares = share::distribute(&exchanges, waits, window, !api_calls.is_empty());
    let labels = shares
        .iter()
        .zip(waits)
        .map(|(shares, wait)| label::of_wait(&exchanges, wait, shares, &calls))
        .collect();
    let (rows, lookups) = row::build(&exchanges, waits, &shares, &calls, window);
    DnsAnalysis { rows, labels, lookups }
}

/// Calls of resolver functions by thread and time of entry.
struct Calls<'a> {
    calls: HashMap<(u32, u32, u64), &'a ApiCall>,
}

impl<'a> Calls<'a> {
    fn new(api_calls: &'a [ApiCall]) -> Calls<'a> {
        let calls = api_calls.iter().map(|call| ((call.pid, call.tid, call.time_ns), call)).collect();
        Calls { calls }
    }

    /// What the call was about, safe to print.
    fn argument(&self, pid: u32, tid: u32, start_ns: u64) -> Option<String> {
        let call = self.calls.get(&(pid, tid, start_ns))?;
        match call.address {
            Some(address) => Some(address.to_string()),
            None if call.argument.is_empty() => None,
            None => Some(present_text(&call.argument)),
        }
    }

    fn api(&self, lookup: &LookupId) -> Api {
        let key = (lookup.pid, lookup.tid, lookup.api_start_ns);
        self.calls.get(&key).map_or(Api::None, |call| call.api)
    }
}

/// Lookups while they are put together.
type LookupMap = BTreeMap<LookupId, Lookup>;
