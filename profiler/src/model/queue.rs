//! Queue pairs: requests brought together with the completions that retire them.
//!
//! A completion names an entry of the send queue, modulo 2^16. A post whose entry is known is the anchor: from it on
//! every completion can be told to belong to what was posted before it or to one certain list of requests. Requests that
//! were already under way when the watch began, posts that the provider refused, and completions that were lost
//! so never shift the figures of others.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::thread::Interval;
use crate::trace::rdma::{PortCounter, QueuePair, RdmaAnchor, RdmaCompletion, RdmaPost, RdmaWindow};

mod windows;

pub use windows::Scale;
use windows::Watch;

/// `MLX5_CQE_REQ`, `MLX5_CQE_REQ_ERR`: a completion of a posted request, as against a receive.
const REQUEST: u8 = 0;
const REQUEST_FAILED: u8 = 13;
/// `IBV_SEND_SIGNALED`.
const SIGNALLED: u32 = 2;
/// `MLX5_CQE_SYNDROME_WR_FLUSH_ERR`: thrown out because another one failed.
const FLUSHED: u8 = 5;
/// Entries that one request can take.
const ENTRIES_MOST: usize = 16;

/// What the trace says of verbs.
#[derive(Clone, Debug, Default)]
pub struct Rdma {
    pub queue_pairs: Vec<QueuePair>,
    pub posts: Vec<RdmaPost>,
    pub completions: Vec<RdmaCompletion>,
    pub anchors: Vec<RdmaAnchor>,
    pub windows: Vec<RdmaWindow>,
    pub counters: Vec<PortCounter>,
}

/// Requests that wait for each other and those that do not are kept apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Writes and sends.
    #[default]
    Out,
    /// Reads and atomics: their data come back.
    Back,
}

/// Requests that one completion retires: a signalled one and the unsignalled ones before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Post of the first.
    pub post_ns: u64,
    /// As polled.
    pub done_ns: u64,
    pub bytes: u64,
    pub requests: u32,
    pub class: Class,
    /// It was posted when nothing was outstanding.
    pub idle: bool,
    /// Posted in a window before all outstanding requests were known: it counts for those behind it alone.
    pub lead: bool,
}

/// One queue pair over the recording.
#[derive(Clone, Debug, Default)]
pub struct QueueTrack {
    pub pid: u32,
    pub number: u32,
    /// Empty where the queue pair was not found in memory.
    pub device: String,
    /// 0: unknown.
    pub port: u32,
    /// `enum ibv_qp_type`, 0: unknown.
    pub qp_type: u32,
    pub posted: u64,
    /// Requests retired, unsignalled ones among them.
    pub completed: u64,
    pub bytes: u64,
    pub max_depth: u64,
    /// Retired without an error, their posts seen, in the order of completion.
    pub units: Vec<Unit>,
    /// Posts of the requests that were outstanding at the end.
    pub in_flight: Vec<u64>,
    /// First failures by syndrome; flushed ones are counted apart.
    pub errors: BTreeMap<u8, u64>,
    pub flushed: u64,
    /// Completions whose posts came before the watch.
    pub began_earlier: u64,
    /// Completions that belong to no post that was seen.
    pub unmatched: u64,
    /// Posts that never reached the queue.
    pub refused: u64,
    /// Which entry posts go to became known, so that posts and completions could be brought together.
    pub anchored: bool,
    pub watch_ns: u64,
    /// How counts and times stand for the whole time; `None` where it was watched without a gap.
    pub scale: Option<Scale>,
    /// Requests that were outstanding when a window ended, the last one of the recording aside.
    pub cut: Vec<Interval>,
    /// Parts of windows in which all outstanding requests were known; empty where it was watched without a gap.
    pub known: Vec<Interval>,
}

/// A posted request that is not retired yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    post_ns: u64,
    bytes: u64,
    class: Class,
    signalled: bool,
    idle: bool,
    lead: bool,
}

/// Requests of one call of `post_send`.
#[derive(Debug)]
struct List {
    counter: Option<u16>,
    requests: VecDeque<Pending>,
    /// Requests that it had.
    len: usize,
}

enum Event<'a> {
    Post(RdmaPost),
    Completion(&'a RdmaCompletion),
}

impl Rdma {
    /// Brings posts and completions together. `end_ns` is the recording's end.
    pub fn tracks(&self, start_ns: u64, end_ns: u64) -> Vec<QueueTrack> {
        let mut queues: BTreeMap<(u32, u32), Vec<(u64, Event<'_>)>> = BTreeMap::new();
        for pair in &self.queue_pairs {
            queues.entry((pair.pid, pair.number)).or_default();
        }
        let anchors: HashMap<(u32, u32, u64), u16> =
            self.anchors.iter().map(|one| ((one.pid, one.qp, one.time_ns), one.counter)).collect();
        for post in &self.posts {
            let mut post = *post;
            if post.index == 0 && post.counter.is_none() {
                post.counter = anchors.get(&(post.pid, post.qp, post.time_ns)).copied();
            }
            queues.entry((post.pid, post.qp)).or_default().push((post.time_ns, Event::Post(post)));
        }
        let sent = |one: &&RdmaCompletion| matches!(one.opcode, REQUEST | REQUEST_FAILED);
        for completion in self.completions.iter().filter(sent) {
            let events = queues.entry((completion.pid, completion.qp)).or_default();
            events.push((completion.time_ns, Event::Completion(completion)));
        }
        let pairs: HashMap<(u32, u32), &QueuePair> =
            self.queue_pairs.iter().map(|pair| ((pair.pid, pair.number), pair)).collect();
        let mut watches: HashMap<u32, Watch> = HashMap::new();
        let recording = Interval { start_ns, end_ns };
        let mut tracks = Vec::new();
        for ((pid, number), mut events) in queues {
            events.sort_by_key(|(time_ns, _)| *time_ns);
            let watch = watches.entry(pid).or_insert_with(|| Watch::of(&self.windows, pid, recording));
            let track = empty_track(pid, number, pairs.get(&(pid, number)).copied());
            tracks.push(follow(track, &mut events, watch, end_ns));
        }
        tracks
    }
}

fn empty_track(pid: u32, number: u32, pair: Option<&QueuePair>) -> QueueTrack {
    let mut track = QueueTrack { pid, number, ..QueueTrack::default() };
    if let Some(pair) = pair {
        track.device.clone_from(&pair.device);
        (track.port, track.qp_type) = (pair.port, pair.qp_type);
    }
    track
}

/// Goes through what happened to one queue pair, window by window: nothing is known of what was between.
fn follow(mut track: QueueTrack, events: &mut [(u64, Event<'_>)], watch: &Watch, end_ns: u64) -> QueueTrack {
    let mut seen = Vec::new();
    for window in &watch.windows {
        let from = events.partition_point(|(time_ns, _)| *time_ns < window.start_ns);
        let to = events.partition_point(|(time_ns, _)| *time_ns <= window.end_ns);
        let events = events.get_mut(from..to).unwrap_or_default();
        fill_in(events);
        let posted = track.posted;
        let mut builder = Builder::new(track, watch.is_sampled());
        for (_, event) in events.iter() {
            match event {
                Event::Post(post) => builder.post(post),
                Event::Completion(completion) => builder.completion(completion),
            }
        }
        track = builder.finish(*window, window.end_ns >= end_ns);
        seen.push((window.len(), track.posted.saturating_sub(posted)));
    }
    track.watch_ns = seen.iter().map(|one| one.0).fold(0, u64::saturating_add);
    if watch.is_sampled() {
        let known_ns = track.known.iter().map(|part| part.len()).fold(0, u64::saturating_add);
        track.scale = Some(windows::scale(&seen, known_ns, watch.whole.len()));
    }
    track
}

/// Gives posts whose entry is not known the one that it must be: where as many requests as entries lie between two that
/// are known, each took one.
fn fill_in(events: &mut [(u64, Event<'_>)]) {
    let mut posts: Vec<&mut RdmaPost> = events
        .iter_mut()
        .filter_map(|(_, event)| match event {
            Event::Post(post) => Some(post),
            Event::Completion(_) => None,
        })
        .collect();
    let mut known: Option<(usize, u16)> = None;
    for at in 0..posts.len() {
        let Some(counter) = posts.get(at).and_then(|post| post.counter) else { continue };
        if let Some((from, first)) = known
            && usize::from(counter.wrapping_sub(first)) == at - from
            && let Some(between) = posts.get_mut(from + 1..at)
            && between.iter().all(|post| post.index == 0)
        {
            for (post, entry) in between.iter_mut().zip(1..) {
                post.counter = Some(first.wrapping_add(entry));
            }
        }
        known = Some((at, counter));
    }
}

struct Builder {
    track: QueueTrack,
    lists: VecDeque<List>,
    outstanding: u64,
    /// It is known which entry the latest posts go to.
    anchored: bool,
    /// Requests posted before the anchor that may be outstanding.
    before: VecDeque<Pending>,
    /// Every request is signalled, whatever its flags say (`sq_sig_all`).
    all_signalled: bool,
    /// This is one of several windows.
    sampled: bool,
    /// Since when everything that is outstanding is known, where that has to be seen first.
    known_ns: Option<u64>,
    /// Requests retired before this window.
    completed_before: u64,
    empty: bool,
}

impl Builder {
    fn new(track: QueueTrack, sampled: bool) -> Builder {
        Builder {
            completed_before: track.completed,
            track,
            lists: VecDeque::new(),
            outstanding: 0,
            anchored: false,
            before: VecDeque::new(),
            all_signalled: false,
            sampled,
            known_ns: None,
            empty: true,
        }
    }

    fn post(&mut self, post: &RdmaPost) {
        self.empty = false;
        let known = !self.sampled || self.known_ns.is_some();
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

    fn completion(&mut self, completion: &RdmaCompletion) {
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
                if self.sampled && self.known_ns.is_none() {
                    // A request of this window is done, and so all from before it are.
                    self.known_ns = Some(completion.time_ns);
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

    fn finish(mut self, window: Interval, is_last: bool) -> QueueTrack {
        let waiting = self.lists.iter().flat_map(|list| &list.requests);
        let outstanding = self.before.iter().chain(waiting).map(|request| request.post_ns);
        if is_last {
            self.track.in_flight = outstanding.collect();
        } else {
            let until = |start_ns| Interval { start_ns, end_ns: window.end_ns };
            self.track.cut.extend(outstanding.map(until));
        }
        if self.sampled {
            // Nothing happened: nothing was waited for, as far as is known.
            let from_ns = if self.empty { Some(window.start_ns) } else { self.known_ns };
            self.track.known.extend(from_ns.map(|start_ns| Interval { start_ns, end_ns: window.end_ns }));
            if !self.empty && self.known_ns.is_none() {
                self.track.completed = self.completed_before;
            }
        }
        self.track
    }
}

/// `IBV_WR_RDMA_READ`, `IBV_WR_ATOMIC_CMP_AND_SWP` and `IBV_WR_ATOMIC_FETCH_AND_ADD` bring data back.
fn class_of(opcode: u32) -> Class {
    if matches!(opcode, 4..=6) { Class::Back } else { Class::Out }
}

#[cfg(test)]
mod tests;
