//! How a recording is cut into slices: evenly, or where the marker function was called, so that a slice is a whole number
//! of iterations.

use std::collections::BTreeMap;

use super::series::{SLICES, Series, slice_of, spread};
use crate::model::marker::Markers;
use crate::model::thread::Interval;
use crate::trace::marker::MarkerCalls;

/// Calls of the marker without which nothing can be said about iterations.
const CALLS_MIN: u64 = 2;

/// The slices of one recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    window: Interval,
    /// Where slices begin that are cut at calls, at most [`SLICES`]; empty: slices have equal length.
    starts: Vec<u64>,
}

/// Calls of the marker in one recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Iterations {
    /// Names of the functions, `FILE:FUNCTION`.
    pub functions: Vec<String>,
    /// Calls by slice. A call counts over the time to the next one of its thread.
    pub calls: Series,
}

impl Course {
    /// Evenly.
    pub fn even(window: Interval) -> Course {
        Course { window, starts: Vec::new() }
    }

    /// Cut at the calls of the thread that called the marker most often; evenly where hardly any call was seen.
    pub fn of(window: Interval, markers: &Markers) -> Course {
        let threads = by_thread(window, markers);
        let count = |calls: &[MarkerCalls]| calls.iter().map(|one| one.calls).sum::<u64>();
        let Some(lead) = threads.values().max_by_key(|calls| count(calls)) else {
            return Course::even(window);
        };
        if count(lead) < CALLS_MIN {
            return Course::even(window);
        }
        let cuts = lead.len().min(SLICES);
        let starts = (0..cuts).filter_map(|cut| {
            let call = lead.get(cut * lead.len() / cuts)?;
            // What came before the first call belongs to its slice.
            Some(if cut == 0 { window.start_ns } else { call.start_ns })
        });
        let mut starts: Vec<u64> = starts.collect();
        starts.dedup();
        Course { window, starts }
    }

    /// Slices that hold something, spread over all of them.
    pub fn used(&self) -> Vec<usize> {
        (0..self.count()).map(|number| self.place(number)).collect()
    }

    fn count(&self) -> usize {
        if self.starts.is_empty() { SLICES } else { self.starts.len() }
    }

    /// Of a slice by its number.
    fn place(&self, number: usize) -> usize {
        number * SLICES / self.count()
    }

    fn number(&self, time_ns: u64) -> usize {
        self.starts.partition_point(|start| *start <= time_ns).saturating_sub(1)
    }

    /// The slice that a time is in; times outside of the window are in the first or the last one.
    pub fn slice_of(&self, time_ns: u64) -> usize {
        if self.starts.is_empty() { slice_of(self.window, time_ns) } else { self.place(self.number(time_ns)) }
    }

    /// Adds `weight` to the slices that `span` touches, to each its part.
    pub fn spread(&self, series: &mut Series, span: Interval, weight: f64) {
        if self.starts.is_empty() {
            spread(series, self.window, span, weight);
            return;
        }
        let (first, last) = (self.number(span.start_ns), self.number(span.end_ns.saturating_sub(1)));
        let length = span.len() as f64;
        let mut left = weight;
        let mut from = span.start_ns;
        for number in first..last {
            let end = self.starts.get(number + 1).copied().unwrap_or(span.end_ns);
            let part = (weight * (end.saturating_sub(from) as f64 / length)).clamp(0.0, left);
            add(series, self.place(number), part);
            left -= part;
            from = end;
        }
        add(series, self.place(last.max(first)), left);
    }

    /// Length of each slice, seconds.
    pub fn seconds(&self) -> Series {
        if self.starts.is_empty() {
            return [self.window.len() as f64 / 1e9 / SLICES as f64; SLICES];
        }
        let mut seconds = [0.0; SLICES];
        self.spread(&mut seconds, self.window, self.window.len() as f64 / 1e9);
        seconds
    }

    /// The calls of all threads by slice; `None` without a marker, or with hardly any calls.
    pub fn iterations(&self, markers: &Markers) -> Option<Iterations> {
        let mut functions: Vec<String> =
            markers.functions.iter().map(|one| format!("{}:{}", one.module, one.function)).collect();
        functions.sort();
        functions.dedup();
        let threads = by_thread(self.window, markers);
        let mut series = [0.0; SLICES];
        let mut count = 0_u64;
        for calls in threads.values() {
            count = calls.iter().map(|one| one.calls).fold(count, u64::saturating_add);
            self.add_thread(&mut series, calls);
        }
        (!functions.is_empty() && count >= CALLS_MIN).then_some(Iterations { functions, calls: series })
    }

    fn add_thread(&self, series: &mut Series, calls: &[MarkerCalls]) {
        let (Some(first), Some(last)) = (calls.first(), calls.last()) else { return };
        let all: u64 = calls.iter().map(|one| one.calls).sum();
        // The last one lasts as long as those before, or to the end of the recording.
        let mean = last.end_ns.saturating_sub(first.start_ns) / all.saturating_sub(1).max(1);
        let end_ns = last.end_ns.saturating_add(mean).clamp(last.end_ns, self.window.end_ns.max(last.end_ns));
        let next = calls.iter().skip(1).map(|one| one.start_ns).chain([end_ns]);
        for (one, next) in calls.iter().zip(next) {
            let turn = Interval { start_ns: one.start_ns, end_ns: next.max(one.start_ns) };
            self.spread(series, turn, one.calls as f64);
        }
    }
}

fn add(series: &mut Series, place: usize, part: f64) {
    if let Some(slot) = series.get_mut(place) {
        *slot += part;
    }
}

/// The calls within the window, by time.
fn by_thread(window: Interval, markers: &Markers) -> BTreeMap<(u32, u32), Vec<MarkerCalls>> {
    let mut threads: BTreeMap<(u32, u32), Vec<MarkerCalls>> = BTreeMap::new();
    let inside = |one: &&MarkerCalls| one.start_ns >= window.start_ns && one.end_ns <= window.end_ns;
    for one in markers.calls.iter().filter(inside) {
        threads.entry((one.pid, one.tid)).or_default().push(*one);
    }
    threads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::marker::MarkerFunction;

    const WINDOW: Interval = Interval { start_ns: 1000, end_ns: 1_001_000 };

    fn markers(calls: &[(u32, u64, u64)]) -> Markers {
        let mut markers = Markers::default();
        markers.add_function(MarkerFunction {
            function: "step".to_owned(),
            module: "job".to_owned(),
            ..MarkerFunction::default()
        });
        for (tid, at, count) in calls {
            assert!(markers.add(MarkerCalls {
                start_ns: *at,
                end_ns: *at,
                pid: 1,
                tid: *tid,
                calls: *count
            }));
        }
        markers
    }

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-6
    }

    #[test]
    fn a_slice_is_an_iteration_where_there_are_few_however_long_each_is() {
        let markers = markers(&[(1, 10_000, 1), (1, 20_000, 1), (1, 500_000, 1), (1, 510_000, 1)]);
        let course = Course::of(WINDOW, &markers);
        assert_eq!(course.used(), [0, 32, 64, 96]);
        assert_eq!(
            [0, 19_999, 20_000, 499_999, 500_000, u64::MAX].map(|at| course.slice_of(at)),
            [0, 0, 32, 32, 64, 96]
        );
        let iterations = course.iterations(&markers).unwrap();
        assert_eq!(iterations.functions, ["job:step"]);
        for place in course.used() {
            assert!(near(iterations.calls[place], 1.0), "{place}: {}", iterations.calls[place]);
        }
        assert!(near(iterations.calls.iter().sum(), 4.0));
        assert!(near(course.seconds().iter().sum(), 0.001));
    }

    #[test]
    fn many_iterations_share_a_slice_in_whole_numbers_and_other_threads_count_too() {
        let mut calls: Vec<_> = (0..300).map(|at| (1, 2000 + at * 3000, 1)).collect();
        calls.extend((0..150).map(|at| (2, 3500 + at * 6000, 1)));
        let markers = markers(&calls);
        let course = Course::of(WINDOW, &markers);
        assert_eq!(course.used().len(), SLICES);
        let iterations = course.iterations(&markers).unwrap();
        assert!(near(iterations.calls.iter().sum(), 450.0));
        // Two or three of the first thread, and half as many of the other one.
        assert!(
            iterations.calls[1..127].iter().all(|count| *count > 2.9 && *count < 4.6),
            "{:?}",
            iterations.calls
        );
    }

    #[test]
    fn a_weight_is_spread_by_overlap_and_stays_whole() {
        let markers = markers(&[(1, 1000, 1), (1, 201_000, 1)]);
        let course = Course::of(WINDOW, &markers);
        let mut series = [0.0; SLICES];
        course.spread(&mut series, Interval { start_ns: 151_000, end_ns: 251_000 }, 10.0);
        assert!(near(series[0], 5.0) && near(series[64], 5.0));
        course.spread(&mut series, Interval { start_ns: 7000, end_ns: 7000 }, 1.0);
        assert!(near(series.iter().sum(), 11.0));
    }

    #[test]
    fn without_a_marker_slices_are_even() {
        let course = Course::of(WINDOW, &Markers::default());
        assert_eq!(course, Course::even(WINDOW));
        assert_eq!((course.used().len(), course.iterations(&Markers::default())), (SLICES, None));
        let mut one = [0.0; SLICES];
        let mut other = [0.0; SLICES];
        let span = Interval { start_ns: 5000, end_ns: 90_000 };
        course.spread(&mut one, span, 3.0);
        spread(&mut other, WINDOW, span, 3.0);
        assert!(one.iter().zip(&other).all(|(one, other)| near(*one, *other)));
    }

    #[test]
    fn calls_that_were_only_counted_weigh_by_their_number() {
        let markers = markers(&[(1, 10_000, 1), (1, 20_000, 500), (1, 900_000, 1)]);
        let iterations = Course::of(WINDOW, &markers).iterations(&markers).unwrap();
        assert!(near(iterations.calls.iter().sum(), 502.0));
        assert!(near(iterations.calls[42], 500.0), "{:?}", iterations.calls);
    }
}
