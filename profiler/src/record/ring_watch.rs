//! Whether any process of the target has a ring of `io_uring`: only then is there something that the probes miss.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use profiler_common::Call;

use crate::target::traits::has_io_uring;
use crate::target::{ProcRoot, TargetSet};
use crate::trace::record::CallCount;

/// Between two looks …
const INTERVAL_NS: u64 = 1_000_000_000;
/// … or more, so that they take no more than one part in so many of the time.
const SHARE: u32 = 200;

#[derive(Debug)]
pub(super) struct RingWatch {
    root: ProcRoot,
    seen: bool,
    next_ns: u64,
}

impl RingWatch {
    pub(super) fn new(root: ProcRoot) -> RingWatch {
        RingWatch { root, seen: false, next_ns: 0 }
    }

    /// Looks at the descriptors of all targets, where it is time to and no ring was found yet.
    pub(super) fn look(&mut self, targets: &TargetSet, now_ns: u64) {
        if self.seen || now_ns < self.next_ns {
            return;
        }
        let begin = processor_time();
        self.seen = targets.pids().any(|pid| has_io_uring(&self.root, pid));
        let cost = processor_time().saturating_sub(begin);
        self.next_ns = now_ns.saturating_add(INTERVAL_NS.max(nanos(cost.saturating_mul(SHARE))));
    }

    /// A last look; a ring that was gone by then is known by the calls on it.
    pub(super) fn was_there(&mut self, targets: &TargetSet, counts: &[CallCount]) -> bool {
        self.seen |= counts.iter().any(|count| count.call == Call::IoUringEnter && count.seen > 0);
        self.next_ns = 0;
        self.look(targets, 0);
        self.seen
    }
}

/// Processor time that this thread has used, however busy the machine is.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
