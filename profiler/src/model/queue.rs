//! Queue pairs: requests brought together with the completions that retire them.
//!
//! A completion names an entry of the send queue, modulo 2^16. A post whose entry is known is the anchor: from it on
//! every completion can be told to belong to what was posted before it or to one certain list of requests. Requests that
//! were already under way when the watch began, posts that the provider refused, and completions that were lost
//! so never shift the figures of others.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::thread::Interval;
use crate::trace::rdma::{
    PortCounter, QueuePair, RdmaAnchor, RdmaBirth, RdmaCompletion, RdmaEntry, RdmaPeer, RdmaPost, RdmaWindow,
};

mod builder;
mod order;
pub(crate) mod windows;

use builder::Builder;
use order::{Done, OrderBuilder, Step};
pub use windows::Scale;
use windows::Watch;

/// `MLX5_CQE_REQ`, `MLX5_CQE_REQ_ERR`: a completion of a posted request, as against a receive.
const REQUEST: u8 = 0;
const REQUEST_FAILED: u8 = 13;

/// What the trace says of verbs.
#[derive(Clone, Debug, Default)]
pub struct Rdma {
    pub queue_pairs: Vec<QueuePair>,
    pub posts: Vec<RdmaPost>,
    pub completions: Vec<RdmaCompletion>,
    pub anchors: Vec<RdmaAnchor>,
    /// Completions of providers whose queue entries are not known.
    pub entries: Vec<RdmaEntry>,
    pub births: Vec<RdmaBirth>,
    pub peers: Vec<RdmaPeer>,
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

enum Event<'a> {
    Post(RdmaPost),
    Completion(&'a RdmaCompletion),
    Entry(Done),
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
        for entry in &self.entries {
            let Some(done) = Done::of(entry) else { continue };
            queues.entry((entry.pid, entry.qp)).or_default().push((done.time_ns, Event::Entry(done)));
        }
        let mut births: HashMap<(u32, u32), Vec<u64>> = HashMap::new();
        for birth in &self.births {
            births.entry((birth.pid, birth.qp)).or_default().push(birth.time_ns);
        }
        let pairs: HashMap<(u32, u32), &QueuePair> =
            self.queue_pairs.iter().map(|pair| ((pair.pid, pair.number), pair)).collect();
        let mut watches: HashMap<u32, Watch> = HashMap::new();
        let recording = Interval { start_ns, end_ns };
        let seen: HashSet<u32> =
            queues.iter().filter(|(_, events)| !events.is_empty()).map(|((pid, _), _)| *pid).collect();
        let mut tracks = Vec::new();
        for ((pid, number), mut events) in queues {
            events.sort_by_key(|(time_ns, _)| *time_ns);
            let watch = watches.entry(pid).or_insert_with(|| {
                Watch::of(&self.windows, pid, recording, seen.contains(&pid)).with_hits(self, pid)
            });
            let track = empty_track(pid, number, pairs.get(&(pid, number)).copied());
            let births = births.get(&(pid, number)).map_or(&[][..], Vec::as_slice);
            tracks.push(follow(track, &mut events, births, watch, end_ns));
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
fn follow(
    mut track: QueueTrack,
    events: &mut [(u64, Event<'_>)],
    births: &[u64],
    watch: &Watch,
    end_ns: u64,
) -> QueueTrack {
    let mut seen = Vec::new();
    for window in &watch.windows {
        let from = events.partition_point(|(time_ns, _)| *time_ns < window.start_ns);
        let to = events.partition_point(|(time_ns, _)| *time_ns <= window.end_ns);
        let events = events.get_mut(from..to).unwrap_or_default();
        let posted = track.posted;
        let is_last = window.end_ns >= end_ns;
        let born = births.iter().any(|time_ns| (window.start_ns..=window.end_ns).contains(time_ns));
        track = if goes_by_order(events, born) {
            in_order(track, events, *window, born, watch.is_sampled()).finish(*window, is_last)
        } else {
            fill_in(events);
            let mut builder = Builder::new(track, watch.is_sampled());
            for (_, event) in events.iter() {
                match event {
                    Event::Post(post) => builder.post(post),
                    Event::Completion(completion) => builder.completion(completion),
                    Event::Entry(_) => {}
                }
            }
            builder.finish(*window, is_last)
        };
        seen.push((window.len(), track.posted.saturating_sub(posted)));
    }
    track.watch_ns = seen.iter().map(|one| one.0).fold(0, u64::saturating_add);
    if watch.is_sampled() {
        let known_ns = track.known.iter().map(|part| part.len()).fold(0, u64::saturating_add);
        track.scale = Some(watch.scale(&seen, known_ns));
    } else {
        track.known.clear();
    }
    track
}

/// Whether completions go to requests by their order: nothing names entries of the queue.
fn goes_by_order(events: &[(u64, Event<'_>)], born: bool) -> bool {
    let any = |wanted: fn(&Event<'_>) -> bool| events.iter().any(|(_, event)| wanted(event));
    let numbered = any(|event| matches!(event, Event::Post(post) if post.counter.is_some()));
    let own = any(|event| matches!(event, Event::Completion(_)));
    any(|event| matches!(event, Event::Entry(_))) || (born && own && !numbered)
}

fn in_order(
    track: QueueTrack,
    events: &[(u64, Event<'_>)],
    window: Interval,
    born: bool,
    sampled: bool,
) -> OrderBuilder {
    let step = |event: &Event<'_>| match event {
        Event::Post(post) => Step::Post(*post),
        Event::Entry(done) => Step::Done(*done),
        Event::Completion(one) => {
            let failure = (one.opcode == REQUEST_FAILED).then_some(one.syndrome);
            Step::Done(Done { time_ns: one.time_ns, wr_id: None, failure })
        }
    };
    let steps: Vec<(u64, Step)> = events.iter().map(|(time_ns, event)| (*time_ns, step(event))).collect();
    let sure = if born { Some(0) } else { order::earlier(&steps, window.end_ns) };
    let mut builder = OrderBuilder::new(track, sampled, sure);
    for (_, step) in &steps {
        match step {
            Step::Post(post) => builder.post(post),
            Step::Done(done) => builder.done(*done),
        }
    }
    builder
}

/// Gives posts whose entry is not known the one that it must be: where as many requests as entries lie between two that
/// are known, each took one.
fn fill_in(events: &mut [(u64, Event<'_>)]) {
    let mut posts: Vec<&mut RdmaPost> = events
        .iter_mut()
        .filter_map(|(_, event)| match event {
            Event::Post(post) => Some(post),
            Event::Completion(_) | Event::Entry(_) => None,
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

#[cfg(test)]
mod tests;
