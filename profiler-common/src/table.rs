//! Keys and values of the kernel tables that userspace reads when a recording ends.
//!
//! Handshakes that last are in the map `HANDSHAKES` as [`crate::HandshakeRecord`]s.

use crate::record::SockRecord;

/// Key of the map `NONBLOCKING`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct NonblockingKey {
    pub tid: u32,
    pub fd: i32,
    /// `NONBLOCKING_*`.
    pub direction: u32,
    pub reserved: u32,
}

/// Waits to send.
pub const NONBLOCKING_SEND: u32 = 0;
/// Waits to receive or to accept.
pub const NONBLOCKING_RECEIVE: u32 = 1;

/// A wait on a non-blocking descriptor that has made no progress yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct NonblockingWait {
    /// First look that found nothing.
    pub start_ns: u64,
    /// Last one.
    pub last_ns: u64,
    /// Time that the thread had waited for a processor then, ever.
    pub run_delay_ns: u64,
    /// The same at the first look.
    pub start_run_delay_ns: u64,
    pub tgid: u32,
    /// Looks so far.
    pub polls: u32,
    /// A `Call`, that of the first look.
    pub call: u32,
    /// An `Api`.
    pub api: u32,
    pub api_start_ns: u64,
    /// Hash of the user stack, taken once when the wait has lasted long enough to be recorded; 0: none yet.
    pub user_stack: u64,
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    pub sock: SockRecord,
}

/// Key of the map `SAMPLES`: a thread of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SampleKey {
    pub tgid: u32,
    pub tid: u32,
}

/// How often the clock of a processor found the thread on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SampleCounts {
    pub samples: u64,
    /// Of these: in a call that looks whether a descriptor or a poll set has something, or right behind one that found
    /// nothing.
    pub looking: u64,
    /// Samples within waits on non-blocking descriptors.
    pub waiting: u64,
    /// Of those: the thread was about something else than looking.
    pub working: u64,
}

const _: () = assert!(size_of::<SampleKey>() == 8);
const _: () = assert!(size_of::<SampleCounts>() == 32);
const _: () = assert!(size_of::<NonblockingKey>() == 16);
const _: () = assert!(size_of::<NonblockingWait>() == 152);

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding (sizes asserted above): every bit pattern is valid.
    unsafe impl aya::Pod for super::NonblockingKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::NonblockingWait {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::SampleKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::SampleCounts {}
}
