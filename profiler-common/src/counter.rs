//! Counters that the eBPF programs keep for each CPU.

/// Value of the per-CPU array `CALL_TOTALS`, indexed by `Call`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallTotals {
    /// Calls of the targets whose return was seen.
    pub seen: u64,
    /// Those of them that were below the threshold and made no record.
    pub below: u64,
    /// Total duration of the calls counted in `below`, nanoseconds.
    pub below_ns: u64,
}

/// Index into the per-CPU array `LOSSES` (`u64` each): what could not be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Loss {
    /// Ring buffer full: a wait was lost.
    WaitRing = 0,
    /// Ring buffer full: a DNS message was lost.
    DnsRing = 1,
    /// Ring buffer full: a stack was lost, and its wait has no frames.
    StackRing = 2,
    /// Ring buffer full: any other record.
    OtherRing = 3,
    /// A table of calls in progress was full: a call was not followed.
    CallTable = 4,
    /// A table of waits on non-blocking descriptors was full.
    NonblockingTable = 5,
    /// A table of handshakes was full.
    HandshakeTable = 6,
    /// A user stack could not be read or was cut.
    StackTruncated = 7,
    /// A poll set had more descriptors than are looked at, or could not be read to its end.
    PollSetTruncated = 8,
    /// The table of targets was full: a child is not followed.
    TargetTable = 9,
    /// A thread's stacks were new too often: a wait goes without user frames.
    StackCopiesLimited = 10,
    /// Ring buffer full: a posted request or a completion was lost.
    VerbsRing = 11,
    /// A list of requests was longer than is followed, or could not be read to its end.
    VerbsList = 12,
    /// The table of samples was full: a thread is not sampled.
    SampleTable = 13,
}

pub const LOSS_COUNT: usize = 14;

impl Loss {
    pub const ALL: [Loss; LOSS_COUNT] = [
        Loss::WaitRing,
        Loss::DnsRing,
        Loss::StackRing,
        Loss::OtherRing,
        Loss::CallTable,
        Loss::NonblockingTable,
        Loss::HandshakeTable,
        Loss::StackTruncated,
        Loss::PollSetTruncated,
        Loss::TargetTable,
        Loss::StackCopiesLimited,
        Loss::VerbsRing,
        Loss::VerbsList,
        Loss::SampleTable,
    ];

    /// Name in the trace's loss table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Loss::WaitRing => "wait_ring_full",
            Loss::DnsRing => "dns_ring_full",
            Loss::StackRing => "stack_ring_full",
            Loss::OtherRing => "other_ring_full",
            Loss::CallTable => "call_table_full",
            Loss::NonblockingTable => "nonblocking_table_full",
            Loss::HandshakeTable => "handshake_table_full",
            Loss::StackTruncated => "stack_truncated",
            Loss::PollSetTruncated => "poll_set_truncated",
            Loss::TargetTable => "target_table_full",
            Loss::StackCopiesLimited => "stack_copies_limited",
            Loss::VerbsRing => "verbs_ring_full",
            Loss::VerbsList => "verbs_list_cut",
            Loss::SampleTable => "sample_table_full",
        }
    }

    /// Whether an event (rather than a part of one) is missing from the trace.
    #[must_use]
    pub const fn is_event(self) -> bool {
        !matches!(
            self,
            Loss::StackTruncated
                | Loss::PollSetTruncated
                | Loss::StackRing
                | Loss::StackCopiesLimited
                | Loss::SampleTable
        )
    }
}

const _: () = assert!(size_of::<CallTotals>() == 24);

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding: every bit pattern is valid.
    unsafe impl aya::Pod for super::CallTotals {}
}
