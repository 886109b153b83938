//! When queue pairs were watched: throughout, or in short windows where that is dear. What was seen in windows stands
//! for the whole time, with an error.
//!
//! Each window stands for the time around it, up to the middle of the gaps beside it, so that it does not matter that there
//! are fewer windows where there is more to see. A window that was ended by what was seen in it stands for itself alone: of it
//! is known that it ended in a busy moment. And a program whose posts are watched may post less meanwhile, since each costs it
//! time, or may not, where it would have waited anyway: the figure is in the middle of both, and its error reaches to them.

use std::collections::HashSet;

use profiler_common::verbs::HIT_NS;

use super::Rdma;
use crate::model::thread::Interval;
use crate::trace::rdma::RdmaWindow;

/// Half-width of a 95 % interval, in standard errors.
const NORMAL_95: f64 = 1.96;

/// The time of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Watch {
    /// In order of time, without overlaps.
    pub(super) windows: Vec<Interval>,
    /// From the first window to the end of the recording, or of the process.
    pub(super) whole: Interval,
    /// Part of each window that a thread that posts lost by being watched.
    pub(super) lost: Vec<f64>,
}

impl Watch {
    /// Each window comes with a record when it opens and with another one when it closes; one without length says
    /// until when the process lived. A process without records and of which nothing was `seen` was not watched.
    pub(super) fn of(records: &[RdmaWindow], pid: u32, recording: Interval, seen: bool) -> Watch {
        let mut windows: Vec<Interval> = Vec::new();
        let mut lived_ns = recording.end_ns;
        let mut own: Vec<&RdmaWindow> = records.iter().filter(|record| record.pid == pid).collect();
        if own.is_empty() {
            let windows = if seen { vec![recording] } else { Vec::new() };
            return Watch { windows, whole: recording, lost: Vec::new() };
        }
        // The record of the end behind that of the beginning, whatever their order in the file.
        own.sort_by_key(|record| (record.start_ns, record.end_ns));
        for record in own {
            if record.end_ns == record.start_ns {
                lived_ns = lived_ns.min(record.end_ns);
                continue;
            }
            let end_ns = if record.end_ns == 0 { recording.end_ns } else { record.end_ns };
            let start_ns = record.start_ns.max(recording.start_ns);
            let one = Interval { start_ns, end_ns: end_ns.min(recording.end_ns).max(start_ns) };
            match windows.last_mut() {
                Some(last) if last.start_ns == one.start_ns => *last = one,
                Some(last) => {
                    last.end_ns = last.end_ns.min(one.start_ns);
                    windows.push(one);
                }
                None => windows.push(one),
            }
        }
        let start_ns = windows.first().map_or(recording.start_ns, |first| first.start_ns);
        let last_ns = windows.last().map_or(start_ns, |last| last.end_ns);
        let end_ns = if lived_ns < last_ns { last_ns } else { lived_ns };
        Watch { windows, whole: Interval { start_ns, end_ns: end_ns.max(start_ns) }, lost: Vec::new() }
    }

    /// Takes in what watching cost the process, shared by its threads that post.
    pub(super) fn with_hits(mut self, rdma: &Rdma, pid: u32) -> Watch {
        if !self.is_sampled() {
            return self;
        }
        let mut hits = vec![0_u64; self.windows.len()];
        let mut threads = HashSet::new();
        let posts =
            rdma.posts.iter().filter(|post| post.index == 0).map(|post| (post.pid, post.tid, post.time_ns));
        let done = rdma.completions.iter().map(|one| (one.pid, one.tid, one.time_ns));
        for (_, tid, time_ns) in posts.chain(done).filter(|(of, ..)| *of == pid) {
            threads.insert(tid);
            let at = self.windows.partition_point(|window| window.end_ns < time_ns);
            let inside = self.windows.get(at).is_some_and(|window| window.start_ns <= time_ns);
            if let Some(hits) = hits.get_mut(at).filter(|_| inside) {
                *hits += 1;
            }
        }
        let threads = threads.len().max(1) as f64;
        let lost = |(window, hits): (&Interval, u64)| {
            (hits as f64 * HIT_NS as f64 / threads / (window.len().max(1) as f64)).min(LOST_MOST)
        };
        self.lost = self.windows.iter().zip(hits).map(lost).collect();
        self
    }

    /// `seen` has, for each window, its length and the posts in it; `known_ns` of all these was usable for times.
    pub(super) fn scale(&self, seen: &[(u64, u64)], known_ns: u64) -> Scale {
        let posts = seen.iter().map(|one| one.1);
        let seen: Vec<Seen> = self
            .windows
            .iter()
            .zip(posts)
            .enumerate()
            .map(|(at, (window, posts))| Seen {
                window: *window,
                posts,
                lost: self.lost.get(at).copied().unwrap_or(0.0),
            })
            .collect();
        scale(&seen, known_ns, self.whole)
    }

    /// There are several windows: what was seen is a sample.
    pub(super) fn is_sampled(&self) -> bool {
        self.windows.len() > 1
    }
}

/// How what was seen in windows stands for the whole time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub windows: u64,
    /// What counts seen in windows are multiplied with.
    pub counts: f64,
    /// The same for times: the parts of the windows in which all outstanding requests were known.
    pub times: f64,
    /// Half-width of the 95 % interval of the scaled number of posts, as a share of it; `None` where too
    /// few windows had posts.
    pub error: Option<f64>,
}

/// Windows whose length was settled before are no longer than this; what is longer, and the first one, lasted until they had cost
/// too much.
pub(crate) const PLANNED_MOST_NS: u64 = 200_000_000;
/// What a thread is taken to lose at most: more cannot be told from a wrong figure for the cost.
const LOST_MOST: f64 = 0.8;

/// What was seen in one window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) window: Interval,
    pub(crate) posts: u64,
    /// Part of it that a thread lost by being watched.
    pub(crate) lost: f64,
}

/// How far windows stand for the time between them.
pub(crate) fn scale(seen: &[Seen], known_ns: u64, whole: Interval) -> Scale {
    let times = if known_ns == 0 { 1.0 } else { (whole.len() as f64 / known_ns as f64).max(1.0) };
    let posted: f64 = seen.iter().map(|one| one.posts as f64).sum();
    let mut scale = Scale { windows: seen.len() as u64, counts: 1.0, times, error: None };
    let watched_ns: u64 = seen.iter().map(|one| one.window.len()).fold(0, u64::saturating_add);
    if posted <= 0.0 || watched_ns == 0 {
        if watched_ns > 0 {
            scale.counts = (whole.len() as f64 / watched_ns as f64).max(1.0);
        }
        return scale;
    }
    let gaps = gaps(seen, whole);
    // Posts in the gaps if nothing slows the program down, and what comes to them if all of the cost does.
    let (mut between, mut slowed) = (0.0, 0.0);
    for (one, gap_ns) in seen.iter().zip(&gaps) {
        let rate = one.posts as f64 / one.window.len().max(1) as f64;
        between += rate * gap_ns;
        slowed += rate * gap_ns * one.lost / (1.0 - one.lost);
    }
    let all = posted + between + slowed / 2.0;
    scale.counts = (all / posted).max(1.0);
    let spread = spread(seen, &gaps);
    scale.error = spread.map(|spread| (NORMAL_95 * spread + slowed / 2.0) / all);
    scale
}

/// Whether the window ended for what was seen in it.
fn ended_by_itself(at: usize, one: &Seen) -> bool {
    at == 0 || one.window.len() > PLANNED_MOST_NS
}

/// Time beside each window for which it stands.
fn gaps(seen: &[Seen], whole: Interval) -> Vec<f64> {
    let planned: Vec<bool> = seen.iter().enumerate().map(|(at, one)| !ended_by_itself(at, one)).collect();
    let mut gaps = vec![0.0; seen.len()];
    let mut give = |at: usize, ns: f64| {
        if let Some(gap) = gaps.get_mut(at) {
            *gap += ns;
        }
    };
    for (at, pair) in seen.windows(2).enumerate() {
        let &[before, after] = pair else { continue };
        let gap_ns = after.window.start_ns.saturating_sub(before.window.end_ns) as f64;
        match (planned.get(at), planned.get(at + 1)) {
            (Some(true), Some(false)) => give(at, gap_ns),
            (Some(false), Some(true)) => give(at + 1, gap_ns),
            _ => {
                give(at, gap_ns / 2.0);
                give(at + 1, gap_ns / 2.0);
            }
        }
    }
    // What comes before the first and behind the last.
    let first_ns = seen.first().map_or(0, |one| one.window.start_ns.saturating_sub(whole.start_ns));
    let last_ns = seen.last().map_or(0, |one| whole.end_ns.saturating_sub(one.window.end_ns));
    let nearest = |mut places: Vec<usize>| {
        let any = places.first().copied().unwrap_or(0);
        places.retain(|at| planned.get(*at) == Some(&true));
        places.first().copied().unwrap_or(any)
    };
    give(nearest((0..seen.len()).collect()), first_ns as f64);
    give(nearest((0..seen.len()).rev().collect()), last_ns as f64);
    gaps
}

/// Standard error of the posts in the gaps: windows that stand for gaps are clusters of a weighted ratio estimator (W. G. Cochran,
/// Sampling Techniques, 6.4).
fn spread(seen: &[Seen], gaps: &[f64]) -> Option<f64> {
    let with_gap: Vec<(&Seen, f64)> =
        seen.iter().zip(gaps.iter().copied()).filter(|(_, gap_ns)| *gap_ns > 0.0).collect();
    if with_gap.iter().filter(|(one, _)| one.posts > 0).count() < 2 {
        return None;
    }
    let rate_of = |one: &Seen| one.posts as f64 / one.window.len().max(1) as f64;
    let gap_ns: f64 = with_gap.iter().map(|(_, gap_ns)| gap_ns).sum();
    let mean = with_gap.iter().map(|(one, gap_ns)| rate_of(one) * gap_ns).sum::<f64>() / gap_ns;
    let squares: f64 = with_gap.iter().map(|(one, gap_ns)| ((rate_of(one) - mean) * gap_ns).powi(2)).sum();
    let count = with_gap.len() as f64;
    Some((count / (count - 1.0) * squares).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(start_ns: u64, end_ns: u64) -> RdmaWindow {
        RdmaWindow { pid: 1, start_ns, end_ns }
    }

    fn at(start_ns: u64, end_ns: u64) -> Interval {
        Interval { start_ns, end_ns }
    }

    fn watch(records: &[RdmaWindow]) -> Watch {
        Watch::of(records, 1, at(100, 1000), true)
    }

    #[test]
    fn a_window_ends_with_its_second_record_or_with_the_recording() {
        let of = |windows, whole| Watch { windows, whole, lost: Vec::new() };
        assert_eq!(watch(&[]), of(vec![at(100, 1000)], at(100, 1000)));
        let open = watch(&[record(200, 0)]);
        assert_eq!(open, of(vec![at(200, 1000)], at(200, 1000)));
        let several = watch(&[record(200, 0), record(200, 300), record(500, 0), record(500, 600)]);
        assert_eq!(several, of(vec![at(200, 300), at(500, 600)], at(200, 1000)));
        assert!(several.is_sampled() && !open.is_sampled());
        let other = RdmaWindow { pid: 2, ..record(50, 60) };
        assert_eq!(watch(&[other]).windows, [at(100, 1000)]);
        assert_eq!(Watch::of(&[], 1, at(100, 1000), false).windows, [], "nothing says that it was watched");
    }

    #[test]
    fn a_process_that_ended_is_not_counted_on() {
        let records = [record(200, 0), record(200, 300), record(500, 0), record(500, 600), record(700, 700)];
        assert_eq!(watch(&records).whole, at(200, 700));
    }

    #[test]
    fn windows_that_make_no_sense_do_no_harm() {
        let odd = watch(&[record(900, 300), record(u64::MAX, 0), record(150, u64::MAX), record(160, 170)]);
        assert!(odd.windows.iter().all(|one| one.start_ns <= one.end_ns));
        assert!(odd.windows.array_windows().all(|[one, next]| one.end_ns <= next.start_ns), "{odd:?}");
    }

    /// Windows of these ends, with posts; the first one is long past.
    fn seen(windows: &[(u64, u64, u64)], lost: f64) -> Vec<Seen> {
        windows.iter().map(|(from, to, posts)| Seen { window: at(*from, *to), posts: *posts, lost }).collect()
    }

    #[test]
    fn counts_are_scaled_by_the_time_that_was_not_watched() {
        let even = scale(&seen(&[(0, 10, 100), (50, 60, 100), (100, 120, 200)], 0.0), 20, at(0, 400));
        assert_eq!((even.windows, even.counts, even.times, even.error), (3, 10.0, 20.0, Some(0.0)));
        let one = scale(&seen(&[(0, 10, 100), (20, 30, 0)], 0.0), 20, at(0, 40));
        assert_eq!(one.error, None, "one window with posts tells no spread");
        assert!((scale(&[], 0, at(0, 40)).counts - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_window_stands_for_the_time_around_it_and_the_first_one_for_itself() {
        // 10 a nanosecond where windows are far apart, 1 where they are close; the first one ended in a burst.
        let windows = [(0, 10, 900), (50, 60, 100), (150, 160, 100), (170, 180, 10), (190, 200, 10)];
        let scale = scale(&seen(&windows, 0.0), 0, at(0, 200));
        let between = 10.0 * (40.0 + 45.0) + 10.0 * (45.0 + 5.0) + (5.0 + 5.0) + 5.0;
        let posted = 900.0 + 100.0 + 100.0 + 10.0 + 10.0;
        assert!((scale.counts - (posted + between) / posted).abs() < 1e-9, "{scale:?}");
        assert!(scale.error.unwrap() > 0.0);
    }

    #[test]
    fn the_cost_of_watching_is_in_the_middle_and_its_whole_in_the_error() {
        let windows = [(0, 10, 100), (50, 60, 100), (100, 110, 100)];
        let scale = scale(&seen(&windows, 0.2), 0, at(0, 210));
        // 180 between; a program that posts without a break would have posted a quarter more.
        let (least, most) = (300.0 + 1800.0, 300.0 + 1800.0 * 1.25);
        assert!((scale.counts * 300.0 - f64::midpoint(least, most)).abs() < 1e-6, "{scale:?}");
        assert!((scale.error.unwrap() - (most - least) / (most + least)).abs() < 1e-9, "{scale:?}");
    }
}
