//! Why something could not be seen: each reason once, and not without end.

use std::collections::BTreeSet;
use std::fmt::Display;

/// Reasons that are kept.
const KEPT: usize = 16;
/// Reasons that are told.
const TOLD: usize = 3;

#[derive(Debug, Default)]
pub(super) struct Reasons(BTreeSet<String>);

impl Reasons {
    pub(super) fn add(&mut self, reason: impl Display) {
        if self.0.len() < KEPT {
            self.0.insert(reason.to_string());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first ones, joined by semicolons; empty where there are none.
    pub(super) fn text(&self) -> String {
        self.0.iter().take(TOLD).map(String::as_str).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_told_once_and_three_of_them_at_most() {
        let mut reasons = Reasons::default();
        assert!(reasons.is_empty() && reasons.text().is_empty());
        for number in (0..1000).chain(0..1000) {
            reasons.add(format_args!("reason {number:03}"));
        }
        assert_eq!(reasons.0.len(), KEPT);
        assert_eq!(reasons.text(), "reason 000; reason 001; reason 002");
    }
}
