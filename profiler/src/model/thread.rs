//! One thread of the target over the window.

use super::packed::PackedWaits;
use super::wait::WaitSpan;
use crate::trace::record::{CpuSamples, ThreadTime};

/// `[start_ns, end_ns)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    pub start_ns: u64,
    pub end_ns: u64,
}

impl Interval {
    /// Nanoseconds, 0 where the end lies before the start.
    pub fn len(self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }

    pub fn is_empty(self) -> bool {
        self.end_ns <= self.start_ns
    }

    /// What both have in common; empty where they do not touch.
    #[must_use]
    pub fn clip(self, to: Interval) -> Interval {
        Interval { start_ns: self.start_ns.max(to.start_ns), end_ns: self.end_ns.min(to.end_ns) }
    }
}

/// A thread with its waits, or with a portion of them.
#[derive(Clone, Debug, Default)]
pub struct ThreadTrack {
    pub pid: u32,
    pub tid: u32,
    /// Within the window. Begins where the thread was first known of (its birth, the first look at it or
    /// its first wait), ends with its exit.
    pub presence: Interval,
    /// Born while the recording ran, so its CPU times begin at 0.
    pub born: bool,
    /// Earliest and latest look at its CPU times.
    pub times: Option<(ThreadTime, ThreadTime)>,
    /// Where the recording sampled the processors.
    pub samples: Option<CpuSamples>,
    /// Whether any of its waits, also of those that are not here, is on a non-blocking descriptor.
    pub spins: bool,
    /// Waits before those that are here.
    pub first: u32,
    /// By start; of waits with the same start the longer first.
    pub waits: Vec<WaitSpan>,
}

/// A thread with its waits packed.
#[derive(Clone, Debug, Default)]
pub struct StoredThread {
    /// Without waits.
    pub track: ThreadTrack,
    pub waits: PackedWaits,
}
