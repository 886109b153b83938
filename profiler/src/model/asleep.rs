//! Where in a wait its thread slept, in twelve bytes: there are millions of waits.

use super::thread::Interval;
use crate::trace::record::Wait;

/// A length of time: exact below two seconds, whole microseconds above, and never more than half an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Short(u32);

const IN_MICROSECONDS: u32 = 1 << 31;

impl Short {
    fn new(ns: u64) -> Short {
        match u32::try_from(ns) {
            Ok(ns) if ns < IN_MICROSECONDS => Short(ns),
            _ => Short(u32::try_from(ns / 1000).unwrap_or(u32::MAX) | IN_MICROSECONDS),
        }
    }

    fn ns(self) -> u64 {
        let value = u64::from(self.0 & !IN_MICROSECONDS);
        if self.0 & IN_MICROSECONDS == 0 { value } else { value * 1000 }
    }
}

/// Empty where the scheduler's probes did not run: then the whole wait counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asleep {
    /// From the beginning to the first sleep.
    lead: Short,
    /// From the last wake-up to the end.
    tail: Short,
    /// In between: on a processor or waiting for one.
    awake: Short,
    never: bool,
}

impl Asleep {
    pub fn of(wait: &Wait) -> Asleep {
        let sched = wait.sched;
        if wait.flags.nonblocking {
            // It looks instead of sleeping, but a thread without a processor cannot look.
            return Asleep { awake: Short::new(sched.runq_ns), ..Asleep::default() };
        }
        if !wait.flags.timed {
            return Asleep::default();
        }
        if !wait.flags.slept || sched.sleep_ns == 0 {
            return Asleep { never: true, ..Asleep::default() };
        }
        let begin_ns = sched.sleep_ns.clamp(wait.start_ns, wait.end_ns);
        let end_ns = sched.wake_ns.clamp(begin_ns, wait.end_ns);
        Asleep {
            lead: Short::new(begin_ns - wait.start_ns),
            tail: Short::new(wait.end_ns - end_ns),
            awake: Short::new((end_ns - begin_ns).saturating_sub(wait.off_cpu_ns)),
            never: false,
        }
    }

    /// The numbers that it consists of, and whether the thread never slept.
    pub(super) fn raw(self) -> ([u32; 3], bool) {
        ([self.lead.0, self.tail.0, self.awake.0], self.never)
    }

    pub(super) fn from_raw([lead, tail, awake]: [u32; 3], never: bool) -> Asleep {
        Asleep { lead: Short(lead), tail: Short(tail), awake: Short(awake), never }
    }

    /// From the first sleep to the last wake-up of a wait with these ends; empty without a sleep.
    pub(super) fn within(self, start_ns: u64, end_ns: u64) -> Interval {
        if self.never {
            return Interval { start_ns, end_ns: start_ns };
        }
        let begin_ns = start_ns.saturating_add(self.lead.ns()).min(end_ns);
        Interval { start_ns: begin_ns, end_ns: end_ns.saturating_sub(self.tail.ns()).max(begin_ns) }
    }

    /// What `part` has of the sleep in `whole`.
    pub(super) fn share(self, whole: Interval, part: Interval) -> u64 {
        let part = part.clip(whole);
        let len = whole.len();
        let awake = self.awake.ns().min(len);
        if part.is_empty() || awake == 0 {
            return part.len();
        }
        let until = |time_ns: u64| {
            let passed = u128::from(time_ns - whole.start_ns) * u128::from(len - awake) / u128::from(len);
            u64::try_from(passed).unwrap_or(u64::MAX)
        };
        until(part.end_ns) - until(part.start_ns)
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::Call;
    use proptest::prelude::*;

    use super::*;
    use crate::model::fixture::{slept, spin, wait};
    use crate::trace::record::{Sched, WaitFlags};

    fn read() -> Wait {
        wait(Call::Read, 1000, 2000, Vec::new())
    }

    fn interval(start_ns: u64, end_ns: u64) -> Interval {
        Interval { start_ns, end_ns }
    }

    #[test]
    fn a_wait_of_which_no_sleep_is_known_counts_as_a_whole() {
        assert_eq!(Asleep::of(&read()).within(1000, 2000), interval(1000, 2000));
    }

    #[test]
    fn a_wait_without_a_sleep_is_empty_and_one_with_a_sleep_ends_with_the_wake_up() {
        let awake = Wait { flags: WaitFlags { timed: true, ..WaitFlags::default() }, ..read() };
        assert!(Asleep::of(&awake).within(1000, 2000).is_empty());
        let asleep = Asleep::of(&slept(1010, 1800, read()));
        assert_eq!(asleep.within(1000, 2000), interval(1010, 1800));
        assert_eq!(asleep.share(interval(1010, 1800), interval(0, 9000)), 790);
    }

    #[test]
    fn time_awake_between_sleeps_is_spread_evenly() {
        let twice = Wait { off_cpu_ns: 600, ..slept(1000, 1800, read()) };
        let asleep = Asleep::of(&twice);
        let whole = asleep.within(1000, 2000);
        assert_eq!(asleep.share(whole, whole), 600);
        assert_eq!(asleep.share(whole, interval(1000, 1400)), 300);
    }

    #[test]
    fn a_spinning_thread_waits_while_it_has_a_processor() {
        let looked = spin(Wait { sched: Sched { runq_ns: 250, ..Sched::default() }, ..read() });
        let asleep = Asleep::of(&looked);
        assert_eq!(asleep.within(1000, 2000), interval(1000, 2000));
        assert_eq!(asleep.share(interval(1000, 2000), interval(1000, 2000)), 750);
    }

    #[test]
    fn long_times_are_kept_in_microseconds() {
        assert_eq!(Short::new(2_147_483_647).ns(), 2_147_483_647);
        assert_eq!(Short::new(60_000_000_001).ns(), 60_000_000_000);
        assert!(Short::new(u64::MAX).ns() > 1_700_000_000_000);
    }

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_whole(
            start in 0_u64..1 << 60, len in 0_u64..1 << 40, sleep in any::<u64>(), wake in any::<u64>(),
            off_cpu in any::<u64>(), cut in 0_u64..1 << 40,
        ) {
            let mut odd = slept(0, 0, wait(Call::Read, start, start + len, Vec::new()));
            odd.sched = Sched { sleep_ns: sleep, wake_ns: wake, runq_ns: 0, owner: 0 };
            odd.off_cpu_ns = off_cpu;
            let asleep = Asleep::of(&odd);
            let whole = asleep.within(start, start + len);
            prop_assert!(whole.start_ns >= start && whole.end_ns <= start + len);
            let cut = whole.start_ns + cut.min(whole.len());
            let parts = asleep.share(whole, interval(whole.start_ns, cut)) + asleep.share(whole, interval(cut, whole.end_ns));
            prop_assert_eq!(parts, asleep.share(whole, whole));
            prop_assert!(parts <= whole.len());
        }
    }
}
