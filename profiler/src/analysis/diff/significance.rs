//! When a change counts as one: it is unlikely by chance, and it is large enough to matter.
//!
//! - Unlikely: the two-sided p of the block bootstrap is below 1 %, with Holm's correction for the rows of the table.
//! - Large enough: at least 2 % of its own row and 0.5 % of the total, each on the side where it is larger, so that it makes no
//!   difference which side is called before. Round-trip times are no part of the total, so for hops the first alone counts.

/// Highest p, after the correction.
pub const LEVEL: f64 = 0.01;
/// Least change of a row's own figure.
pub const OWN_MIN: f64 = 0.02;
/// Least change as a share of the total.
pub const TOTAL_MIN: f64 = 0.005;

/// A change of a figure, and of what it adds to the total per unit.
#[derive(Clone, Copy, Debug)]
pub struct Effect {
    pub before: f64,
    pub after: f64,
    /// Change of the total by this row; `None`: the row is no part of it.
    pub of_total: Option<f64>,
}

impl Effect {
    /// Whether it matters. `totals` are those of both sides.
    pub fn matters(self, totals: (f64, f64)) -> bool {
        let own = (self.after - self.before).abs();
        let total = totals.0.max(totals.1);
        own > 0.0
            && own >= OWN_MIN * self.before.max(self.after).max(0.0)
            && self.of_total.is_none_or(|change| change.abs() >= TOTAL_MIN * total)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn effect(before: f64, after: f64) -> Effect {
        Effect { before, after, of_total: Some(after - before) }
    }

    #[test]
    fn small_changes_do_not_matter() {
        assert!(effect(100.0, 102.1).matters((100.0, 102.1)));
        assert!(!effect(100.0, 101.9).matters((100.0, 101.9)));
        assert!(!effect(100.0, 150.0).matters((100_000.0, 100_000.0)));
        assert!(effect(0.0, 1.0).matters((100.0, 100.0)));
        assert!(!effect(5.0, 5.0).matters((0.0, 0.0)));
        assert!(effect(100.0, 90.0).matters((100.0, 90.0)));
        assert!(Effect { of_total: None, ..effect(1.0, 2.0) }.matters((1e9, 1e9)));
    }

    #[test]
    fn a_share_is_of_the_larger_total() {
        // 1 of 150 and of 250: above 0.5 % of the one alone.
        assert!(!effect(10.0, 11.0).matters((150.0, 250.0)));
        assert!(!effect(11.0, 10.0).matters((250.0, 150.0)));
    }

    proptest! {
        #[test]
        fn what_matters_does_so_in_both_directions(
            before in 0.0..1e3_f64, change in -30.0..30.0_f64, old in 0.0..1e4_f64, new in 0.0..1e4_f64
        ) {
            let after = (before + change).max(0.0);
            prop_assert_eq!(effect(before, after).matters((old, new)), effect(after, before).matters((new, old)));
        }
    }
}
