//! The table `queues`, the causes of domain `qp`, and the time of queue pairs for the flame graph.

use std::collections::BTreeMap;

use super::places::Places;
use super::report::{CauseRow, Distribution, Domain, HopRow};
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::queue::{Class, QueueTrack, Unit};
use crate::model::thread::Interval;

pub mod counters;
mod peer;
mod row;
pub mod rule;

pub use row::QueueRow;
use rule::{Parts, Unloaded};

/// Time that a queue pair had something outstanding, by cause: parts of its own time line, nothing twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTime {
    pub cause: Cause,
    pub ns: u64,
}

/// A queue pair as it is shown.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    pub row: QueueRow,
    pub pid: u32,
    /// Where its time went. Empty where posts and completions could not be brought together.
    pub times: Vec<QueueTime>,
    /// Queue, and the rest, of each unit that was split.
    pub waits: Vec<(u64, u64)>,
    /// From post to completion of each that was not.
    pub whole: Vec<u64>,
    pub peer: peer::Peer,
    /// From post to completion of small requests of depth one.
    pub alone: Vec<u64>,
}

/// All queue pairs that were found or used.
#[derive(Clone, Debug, Default)]
pub struct Queues {
    pub queues: Vec<Queue>,
    pub unmatched: u64,
}

impl Queues {
    pub fn new(model: &Model, places: &Places) -> Queues {
        let window = model.whole();
        let tracks = model.rdma.tracks(window.start_ns, window.end_ns);
        let unmatched = tracks.iter().map(|track| track.unmatched).fold(0, u64::saturating_add);
        let peers = peer::peers(&model.rdma.peers, places);
        let with_peer = |track: &QueueTrack| {
            let mut queue = queue(track, window);
            if let Some(peer) = peers.get(&(track.pid, track.number)) {
                peer::fill(&mut queue, peer);
            }
            queue
        };
        Queues { queues: tracks.iter().map(with_peer).collect(), unmatched }
    }

    /// Rows of the table of peers.
    pub fn hops(&self) -> Vec<HopRow> {
        peer::hops(&self.queues)
    }

    /// Rows by device, port and queue pair.
    pub fn rows(&self) -> Vec<QueueRow> {
        let mut rows: Vec<QueueRow> = self.queues.iter().map(|queue| queue.row.clone()).collect();
        rows.sort_by(|one, other| {
            (&one.device, one.port, one.qp, one.pid).cmp(&(&other.device, other.port, other.qp, other.pid))
        });
        rows
    }

    /// `stalled_ns` is time of queue pairs' own time lines, in which requests overlap; the distribution is over requests.
    pub fn causes(&self) -> Vec<CauseRow> {
        let mut rows = Vec::new();
        for cause in [Cause::RdmaQueue, Cause::RdmaWire, Cause::Other] {
            let times = self.queues.iter().flat_map(|queue| &queue.times);
            let stalled_ns =
                times.filter(|time| time.cause == cause).map(|time| time.ns).fold(0, u64::saturating_add);
            let waits = self.queues.iter().flat_map(|queue| &queue.waits);
            let durations: Vec<u64> = match cause {
                Cause::RdmaQueue => waits.map(|wait| wait.0).filter(|ns| *ns > 0).collect(),
                Cause::RdmaWire => waits.map(|wait| wait.1).collect(),
                _ => self.queues.iter().flat_map(|queue| &queue.whole).copied().collect(),
            };
            // What is outstanding is with the wire and the peer, as far as is known.
            let in_flight = match cause {
                Cause::RdmaWire => self.in_flight(true),
                Cause::Other => self.in_flight(false),
                _ => 0,
            };
            let oldest_ns = match cause {
                Cause::RdmaWire => self.oldest_ns(true),
                Cause::Other => self.oldest_ns(false),
                _ => 0,
            };
            if stalled_ns > 0 || !durations.is_empty() || in_flight > 0 {
                rows.push(CauseRow {
                    cause,
                    domain: Domain::Qp,
                    count: durations.len() as u64,
                    stalled_ns,
                    in_flight,
                    longest_ns: durations.iter().copied().max().unwrap_or(0).max(oldest_ns),
                    began_earlier: false,
                    duration: Distribution::of(durations),
                });
            }
        }
        rows
    }

    /// Age of the oldest request that is outstanding, 0 without one.
    fn oldest_ns(&self, split: bool) -> u64 {
        let of = self.queues.iter().filter(|queue| queue.row.wire_ns.is_some() == split);
        of.map(|queue| queue.row.oldest_in_flight_ns).max().unwrap_or(0)
    }

    fn in_flight(&self, split: bool) -> u64 {
        let of = self.queues.iter().filter(|queue| queue.row.wire_ns.is_some() == split);
        of.map(|queue| queue.row.in_flight).fold(0, u64::saturating_add)
    }
}

fn queue(track: &QueueTrack, window: Interval) -> Queue {
    let units = &track.units;
    let unloaded: BTreeMap<Class, Unloaded> = [Class::Out, Class::Back]
        .into_iter()
        .filter_map(|class| Some((class, rule::fit(units, class)?)))
        .collect();
    let mut queue = Queue {
        row: row::row(track, &unloaded, window),
        pid: track.pid,
        alone: peer::depth_one(units),
        ..Queue::default()
    };
    let mut queued: Vec<Interval> = Vec::new();
    let mut split: Vec<Parts> = Vec::new();
    for class in [Class::Out, Class::Back] {
        let of_class: Vec<&Unit> = units.iter().filter(|unit| unit.class == class).collect();
        let Some(known) = unloaded.get(&class) else {
            let counted = of_class.iter().filter(|unit| !unit.lead);
            queue.whole.extend(counted.map(|unit| unit.done_ns - unit.post_ns));
            continue;
        };
        for (unit, parts) in of_class.iter().zip(rule::split(units, class, *known)) {
            if unit.lead {
                continue;
            }
            queued.push(Interval { start_ns: unit.post_ns, end_ns: unit.post_ns + parts.queue_ns });
            queue.waits.push((parts.queue_ns, parts.transmit_ns + parts.wire_ns));
            split.push(parts);
        }
    }
    row::distribute(&mut queue.row, units, &split);
    let in_flight =
        track.in_flight.iter().map(|post_ns| Interval { start_ns: *post_ns, end_ns: window.end_ns });
    let used = units.iter().map(|unit| Interval { start_ns: unit.post_ns, end_ns: unit.done_ns });
    let open = in_flight.chain(track.cut.iter().copied()).filter(|_| track.anchored);
    let (mut busy_ns, mut queued_ns) = times(track, used.chain(open).collect(), queued, window);
    if let Some(scale) = &track.scale {
        busy_ns = row::scaled(busy_ns, scale.times).min(window.len());
        queued_ns = row::scaled(queued_ns, scale.times).min(busy_ns);
    }
    let rest = if unloaded.is_empty() { Cause::Other } else { Cause::RdmaWire };
    let times = [(Cause::RdmaQueue, queued_ns), (rest, busy_ns - queued_ns)];
    queue.times =
        times.into_iter().filter(|(_, ns)| *ns > 0).map(|(cause, ns)| QueueTime { cause, ns }).collect();
    queue
}

/// How long the queue pair had something outstanding, and how much of that something waited behind another request;
/// where it was watched in windows, in the parts of them that say so.
fn times(track: &QueueTrack, used: Vec<Interval>, queued: Vec<Interval>, window: Interval) -> (u64, u64) {
    let whole = [window];
    let parts = if track.scale.is_some() { track.known.as_slice() } else { &whole };
    let sum = |intervals: Vec<Interval>| covered_in(intervals, parts);
    let busy_ns = sum(used);
    (busy_ns, sum(queued).min(busy_ns))
}

/// Length of the union within `parts`, which are in order and do not overlap.
fn covered_in(mut intervals: Vec<Interval>, parts: &[Interval]) -> u64 {
    intervals.sort_by_key(|interval| interval.start_ns);
    let mut sum: u64 = 0;
    let mut union: Vec<Interval> = Vec::new();
    for interval in intervals {
        match union.last_mut() {
            Some(last) if interval.start_ns <= last.end_ns => last.end_ns = last.end_ns.max(interval.end_ns),
            _ => union.push(interval),
        }
    }
    for part in parts {
        let first = union.partition_point(|one| one.end_ns <= part.start_ns);
        for one in union.iter().skip(first).take_while(|one| one.start_ns < part.end_ns) {
            let (from, to) = (one.start_ns.max(part.start_ns), one.end_ns.min(part.end_ns));
            sum += to.saturating_sub(from);
        }
    }
    sum
}

#[cfg(test)]
mod tests;
