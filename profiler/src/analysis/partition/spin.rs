//! Waits on non-blocking descriptors: any number of them at once, between and around ordinary calls.

use std::collections::BTreeMap;

use super::{Piece, ThreadPartition, clipped, piece};
use crate::analysis::classify::{Slot, Verdict, classify};
use crate::analysis::context::Context;
use crate::analysis::on_cpu;
use crate::model::cause::Cause;
use crate::model::thread::{Interval, ThreadTrack};

/// One descriptor awaited for one cause.
struct Share {
    wait: u32,
    slot: Slot,
    cause: Cause,
    span: Interval,
}

/// Time that the thread spent in ordinary calls: disjoint intervals in order.
#[derive(Default)]
pub(super) struct Taken {
    pub(super) calls: Vec<Interval>,
    /// Sleep, which a spin may have and which is idle otherwise.
    pub(super) naps: Vec<Interval>,
}

/// Adds to `result` what the non-blocking waits have of the time outside of ordinary calls, and the sleep that
/// they do not have.
pub(super) fn partition(context: &Context, track: &ThreadTrack, taken: &Taken, result: &mut ThreadPartition) {
    let mut shares = Vec::new();
    let mut idle = Vec::new();
    let mut slots = Vec::new();
    for (index, wait) in (0..).zip(&track.waits) {
        let span = clipped(track, wait);
        if !wait.flags.nonblocking || span.is_empty() {
            continue;
        }
        match classify(context, wait, &mut slots) {
            Verdict::Other => {}
            Verdict::Idle | Verdict::Sleep => {
                by_cause(index, &Slot::of_none(Cause::Other), span, &mut idle);
            }
            Verdict::Stall => slots.iter().for_each(|slot| by_cause(index, slot, span, &mut shares)),
        }
    }
    let stalled = free_of(&spans_of(&shares), &taken.calls);
    let mut pieces = Vec::new();
    Sweep::new(&shares).run(&taken.calls, &mut pieces);
    let unlooked_ns = take_out_run_queue(track, &mut pieces);
    let asleep = union([taken.calls.as_slice(), &taken.naps].concat());
    let looked_ns = total(&free_of(&stalled, &asleep)).saturating_sub(unlooked_ns);
    let worked_ns = take_out(on_cpu::worked_ns(track.samples.as_ref(), looked_ns), &mut pieces);
    result.stalled_ns += total(&stalled) - unlooked_ns - worked_ns;
    result.pieces.extend(pieces);

    let busy = union([taken.calls.as_slice(), &stalled].concat());
    let looking_idly = free_of(&spans_of(&idle), &busy);
    let mut idle_pieces = Vec::new();
    Sweep::new(&idle).run(&busy, &mut idle_pieces);
    let idly_unlooked_ns = take_out_run_queue(track, &mut idle_pieces);
    let looking = union([stalled, looking_idly.clone()].concat());
    let idle_naps = free_of(&union(taken.naps.clone()), &union([busy, looking_idly.clone()].concat()));
    result.idle_ns += total(&looking_idly) - idly_unlooked_ns + total(&idle_naps);

    let awake_ns = total(&free_of(&looking, &asleep));
    result.spin_ns += awake_ns.saturating_sub(unlooked_ns + idly_unlooked_ns + worked_ns);
}

/// All time in which one of them is awaited.
fn spans_of(shares: &[Share]) -> Vec<Interval> {
    union(shares.iter().map(|share| share.span).collect())
}

/// Takes out of each piece what its wait was without a processor, evenly, since it is not known when that was. Returns
/// how much that is.
fn take_out_run_queue(track: &ThreadTrack, pieces: &mut Vec<Piece>) -> u64 {
    let mut taken_ns = 0;
    for piece in &mut *pieces {
        let Some(wait) = track.waits.get(piece.wait as usize) else { continue };
        let whole = wait.asleep();
        let (len, waited) = (u128::from(whole.len()), u128::from(wait.waited_ns(whole)));
        let Some(weight) = (u128::from(piece.weight_ns) * waited).checked_div(len) else { continue };
        let weight_ns = u64::try_from(weight).unwrap_or(piece.weight_ns);
        taken_ns += piece.weight_ns - weight_ns;
        piece.weight_ns = weight_ns;
    }
    pieces.retain(|piece| piece.weight_ns > 0);
    taken_ns
}

/// Takes so much out of the pieces, in proportion to their weights. Returns how much that is, in whole nanoseconds.
fn take_out(wanted_ns: u64, pieces: &mut Vec<Piece>) -> u64 {
    let all: u128 = pieces.iter().map(|piece| u128::from(piece.weight_ns)).sum();
    let mut taken_ns = 0;
    for piece in &mut *pieces {
        let part = u128::from(piece.weight_ns) * u128::from(wanted_ns);
        let part =
            part.checked_div(all).and_then(|ns| u64::try_from(ns).ok()).unwrap_or(0).min(piece.weight_ns);
        piece.weight_ns -= part;
        taken_ns += part;
    }
    pieces.retain(|piece| piece.weight_ns > 0);
    taken_ns
}

fn total(spans: &[Interval]) -> u64 {
    spans.iter().map(|span| span.len()).sum()
}

/// Cuts a slot's wait where its cause changes.
fn by_cause(wait: u32, slot: &Slot, span: Interval, shares: &mut Vec<Share>) {
    let connected_ns = slot.connected_ns.clamp(span.start_ns, span.end_ns);
    let lost_ns = slot.retransmit.start_ns.clamp(connected_ns, span.end_ns);
    let repaired_ns = slot.retransmit.end_ns.clamp(lost_ns, span.end_ns);
    let cuts = [span.start_ns, connected_ns, lost_ns, repaired_ns, span.end_ns];
    for pair in cuts.windows(2) {
        let &[start_ns, end_ns] = pair else { continue };
        if start_ns < end_ns {
            let cause = slot.cause_at(start_ns);
            shares.push(Share { wait, slot: *slot, cause, span: Interval { start_ns, end_ns } });
        }
    }
}

/// Disjoint intervals in order that cover the same time.
fn union(mut spans: Vec<Interval>) -> Vec<Interval> {
    spans.sort_unstable_by_key(|span| span.start_ns);
    spans.dedup_by(|next, kept| {
        let joins = next.start_ns <= kept.end_ns;
        if joins {
            kept.end_ns = kept.end_ns.max(next.end_ns);
        }
        joins
    });
    spans
}

/// The parts of `spans` outside of `taken`; both are disjoint and in order.
fn free_of(spans: &[Interval], taken: &[Interval]) -> Vec<Interval> {
    let mut free = Vec::new();
    let mut next = 0;
    for span in spans {
        let mut start_ns = span.start_ns;
        while let Some(other) = taken.get(next).filter(|other| other.start_ns < span.end_ns) {
            if other.start_ns > start_ns {
                free.push(Interval { start_ns, end_ns: other.start_ns });
            }
            start_ns = start_ns.max(other.end_ns);
            if other.end_ns > span.end_ns {
                break;
            }
            next += 1;
        }
        if start_ns < span.end_ns {
            free.push(Interval { start_ns, end_ns: span.end_ns });
        }
    }
    free
}

/// What happens at a moment, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Edge {
    Close(u32),
    Unblock,
    Block,
    Open(u32),
}

/// A share that is running.
struct Running {
    since_ns: u64,
    /// `Sweep::each_ns` when it began.
    base: u64,
    /// What it got of the remainders, nanoseconds.
    extra: u64,
}

/// Moves over the time line and gives each running share its part. What every share got so far is kept as
/// one running sum, so that a moment costs no more however many shares run.
struct Sweep<'s> {
    shares: &'s [Share],
    running: BTreeMap<u32, Running>,
    blocked: bool,
    now_ns: u64,
    /// What a share that runs from the beginning would have got.
    each_ns: u64,
}

impl<'s> Sweep<'s> {
    fn new(shares: &'s [Share]) -> Sweep<'s> {
        Sweep { shares, running: BTreeMap::new(), blocked: false, now_ns: 0, each_ns: 0 }
    }

    fn run(mut self, taken: &[Interval], pieces: &mut Vec<Piece>) {
        let mut edges = Vec::with_capacity(2 * (self.shares.len() + taken.len()));
        for (index, share) in (0..).zip(self.shares) {
            edges.push((share.span.start_ns, Edge::Open(index)));
            edges.push((share.span.end_ns, Edge::Close(index)));
        }
        for span in taken {
            edges.push((span.start_ns, Edge::Block));
            edges.push((span.end_ns, Edge::Unblock));
        }
        edges.sort_unstable();
        for (time_ns, edge) in edges {
            self.advance(time_ns);
            match edge {
                Edge::Close(index) => self.close(index, pieces),
                Edge::Open(index) => self.open(index),
                Edge::Block => self.block(pieces),
                Edge::Unblock => self.unblock(),
            }
        }
    }

    /// Divides the time since the last moment; the first share gets what is left of the division.
    fn advance(&mut self, to_ns: u64) {
        let passed_ns = to_ns.saturating_sub(self.now_ns);
        self.now_ns = to_ns;
        let count = self.running.len() as u64;
        if self.blocked || count == 0 {
            return;
        }
        self.each_ns += passed_ns / count;
        if let Some(mut first) = self.running.first_entry() {
            first.get_mut().extra += passed_ns % count;
        }
    }

    fn open(&mut self, index: u32) {
        let running = Running { since_ns: self.now_ns, base: self.each_ns, extra: 0 };
        self.running.insert(index, running);
    }

    fn close(&mut self, index: u32, pieces: &mut Vec<Piece>) {
        if let Some(running) = self.running.remove(&index) {
            // While an ordinary call runs, all that came before it is written down already.
            if !self.blocked {
                pieces.extend(self.piece(index, &running));
            }
        }
    }

    fn block(&mut self, pieces: &mut Vec<Piece>) {
        self.blocked = true;
        pieces.extend(self.running.iter().filter_map(|(index, running)| self.piece(*index, running)));
    }

    fn unblock(&mut self) {
        self.blocked = false;
        for running in self.running.values_mut() {
            *running = Running { since_ns: self.now_ns, base: self.each_ns, extra: 0 };
        }
    }

    /// What the share got since it began; `None` if that is nothing.
    fn piece(&self, index: u32, running: &Running) -> Option<Piece> {
        let share = self.shares.get(index as usize)?;
        let weight_ns = self.each_ns - running.base + running.extra;
        let span = Interval { start_ns: running.since_ns, end_ns: self.now_ns };
        (weight_ns > 0).then(|| piece(share.wait, &share.slot, share.cause, span, weight_ns))
    }
}
