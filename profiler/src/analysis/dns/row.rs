//! The report's rows, and the lookups behind them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use profiler_common::Api;

use super::share::{Share, Target};
use super::{Asked, Calls, Lookup, LookupMap};
use crate::analysis::dns_wait::DnsWait;
use crate::analysis::report::{Distribution, DnsRow};
use crate::model::dns::exchange::Exchanges;
use crate::model::dns::lookup::LookupId;
use crate::model::dns::message::{Question, rcode_name};
use crate::model::dns::name::present_text;
use crate::model::dns::query::{Outcome, Query};
use crate::model::dns::unsent::errno_name;
use crate::model::socket::Transport;
use crate::trace::record::Window;

/// What makes a row. Names compare without case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    name: Option<String>,
    qtype: Option<String>,
    server: String,
    transport: Transport,
    api: &'static str,
    pid: u32,
    tid: u32,
}

#[derive(Clone, Debug, Default)]
struct RowParts {
    row: DnsRow,
    latencies: Vec<u64>,
    last_answer_ns: u64,
    lookups: BTreeSet<LookupId>,
    in_flight: BTreeSet<LookupId>,
}

struct Builder<'a> {
    exchanges: &'a Exchanges,
    calls: &'a Calls<'a>,
    window: Window,
    /// Resolver function of each query, from its own record or from a wait for it.
    apis: Vec<Api>,
    rows: BTreeMap<RowKey, (usize, RowParts)>,
    lookups: LookupMap,
    /// Place of a question in its lookup.
    asked: HashMap<(LookupId, usize, Option<usize>), usize>,
}

pub(super) fn build(
    exchanges: &Exchanges,
    waits: &[DnsWait],
    shares: &[Vec<Share>],
    calls: &Calls<'_>,
    window: Window,
) -> (Vec<DnsRow>, Vec<Lookup>) {
    let mut builder = Builder {
        exchanges,
        calls,
        window,
        apis: apis(exchanges, waits, shares),
        rows: BTreeMap::new(),
        lookups: LookupMap::new(),
        asked: HashMap::new(),
    };
    for index in 0..exchanges.queries.len() {
        builder.take_query(index);
    }
    for (wait, shares) in waits.iter().zip(shares) {
        for share in shares {
            builder.take_share(wait, share);
        }
    }
    builder.finish()
}

/// A message that was sent before the function's entry could be seen has no function of its own, but the
/// stack of the wait for it may tell.
fn apis(exchanges: &Exchanges, waits: &[DnsWait], shares: &[Vec<Share>]) -> Vec<Api> {
    let mut apis: Vec<Api> = exchanges.queries.iter().map(|query| query.api).collect();
    for (wait, shares) in waits.iter().zip(shares) {
        for share in shares {
            if let Target::Query(index) | Target::SentAnewAs(index) = share.target
                && let Some(api @ Api::None) = apis.get_mut(index)
            {
                *api = wait.api;
            }
        }
    }
    apis
}

impl Builder<'_> {
    fn take_query(&mut self, index: usize) {
        let Some(query) = self.exchanges.queries.get(index) else { return };
        if query.closed_ns.is_some_and(|closed| closed < self.window.start_ns) {
            return;
        }
        let api = self.apis.get(index).copied().unwrap_or(Api::None);
        let name = match (&query.question, query.outcome) {
            (Some(question), _) => Some(question.name.clone()),
            // What the function was asked for is all that is known of a question that was not even put.
            (None, Outcome::NotSent { .. }) => {
                self.calls.argument(query.pid, query.tid, query.lookup.api_start_ns)
            }
            (None, _) => None,
        };
        let key = RowKey {
            name: name.as_ref().map(|name| name.to_ascii_lowercase()),
            qtype: query.question.as_ref().map(Question::type_name),
            server: query.server.to_string(),
            transport: query.transport,
            api: api.symbol(),
            pid: query.pid,
            tid: query.tid,
        };
        let earlier = query.recovered || (query.opened_ns != 0 && query.opened_ns < self.window.start_ns);
        let row = self.row(key, name, |parts| parts.take_query(query, earlier));
        let position = self.asked(query.lookup, api, row, Some(index));
        let Some(lookup) = self.lookups.get_mut(&query.lookup) else { return };
        lookup.began_earlier |= earlier;
        let times = query.sends.iter().chain(query.closed_ns.as_ref());
        for time in times.filter(|time| **time >= self.window.start_ns) {
            lookup.touch(*time, *time);
        }
        if let Some(asked) = lookup.asked.get_mut(position) {
            asked.sends.clone_from(&query.sends);
            asked.unsent = query.unsent;
            asked.outcome = query.outcome;
            asked.closed_ns = query.closed_ns;
            asked.latency_ns = query.latency_ns();
            asked.truncated = query.truncated;
        }
    }

    fn take_share(&mut self, wait: &DnsWait, share: &Share) {
        let (id, query) = match share.target {
            Target::Query(index) | Target::SentAnewAs(index) => {
                let Some(query) = self.exchanges.queries.get(index) else { return };
                (query.lookup, Some((index, query)))
            }
            Target::Unknown(id) => (id, None),
        };
        let api = match query {
            Some((index, _)) => self.apis.get(index).copied().unwrap_or(wait.api),
            None if wait.api == Api::None => self.calls.api(&id),
            None => wait.api,
        };
        let question = query.and_then(|(_, query)| query.question.as_ref());
        let name = match (question, query) {
            (Some(question), _) => Some(question.name.clone()),
            (None, None) => self.calls.argument(wait.pid, wait.tid, wait.api_start_ns),
            (None, Some(_)) => None,
        };
        let (server, transport) = match (share.target, query) {
            (Target::Query(_), Some((_, query))) if !query.server.is_empty() => {
                (query.server.to_string(), query.transport)
            }
            // A path comes from the target.
            _ => (present_text(&wait.server), wait.transport),
        };
        let key = RowKey {
            name: name.as_ref().map(|name| name.to_ascii_lowercase()),
            qtype: question.map(Question::type_name),
            server,
            transport,
            api: api.symbol(),
            pid: wait.pid,
            tid: wait.tid,
        };
        let in_flight = wait.in_flight && share.at_end;
        let earlier = wait.began_earlier || wait.began_ns < self.window.start_ns;
        let row = self.row(key, name, |parts| parts.take_share(share.weight_ns, id, in_flight, earlier));
        let own = match share.target {
            Target::Query(index) => Some(index),
            _ => None,
        };
        let position = self.asked(id, api, row, own);
        let Some(lookup) = self.lookups.get_mut(&id) else { return };
        lookup.touch(wait.start_ns, wait.end_ns);
        lookup.longest_wait_ns = lookup.longest_wait_ns.max(wait.end_ns.saturating_sub(wait.began_ns));
        lookup.in_flight |= in_flight;
        lookup.began_earlier |= earlier;
        lookup.stalled_ns += share.weight_ns;
        if let Some(asked) = lookup.asked.get_mut(position) {
            asked.stalled_ns += share.weight_ns;
            asked.in_flight |= in_flight;
        }
    }

    /// The row's number in order of appearance.
    fn row(&mut self, key: RowKey, name: Option<String>, take: impl FnOnce(&mut RowParts)) -> usize {
        let next = self.rows.len();
        let (number, parts) = self.rows.entry(key).or_insert_with_key(|key| {
            let row = DnsRow {
                name,
                qtype: key.qtype.clone(),
                api: key.api.to_string(),
                server: key.server.clone(),
                transport: key.transport.name().to_string(),
                pid: key.pid,
                tid: key.tid,
                ..DnsRow::default()
            };
            (next, RowParts { row, ..RowParts::default() })
        });
        take(parts);
        *number
    }

    /// The place in its lookup of a query, or of the waits of a row without one.
    fn asked(&mut self, id: LookupId, api: Api, row: usize, query: Option<usize>) -> usize {
        let lookup = self.lookups.entry(id).or_insert_with(|| Lookup {
            pid: id.pid,
            tid: id.tid,
            api: api.symbol(),
            argument: self.calls.argument(id.pid, id.tid, id.api_start_ns),
            start_ns: u64::MAX,
            end_ns: 0,
            stalled_ns: 0,
            in_flight: false,
            longest_wait_ns: 0,
            began_earlier: false,
            asked: Vec::new(),
        });
        if id.start_ns() >= self.window.start_ns && id.start_ns() != 0 {
            lookup.touch(id.start_ns(), id.start_ns());
        }
        if lookup.api.is_empty() {
            lookup.api = api.symbol();
        }
        let row_of_waits = if query.is_some() { usize::MAX } else { row };
        *self.asked.entry((id, row_of_waits, query)).or_insert_with(|| {
            lookup.asked.push(Asked {
                row,
                name: None,
                qtype: None,
                server: String::new(),
                transport: "",
                sends: Vec::new(),
                unsent: 0,
                outcome: Outcome::Open,
                closed_ns: None,
                latency_ns: None,
                truncated: false,
                stalled_ns: 0,
                in_flight: false,
            });
            lookup.asked.len() - 1
        })
    }

    fn finish(self) -> (Vec<DnsRow>, Vec<Lookup>) {
        let mut ordered: Vec<(RowKey, usize, DnsRow)> =
            self.rows.into_iter().map(|(key, (number, parts))| (key, number, parts.finish())).collect();
        ordered.sort_by(|a, b| b.2.stalled_ns.cmp(&a.2.stalled_ns).then_with(|| a.0.cmp(&b.0)));
        let mut places = vec![0; ordered.len()];
        for (place, (_, number, _)) in ordered.iter().enumerate() {
            if let Some(slot) = places.get_mut(*number) {
                *slot = place;
            }
        }
        let mut lookups: Vec<Lookup> = self.lookups.into_values().collect();
        for asked in lookups.iter_mut().flat_map(|lookup| &mut lookup.asked) {
            asked.row = places.get(asked.row).copied().unwrap_or(0);
            if let Some((key, _, row)) = ordered.get(asked.row) {
                asked.name.clone_from(&row.name);
                asked.qtype.clone_from(&row.qtype);
                asked.server.clone_from(&row.server);
                asked.transport = key.transport.name();
            }
        }
        lookups.sort_by_key(|lookup| (lookup.start_ns, lookup.pid, lookup.tid));
        (ordered.into_iter().map(|(_, _, row)| row).collect(), lookups)
    }
}

impl Lookup {
    fn touch(&mut self, start_ns: u64, end_ns: u64) {
        self.start_ns = self.start_ns.min(start_ns);
        self.end_ns = self.end_ns.max(end_ns);
    }
}

impl RowParts {
    fn take_query(&mut self, query: &Query, earlier: bool) {
        let row = &mut self.row;
        row.attempts += query.sends.len() as u64;
        row.answered += u64::from(query.outcome.is_answer());
        row.mismatched += query.mismatched;
        row.unsent += query.unsent;
        row.truncated += u64::from(query.truncated);
        row.malformed |= query.malformed;
        row.began_earlier |= earlier;
        let closed_ns = query.closed_ns.unwrap_or(0);
        let rcode = match query.outcome {
            Outcome::Answered { rcode, .. } => Some(rcode_name(rcode)),
            Outcome::Refused { errno: libc::ECONNREFUSED } => Some("icmp-refused".to_string()),
            Outcome::Refused { .. } => Some("icmp-unreachable".to_string()),
            Outcome::NotSent { errno } => Some(errno_name(errno)),
            _ => None,
        };
        if rcode.is_some() && closed_ns >= self.last_answer_ns {
            self.last_answer_ns = closed_ns;
            row.rcode = rcode;
        }
        self.latencies.extend(query.latency_ns());
        self.lookups.insert(query.lookup);
    }

    fn take_share(&mut self, weight_ns: u64, lookup: LookupId, in_flight: bool, earlier: bool) {
        self.row.stalled_ns += weight_ns;
        self.row.began_earlier |= earlier;
        self.lookups.insert(lookup);
        if in_flight {
            self.in_flight.insert(lookup);
        }
    }

    fn finish(mut self) -> DnsRow {
        self.row.latency = Distribution::of(self.latencies);
        self.row.lookups = self.lookups.len() as u64;
        self.row.in_flight = self.in_flight.len() as u64;
        self.row
    }
}
