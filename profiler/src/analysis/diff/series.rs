//! Figures by time: a recording is cut into slices of equal length, which the bootstrap draws from.

use std::collections::BTreeMap;

use crate::hash::FastMap;
use crate::model::thread::Interval;

/// Slices of a recording. Enough for the bootstrap to see the spread, few enough that a slice of a recording of
/// some seconds holds several turns of a training loop.
pub const SLICES: usize = 128;

/// One figure a slice.
pub type Series = [f64; SLICES];

/// The slice that a time is in; times outside of the window are in the first or the last one.
pub fn slice_of(window: Interval, time_ns: u64) -> usize {
    let passed = u128::from(time_ns.saturating_sub(window.start_ns));
    let length = u128::from(window.len()).max(1);
    usize::try_from(passed * SLICES as u128 / length).unwrap_or(usize::MAX).min(SLICES - 1)
}

/// Adds `weight` to the slices that `span` touches, to each its part.
pub fn spread(series: &mut Series, window: Interval, span: Interval, weight: f64) {
    let (first, last) = (slice_of(window, span.start_ns), slice_of(window, span.end_ns.saturating_sub(1)));
    if first >= last || span.is_empty() {
        if let Some(slot) = series.get_mut(first) {
            *slot += weight;
        }
        return;
    }
    let slice_ns = window.len() as f64 / SLICES as f64;
    let from = span.start_ns.saturating_sub(window.start_ns) as f64;
    let to = span.end_ns.saturating_sub(window.start_ns) as f64;
    let mut left = weight;
    for index in first..last {
        let end = (index + 1) as f64 * slice_ns;
        let start = from.max(index as f64 * slice_ns);
        let part = (weight * ((end - start) / (to - from))).clamp(0.0, left);
        if let Some(slot) = series.get_mut(index) {
            *slot += part;
        }
        left -= part;
    }
    if let Some(slot) = series.get_mut(last) {
        *slot += left;
    }
}

/// Distinct durations by slice that are kept of one recording at most; beyond, a duration counts only where one
/// like it was there before.
const PLACES_MAX: usize = 1 << 20;
/// Steps in a doubling: a place is at most 0.4 % wide.
const STEPS_LOG2: u32 = 8;

/// How many places all of a recording's [`Durations`] have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places(usize);

/// Durations by slice, counted in places of nearly equal values. Their medians are the mean of one place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durations {
    /// Count and sum by slice and place.
    places: FastMap<(u8, u16), (u64, u128)>,
    pub count: u64,
}

impl Durations {
    /// `places` bounds the memory of all durations of a recording together.
    pub fn add(&mut self, slice: u8, value_ns: u64, places: &mut Places) {
        self.count += 1;
        let key = (slice, place(value_ns));
        if places.0 >= PLACES_MAX && !self.places.contains_key(&key) {
            return;
        }
        let entry = self.places.entry(key).or_insert_with(|| {
            places.0 += 1;
            (0, 0)
        });
        entry.0 += 1;
        entry.1 += u128::from(value_ns);
    }

    pub fn merge(&mut self, other: &Durations) {
        self.count += other.count;
        for (key, (count, sum)) in &other.places {
            let entry = self.places.entry(*key).or_default();
            entry.0 += count;
            entry.1 += sum;
        }
    }

    /// Median of each slice, and how many it is the median of.
    pub fn medians(&self) -> (Series, Series) {
        let (mut medians, mut counts) = ([0.0; SLICES], [0.0; SLICES]);
        let sorted: BTreeMap<_, _> = self.places.iter().map(|(key, place)| (*key, *place)).collect();
        for (slice, (median, count)) in medians.iter_mut().zip(&mut counts).enumerate() {
            let slice = u8::try_from(slice).unwrap_or(u8::MAX);
            let places = || sorted.range((slice, 0)..=(slice, u16::MAX)).map(|(_, place)| *place);
            *median = median_of(places).unwrap_or(0.0);
            *count = places().map(|(count, _)| count as f64).sum();
        }
        (medians, counts)
    }
}

/// Median of all durations of several recordings; `None` without any.
pub fn median<'d>(all: impl Iterator<Item = &'d Durations>) -> Option<f64> {
    let mut merged: BTreeMap<u16, (u64, u128)> = BTreeMap::new();
    for ((_, place), (count, sum)) in all.flat_map(|one| &one.places) {
        let entry = merged.entry(*place).or_default();
        entry.0 += count;
        entry.1 += sum;
    }
    median_of(|| merged.values().copied())
}

/// The place that has the value of rank `(count + 1) / 2`.
fn median_of<I: Iterator<Item = (u64, u128)>>(places: impl Fn() -> I) -> Option<f64> {
    let total: u64 = places().map(|(count, _)| count).sum();
    let rank = total.div_ceil(2).max(1);
    let mut below = 0;
    places().find_map(|(count, sum)| {
        below += count;
        (below >= rank && count > 0).then(|| sum as f64 / count as f64)
    })
}

/// Number of the place of a value: exact below 256, in steps of 1/256 of its power of two above.
fn place(value: u64) -> u16 {
    let Some(log2) = value.checked_ilog2() else { return 0 };
    if log2 < STEPS_LOG2 {
        return value as u16;
    }
    let step = (value >> (log2 - STEPS_LOG2)) as u16 & 0xff;
    ((log2 - STEPS_LOG2 + 1) as u16) << STEPS_LOG2 | step
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Interval = Interval { start_ns: 1000, end_ns: 129_000 };

    #[test]
    fn slices_have_equal_length_and_cover_the_window() {
        assert_eq!(
            [999, 1000, 1999, 2000, 128_999, 129_000, u64::MAX].map(|time| slice_of(WINDOW, time)),
            [0, 0, 0, 1, 127, 127, 127]
        );
        assert_eq!(slice_of(Interval::default(), 5), 127);
    }

    #[test]
    fn a_weight_is_spread_by_overlap_and_stays_whole() {
        let mut series = [0.0; SLICES];
        spread(&mut series, WINDOW, Interval { start_ns: 1500, end_ns: 3500 }, 20.0);
        assert_eq!(series[..4], [5.0, 10.0, 5.0, 0.0]);
        spread(&mut series, WINDOW, Interval { start_ns: 1000, end_ns: 129_000 }, 128.0);
        assert!((series.iter().sum::<f64>() - 148.0).abs() < 1e-9);
    }

    #[test]
    fn places_are_in_order_and_narrow() {
        let mut last = 0;
        for value in (0..100_000).chain((1..2000).map(|step| step * 12_345_678_901)) {
            let next = place(value);
            assert!(next >= last, "{value}");
            last = next;
        }
        assert_ne!(place(10_000_000), place(10_040_000));
        assert!(place(u64::MAX) < u16::MAX);
    }

    #[test]
    fn a_median_is_the_middle_of_all_slices() {
        let (mut durations, mut places) = (Durations::default(), Places::default());
        for (slice, value) in [(0, 10_000), (0, 30_000), (1, 20_000), (5, 20_000), (5, 90_000)] {
            durations.add(slice, value, &mut places);
        }
        assert_eq!(median(std::iter::once(&durations)), Some(20_000.0));
        let (medians, counts) = durations.medians();
        assert_eq!(
            (medians[0], medians[1], medians[5], counts[0], counts[2]),
            (10_000.0, 20_000.0, 20_000.0, 2.0, 0.0)
        );
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn memory_is_bounded_and_the_count_goes_on() {
        let (mut durations, mut places) = (Durations::default(), Places(PLACES_MAX - 1));
        for value in [1, 2, 3, 1] {
            durations.add(0, value, &mut places);
        }
        assert_eq!((durations.places.len(), durations.count), (1, 4));
    }
}
