//! When verbs are watched: throughout where that is cheap, in short random windows where it is not.
//!
//! The share of a core that the target may lose is saved up, for a while at most, and spent by what the probes cost it. When
//! nothing is left the window closes. From then on windows and the gaps between them are settled before they begin, with lengths
//! drawn at random about those that cost what is allowed in the long run: neither ends because of what happens in it, so that
//! what is seen in windows stands for the rest. When watching has become cheap again, the window stays open.

use crate::model::queue::windows::PLANNED_MOST_NS;
use crate::random::Random;

/// For how long is saved, nanoseconds.
const SAVED_NS: f64 = 300e6;
/// The least part of what can be saved that a window is to cost.
const LEAST: f64 = 0.25;
/// A window is this long at least, nanoseconds: queues have to drain in it.
const WINDOW_MIN_NS: u64 = 10_000_000;
/// What was spent in the last time of this length, nanoseconds of open windows, says what the next one will cost.
const MEMORY_NS: f64 = 1e9;
/// A gap is no longer than this, nanoseconds: an hour.
const GAP_MOST_NS: f64 = 3600e9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Open,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Open as long as that is cheap.
    Throughout,
    /// A window, to this time.
    Open(u64),
    /// A gap to the first time, and the length of the window behind it.
    Closed(u64, u64),
}

#[derive(Debug)]
pub(super) struct Budget {
    /// Share of a core.
    pub(super) allowed: f64,
    /// What can be spent, nanoseconds of the target's time; below 0 it is owed.
    credit_ns: f64,
    at_ns: u64,
    opened_ns: u64,
    phase: Phase,
    random: Random,
    /// Of late: what was spent, and for how long windows were open.
    late_spent_ns: f64,
    late_open_ns: f64,
    /// Since the first window opened: the same.
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
            at_ns: 0,
            opened_ns: 0,
            phase: Phase::Throughout,
            random: Random(seed),
            late_spent_ns: 0.0,
            late_open_ns: 0.0,
            spent_ns: 0.0,
            open_ns: 0,
            hits: 0,
            windows: 1,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Closed(..))
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
        self.count(lasted_ns, hits, cost_ns);
        match self.phase {
            Phase::Throughout => {
                let old = now_ns.saturating_sub(self.opened_ns) >= WINDOW_MIN_NS;
                (self.credit_ns < 0.0 && old).then(|| self.close(now_ns))
            }
            Phase::Open(end_ns) if now_ns < end_ns => None,
            Phase::Open(_) if self.share() <= self.allowed && self.late_open_ns >= MEMORY_NS / 2.0 => {
                self.phase = Phase::Throughout;
                self.credit_ns = self.credit_ns.max(0.0);
                None
            }
            Phase::Open(_) => Some(self.close(now_ns)),
            Phase::Closed(end_ns, _) if now_ns < end_ns => None,
            Phase::Closed(_, window_ns) => {
                (self.phase, self.opened_ns) = (Phase::Open(now_ns.saturating_add(window_ns)), now_ns);
                self.windows += 1;
                Some(Change::Open)
            }
        }
    }

    fn count(&mut self, lasted_ns: u64, hits: u64, cost_ns: f64) {
        self.spent_ns += cost_ns;
        self.hits += hits;
        if self.is_open() {
            self.open_ns += lasted_ns;
            let kept = (-(lasted_ns as f64) / MEMORY_NS).exp();
            self.late_spent_ns = self.late_spent_ns * kept + cost_ns;
            self.late_open_ns = self.late_open_ns * kept + lasted_ns as f64;
        }
        let saved = self.credit_ns + self.allowed * lasted_ns as f64;
        self.credit_ns = saved.min(self.allowed * SAVED_NS) - cost_ns;
    }

    /// Of open windows' time, what watching takes.
    fn share(&self) -> f64 {
        self.late_spent_ns / self.late_open_ns.max(1.0)
    }

    /// Settles the next window and the gap before it. Both are drawn before anything of them is seen, and from what many
    /// windows cost, not from what the last one did.
    fn close(&mut self, now_ns: u64) -> Change {
        let share = self.share();
        let wanted_ns = self.allowed * SAVED_NS * (LEAST + (1.0 - LEAST) * self.random.share());
        let window_ns =
            (wanted_ns / share.max(1e-9)).clamp(WINDOW_MIN_NS as f64, PLANNED_MOST_NS as f64 * 0.9);
        let allowed = self.allowed.max(1e-12);
        let even_ns = window_ns * (share / allowed - 1.0).max(0.0);
        // What is owed is made up for bit by bit, but for the first window's at once.
        let owed_ns = (-self.credit_ns).max(0.0) / allowed;
        let owed_ns = if self.windows == 1 { owed_ns } else { (owed_ns - even_ns).clamp(0.0, even_ns) / 2.0 };
        let gap_ns =
            (even_ns * (0.5 + self.random.share()) + owed_ns).clamp(WINDOW_MIN_NS as f64, GAP_MOST_NS);
        self.phase = Phase::Closed(now_ns.saturating_add(gap_ns as u64), window_ns as u64);
        Change::Close
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
    use crate::model::queue::windows::{Seen, scale};
    use crate::model::thread::Interval;

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

    /// A program that posts in bursts: `rate` posts a second, for spells of this mean length, then as long nothing.
    #[derive(Clone, Copy)]
    struct Program {
        rate: f64,
        spell_ns: f64,
        /// Each probe's hit delays the next post.
        slowed: bool,
    }

    /// What a recording of a minute makes of its posts, as a share of them, and the half-width of the error that it tells.
    fn estimate(program: Program, seed: u64) -> (f64, Option<f64>) {
        const DRAIN_NS: u64 = 4_000_000;
        const HIT_NS: f64 = profiler_common::verbs::HIT_NS as f64;
        let mut random = Random(seed);
        let mut budget = Budget::new(0.005, seed + 1);
        budget.step(1, 0, 0.0);
        let spell = |random: &mut Random| program.spell_ns * -(1.0 - random.share()).ln();
        let (mut busy, mut left_ns) = (random.share() < 0.5, spell(&mut random));
        let whole = Interval { start_ns: 1, end_ns: 60_000_000_000 };
        let (mut seen, mut posted) = (Vec::new(), 0.0);
        let (mut opened_ns, mut now_ns, mut inside) = (1, 1, 0.0);
        while now_ns < whole.end_ns {
            let mut busy_ns = 0.0;
            let mut rest_ns = DRAIN_NS as f64;
            while rest_ns > 0.0 {
                let part = rest_ns.min(left_ns);
                busy_ns += if busy { part } else { 0.0 };
                (rest_ns, left_ns) = (rest_ns - part, left_ns - part);
                if left_ns <= 0.0 {
                    (busy, left_ns) = (!busy, spell(&mut random));
                }
            }
            now_ns += DRAIN_NS;
            // What it would have posted without probes is what is asked for.
            let posts = busy_ns / 1e9 * program.rate;
            posted += posts;
            let open = budget.is_open();
            let hit = match (open, program.slowed) {
                (false, _) => 0.0,
                (true, false) => posts,
                (true, true) => posts / (1.0 + program.rate * HIT_NS / 1e9),
            };
            inside += hit;
            match budget.step(now_ns, hit as u64, hit * HIT_NS) {
                Some(Change::Close) => {
                    let window = Interval { start_ns: opened_ns, end_ns: now_ns };
                    let lost = (inside * HIT_NS / window.len() as f64).min(0.8);
                    seen.push(Seen { window, posts: inside as u64, lost });
                }
                Some(Change::Open) => (opened_ns, inside) = (now_ns, 0.0),
                None => {}
            }
        }
        if budget.is_open() {
            let window = Interval { start_ns: opened_ns, end_ns: now_ns };
            seen.push(Seen {
                window,
                posts: inside as u64,
                lost: (inside * HIT_NS / window.len() as f64).min(0.8),
            });
        }
        let scale = scale(&seen, 0, whole);
        let sum: u64 = seen.iter().map(|one| one.posts).sum();
        (sum as f64 * scale.counts / posted, scale.error)
    }

    /// Mean of many recordings' estimates, and how many of them have the truth within the error that they tell.
    fn many(program: Program) -> (f64, f64) {
        let seeds = 40;
        let all: Vec<(f64, Option<f64>)> = (1..=seeds).map(|seed| estimate(program, seed * 7919)).collect();
        let mean = all.iter().map(|one| one.0).sum::<f64>() / seeds as f64;
        let held = all
            .iter()
            .filter(|(share, error)| error.is_some_and(|error| (share - 1.0).abs() <= error * share));
        (mean, held.count() as f64 / seeds as f64)
    }

    #[test]
    fn posts_in_windows_stand_for_all_whatever_the_length_of_bursts() {
        for spell_ns in [5e6, 50e6, 300e6, 2e9] {
            let (mean, held) = many(Program { rate: 20_000.0, spell_ns, slowed: false });
            println!("spells of {spell_ns:e} ns: {mean:.3}, within the error {held:.2}");
            // Half of the cost of watching is added, since the program may have been slowed down by it: 2.6 % of a busy spell.
            assert!((0.95..1.09).contains(&mean), "spells of {spell_ns} ns: {mean}");
            assert!(held >= 0.8, "spells of {spell_ns} ns: {held}");
        }
    }

    #[test]
    fn a_program_that_is_slowed_down_by_probes_is_within_the_error() {
        let (mean, held) = many(Program { rate: 90_000.0, spell_ns: 100e6, slowed: true });
        println!("{mean:.3}, within the error {held:.2}");
        assert!((0.85..1.0).contains(&mean), "{mean}");
        assert!(held >= 0.8, "{held}");
    }
}
