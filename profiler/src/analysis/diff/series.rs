//! Figures by time: a recording is cut into slices of equal length, which the bootstrap draws from.

use crate::model::thread::Interval;

/// Slices of a recording. Enough for the bootstrap to see the spread, few enough that a slice of a recording of
/// some seconds holds several turns of a training loop.
pub const SLICES: usize = 128;

/// One figure a slice.
pub type Series = [f64; SLICES];

/// The slice that a time is in; times outside of the window are in the first or the last one.
pub fn slice_of(window: Interval, time_ns: u64) -> usize {
    let (passed, length) = (time_ns.saturating_sub(window.start_ns), window.len().max(1));
    if let Some(passed) = passed.checked_mul(SLICES as u64) {
        return usize::try_from(passed / length).unwrap_or(usize::MAX).min(SLICES - 1);
    }
    let slice = u128::from(passed) * SLICES as u128 / u128::from(length);
    usize::try_from(slice).unwrap_or(usize::MAX).min(SLICES - 1)
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
/// Durations that wait to be sorted in, for one figure.
const FRESH_MAX: usize = 256;

/// How many places all of a recording's [`Durations`] have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places(usize);

/// Durations of one slice that are nearly equal.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    slice: u8,
    step: u16,
    count: u64,
    sum: u64,
}

impl Place {
    fn key(&self) -> u32 {
        u32::from(self.slice) << 16 | u32::from(self.step)
    }

    fn take_in(&mut self, other: &Place) {
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
    }
}

/// Durations by slice, counted in places of nearly equal values. Their medians are the mean of one place.
///
/// There are millions of them for hundreds of peers by turns. Those of one peer are collected and sorted in together, so
/// that its places are fetched from memory once for many.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    /// By slice and place.
    sorted: Vec<Place>,
    fresh: Vec<Place>,
    pub count: u64,
}

impl Durations {
    /// `places` bounds the memory of all durations of a recording together. [`Durations::finish`] comes after the last.
    pub fn add(&mut self, slice: u8, value_ns: u64, places: &mut Places) {
        self.count += 1;
        self.fresh.push(Place { slice, step: place(value_ns), count: 1, sum: value_ns });
        if self.fresh.len() >= FRESH_MAX {
            self.sort_in(places);
        }
    }

    /// No more come.
    pub fn finish(&mut self, places: &mut Places) {
        self.sort_in(places);
        self.fresh = Vec::new();
    }

    fn sort_in(&mut self, places: &mut Places) {
        self.fresh.sort_unstable_by_key(Place::key);
        let free = PLACES_MAX.saturating_sub(places.0);
        let before = self.sorted.len();
        self.sorted = merged(&self.sorted, &self.fresh, free);
        places.0 += self.sorted.len() - before;
        self.fresh.clear();
    }

    /// Adds those of another one; both are finished.
    pub fn merge(&mut self, other: &Durations) {
        self.count += other.count;
        self.sorted = merged(&self.sorted, &other.sorted, usize::MAX);
    }

    /// Median of each slice, and how many it is the median of.
    pub fn medians(&self) -> (Series, Series) {
        let (mut medians, mut counts) = ([0.0; SLICES], [0.0; SLICES]);
        for places in self.sorted.chunk_by(|a, b| a.slice == b.slice) {
            let Some(slice) = places.first().map(|place| usize::from(place.slice)) else { continue };
            if let (Some(median), Some(count)) = (medians.get_mut(slice), counts.get_mut(slice)) {
                *median = median_of(places).unwrap_or(0.0);
                *count = places.iter().map(|place| place.count as f64).sum();
            }
        }
        (medians, counts)
    }
}

/// Both, each in order of slice and place, of the second no more than `free` that the first lacks.
fn merged(known: &[Place], more: &[Place], mut free: usize) -> Vec<Place> {
    let mut all: Vec<Place> = Vec::with_capacity(known.len() + more.len().min(free));
    let mut known = known.iter().peekable();
    for place in more {
        while let Some(next) = known.next_if(|next| next.key() <= place.key()) {
            all.push(*next);
        }
        match all.last_mut() {
            Some(last) if last.key() == place.key() => last.take_in(place),
            _ if free > 0 => {
                free -= 1;
                all.push(*place);
            }
            _ => {}
        }
    }
    all.extend(known);
    all
}

/// Median of all durations of several recordings; `None` without any.
pub fn median<'d>(all: impl Iterator<Item = &'d Durations>) -> Option<f64> {
    let mut places: Vec<Place> = all.flat_map(|one| &one.sorted).copied().collect();
    places.sort_unstable_by_key(|place| place.step);
    places.dedup_by(|next, kept| {
        let is_same = next.step == kept.step;
        if is_same {
            kept.take_in(next);
        }
        is_same
    });
    median_of(&places)
}

/// The place that has the value of rank `(count + 1) / 2`.
fn median_of(places: &[Place]) -> Option<f64> {
    let total = places.iter().fold(0_u64, |sum, place| sum.saturating_add(place.count));
    let rank = total.div_ceil(2).max(1);
    let mut below = 0_u64;
    places.iter().find_map(|place| {
        below = below.saturating_add(place.count);
        (below >= rank && place.count > 0).then(|| place.sum as f64 / place.count as f64)
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
        durations.finish(&mut places);
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
        durations.finish(&mut places);
        assert_eq!((durations.sorted.len(), durations.count), (1, 4));
        // What is there goes on counting.
        for value in [2, 1, 1] {
            durations.add(0, value, &mut places);
        }
        durations.finish(&mut places);
        assert_eq!((durations.sorted[0].count, durations.sorted[0].sum), (4, 4));
    }

    #[test]
    fn durations_that_are_sorted_in_together_are_those_that_were_added_one_by_one() {
        let mut random = crate::random::Random(11);
        let (mut durations, mut places) = (Durations::default(), Places::default());
        let mut plain: std::collections::BTreeMap<(u8, u16), (u64, u64)> = std::collections::BTreeMap::new();
        for _ in 0..5 * FRESH_MAX + 17 {
            let (slice, value) = (random.below(SLICES) as u8, 100_000 + random.below(300_000) as u64);
            durations.add(slice, value, &mut places);
            let entry = plain.entry((slice, place(value))).or_default();
            *entry = (entry.0 + 1, entry.1 + value);
        }
        durations.finish(&mut places);
        let told = durations.sorted.iter().map(|one| ((one.slice, one.step), (one.count, one.sum)));
        assert_eq!(told.collect::<Vec<_>>(), plain.into_iter().collect::<Vec<_>>());
        assert_eq!(places.0, durations.sorted.len());
        let mut twice = durations.clone();
        twice.merge(&durations);
        assert_eq!(twice.sorted.len(), durations.sorted.len());
        let bits = |one: &Durations| one.medians().0.map(f64::to_bits);
        assert_eq!(bits(&twice), bits(&durations));
    }
}
