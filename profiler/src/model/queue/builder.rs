//! One queue pair in one window: each completion finds what it retires.

use std::collections::VecDeque;

use super::{Class, QueueTrack, REQUEST_FAILED, Unit};
use crate::model::thread::Interval;
use crate::trace::rdma::{RdmaCompletion, RdmaPost};

/// `IBV_SEND_SIGNALED`.
pub(super) const SIGNALLED: u32 = 2;
/// `MLX5_CQE_SYNDROME_WR_FLUSH_ERR`: thrown out because another one failed.
pub(super) const FLUSHED: u8 = 5;
/// Entries that one request can take.
const ENTRIES_MOST: usize = 16;

/// A posted request that is not retired yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) post_ns: u64,
    pub(super) bytes: u64,
    pub(super) class: Class,
    pub(super) signalled: bool,
    pub(super) idle: bool,
    pub(super) lead: bool,
}

/// Requests of one call of `post_send`.
#[derive(Debug)]
struct List {
    counter: Option<u16>,
    requests: VecDeque<Pending>,
    /// Requests that it had.
    len: usize,
}

/// Whether everything that is outstanding is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// As far as can be told: there is one window only.
    Throughout,
    /// It is one of several windows, and has to be seen first.
    NotYet,
    Since(u64),
}

/// Follows one queue pair through one window.
pub(super) struct Builder {
    track: QueueTrack,
    lists: VecDeque<List>,
    outstanding: u64,
    /// It is known which entry the latest posts go to.
    anchored: bool,
    /// Requests posted before the anchor that may be outstanding.
    before: VecDeque<Pending>,
    /// Every request is signalled, whatever its flags say (`sq_sig_all`).
    all_signalled: bool,
    known: Known,
    /// Requests retired before this window.
    completed_before: u64,
    empty: bool,
}

impl Builder {
    pub(super) fn new(track: QueueTrack, sampled: bool) -> Builder {
        Builder {
            completed_before: track.completed,
            track,
            lists: VecDeque::new(),
            outstanding: 0,
            anchored: false,
            before: VecDeque::new(),
            all_signalled: false,
            known: if sampled { Known::NotYet } else { Known::Throughout },
            empty: true,
        }
    }

    pub(super) fn post(&mut self, post: &RdmaPost) {
        self.empty = false;
        let known = self.known != Known::NotYet;
        let pending = Pending {
            post_ns: post.time_ns,
            bytes: post.bytes,
            class: class_of(post.opcode),
            signalled: post.flags & SIGNALLED != 0,
            idle: known && self.outstanding == 0,
            lead: !known,
        };
        if let Some(counter) = post.counter {
            self.refuse(counter);
            self.anchored = true;
            self.track.anchored = true;
        } else if post.index == 0 && self.anchored {
            // Where this one goes is not known, nor then what completions behind it are of.
            self.before.extend(self.lists.drain(..).flat_map(|list| list.requests));
            self.anchored = false;
        }
        self.track.posted += 1;
        self.track.bytes = self.track.bytes.saturating_add(post.bytes);
        self.outstanding += 1;
        self.track.max_depth = self.track.max_depth.max(self.outstanding);
        if !self.anchored {
            self.before.push_back(pending);
        } else if post.index == 0 {
            let requests = VecDeque::from([pending]);
            self.lists.push_back(List { counter: post.counter, requests, len: 1 });
        } else if let Some(list) = self.lists.back_mut() {
            list.requests.push_back(pending);
            list.len += 1;
        } else {
            // A list whose head came before the watch.
            self.before.push_back(pending);
        }
    }

    /// The list posted last had the same entry: the provider took nothing of it.
    fn refuse(&mut self, counter: u16) {
        let refused = self.lists.pop_back_if(|last| last.counter == Some(counter));
        if let Some(list) = refused {
            let requests = list.requests.len() as u64;
            let bytes: u64 = list.requests.iter().map(|request| request.bytes).fold(0, u64::saturating_add);
            self.track.refused += requests;
            self.track.posted = self.track.posted.saturating_sub(requests);
            self.track.bytes = self.track.bytes.saturating_sub(bytes);
            self.outstanding = self.outstanding.saturating_sub(requests);
        }
    }

    pub(super) fn completion(&mut self, completion: &RdmaCompletion) {
        self.empty = false;
        if !self.anchored {
            return self.unanchored(completion);
        }
        match self.find(completion.counter) {
            Some(index) => {
                // Completions come in the order of the queue: everything before this list is done.
                let before = std::mem::take(&mut self.before).len();
                let passed: Vec<Pending> = self.lists.drain(..index).flat_map(|list| list.requests).collect();
                self.done(before + passed.len());
                self.retire(completion, passed);
                if self.known == Known::NotYet {
                    // A request of this window is done, and so all from before it are.
                    self.known = Known::Since(completion.time_ns);
                    self.track.completed = self.completed_before;
                }
            }
            None if self.is_earlier(completion.counter) => {
                self.note_error(completion);
                let signalled = |request: &Pending| request.signalled;
                if let Some(last) = self.before.iter().position(signalled) {
                    let done = self.before.drain(..=last).count();
                    self.done(done);
                } else {
                    self.track.began_earlier += 1;
                }
            }
            None => {
                self.track.unmatched += 1;
                self.note_error(completion);
            }
        }
    }

    /// The list that has this entry.
    fn find(&self, counter: u16) -> Option<usize> {
        let newest_first = self.lists.iter().enumerate().rev();
        let mut end: Option<u16> = None;
        for (index, list) in newest_first {
            let Some(start) = list.counter else { continue };
            let at = usize::from(counter.wrapping_sub(start));
            let room = match end {
                Some(end) => usize::from(end.wrapping_sub(start)),
                None => list.len.saturating_mul(ENTRIES_MOST),
            };
            if at < room {
                return Some(index);
            }
            end = Some(start);
        }
        None
    }

    fn is_earlier(&self, counter: u16) -> bool {
        let first = self.lists.iter().find_map(|list| list.counter);
        first.is_none_or(|first| first.wrapping_sub(counter).wrapping_sub(1) < 1 << 15)
    }

    /// Retires the first list up to the signalled request that this completion is of, together with the unsignalled
    /// ones of lists that it passed. A signalled one among those is done too, at a time that was not seen.
    fn retire(&mut self, completion: &RdmaCompletion, mut passed: Vec<Pending>) {
        let failed = completion.opcode == REQUEST_FAILED;
        let Some(list) = self.lists.front_mut() else { return };
        if !failed && list.len == 1 && list.requests.front().is_some_and(|request| !request.signalled) {
            self.all_signalled = true;
        }
        let all = self.all_signalled || failed;
        let last = list.requests.iter().position(|request| all || request.signalled);
        let last = last.unwrap_or(list.requests.len().saturating_sub(1));
        let own: Vec<Pending> = list.requests.drain(..(last + 1).min(list.requests.len())).collect();
        if list.requests.is_empty() {
            self.lists.pop_front();
        }
        self.done(own.len());
        let alone = passed.iter().rposition(|request| all || request.signalled).map_or(0, |last| last + 1);
        let mut done = passed.split_off(alone);
        done.extend(own);
        if self.note_error(completion) {
            return;
        }
        if let Some(first) = done.first() {
            self.track.units.push(Unit {
                post_ns: first.post_ns,
                done_ns: completion.time_ns.max(first.post_ns),
                bytes: done.iter().map(|request| request.bytes).fold(0, u64::saturating_add),
                requests: u32::try_from(done.len()).unwrap_or(u32::MAX),
                class: done.iter().map(|request| request.class).max().unwrap_or_default(),
                idle: first.idle,
                lead: first.lead,
            });
        }
    }

    /// Nothing tells which post a completion is of: only numbers are kept.
    fn unanchored(&mut self, completion: &RdmaCompletion) {
        let failed = completion.opcode == REQUEST_FAILED;
        let none_signalled = !self.before.iter().any(|request| request.signalled);
        let last = self.before.iter().position(|request| failed || none_signalled || request.signalled);
        match last {
            Some(last) => {
                let done = self.before.drain(..=last).count();
                self.done(done);
            }
            None => self.track.began_earlier += 1,
        }
        self.note_error(completion);
    }

    fn done(&mut self, requests: usize) {
        self.track.completed += requests as u64;
        self.outstanding = self.outstanding.saturating_sub(requests as u64);
    }

    fn note_error(&mut self, completion: &RdmaCompletion) -> bool {
        let failed = completion.opcode == REQUEST_FAILED;
        if failed && completion.syndrome == FLUSHED {
            self.track.flushed += 1;
        } else if failed {
            *self.track.errors.entry(completion.syndrome).or_default() += 1;
        }
        failed
    }

    pub(super) fn finish(mut self, window: Interval, is_last: bool) -> QueueTrack {
        let waiting = self.lists.iter().flat_map(|list| &list.requests);
        let outstanding = self.before.iter().chain(waiting).map(|request| request.post_ns);
        if is_last {
            self.track.in_flight = outstanding.collect();
        } else {
            let until = |start_ns| Interval { start_ns, end_ns: window.end_ns };
            self.track.cut.extend(outstanding.map(until));
        }
        let known_from = match self.known {
            Known::Throughout => None,
            Known::Since(time_ns) => Some(time_ns),
            // Nothing happened: nothing was waited for, as far as is known.
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

/// `IBV_WR_RDMA_READ`, `IBV_WR_ATOMIC_CMP_AND_SWP` and `IBV_WR_ATOMIC_FETCH_AND_ADD` bring data back.
pub(super) fn class_of(opcode: u32) -> Class {
    if matches!(opcode, 4..=6) { Class::Back } else { Class::Out }
}
