//! Which recorded process let another one wait: whoever is waited for, and does not wait for anybody itself, is late.
//!
//! Both sides are on one clock here, so it is a matter of intervals: the time in which a thread of one process waits
//! for data of the other (`waited_ns`), and the part of it in which the other one did not wait for communication
//! (`late_ns`). Two in step wait for each other in turn, and each is "late" by the little that it works in between:
//! only the difference between both directions tells.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::far_end::FarEnds;
use super::partition::Piece;
use crate::model::Model;
use crate::model::cause::Cause;
use crate::model::intern::NameId;
use crate::model::thread::{Interval, ThreadTrack};

/// Intervals of one kind that are kept; what comes later is left out of waits, and filled up in what excuses a process.
const SPANS: usize = 1 << 18;
/// A thread that waits for more of the window than this, and not for the one that waits for us, waits for commands: its
/// waiting is no excuse.
const SERVICE_PERCENT: u64 = 90;

/// How long one process waited for another one, of both of which the recording has the sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Union over its threads of the time in which they wait for data of the other process.
    pub waited_ns: u64,
    /// The part of it in which the other process was there and did not wait for communication.
    pub late_ns: u64,
}

/// By the process that waits, and the one that it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Late {
    pairs: BTreeMap<(u32, u32), Lateness>,
}

impl Late {
    #[cfg(test)]
    pub fn of(pairs: &[(u32, u32, Lateness)]) -> Late {
        Late { pairs: pairs.iter().map(|(waits, end, lateness)| ((*waits, *end), *lateness)).collect() }
    }

    pub fn get(&self, waits: u32, waited_for: u32) -> Lateness {
        self.pairs.get(&(waits, waited_for)).copied().unwrap_or_default()
    }

    /// All pairs, by the process that is waited for.
    pub fn by_late(&self) -> BTreeMap<u32, Vec<(u32, Lateness)>> {
        let mut by_late: BTreeMap<u32, Vec<(u32, Lateness)>> = BTreeMap::new();
        for ((waits, waited_for), lateness) in &self.pairs {
            by_late.entry(*waited_for).or_default().push((*waits, *lateness));
        }
        by_late
    }
}

/// Intervals, at most [`SPANS`].
#[derive(Clone, Debug, Default)]
struct Spans {
    spans: Vec<Interval>,
    /// From here on intervals are missing.
    full_from_ns: Option<u64>,
}

impl Spans {
    fn push(&mut self, span: Interval) {
        if let Some(last) = self.spans.last_mut()
            && last.start_ns <= span.start_ns
            && span.start_ns <= last.end_ns
        {
            last.end_ns = last.end_ns.max(span.end_ns);
        } else if self.spans.len() < SPANS {
            self.spans.push(span);
        } else {
            let from = self.full_from_ns.get_or_insert(span.start_ns);
            *from = (*from).min(span.start_ns);
        }
    }

    fn len_ns(&self) -> u64 {
        self.spans.iter().map(|span| span.len()).fold(0, u64::saturating_add)
    }
}

/// Sorted, and without overlaps.
fn union(mut spans: Vec<Interval>) -> Vec<Interval> {
    spans.retain(|span| !span.is_empty());
    spans.sort_unstable_by_key(|span| span.start_ns);
    let mut merged: Vec<Interval> = Vec::new();
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.start_ns <= last.end_ns => last.end_ns = last.end_ns.max(span.end_ns),
            _ => merged.push(span),
        }
    }
    merged
}

fn length(spans: &[Interval]) -> u64 {
    spans.iter().map(|span| span.len()).fold(0, u64::saturating_add)
}

/// What two unions have in common.
fn common(one: &[Interval], two: &[Interval]) -> u64 {
    let (mut one, mut two) = (one.iter().peekable(), two.iter().peekable());
    let mut sum = 0_u64;
    while let (Some(a), Some(b)) = (one.peek(), two.peek()) {
        sum = sum.saturating_add(a.clip(**b).len());
        if a.end_ns <= b.end_ns {
            one.next()
        } else {
            two.next()
        };
    }
    sum
}

/// Takes the waits in, thread by thread.
#[derive(Debug)]
pub struct Collector<'a> {
    ends: &'a FarEnds,
    window: Interval,
    waits: BTreeMap<(u32, u32), Spans>,
    /// Waiting for communication by process and thread.
    held: BTreeMap<(u32, u32), Spans>,
    /// Processes that a thread has waits on, in either direction.
    talks: BTreeMap<(u32, u32), BTreeSet<u32>>,
    /// When the threads of a process are there.
    present: BTreeMap<u32, Interval>,
}

impl<'a> Collector<'a> {
    pub fn new(ends: &'a FarEnds, window: Interval) -> Collector<'a> {
        Collector {
            ends,
            window,
            waits: BTreeMap::new(),
            held: BTreeMap::new(),
            talks: BTreeMap::new(),
            present: BTreeMap::new(),
        }
    }

    /// Whether any two of the processes are connected with each other.
    pub fn is_needed(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Takes in what one thread waited for, in portions or at once, by start.
    pub fn take(&mut self, model: &Model, track: &ThreadTrack, pieces: &[Piece]) {
        if self.ends.is_empty() {
            return;
        }
        let present = self.present.entry(track.pid).or_insert(track.presence);
        present.start_ns = present.start_ns.min(track.presence.start_ns);
        present.end_ns = present.end_ns.max(track.presence.end_ns);
        let mut known: HashMap<NameId, Option<u32>> = HashMap::new();
        let held = self.held.entry((track.pid, track.tid)).or_default();
        for piece in pieces {
            let waits = matches!(piece.cause, Cause::SockRecv | Cause::TcpRetransmit);
            let communicates =
                waits || matches!(piece.cause, Cause::SockSend | Cause::TcpConnect | Cause::DnsResolve);
            if !communicates {
                continue;
            }
            held.push(piece.span);
            let end = *known
                .entry(piece.peer)
                .or_insert_with(|| self.ends.get(track.pid, model.names.name(piece.peer)).map(|end| end.pid));
            let Some(end) = end else { continue };
            self.talks.entry((track.pid, track.tid)).or_default().insert(end);
            if waits && piece.interest == crate::model::wait::Interest::Read {
                self.waits.entry((track.pid, end)).or_default().push(piece.span);
            }
        }
    }

    pub fn finish(self) -> Late {
        let pairs = self.waits.keys().map(|(pid, end)| ((*pid, *end), self.lateness(*pid, *end)));
        Late { pairs: pairs.collect() }
    }

    fn lateness(&self, pid: u32, end: u32) -> Lateness {
        let waits = self.waits.get(&(pid, end)).map_or_else(Vec::new, |spans| union(spans.spans.clone()));
        let excuses = self.excuses(pid, end);
        let waited_ns = length(&waits);
        Lateness { waited_ns, late_ns: waited_ns.saturating_sub(common(&waits, &excuses)) }
    }

    /// When the process `end` could not be expected to send to `pid`: it waited itself, or was not there.
    fn excuses(&self, pid: u32, end: u32) -> Vec<Interval> {
        let mut spans = Vec::new();
        for ((of, tid), held) in self.held.range((end, 0)..=(end, u32::MAX)) {
            let talks = self.talks.get(&(*of, *tid)).is_some_and(|ends| ends.contains(&pid));
            let most = self.window.len() / 100 * SERVICE_PERCENT;
            if !talks && held.len_ns() > most {
                continue;
            }
            spans.extend_from_slice(&held.spans);
            if let Some(from) = held.full_from_ns {
                spans.push(Interval { start_ns: from, end_ns: u64::MAX });
            }
        }
        let present = self.present.get(&end).copied().unwrap_or_default();
        spans.push(Interval { start_ns: 0, end_ns: present.start_ns });
        spans.push(Interval { start_ns: present.end_ns, end_ns: u64::MAX });
        union(spans)
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::Call;

    use super::*;
    use crate::analysis::context::Context;
    use crate::analysis::partition::partition;
    use crate::model::fixture::{Trace, sample_of, tcp, wait};
    use crate::trace::record::{Ends, Process, Record, Socket, Thread, Wait};

    const OURS: &str = "10.0.0.1:4000";
    const THEIRS: &str = "10.0.0.2:29500";

    fn socket(local: &str, peer: &str) -> Socket {
        let ends = Ends::Inet { local: local.parse().unwrap(), peer: peer.parse().unwrap() };
        Socket { ends, ..tcp(if local == OURS { 1 } else { 2 }, peer) }
    }

    /// Process 100 and process 200 with a connection between them, in a window from 1000 to 2000.
    fn two() -> Trace {
        let mut trace = Trace::new();
        trace.add(Record::Process(Process {
            pid: 200,
            comm: "far".into(),
            seen_ns: 1000,
            ..Process::default()
        }));
        trace.add(Record::Thread(Thread { pid: 200, tid: 200, seen_ns: 1000, ..Thread::default() }));
        for (pid, local, peer) in [(100, OURS, THEIRS), (200, THEIRS, OURS)] {
            trace.add(Record::Socket(sample_of(pid, local, tcp(1, peer))));
        }
        trace
    }

    /// A read of process 100 or 200 from the other.
    fn read(pid: u32, start_ns: u64, end_ns: u64) -> Wait {
        let (local, peer) = if pid == 100 { (OURS, THEIRS) } else { (THEIRS, OURS) };
        Wait { pid, tid: pid, ..wait(Call::Read, start_ns, end_ns, vec![socket(local, peer)]) }
    }

    fn late(trace: &Trace) -> Late {
        let model = trace.model();
        let ends = FarEnds::new(&model);
        let context = Context::new(&model);
        let mut collector = Collector::new(&ends, model.whole());
        for thread in &model.threads {
            for portion in thread.waits.portions(model.portion_len) {
                let (track, _) = model.portion(thread, &portion);
                collector.take(&model, &track, &partition(&context, &track).pieces);
            }
        }
        collector.finish()
    }

    #[test]
    fn who_is_waited_for_and_waits_for_nobody_is_late() {
        let mut trace = two();
        trace.wait(read(100, 1100, 1900)).wait(read(200, 1150, 1200));
        let late = late(&trace);
        assert_eq!(late.get(100, 200), Lateness { waited_ns: 800, late_ns: 750 });
        assert_eq!(late.get(200, 100), Lateness { waited_ns: 50, late_ns: 0 });
    }

    #[test]
    fn who_waits_for_a_third_one_is_not_late() {
        let mut trace = two();
        let third = Wait { pid: 200, tid: 200, ..wait(Call::Read, 1000, 1990, vec![tcp(9, "10.0.0.3:80")]) };
        trace.wait(read(100, 1100, 1900)).wait(third);
        // Another thread of the process asks for more than the window allows a service thread.
        assert_eq!(late(&trace).get(100, 200), Lateness { waited_ns: 800, late_ns: 800 });
        trace.0.pop();
        let third = Wait { pid: 200, tid: 200, ..wait(Call::Read, 1100, 1950, vec![tcp(9, "10.0.0.3:80")]) };
        trace.wait(third);
        assert_eq!(late(&trace).get(100, 200), Lateness { waited_ns: 800, late_ns: 0 });
    }

    #[test]
    fn two_that_wait_for_each_other_are_equally_late() {
        let mut trace = two();
        for turn in 0..4 {
            let start = 1000 + turn * 200;
            trace.wait(read(100, start, start + 90)).wait(read(200, start + 100, start + 190));
        }
        let late = late(&trace);
        assert_eq!(late.get(100, 200), late.get(200, 100));
        assert_eq!(late.get(100, 200), Lateness { waited_ns: 360, late_ns: 360 });
    }

    #[test]
    fn what_two_unions_have_in_common() {
        let spans = |list: &[(u64, u64)]| -> Vec<Interval> {
            union(
                list.iter()
                    .map(|(start_ns, end_ns)| Interval { start_ns: *start_ns, end_ns: *end_ns })
                    .collect(),
            )
        };
        assert_eq!(common(&spans(&[(0, 10), (20, 30)]), &spans(&[(5, 25), (28, 40)])), 5 + 5 + 2);
        assert_eq!(length(&spans(&[(5, 9), (0, 6), (20, 20)])), 9);
        assert_eq!(common(&spans(&[]), &spans(&[(0, 9)])), 0);
    }
}
