//! Block bootstrap over time slices: what the figures of a recording could have been by chance.
//!
//! Each side's recordings are drawn with replacement, and of each its slices, in blocks of neighbours, so that what
//! holds on for a few slices stays together. One drawing gives each slice a number of times that it counts; a
//! figure is a ratio of two sums over slices, and its value in each drawing follows from these numbers. The numbers
//! come from a generator with a fixed seed: the same recordings give the same result.

use super::series::{SLICES, Series};
use crate::random::Random;

/// Drawings. The tail of the distribution is not read off them but taken from Student's t (see
/// [`Spread::p`]), so that p can fall far below 1 / `DRAWS`.
pub const DRAWS: usize = 1000;
/// Neighbouring slices that are drawn together.
const BLOCK: usize = 4;
const SEED: u64 = 0x5741_4c4c_5343_4f50;

/// The drawings of one side.
#[derive(Debug)]
pub struct Draws {
    /// Of each drawing, how often each slice of each recording counts.
    counts: Vec<Vec<f32>>,
    /// Independent pieces that were drawn from.
    pieces: usize,
}

/// Neighbours that are drawn together: iterations that are slices of their own are drawn one by one.
fn block(slices: usize) -> usize {
    if slices < SLICES { 1 } else { BLOCK }
}

/// Numerator and denominator of a figure, slice by slice, of one recording.
#[derive(Clone, Debug)]
pub struct Ratio {
    pub over: Series,
    pub under: Series,
}

impl Draws {
    /// `used` are the slices of each recording that hold something, in order; `side` tells the two sides of a diff apart.
    pub fn new(used: &[Vec<usize>], side: u64) -> Draws {
        let mut random = Random(SEED ^ side);
        let recordings = used.len();
        let draw = || {
            let mut counts = vec![0.0_f32; recordings * SLICES];
            for _ in 0..recordings {
                let recording = random.below(recordings);
                let Some(used) = used.get(recording) else { continue };
                let length = block(used.len());
                for _ in 0..used.len() / length {
                    let start = random.below(used.len());
                    for step in 0..length {
                        let Some(slice) = used.get((start + step) % used.len()) else { continue };
                        if let Some(count) = counts.get_mut(recording * SLICES + slice) {
                            *count += 1.0;
                        }
                    }
                }
            }
            counts
        };
        let counts = std::iter::repeat_with(draw).take(DRAWS).collect();
        let pieces = match used {
            [one] => one.len() / block(one.len()),
            _ => recordings,
        };
        Draws { counts, pieces }
    }

    /// The figure in each drawing; `None` where nothing was drawn that it could be taken of.
    fn values(&self, recordings: &[Ratio]) -> Vec<Option<f64>> {
        let value = |counts: &Vec<f32>| {
            let (mut over, mut under) = (0.0, 0.0);
            for (ratio, counts) in recordings.iter().zip(counts.chunks_exact(SLICES)) {
                for ((one, two), count) in ratio.over.iter().zip(&ratio.under).zip(counts) {
                    over += one * f64::from(*count);
                    under += two * f64::from(*count);
                }
            }
            (under > 0.0).then(|| over / under)
        };
        self.counts.iter().map(value).collect()
    }
}

/// The figure itself.
pub fn ratio(recordings: &[Ratio]) -> Option<f64> {
    let sum = |of: fn(&Ratio) -> &Series| -> f64 { recordings.iter().flat_map(|one| of(one).iter()).sum() };
    let (over, under) = (sum(|ratio| &ratio.over), sum(|ratio| &ratio.under));
    (under > 0.0).then(|| over / under)
}

/// What the bootstrap says of one figure on two sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Two-sided: how likely a difference at least this large is where there is none.
    pub p: f64,
    /// 95 % interval of the change, per cent of the first figure, by percentiles; `None` where the first figure
    /// is 0 in more than one of a hundred drawings.
    pub ci95_pct: Option<[f64; 2]>,
}

impl Spread {
    /// Nothing can be said.
    pub const UNKNOWN: Spread = Spread { p: 1.0, ci95_pct: None };
}

/// Compares a figure of two sides. A side without the figure makes it unknown.
pub fn compare(before: (&Draws, &[Ratio]), after: (&Draws, &[Ratio])) -> Spread {
    let (Some(first), Some(second)) = (ratio(before.1), ratio(after.1)) else { return Spread::UNKNOWN };
    let (old, new) = (before.0.values(before.1), after.0.values(after.1));
    let one = variance(&old, before.0.pieces);
    let two = variance(&new, after.0.pieces);
    let p = p_value(second - first, (one, before.0.pieces), (two, after.0.pieces));
    let pairs = old.iter().zip(&new);
    let mut changes: Vec<f64> = pairs
        .filter_map(|(old, new)| {
            let (old, new) = ((*old)?, (*new)?);
            (old > 0.0).then(|| (new - old) / old * 100.0)
        })
        .collect();
    changes.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| changes.get((share * (changes.len().saturating_sub(1)) as f64).round() as usize);
    let is_whole = changes.len() * 100 >= DRAWS * 99;
    let ci95_pct = at(0.025).zip(at(0.975)).map(|(low, high)| [*low, *high]).filter(|_| is_whole);
    Spread { p, ci95_pct }
}

/// Variance of the figure. Drawings of `n` pieces spread by `(n - 1) / n` too little.
fn variance(values: &[Option<f64>], pieces: usize) -> f64 {
    let known: Vec<f64> = values.iter().filter_map(|value| *value).collect();
    let count = known.len() as f64;
    if count < 2.0 {
        return 0.0;
    }
    let mean = known.iter().sum::<f64>() / count;
    let pieces = pieces.max(2) as f64;
    known.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0) * pieces / (pieces - 1.0)
}

/// Welch's test with the variances of the bootstrap.
fn p_value(difference: f64, one: (f64, usize), two: (f64, usize)) -> f64 {
    let sum = one.0 + two.0;
    if difference == 0.0 {
        return 1.0;
    }
    if sum <= 0.0 {
        return 0.0;
    }
    let freedom = |(variance, pieces): (f64, usize)| variance.powi(2) / (pieces.max(2) - 1) as f64;
    let degrees = sum.powi(2) / (freedom(one) + freedom(two));
    two_sided_t(difference / sum.sqrt(), degrees)
}

/// Probability of a value of Student's t at least as far from 0.
fn two_sided_t(t: f64, degrees: f64) -> f64 {
    if !(t.is_finite() && degrees.is_finite() && degrees > 0.0) {
        return if t.is_infinite() { 0.0 } else { 1.0 };
    }
    incomplete_beta(degrees / 2.0, 0.5, degrees / (degrees + t * t)).clamp(0.0, 1.0)
}

/// Regularised incomplete beta function, by its continued fraction (Lentz's method).
#[expect(clippy::many_single_char_names, reason = "the names that the formula has in books")]
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast on this side of the mean.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    let away = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut c, mut d) = (1.0, 1.0 / away(1.0 - (a + b) * x / (a + 1.0)));
    let mut result = d;
    for step in 1..300 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / away(1.0 + even * d);
        c = away(1.0 + even / c);
        result *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / away(1.0 + odd * d);
        c = away(1.0 + odd / c);
        result *= d * c;
        if (d * c - 1.0).abs() < 1e-14 {
            break;
        }
    }
    front * result
}

/// Logarithm of the gamma function for positive values: Stirling's series, reached by recurrence.
fn ln_gamma(value: f64) -> f64 {
    let (mut x, mut shift) = (value, 0.0);
    while x < 10.0 {
        shift += x.ln();
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series - shift
}

/// Which of the rows of a table are below `level` after Holm's correction for their number.
pub fn holm(p: &[f64], level: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    let at = |index: usize| p.get(index).copied().unwrap_or(1.0);
    order.sort_by(|a, b| at(*a).total_cmp(&at(*b)));
    let mut passed = vec![false; p.len()];
    for (done, index) in order.into_iter().enumerate() {
        if at(index) * (p.len() - done) as f64 >= level {
            break;
        }
        if let Some(slot) = passed.get_mut(index) {
            *slot = true;
        }
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits of about `mean`, ten a slice.
    fn noisy(mean: f64, noise: f64, seed: u64) -> Vec<Ratio> {
        let mut random = Random(seed);
        let mut over = [0.0; SLICES];
        for slot in &mut over {
            for _ in 0..10 {
                *slot += mean * (1.0 + noise * (random.below(2_000_001) as f64 / 1e6 - 1.0));
            }
        }
        vec![Ratio { over, under: [10.0; SLICES] }]
    }

    fn p_of(before: &[Ratio], after: &[Ratio]) -> Spread {
        let used = |recordings: &[Ratio]| vec![(0..SLICES).collect::<Vec<_>>(); recordings.len()];
        let (one, two) = (Draws::new(&used(before), 0), Draws::new(&used(after), 1));
        compare((&one, before), (&two, after))
    }

    #[test]
    fn student_s_t_is_that_of_the_tables() {
        for (t, degrees, p) in [
            (12.706, 1.0, 0.05),
            (2.228, 10.0, 0.05),
            (3.169, 10.0, 0.01),
            (2.000, 60.0, 0.05),
            (2.660, 60.0, 0.01),
            (0.0, 5.0, 1.0),
        ] {
            let found: f64 = two_sided_t(t, degrees);
            assert!((found - p).abs() < 2e-4, "{t} {degrees}: {found}");
            assert!((two_sided_t(-t, degrees) - found).abs() < 1e-12);
        }
        assert!(two_sided_t(50.0, 60.0) < 1e-20);
    }

    #[test]
    fn a_change_above_the_noise_is_seen_and_its_interval_holds_it_about_95_times_in_100() {
        let spreads = (0..60).map(|seed| p_of(&noisy(1e6, 0.3, seed), &noisy(1.05e6, 0.3, 900 + seed)));
        let held = spreads.filter(|spread| {
            assert!(spread.p < 1e-3, "{spread:?}");
            let [low, high] = spread.ci95_pct.unwrap();
            assert!(high - low < 5.0, "{spread:?}");
            low < 5.0 && 5.0 < high
        });
        let held = held.count();
        assert!(held >= 51, "{held} of 60");
    }

    #[test]
    fn chance_alone_is_below_one_per_cent_about_once_in_a_hundred() {
        let found = (0..200)
            .filter(|seed| p_of(&noisy(1e6, 0.3, 1000 + seed), &noisy(1e6, 0.3, 5000 + seed)).p < 0.01);
        let found = found.count();
        assert!(found <= 6, "{found} of 200");
    }

    #[test]
    fn the_same_twice_is_no_change() {
        let spread = p_of(&noisy(1e6, 0.3, 1), &noisy(1e6, 0.3, 1));
        assert!(spread.p >= 1.0);
        let [low, high] = spread.ci95_pct.unwrap();
        assert!(low < 0.0 && 0.0 < high);
    }

    #[test]
    fn recordings_that_differ_among_themselves_hide_a_change() {
        let side =
            |means: [f64; 3]| -> Vec<Ratio> { means.iter().flat_map(|mean| noisy(*mean, 0.01, 3)).collect() };
        let wild = p_of(&side([0.9e6, 1.0e6, 1.1e6]), &side([0.95e6, 1.05e6, 1.15e6]));
        assert!(wild.p > 0.3, "{wild:?}");
        let calm = p_of(&side([0.999e6, 1.0e6, 1.001e6]), &side([1.049e6, 1.05e6, 1.051e6]));
        assert!(calm.p < 0.001, "{calm:?}");
    }

    #[test]
    fn a_side_without_the_figure_says_nothing() {
        let nothing = vec![Ratio { over: [0.0; SLICES], under: [0.0; SLICES] }];
        assert_eq!(p_of(&nothing, &noisy(1e6, 0.3, 1)), Spread::UNKNOWN);
        let never = vec![Ratio { over: [0.0; SLICES], under: [10.0; SLICES] }];
        let spread = p_of(&never, &noisy(1e6, 0.3, 1));
        assert!(spread.p < 1e-6 && spread.ci95_pct.is_none(), "{spread:?}");
    }

    #[test]
    fn holm_s_correction_is_by_rank() {
        assert_eq!(holm(&[0.004, 0.001, 0.5, 0.0049], 0.01), [false, true, false, false]);
        assert_eq!(holm(&[0.002, 0.001, 0.004, 0.005], 0.01), [true, true, true, true]);
        assert_eq!(holm(&[0.003, 0.001, 0.004, 0.02], 0.01), [true, true, true, false]);
        assert!(holm(&[], 0.01).is_empty());
    }
}
