//! Calls of the marker function.

use crate::record::Header;

/// One call, or the calls of one thread that came too fast to be recorded one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MarkerRecord {
    pub header: Header,
    /// First call.
    pub start_ns: u64,
    /// Last call.
    pub end_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    pub calls: u64,
}

/// Value of the map `MARKER_CALLS` (key: thread id): what is not recorded yet of a thread's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MarkerState {
    /// Number of the time slice, see [`MARKER_SLICE_LOG2`].
    pub slice: u64,
    /// Calls in it that were recorded one by one.
    pub recorded: u64,
    /// Calls in it that were only counted, with the times of the first and the last one.
    pub counted: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub tgid: u32,
    pub reserved: u32,
}

/// Calls are recorded one by one up to a number in each slice of 2^27 ns, which is 134 ms.
pub const MARKER_SLICE_LOG2: u32 = 27;
/// That number: 10 000 calls a second.
pub const MARKER_RECORDED: u64 = 1342;

const _: () = assert!(size_of::<MarkerRecord>() == 40);
const _: () = assert!(size_of::<MarkerState>() == 48);

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding (size asserted above): every bit pattern is valid.
    unsafe impl aya::Pod for super::MarkerState {}
}
