//! When a thread was there, from what was seen of it.

use super::{StoredThread, ThreadTrack, Track};
use crate::model::thread::Interval;

impl Track {
    /// Says when the thread was there.
    pub(super) fn finish(mut self, window: Interval) -> StoredThread {
        self.waits.finish();
        let (presence, born) = self.presence(window);
        let track = ThreadTrack {
            pid: self.pid,
            tid: self.tid,
            presence,
            born,
            times: self.times,
            samples: self.samples,
            spins: self.waits.has_spins(),
            first: 0,
            waits: Vec::new(),
        };
        StoredThread { track, waits: self.waits }
    }

    /// A wait before the known birth, or one that begins after the exit, shows that the id stands for
    /// more than one thread: then the presence is taken to be the whole.
    fn presence(&self, window: Interval) -> (Interval, bool) {
        let starts = self.waits.starts();
        let first_wait = starts.map(|(first, _)| first);
        let known = self.birth_ns.or(self.seen_ns).or(self.times.map(|(first, _)| first.time_ns));
        let start_ns = match (known, first_wait) {
            (Some(known), Some(wait)) => known.min(wait),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => window.start_ns,
        };
        let born = self.birth_ns.is_some_and(|birth| birth == start_ns && birth >= window.start_ns);
        let last_start = starts.map_or(start_ns, |(_, last)| last).max(start_ns);
        let end_ns = self.exit_ns.filter(|exit| *exit >= last_start).unwrap_or(window.end_ns);
        let presence = Interval { start_ns, end_ns }.clip(window);
        let presence = if presence.is_empty() {
            Interval { start_ns: presence.start_ns, end_ns: presence.start_ns }
        } else {
            presence
        };
        (presence, born)
    }
}
