//! A stalled interval of one thread, already exclusive: the intervals of a thread never overlap, so their
//! weights add up to the thread's stalled time. What flame graphs are drawn from.

use crate::model::cause::Cause;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    pub pid: u32,
    pub tid: u32,
    pub cause: Cause,
    /// `ip:port`, a path, or empty where unknown.
    pub peer: String,
    /// What the leaf frame says behind cause and peer: `node01 no answer`, `SYN unanswered`; may be empty.
    pub detail: String,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Share of the interval that is this stall's, nanoseconds; below `end_ns - start_ns` where several
    /// descriptors were awaited at once.
    pub weight_ns: u64,
    pub in_flight: bool,
    pub began_earlier: bool,
    /// Id of the user stack, 0: none.
    pub user_stack: u64,
    /// Id of the kernel stack, 0: none.
    pub kernel_stack: u64,
    /// Resolver function that encloses the wait, empty: none.
    pub api: &'static str,
    /// The watched system call.
    pub call: &'static str,
}
