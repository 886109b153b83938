//! When a change counts as one: it is unlikely by chance, and it is large enough to matter.
//!
//! - Unlikely: the two-sided p of the block bootstrap is below 1 %, with Holm's correction for the rows of the table.
//! - Large enough: at least 2 % of what its own row was, and 0.5 % of the total. Round-trip times are no part of the
//!   total, so for hops the first alone counts.

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
    /// Whether it matters. A row that was 0 changed by more than any share of it.
    pub fn matters(self, total_before: f64) -> bool {
        let own = (self.after - self.before).abs();
        own > 0.0
            && own >= OWN_MIN * self.before.max(0.0)
            && self.of_total.is_none_or(|change| change.abs() >= TOTAL_MIN * total_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_do_not_matter() {
        let effect = |before, after| Effect { before, after, of_total: Some(after - before) };
        assert!(effect(100.0, 102.0).matters(100.0));
        assert!(!effect(100.0, 101.9).matters(100.0));
        assert!(!effect(100.0, 150.0).matters(100_000.0));
        assert!(effect(0.0, 1.0).matters(100.0));
        assert!(!effect(5.0, 5.0).matters(0.0));
        assert!(effect(100.0, 90.0).matters(100.0));
        assert!(Effect { of_total: None, ..effect(1.0, 2.0) }.matters(1e9));
    }
}
