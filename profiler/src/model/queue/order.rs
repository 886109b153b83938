//! One queue pair in one window, where a completion does not name its entry of the queue: requests complete in the order of
//! their posts, and a completion has the `wr_id` that the program gave.
//!
//! What was outstanding when the watch began has to be told apart first: the queue pair was made ready under watch, or the
//! program gives its requests different ids, or the queue was empty for longer than any request takes.

use std::collections::{HashSet, VecDeque};

use super::builder::{FLUSHED, Known, Pending, SIGNALLED, class_of};
use super::{QueueTrack, Unit};
use crate::model::thread::Interval;
use crate::trace::rdma::{RdmaEntry, RdmaPost};

/// Ids that are remembered: two tell that they differ.
const IDS_MAX: usize = 64;

/// A completion of either kind of provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub time_ns: u64,
    pub wr_id: Option<u64>,
    /// As the adapter names failures; `None`: success.
    pub failure: Option<u8>,
}

impl Done {
    /// `None` for a receive.
    pub(super) fn of(entry: &RdmaEntry) -> Option<Done> {
        let failure = (entry.status != 0).then(|| syndrome(entry.status));
        let is_receive = failure.is_none() && entry.opcode >= 128;
        (!is_receive).then_some(Done { time_ns: entry.time_ns, wr_id: Some(entry.wr_id), failure })
    }
}

/// `enum ibv_wc_status` as the adapter's syndrome, which is what tracks keep; those that it lacks from 0x80 on.
fn syndrome(status: u32) -> u8 {
    match status {
        1 => 0x01,
        2 => 0x02,
        4 => 0x04,
        5 => FLUSHED,
        6 => 0x06,
        7 => 0x10,
        8 => 0x11,
        9 => 0x12,
        10 => 0x13,
        11 => 0x14,
        12 => 0x15,
        13 => 0x16,
        16 => 0x22,
        other => 0x80 | u8::try_from(other).unwrap_or(0x7f),
    }
}

pub(super) enum Step {
    Post(RdmaPost),
    Done(Done),
}

/// How many completions at the beginning are of requests from before, where that can be told from when the queue was empty.
pub(super) fn earlier(steps: &[(u64, Step)], end_ns: u64) -> Option<u64> {
    let ends = steps.iter().position(|(_, step)| matches!(step, Step::Done(Done { failure: Some(_), .. })));
    let steps = steps.get(..ends.unwrap_or(steps.len()))?;
    let any = steps.iter().any(|(_, step)| matches!(step, Step::Post(post) if post.flags & SIGNALLED != 0));
    let counts = |step: &Step| match step {
        Step::Post(post) => !any || post.flags & SIGNALLED != 0,
        Step::Done(_) => true,
    };
    let steps: Vec<&(u64, Step)> = steps.iter().filter(|(_, step)| counts(step)).collect();
    let (mut balance, mut most) = (0_i64, 0_i64);
    for (_, step) in &steps {
        balance += if matches!(step, Step::Done(_)) { 1 } else { -1 };
        most = most.max(balance);
    }
    // With that many from before: how long requests took, and for how long the queue was empty.
    let mut open: VecDeque<Option<u64>> = (0..most).map(|_| None).collect();
    let (mut longest, mut empty) = (0, 0);
    for (at, (time_ns, step)) in steps.iter().enumerate() {
        match step {
            Step::Post(_) => open.push_back(Some(*time_ns)),
            Step::Done(_) => {
                if let Some(Some(post_ns)) = open.pop_front() {
                    longest = longest.max(time_ns.saturating_sub(post_ns));
                }
                if open.is_empty() {
                    let next = steps.get(at + 1).map_or(end_ns, |(next, _)| *next);
                    empty = empty.max(next.saturating_sub(*time_ns));
                }
            }
        }
    }
    (longest > 0 && empty > longest).then(|| u64::try_from(most).unwrap_or(0))
}

/// Follows one queue pair through one window.
pub(super) struct OrderBuilder {
    track: QueueTrack,
    pending: VecDeque<(u64, Pending)>,
    /// All that is outstanding is in `pending`, but for this many completions that come first.
    sure: Option<u64>,
    /// Ids that were posted.
    ids: HashSet<u64>,
    all_signalled: bool,
    known: Known,
    completed_before: u64,
    empty: bool,
}

impl OrderBuilder {
    /// `sure`: how many requests from before the window were outstanding, where that is known.
    pub(super) fn new(track: QueueTrack, sampled: bool, sure: Option<u64>) -> OrderBuilder {
        OrderBuilder {
            completed_before: track.completed,
            track,
            pending: VecDeque::new(),
            sure,
            ids: HashSet::new(),
            all_signalled: false,
            known: if sampled && sure != Some(0) { Known::NotYet } else { Known::Throughout },
            empty: true,
        }
    }

    pub(super) fn post(&mut self, post: &RdmaPost) {
        self.empty = false;
        let known = self.known != Known::NotYet;
        if self.ids.len() < IDS_MAX {
            self.ids.insert(post.wr_id);
        }
        let pending = Pending {
            post_ns: post.time_ns,
            bytes: post.bytes,
            class: class_of(post.opcode),
            signalled: post.flags & SIGNALLED != 0,
            idle: known && self.sure == Some(0) && self.pending.is_empty(),
            lead: !known,
        };
        self.pending.push_back((post.wr_id, pending));
        self.track.posted += 1;
        self.track.bytes = self.track.bytes.saturating_add(post.bytes);
        self.track.max_depth = self.track.max_depth.max(self.pending.len() as u64);
    }

    pub(super) fn done(&mut self, done: Done) {
        self.empty = false;
        match done.failure {
            Some(failure) => self.failed(done, failure),
            None => self.succeeded(done),
        }
    }

    /// A failed request completes whether it is signalled or not.
    fn failed(&mut self, done: Done, failure: u8) {
        let fits = |(wr_id, _): &(u64, Pending)| done.wr_id.is_none_or(|id| id == *wr_id);
        let Some(at) = self.pending.iter().position(fits) else {
            // A receive, or a request from before.
            if failure != FLUSHED {
                *self.track.errors.entry(failure).or_default() += 1;
            }
            return;
        };
        self.track.completed += self.pending.drain(..=at).count() as u64;
        if failure == FLUSHED {
            self.track.flushed += 1;
        } else {
            *self.track.errors.entry(failure).or_default() += 1;
        }
    }

    fn succeeded(&mut self, done: Done) {
        if let Some(earlier) = self.sure.filter(|earlier| *earlier > 0) {
            self.sure = Some(earlier - 1);
            self.track.began_earlier += 1;
            if earlier == 1 {
                self.know(done.time_ns);
            }
            return;
        }
        if !self.pending.is_empty() && !self.pending.iter().any(|(_, request)| request.signalled) {
            self.all_signalled = true;
        }
        let all = self.all_signalled;
        let signalled = |request: &(u64, Pending)| all || request.1.signalled;
        let fits = |request: &(u64, Pending)| {
            signalled(request) && done.wr_id.is_none_or(|wr_id| wr_id == request.0)
        };
        let at = self.pending.iter().position(fits);
        let Some(at) = at else {
            if self.sure.is_some() {
                self.track.unmatched += 1;
            } else {
                self.track.began_earlier += 1;
            }
            return;
        };
        let alone = self.pending.iter().filter(|request| fits(request)).count() == 1 && self.ids.len() > 1;
        let was_sure = self.sure.is_some();
        if was_sure || (alone && done.wr_id.is_some()) {
            self.retire(at, done);
            if !was_sure {
                self.sure = Some(0);
                self.know(done.time_ns);
            }
        } else {
            self.track.completed += self.pending.drain(..=at).count() as u64;
        }
    }

    fn know(&mut self, time_ns: u64) {
        if self.known == Known::NotYet {
            self.known = Known::Since(time_ns);
            self.track.completed = self.completed_before;
        }
    }

    /// The request at this place is done, with all before it. A signalled one among those is done too, at a time that was not seen.
    fn retire(&mut self, at: usize, done: Done) {
        let all = self.all_signalled;
        let mut own: Vec<Pending> = self.pending.drain(..=at).map(|(_, request)| request).collect();
        self.track.completed += own.len() as u64;
        self.track.anchored = true;
        let before = own.get(..at).unwrap_or_default();
        let alone = before.iter().rposition(|request| all || request.signalled).map_or(0, |last| last + 1);
        let own = own.split_off(alone);
        let Some(first) = own.first() else { return };
        self.track.units.push(Unit {
            post_ns: first.post_ns,
            done_ns: done.time_ns.max(first.post_ns),
            bytes: own.iter().map(|request| request.bytes).fold(0, u64::saturating_add),
            requests: u32::try_from(own.len()).unwrap_or(u32::MAX),
            class: own.iter().map(|request| request.class).max().unwrap_or_default(),
            idle: first.idle,
            lead: first.lead,
        });
    }

    pub(super) fn finish(mut self, window: Interval, is_last: bool) -> QueueTrack {
        let outstanding = self.pending.iter().map(|(_, request)| request.post_ns);
        if is_last {
            self.track.in_flight = outstanding.collect();
        } else {
            let until = |start_ns| Interval { start_ns, end_ns: window.end_ns };
            self.track.cut.extend(outstanding.map(until));
        }
        // Known throughout because of its birth, in one window of several: from the window's beginning on.
        let known_from = match self.known {
            Known::Throughout => Some(window.start_ns),
            Known::Since(time_ns) => Some(time_ns),
            Known::NotYet if self.empty => Some(window.start_ns),
            Known::NotYet => {
                self.track.completed = self.completed_before;
                None
            }
        };
        self.track.known.extend(known_from.map(|start_ns| Interval { start_ns, end_ns: window.end_ns }));
        self.track
    }
}

#[cfg(test)]
mod tests;
