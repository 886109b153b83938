//! When queue pairs were watched: throughout, or in short windows where that is dear. What was seen in windows stands
//! for the whole time, with an error.

use crate::model::thread::Interval;
use crate::trace::rdma::RdmaWindow;

/// Half-width of a 95 % interval, in standard errors.
const NORMAL_95: f64 = 1.96;

/// The time of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Watch {
    /// In order of time, without overlaps.
    pub(super) windows: Vec<Interval>,
    /// From the first window to the end of the recording, or of the process.
    pub(super) whole: Interval,
}

impl Watch {
    /// Each window comes with a record when it opens and with another one when it closes; one without length says
    /// until when the process lived.
    pub(super) fn of(records: &[RdmaWindow], pid: u32, recording: Interval) -> Watch {
        let mut windows: Vec<Interval> = Vec::new();
        let mut lived_ns = recording.end_ns;
        let mut own: Vec<&RdmaWindow> = records.iter().filter(|record| record.pid == pid).collect();
        if own.is_empty() {
            return Watch { windows: vec![recording], whole: recording };
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
        Watch { windows, whole: Interval { start_ns, end_ns: end_ns.max(start_ns) } }
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

/// `seen` has, for each window, its length and the posts in it; `known_ns` of all these was usable for times.
pub(super) fn scale(seen: &[(u64, u64)], known_ns: u64, whole_ns: u64) -> Scale {
    let watched_ns: u64 = seen.iter().map(|one| one.0).fold(0, u64::saturating_add);
    let of = |part: u64| if part == 0 { 1.0 } else { (whole_ns as f64 / part as f64).max(1.0) };
    let error = ratio_error(seen).map(|error| error * (1.0 - 1.0 / of(watched_ns)).sqrt());
    Scale { windows: seen.len() as u64, counts: of(watched_ns), times: of(known_ns), error }
}

/// Of the ratio estimator `posts / time` with windows as clusters (W. G. Cochran, Sampling Techniques, 6.4), without the
/// correction for a sample that is a large part of the whole.
fn ratio_error(seen: &[(u64, u64)]) -> Option<f64> {
    let (ns, posts) = seen.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0 as f64, sum.1 + one.1 as f64));
    let count = seen.len() as f64;
    if seen.iter().filter(|one| one.1 > 0).count() < 2 || ns <= 0.0 {
        return None;
    }
    let rate = posts / ns;
    let squares: f64 = seen.iter().map(|one| (one.1 as f64 - rate * one.0 as f64).powi(2)).sum();
    Some(NORMAL_95 * (count / (count - 1.0) * squares).sqrt() / posts)
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
        Watch::of(records, 1, at(100, 1000))
    }

    #[test]
    fn a_window_ends_with_its_second_record_or_with_the_recording() {
        assert_eq!(watch(&[]), Watch { windows: vec![at(100, 1000)], whole: at(100, 1000) });
        let open = watch(&[record(200, 0)]);
        assert_eq!(open, Watch { windows: vec![at(200, 1000)], whole: at(200, 1000) });
        let several = watch(&[record(200, 0), record(200, 300), record(500, 0), record(500, 600)]);
        assert_eq!(several, Watch { windows: vec![at(200, 300), at(500, 600)], whole: at(200, 1000) });
        assert!(several.is_sampled() && !open.is_sampled());
        let other = RdmaWindow { pid: 2, ..record(50, 60) };
        assert_eq!(watch(&[other]).windows, [at(100, 1000)]);
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

    #[test]
    fn counts_are_scaled_by_the_time_that_was_not_watched() {
        let even = scale(&[(10, 100), (10, 100), (20, 200)], 20, 400);
        assert_eq!((even.windows, even.counts, even.times, even.error), (3, 10.0, 20.0, Some(0.0)));
        // Rate 10 a nanosecond: off by +50, -50 of 200; n / (n - 1) is 2.
        let uneven = scale(&[(10, 150), (10, 50)], 20, 40);
        let wanted = 1.96 * (2.0_f64 * 5000.0).sqrt() / 200.0 * 0.5_f64.sqrt();
        assert!((uneven.error.unwrap() - wanted).abs() < 1e-12);
        assert_eq!(scale(&[(10, 100), (10, 0)], 20, 40).error, None, "one window with posts tells no spread");
        assert!((scale(&[], 0, 40).counts - 1.0).abs() < 1e-12);
    }
}
