//! Decides what happens to each packet: pure, so that the same seed and packets give the same result.

use std::time::Duration;

use super::super::clock::nanos;
use super::script::{Direction, LinkScript, Settings};
use crate::random::Random;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is to be delivered at this time (nanoseconds, of the clock that the packet's own time is of).
    Deliver { due_ns: u64, overtakes: bool },
    /// The script says so.
    Lost,
    /// Too much waits for its turn at the link's rate.
    QueueFull,
}

/// One direction of a link.
#[derive(Clone, Debug)]
struct Lane {
    random: Random,
    /// Until when packets before are on the wire.
    busy_until_ns: u64,
    /// Of the last packet that keeps the order.
    last_due_ns: u64,
}

/// Both directions of a link.
#[derive(Clone, Debug)]
pub struct Shaper {
    script: LinkScript,
    lanes: [Lane; 2],
}

impl Shaper {
    pub fn new(script: LinkScript) -> Shaper {
        let seed = script.seed_value();
        let lane = |number| Lane { random: Random(seed ^ number), busy_until_ns: 0, last_due_ns: 0 };
        // Both directions make choices of their own.
        Shaper { lanes: [lane(0), lane(0x5851_f42d_4c95_7f2d)], script }
    }

    /// A packet of `bytes` that came at `now_ns`, in a link that began at `began_ns`.
    pub fn take(&mut self, began_ns: u64, now_ns: u64, direction: Direction, bytes: usize) -> Fate {
        let since = Duration::from_nanos(now_ns.saturating_sub(began_ns));
        let settings = self.script.at(since, direction);
        let [first, second] = &mut self.lanes;
        let lane = if direction.index() == 0 { first } else { second };
        lane.take(settings, now_ns, bytes as u64)
    }
}

impl Lane {
    fn take(&mut self, settings: Settings, now_ns: u64, bytes: u64) -> Fate {
        // Always as many choices for a packet, whatever the settings: a script that changes one thing leaves the
        // others as they were.
        let [loss, reorder, jitter] = [(); 3].map(|()| self.random.share());
        if loss < settings.loss {
            return Fate::Lost;
        }
        let free_ns = self.busy_until_ns.max(now_ns);
        let mut sent_ns = now_ns;
        if settings.rate > 0 {
            let waiting = u128::from(free_ns - now_ns) * u128::from(settings.rate) / 8_000_000_000;
            if waiting + u128::from(bytes) > u128::from(settings.queue) {
                return Fate::QueueFull;
            }
            let takes = u128::from(bytes) * 8_000_000_000 / u128::from(settings.rate);
            sent_ns = free_ns.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX));
            self.busy_until_ns = sent_ns;
        }
        if reorder < settings.reorder {
            return Fate::Deliver { due_ns: sent_ns, overtakes: sent_ns < self.last_due_ns };
        }
        let late = nanos(settings.delay).saturating_add((jitter * nanos(settings.jitter) as f64) as u64);
        self.last_due_ns = self.last_due_ns.max(sent_ns.saturating_add(late));
        Fate::Deliver { due_ns: self.last_due_ns, overtakes: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BEGAN: u64 = 7 * MS;

    fn fates(script: &str, seed: u64, times: impl IntoIterator<Item = u64>, bytes: usize) -> Vec<Fate> {
        let script: LinkScript = script.parse().unwrap();
        let mut shaper = Shaper::new(script.seed(seed));
        let each = |ms| shaper.take(BEGAN, BEGAN + ms * MS, Direction::AToB, bytes);
        times.into_iter().map(each).collect()
    }

    fn dues(fates: &[Fate]) -> Vec<u64> {
        let due = |fate: &Fate| match fate {
            Fate::Deliver { due_ns, .. } => Some(due_ns - BEGAN),
            _ => None,
        };
        fates.iter().filter_map(due).collect()
    }

    #[test]
    fn every_packet_is_as_late_as_scripted_at_its_time() {
        let script = "0s both delay 2ms\n1s a->b delay 30ms\n";
        let fates = fates(script, 1, [0, 10, 1000], 100);
        assert_eq!(dues(&fates), [2 * MS, 12 * MS, 1030 * MS]);
    }

    #[test]
    fn jitter_is_added_within_its_bounds_and_keeps_the_order() {
        let dues = dues(&fates("0s both delay 5ms jitter 4ms", 3, 0..500, 100));
        assert!(dues.is_sorted());
        let late: Vec<u64> = (0..).zip(&dues).map(|(ms, due)| due - ms * MS).collect();
        assert!(late.iter().all(|late| (5 * MS..9 * MS).contains(late)), "{late:?}");
        let mean = late.iter().sum::<u64>() / 500;
        assert!((7 * MS..15 * MS / 2).contains(&mean), "evenly, and later where order demands it: {mean}");
    }

    #[test]
    fn the_share_that_is_lost_is_the_scripted_one_and_the_seed_s() {
        let lost = |seed| fates("0s a->b loss 10%", seed, 0..10_000, 100);
        let count = lost(1).iter().filter(|fate| **fate == Fate::Lost).count();
        assert!((900..1100).contains(&count), "{count} of 10000");
        assert_eq!(lost(1), lost(1));
        assert_ne!(lost(1), lost(2));
        let none = fates("0s b->a loss 100%", 1, 0..100, 100);
        assert!(!none.contains(&Fate::Lost), "the other direction");
    }

    #[test]
    fn reordered_packets_overtake_those_before_them() {
        let fates = fates("0s both delay 50ms reorder 20%", 5, 0..1000, 100);
        let overtaking = |fate: &&Fate| matches!(fate, Fate::Deliver { overtakes: true, .. });
        let count = fates.iter().filter(overtaking).count();
        assert!((150..250).contains(&count), "{count} of 1000");
        assert!(!dues(&fates).is_sorted());
    }

    #[test]
    fn a_rate_sends_packets_one_after_another_and_a_full_queue_drops() {
        // 1000 bytes take 8 ms at one megabit.
        let fates = fates("0s both delay 1ms rate 1mbit queue 3000B", 1, [0, 0, 0, 0, 100], 1000);
        assert_eq!(dues(&fates), [9 * MS, 17 * MS, 25 * MS, 109 * MS]);
        assert_eq!(fates[3], Fate::QueueFull);
    }

    #[test]
    fn a_setting_that_is_added_changes_nothing_else() {
        let lost = |script: &str| {
            let fates = fates(script, 9, 0..500, 100);
            fates.iter().map(|fate| *fate == Fate::Lost).collect::<Vec<_>>()
        };
        assert_eq!(lost("0s both loss 20%"), lost("0s both loss 20% delay 3ms jitter 2ms reorder 10%"));
    }
}
