//! The exclusive partition of a thread's time: every nanosecond belongs to one wait at most, or is shared
//! in equal parts by descriptors that were awaited at once. The parts are whole nanoseconds and add up
//! exactly to the union of the intervals.
//!
//! Where waits overlap, the ordinary (blocking) call that began last wins: it is the innermost. What
//! ordinary calls leave free belongs to waits on non-blocking descriptors: first those that are stalls, to
//! equal parts among all descriptors awaited at that moment, then idle ones. A program that sleeps between its
//! looks waits for its peers all the same, so sleep leaves its time free too.
//!
//! Of each wait only what the thread slept counts: it ends with the wake-up, and what it worked or waited for a processor
//! inside of the call is running and runnable time. The same holds for a thread that looks again and again and has no
//! processor to look with. Where the scheduler was not watched a wait counts as a whole.

mod spin;

use profiler_common::Call;

use super::classify::{Slot, Verdict, classify};
use super::context::Context;
use super::cuda_wait::{self, CudaSums};
use crate::model::cause::Cause;
use crate::model::intern::NameId;
use crate::model::socket::SocketId;
use crate::model::thread::{Interval, ThreadTrack};
use crate::model::wait::{Interest, WaitSpan};

/// A part of a wait that is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index into the thread's waits.
    pub wait: u32,
    pub socket: SocketId,
    pub peer: NameId,
    pub cause: Cause,
    pub interest: Interest,
    pub span: Interval,
    /// Nanoseconds of `span` that are this piece's.
    pub weight_ns: u64,
}

/// What the waits of one thread add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadPartition {
    /// Stalls, by start.
    pub pieces: Vec<Piece>,
    pub stalled_ns: u64,
    pub idle_ns: u64,
    /// Part of the stalled and idle time in which the thread looked again and again instead of sleeping, or worked
    /// inside of a call that sets RDMA up.
    pub spin_ns: u64,
    /// Waits for a GPU, which are among the rest too.
    pub cuda: CudaSums,
}

/// The wait, from its first sleep to the last wake-up, as far as it lies in the window and in the thread's presence.
pub fn clipped(track: &ThreadTrack, wait: &WaitSpan) -> Interval {
    wait.asleep().clip(track.presence)
}

/// The whole call, as far as it lies there.
fn call_in(track: &ThreadTrack, wait: &WaitSpan) -> Interval {
    Interval { start_ns: wait.start_ns, end_ns: wait.end_ns }.clip(track.presence)
}

/// Splits the thread's presence among its waits.
pub fn partition(context: &Context, track: &ThreadTrack) -> ThreadPartition {
    let mut result = ThreadPartition::default();
    let mut slots = Vec::new();
    let spins = track.spins;
    let mut taken = spin::Taken::default();
    innermost(track, |index, wait, span, within| {
        let verdict = classify(context, wait, &mut slots);
        if let Some(function) = context.cuda.function(wait, within).filter(|_| verdict != Verdict::Stall) {
            let is_own = within == 0 || cuda_wait::is_recorded(wait);
            let part = (span, verdict, is_own);
            cuda_wait::share_out(context, track, (index, wait), part, function, &mut result);
            taken.calls.extend(Some(span).filter(|_| spins));
            return;
        }
        match verdict {
            Verdict::Other => {}
            // What of it belongs to a spin is decided with the spins.
            Verdict::Sleep if spins => {}
            Verdict::Idle | Verdict::Sleep => result.idle_ns += wait.waited_ns(span),
            Verdict::Stall => {
                result.stalled_ns += wait.waited_ns(span);
                result.spin_ns += ran_ns(context, wait, span);
                share_out((index, wait), &slots, span.clip(wait.asleep()), &mut result.pieces);
            }
        }
        if spins {
            match verdict {
                // What comes after the wake-up is left to the spin, of which all run-queue time is taken out.
                Verdict::Sleep => {
                    taken.naps.extend(Some(span.clip(wait.asleep())).filter(|nap| !nap.is_empty()));
                }
                _ => taken.calls.push(span),
            }
        }
    });
    if spins {
        spin::partition(context, track, &taken, &mut result);
    }
    result.pieces.sort_by_key(|piece| (piece.span.start_ns, piece.wait));
    result
}

/// What a call that sets RDMA up ran on a processor, of which the part in `span`: it is stalled all the same.
fn ran_ns(context: &Context, wait: &WaitSpan, span: Interval) -> u64 {
    if wait.call != Call::Uverbs {
        return 0;
    }
    let call = context.model.setups.of_wait(wait.start_ns, wait.end_ns);
    let lasted_ns = u128::from(wait.end_ns.saturating_sub(wait.start_ns));
    let ran_ns = u128::from(call.map_or(0, |call| call.running_ns)) * u128::from(span.len());
    ran_ns.checked_div(lasted_ns).and_then(|ns| u64::try_from(ns).ok()).unwrap_or(0).min(span.len())
}

/// Calls `emit` with the disjoint intervals, in order of time, in which each ordinary call is the innermost, and with the
/// stack of the recorded wait for the GPU around it (0: none).
fn innermost<'t>(track: &'t ThreadTrack, mut emit: impl FnMut(u32, &'t WaitSpan, Interval, u64)) {
    // Calls that have begun and may not have ended, by start; the last one is the innermost.
    let mut open: Vec<(u32, &WaitSpan, u64)> = Vec::new();
    let mut now = track.presence.start_ns;
    let mut advance = |open: &mut Vec<(u32, &'t WaitSpan, u64)>, to_ns: u64| {
        while let Some((index, wait, end_ns)) = open.last().copied() {
            let span = Interval { start_ns: now, end_ns: end_ns.min(to_ns) };
            if !span.is_empty() {
                let recorded =
                    open.iter().rev().map(|(_, wait, _)| *wait).find(|wait| cuda_wait::is_recorded(wait));
                emit(index, wait, span, recorded.map_or(0, |wait| wait.user_stack));
                now = span.end_ns;
            }
            if end_ns > to_ns {
                break;
            }
            open.pop();
        }
        now = now.max(to_ns);
    };
    for (index, wait) in (0..).zip(&track.waits) {
        let span = call_in(track, wait);
        if wait.flags.nonblocking || span.is_empty() {
            continue;
        }
        advance(&mut open, span.start_ns);
        open.push((index, wait, span.end_ns));
    }
    advance(&mut open, track.presence.end_ns);
}

/// Divides `span` among the slots in equal parts, what is left of the division to the first ones, with a cut
/// wherever a slot's cause changes.
fn share_out((index, wait): (u32, &WaitSpan), slots: &[Slot], span: Interval, pieces: &mut Vec<Piece>) {
    let count: u64 = slots.iter().map(|slot| u64::from(slot.parts)).sum();
    if count == 0 || span.is_empty() {
        return;
    }
    let inside = |time_ns: u64| time_ns > span.start_ns && time_ns < span.end_ns;
    if let [slot] = slots
        && ![
            slot.connected_ns,
            slot.retransmit.start_ns,
            slot.retransmit.end_ns,
            slot.mapped.start_ns,
            slot.mapped.end_ns,
        ]
        .into_iter()
        .any(inside)
    {
        // Nearly all waits: one socket, one cause.
        let cause = slot.cause_at(span.start_ns);
        keep(Some(piece(index, slot, cause, span, wait.waited_ns(span))), pieces);
        return;
    }
    let mut cuts = vec![span.start_ns, span.end_ns];
    for slot in slots {
        let times = [
            slot.connected_ns,
            slot.retransmit.start_ns,
            slot.retransmit.end_ns,
            slot.mapped.start_ns,
            slot.mapped.end_ns,
        ];
        cuts.extend(times.into_iter().filter(|time_ns| inside(*time_ns)));
    }
    cuts.sort_unstable();
    cuts.dedup();
    let mut first = 0;
    for slot in slots {
        let parts = u64::from(slot.parts);
        let mut open: Option<Piece> = None;
        for pair in cuts.windows(2) {
            let &[start_ns, end_ns] = pair else { continue };
            let part = Interval { start_ns, end_ns };
            let waited_ns = wait.waited_ns(part);
            let left = (waited_ns % count).saturating_sub(first).min(parts);
            let weight_ns = waited_ns / count * parts + left;
            let cause = slot.cause_at(part.start_ns);
            match &mut open {
                Some(piece) if piece.cause == cause => {
                    piece.span.end_ns = end_ns;
                    piece.weight_ns += weight_ns;
                }
                _ => keep(open.replace(piece(index, slot, cause, part, weight_ns)), pieces),
            }
        }
        keep(open, pieces);
        first += parts;
    }
}

/// Leaves out shares that came out empty because there are more descriptors than nanoseconds.
fn keep(piece: Option<Piece>, pieces: &mut Vec<Piece>) {
    pieces.extend(piece.filter(|piece| piece.weight_ns > 0));
}

fn piece(wait: u32, slot: &Slot, cause: Cause, span: Interval, weight_ns: u64) -> Piece {
    Piece { wait, socket: slot.socket, peer: slot.peer, cause, interest: slot.interest, span, weight_ns }
}

#[cfg(test)]
mod tests;
