//! When verbs are watched: throughout where that is cheap, in short random windows where it is not.
//!
//! The share of a core that the target may lose is saved up, for a while at most, and spent by what the probes cost it.
//! When nothing is left the window closes; it opens again when an amount drawn at random has been saved, so that
//! no rhythm of the program is met again and again at the same place.

use crate::random::Random;

/// For how long is saved, nanoseconds.
const SAVED_NS: f64 = 300e6;
/// The least part of what can be saved that opens a window.
const LEAST: f64 = 0.25;
/// A window is this long at least, nanoseconds: queues have to drain in it.
const WINDOW_MIN_NS: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Open,
    Close,
}

#[derive(Debug)]
pub(super) struct Budget {
    /// Share of a core.
    pub(super) allowed: f64,
    /// What can be spent, nanoseconds of the target's time; below 0 it is owed.
    credit_ns: f64,
    /// What opens the next window.
    wanted_ns: f64,
    at_ns: u64,
    opened_ns: u64,
    open: bool,
    random: Random,
    /// Since the first window opened: what was spent, and for how long windows were open.
    spent_ns: f64,
    open_ns: u64,
    hits: u64,
    windows: u64,
}

impl Budget {
    pub(super) fn new(allowed: f64, seed: u64) -> Budget {
        Budget {
            allowed,
            credit_ns: allowed * SAVED_NS,
            wanted_ns: 0.0,
            at_ns: 0,
            opened_ns: 0,
            open: true,
            random: Random(seed),
            spent_ns: 0.0,
            open_ns: 0,
            hits: 0,
            windows: 1,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Windows so far, that of the beginning among them.
    pub(super) fn windows(&self) -> u64 {
        self.windows
    }

    /// Since the last call the probes were hit so often, which took the target `cost_ns`.
    pub(super) fn step(&mut self, now_ns: u64, hits: u64, cost_ns: f64) -> Option<Change> {
        let began = self.at_ns == 0;
        let lasted_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = now_ns;
        if began {
            self.opened_ns = now_ns;
            return None;
        }
        self.spent_ns += cost_ns;
        self.hits += hits;
        if self.open {
            self.open_ns += lasted_ns;
        }
        let saved = self.credit_ns + self.allowed * lasted_ns as f64;
        self.credit_ns = saved.min(self.allowed * SAVED_NS) - cost_ns;
        if self.open {
            let old = now_ns.saturating_sub(self.opened_ns) >= WINDOW_MIN_NS;
            if self.credit_ns >= 0.0 || !old {
                return None;
            }
            self.open = false;
            self.wanted_ns = self.allowed * SAVED_NS * (LEAST + (1.0 - LEAST) * self.random.share());
            return Some(Change::Close);
        }
        if self.credit_ns < self.wanted_ns {
            return None;
        }
        (self.open, self.opened_ns) = (true, now_ns);
        self.windows += 1;
        Some(Change::Open)
    }

    /// Hits a second, and the share of a core that they would take, while windows were open.
    pub(super) fn rate(&self) -> (f64, f64) {
        let ns = (self.open_ns as f64).max(1.0);
        (self.hits as f64 * 1e9 / ns, self.spent_ns / ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_NS: u64 = 10_000_000;

    /// Steps of 10 ms in which an open window costs `share` of the time; when it was open.
    fn run(budget: &mut Budget, share: f64, steps: u64) -> Vec<bool> {
        let mut open = Vec::new();
        for step in 1..=steps {
            let cost_ns = if budget.is_open() { share * STEP_NS as f64 } else { 0.0 };
            budget.step(step * STEP_NS, 1, cost_ns);
            open.push(budget.is_open());
        }
        open
    }

    #[test]
    fn what_is_cheap_is_watched_throughout() {
        let mut budget = Budget::new(0.005, 1);
        assert!(run(&mut budget, 0.0049, 10_000).into_iter().all(|open| open));
        assert_eq!(budget.windows(), 1);
        let mut bursts = Budget::new(0.005, 1);
        assert_eq!(bursts.step(STEP_NS, 0, 0.0), None);
        assert_eq!(bursts.step(2 * STEP_NS, 400, 1.4e6), None, "a burst is paid from what was saved");
    }

    #[test]
    fn what_is_dear_is_watched_in_windows_and_costs_what_is_allowed() {
        let mut budget = Budget::new(0.005, 1);
        let steps = 100_000;
        let open = run(&mut budget, 0.3, steps);
        let cost = 0.3 * open.iter().filter(|open| **open).count() as f64 / steps as f64;
        assert!((0.0045..0.0055).contains(&cost), "{cost}");
        assert!(budget.windows() > 100, "{}", budget.windows());
        let (_, share) = budget.rate();
        assert!((share - 0.3).abs() < 0.01, "{share}");
        // The gaps are of many lengths.
        let gaps: std::collections::BTreeSet<usize> =
            open.split(|open| *open).map(<[bool]>::len).filter(|len| *len > 0).collect();
        assert!(gaps.len() > 10, "{gaps:?}");
    }

    #[test]
    fn what_becomes_cheap_is_watched_throughout_again() {
        let mut budget = Budget::new(0.005, 1);
        run(&mut budget, 0.3, 1000);
        let open = run(&mut budget, 0.001, 10_000);
        assert!(open[5000..].iter().all(|open| *open));
    }
}
