//! Medians and spreads.

/// Median and the middle half of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub count: usize,
}

/// Quartiles by linear interpolation; `None` for an empty sample.
pub fn spread(sample: &[f64]) -> Option<Spread> {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quantile = |q: f64| {
        let last = sorted.len().checked_sub(1)?;
        let place = q * last as f64;
        let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        Some(below + (above - below) * place.fract())
    };
    Some(Spread { median: quantile(0.5)?, low: quantile(0.25)?, high: quantile(0.75)?, count: sorted.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_of_a_known_sample() {
        let spread = spread(&[4.0, 1.0, 3.0, 2.0, 5.0]).unwrap();
        assert_eq!((spread.median, spread.low, spread.high, spread.count), (3.0, 2.0, 4.0, 5));
    }

    #[test]
    fn an_empty_sample_has_none() {
        assert_eq!(spread(&[]), None);
    }
}
