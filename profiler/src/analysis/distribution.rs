//! Quantiles and moments of durations.

use super::report::Distribution;

impl Distribution {
    /// Quantiles are by nearest rank, so each is one of the values.
    pub fn of(mut values: Vec<u64>) -> Distribution {
        values.sort_unstable();
        let (Some(min_ns), Some(max_ns)) = (values.first().copied(), values.last().copied()) else {
            return Distribution::default();
        };
        let count = values.len() as u64;
        let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
        let mean = sum as f64 / count as f64;
        let variance = values.iter().map(|value| (*value as f64 - mean).powi(2)).sum::<f64>() / count as f64;
        Distribution {
            count,
            min_ns,
            p50_ns: nearest_rank(&values, 50),
            p90_ns: nearest_rank(&values, 90),
            p99_ns: nearest_rank(&values, 99),
            max_ns,
            sum_ns: u64::try_from(sum).unwrap_or(u64::MAX),
            stddev_ns: variance.sqrt().round() as u64,
        }
    }
}

fn nearest_rank(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
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
