//! Quantiles and moments of durations.

use super::report::Distribution;

impl Distribution {
    /// Quantiles are by nearest rank, so each is one of the values.
    pub fn of(mut values: Vec<u64>) -> Distribution {
        let (Some(min_ns), Some(max_ns)) = (values.iter().min().copied(), values.iter().max().copied())
        else {
            return Distribution::default();
        };
        let count = values.len() as u64;
        let ranks = if values.len() < MANY {
            values.sort_unstable();
            PERCENT.map(|percent| values.get(nearest_rank(values.len(), percent)).copied().unwrap_or(0))
        } else {
            selected(&mut values)
        };
        let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
        let mean = sum as f64 / count as f64;
        let variance = values.iter().map(|value| (*value as f64 - mean).powi(2)).sum::<f64>() / count as f64;
        Distribution {
            count,
            min_ns,
            p50_ns: ranks[0],
            p90_ns: ranks[1],
            p99_ns: ranks[2],
            max_ns,
            sum_ns: u64::try_from(sum).unwrap_or(u64::MAX),
            stddev_ns: variance.sqrt().round() as u64,
        }
    }
}

/// The quantiles that are told, in this order.
const PERCENT: [usize; 3] = [50, 90, 99];
/// From so many values on they are looked for without sorting all.
const MANY: usize = 1 << 14;

/// The place of a quantile among so many sorted values.
fn nearest_rank(len: usize, percent: usize) -> usize {
    len.saturating_mul(percent).div_ceil(100).max(1) - 1
}

/// The quantiles; afterwards the values are in another order.
fn selected(values: &mut [u64]) -> [u64; 3] {
    let places = PERCENT.map(|percent| nearest_rank(values.len(), percent));
    let mut rest = values;
    let mut before = 0;
    places.map(|place| {
        let at = place - before;
        if at >= rest.len() {
            return 0;
        }
        let (_, value, above) = std::mem::take(&mut rest).select_nth_unstable(at);
        let value = *value;
        rest = above;
        before = place + 1;
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_nothing_is_all_zero() {
        assert_eq!(Distribution::of(Vec::new()), Distribution::default());
    }

    #[test]
    fn takes_quantiles_by_nearest_rank() {
        let d = Distribution::of((1..=200).rev().collect());
        assert_eq!((d.count, d.min_ns, d.max_ns, d.sum_ns), (200, 1, 200, 20_100));
        assert_eq!((d.p50_ns, d.p90_ns, d.p99_ns), (100, 180, 198));
    }

    #[test]
    fn many_values_have_the_same_quantiles_as_if_they_were_sorted() {
        let mut random = crate::random::Random(5);
        for len in [MANY, MANY + 1, 3 * MANY + 77] {
            let values: Vec<u64> = (0..len).map(|_| random.below(5000) as u64 + random.any() % 3).collect();
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let d = Distribution::of(values);
            let of_sorted = PERCENT.map(|percent| sorted[nearest_rank(len, percent)]);
            assert_eq!([d.p50_ns, d.p90_ns, d.p99_ns], of_sorted);
            assert_eq!((d.min_ns, d.max_ns, d.count), (sorted[0], sorted[len - 1], len as u64));
        }
    }

    #[test]
    fn one_value_is_every_quantile() {
        let d = Distribution::of(vec![7]);
        assert_eq!((d.p50_ns, d.p90_ns, d.p99_ns, d.stddev_ns), (7, 7, 7, 0));
    }

    #[test]
    fn the_deviation_is_that_of_the_population() {
        assert_eq!(Distribution::of(vec![2, 4, 4, 4, 5, 5, 7, 9]).stddev_ns, 2);
    }

    #[test]
    fn a_sum_beyond_64_bits_saturates() {
        assert_eq!(Distribution::of(vec![u64::MAX, u64::MAX]).sum_ns, u64::MAX);
    }
}
