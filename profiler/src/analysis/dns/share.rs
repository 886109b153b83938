//! Who the waiting belongs to: the weight of each wait divided among the queries that were open.

use std::collections::{BTreeMap, HashMap};

use profiler_common::Call;

use crate::analysis::dns_wait::{DnsWait, WaitId};
use crate::model::dns::exchange::Exchanges;
use crate::model::dns::lookup::LookupId;
use crate::model::dns::query::{Query, SocketKey};
use crate::model::socket::Transport;
use crate::trace::record::Window;

/// Messages this close together were sent as one.
const BURST_NS: u64 = 1_000_000;
/// A socket that is waited for before its first message (a connect, a blocking send) is waited for because
/// of that message when it follows within this time.
const AHEAD_NS: u64 = 1_000_000_000;
/// A resolver that gave up on one server turns to the next at once.
const NEXT_TRY_NS: u64 = 50_000_000;
/// Waits on a service without messages that are this close together are one lookup.
const SAME_LOOKUP_NS: u64 = 10_000_000;

/// Where a part of a wait goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// A query on the socket that was waited for.
    Query(usize),
    /// A query that was sent before the recording, to the wait's own server, and repeated as this one.
    SentAnewAs(usize),
    /// Nothing is known of the question.
    Unknown(LookupId),
}

/// A part of one wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub target: Target,
    pub weight_ns: u64,
    /// The target was still waited for when the wait ended.
    pub at_end: bool,
}

/// The shares of every wait. Those of one wait add up to its weight.
pub(super) fn distribute(
    exchanges: &Exchanges,
    waits: &[DnsWait],
    window: Window,
    calls_are_seen: bool,
) -> Vec<Vec<Share>> {
    let mut by_socket: BTreeMap<SocketKey, Vec<usize>> = BTreeMap::new();
    for (index, wait) in waits.iter().enumerate() {
        let key = SocketKey::new(wait.pid, wait.tid, wait.socket_ino, &wait.server);
        by_socket.entry(key).or_default().push(index);
    }
    let later = calls_are_seen.then(|| Later::new(exchanges, waits));
    let mut unknown = Unknown::default();
    let mut shares = vec![Vec::new(); waits.len()];
    for (key, mut indices) in by_socket {
        indices.sort_by_key(|index| waits.get(*index).map_or((0, 0), |wait| (wait.start_ns, wait.end_ns)));
        let mut sweep = Sweep::new(exchanges, exchanges.of_socket(&key));
        for index in indices {
            let (Some(wait), Some(place)) = (waits.get(index), shares.get_mut(index)) else { continue };
            if window.end_ns != 0 && wait.end_ns > window.end_ns {
                // What was asked then is not kept; what was asked last would get the blame.
                let target = Target::Unknown(unknown.lookup(wait));
                *place = vec![Share { target, weight_ns: wait.weight_ns, at_end: true }];
                continue;
            }
            *place = sweep.wait(wait, |wait| {
                later
                    .as_ref()
                    .and_then(|later| later.sent_anew(wait, window))
                    .unwrap_or_else(|| vec![Target::Unknown(unknown.lookup(wait))])
            });
        }
    }
    shares
}

/// Goes over the waits of one socket in order of time.
struct Sweep<'a> {
    exchanges: &'a Exchanges,
    /// By time of sending.
    queries: &'a [usize],
    next: usize,
    active: Vec<usize>,
}

impl<'a> Sweep<'a> {
    fn new(exchanges: &'a Exchanges, queries: &'a [usize]) -> Sweep<'a> {
        Sweep { exchanges, queries, next: 0, active: Vec::new() }
    }

    fn query(&self, index: usize) -> Option<&'a Query> {
        self.exchanges.queries.get(index)
    }

    fn wait(&mut self, wait: &DnsWait, mut without_query: impl FnMut(&DnsWait) -> Vec<Target>) -> Vec<Share> {
        self.advance(wait);
        let mut shares: BTreeMap<Target, (u64, bool)> = BTreeMap::new();
        let segments = self.segments(wait);
        let last = segments.len().saturating_sub(1);
        let mut given = 0;
        for (position, (from, to)) in segments.into_iter().enumerate() {
            let mut targets = self.targets(wait, from);
            if targets.is_empty() {
                targets = without_query(wait);
            }
            let until = if position == last { wait.weight_ns } else { portion(wait, to) };
            let amount = until.saturating_sub(given);
            given = given.max(until);
            divide(amount, &targets, |target, part| {
                let share = shares.entry(target).or_insert((0, false));
                share.0 += part;
                share.1 |= position == last;
            });
        }
        shares.into_iter().map(|(target, (weight_ns, at_end))| Share { target, weight_ns, at_end }).collect()
    }

    /// Makes `active` the queries that can be open during the wait.
    fn advance(&mut self, wait: &DnsWait) {
        while let Some(index) = self.queries.get(self.next).copied()
            && self.query(index).is_some_and(|query| query.opened_ns < wait.end_ns)
        {
            self.active.push(index);
            self.next += 1;
        }
        let queries = &self.exchanges.queries;
        self.active.retain(|index| {
            queries
                .get(*index)
                .is_some_and(|query| query.closed_ns.is_none_or(|closed| closed > wait.start_ns))
        });
    }

    /// The wait, cut wherever a query is sent or closed.
    fn segments(&self, wait: &DnsWait) -> Vec<(u64, u64)> {
        let mut cuts = vec![wait.start_ns, wait.end_ns.max(wait.start_ns)];
        for query in self.active.iter().filter_map(|index| self.query(*index)) {
            let times = [Some(query.opened_ns), query.closed_ns];
            let inside = |time: &u64| *time > wait.start_ns && *time < wait.end_ns;
            cuts.extend(times.into_iter().flatten().filter(inside));
        }
        cuts.sort_unstable();
        let ends = cuts.iter().copied().skip(1);
        let mut segments: Vec<(u64, u64)> = cuts.iter().copied().zip(ends).filter(|(a, b)| a < b).collect();
        if segments.is_empty() {
            segments.push((wait.start_ns, wait.start_ns));
        }
        segments
    }

    /// The queries that share the instant `at`.
    fn targets(&self, wait: &DnsWait, at: u64) -> Vec<Target> {
        let open: Vec<Target> = self
            .active
            .iter()
            .copied()
            .filter(|index| self.query(*index).is_some_and(|query| is_open(query, at)))
            .map(Target::Query)
            .collect();
        if !open.is_empty() {
            return open;
        }
        let before = self
            .queries
            .partition_point(|index| self.query(*index).is_some_and(|query| query.opened_ns <= at));
        let next = self.next_burst(wait, before);
        let last = before.checked_sub(1).and_then(|index| self.queries.get(index)).copied();
        match last {
            // A blocking send waits for the message that it is about to send.
            Some(_) if is_ahead(wait.call) && !next.is_empty() => next,
            Some(last) => vec![Target::Query(last)],
            None => next,
        }
    }

    /// The queries sent together as the first ones from position `from` on, where they follow the wait.
    fn next_burst(&self, wait: &DnsWait, from: usize) -> Vec<Target> {
        let rest = self.queries.get(from..).unwrap_or_default();
        let Some(first) = rest.first().and_then(|index| self.query(*index)) else { return Vec::new() };
        if first.opened_ns.saturating_sub(wait.end_ns) > AHEAD_NS {
            return Vec::new();
        }
        let until = first.opened_ns.saturating_add(BURST_NS);
        rest.iter()
            .copied()
            .take_while(|index| self.query(*index).is_some_and(|query| query.opened_ns <= until))
            .map(Target::Query)
            .collect()
    }
}

fn is_open(query: &Query, at: u64) -> bool {
    query.opened_ns <= at && query.closed_ns.is_none_or(|closed| closed > at)
}

/// Calls that come before the message.
fn is_ahead(call: Call) -> bool {
    matches!(call, Call::Connect | Call::Sendto | Call::Sendmsg | Call::Sendmmsg | Call::Write | Call::Writev)
}

/// What of the wait's weight lies before `time`.
fn portion(wait: &DnsWait, time: u64) -> u64 {
    let length = wait.end_ns.saturating_sub(wait.start_ns);
    if length == 0 {
        return wait.weight_ns;
    }
    let passed = time.saturating_sub(wait.start_ns).min(length);
    let part = u128::from(wait.weight_ns) * u128::from(passed) / u128::from(length);
    u64::try_from(part).unwrap_or(wait.weight_ns)
}

/// Equal parts; the first ones get the nanoseconds that are left over.
fn divide(amount: u64, targets: &[Target], mut give: impl FnMut(Target, u64)) {
    let count = targets.len() as u64;
    if count == 0 {
        return;
    }
    for (target, place) in targets.iter().zip(0..) {
        give(*target, amount / count + u64::from(place < amount % count));
    }
}

/// Queries outside of known calls by thread, to find what a lookup that began before the recording asked.
struct Later<'a> {
    exchanges: &'a Exchanges,
    by_thread: HashMap<(u32, u32), Vec<usize>>,
    ends: HashMap<WaitId, (u64, bool)>,
}

impl<'a> Later<'a> {
    fn new(exchanges: &'a Exchanges, waits: &[DnsWait]) -> Later<'a> {
        let mut by_thread: HashMap<(u32, u32), Vec<usize>> = HashMap::new();
        for (index, query) in exchanges.queries.iter().enumerate() {
            if query.opened_ns != 0 && query.lookup.api_start_ns == 0 {
                by_thread.entry((query.pid, query.tid)).or_default().push(index);
            }
        }
        let mut ends: HashMap<WaitId, (u64, bool)> = HashMap::new();
        for wait in waits {
            let end = ends.entry(wait.wait).or_default();
            end.0 = end.0.max(wait.end_ns);
            end.1 |= wait.in_flight;
        }
        Later { exchanges, by_thread, ends }
    }

    /// The questions that the thread sent, still in the same call, right after a wait that began before the
    /// recording: the resolver's next try. `None` where that cannot be told. Only right where entries of
    /// resolver functions are seen, since a new call would look the same otherwise.
    fn sent_anew(&self, wait: &DnsWait, window: Window) -> Option<Vec<Target>> {
        if wait.api_start_ns != 0 || wait.began_ns >= window.start_ns || wait.transport == Transport::Unix {
            return None;
        }
        let (end_ns, in_flight) = self.ends.get(&wait.wait).copied()?;
        if in_flight {
            return None;
        }
        let thread = self.by_thread.get(&(wait.pid, wait.tid))?;
        let query = |index: &usize| self.exchanges.queries.get(*index);
        let from = thread.partition_point(|index| query(index).is_some_and(|query| query.opened_ns < end_ns));
        let rest = thread.get(from..)?;
        let first = query(rest.first()?)?.opened_ns;
        if first - end_ns > NEXT_TRY_NS {
            return None;
        }
        let mut found: Vec<usize> = Vec::new();
        for index in rest {
            let Some(candidate) = query(index) else { break };
            if candidate.opened_ns > first.saturating_add(BURST_NS) {
                break;
            }
            let Some(question) = &candidate.question else { continue };
            let known = found
                .iter()
                .filter_map(query)
                .filter_map(|query| query.question.as_ref())
                .any(|other| other.is_same(question));
            if !known {
                found.push(*index);
            }
        }
        (!found.is_empty()).then(|| found.into_iter().map(Target::SentAnewAs).collect())
    }
}

/// Gives waits without any message a lookup.
#[derive(Default)]
struct Unknown {
    latest: HashMap<(u32, u32, String), (LookupId, u64)>,
}

impl Unknown {
    fn lookup(&mut self, wait: &DnsWait) -> LookupId {
        let id =
            |burst_ns| LookupId { pid: wait.pid, tid: wait.tid, api_start_ns: wait.api_start_ns, burst_ns };
        if wait.api_start_ns != 0 {
            return id(0);
        }
        let key = (wait.pid, wait.tid, wait.server.to_string());
        let (lookup, end_ns) = self.latest.entry(key).or_insert((id(wait.start_ns), wait.end_ns));
        if wait.start_ns.saturating_sub(*end_ns) > SAME_LOOKUP_NS {
            *lookup = id(wait.start_ns);
        }
        *end_ns = (*end_ns).max(wait.end_ns);
        *lookup
    }
}
