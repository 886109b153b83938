//! A stalled interval that was spent on the resolver, for the analysis of lookups.

use std::sync::Arc;

use profiler_common::{Api, Call};

use crate::model::socket::Transport;

/// The share of one interval that a thread waited for one resolver. The shares of a thread are exclusive:
/// their weights add up to the thread's `dns.resolve` time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsWait {
    /// The same for all shares of one wait (several servers in one poll set, or parts of it).
    pub wait: WaitId,
    pub pid: u32,
    pub tid: u32,
    /// Clipped to the window and to the thread's presence.
    pub start_ns: u64,
    pub end_ns: u64,
    /// Nanoseconds of `[start_ns, end_ns)` that are this share's.
    pub weight_ns: u64,
    /// Start of the wait itself, not clipped: its age is `end_ns - began_ns`.
    pub began_ns: u64,
    /// `ip:port`, `[ip]:port`, the path of a unix socket, or empty where unknown (an unconnected socket).
    pub server: Arc<str>,
    pub transport: Transport,
    /// 0: unknown.
    pub socket_ino: u64,
    pub api: Api,
    /// Start of the resolver call that the wait is inside of; 0: none or begun earlier.
    pub api_start_ns: u64,
    pub call: Call,
    /// Result of the call, or -errno; 0 in flight.
    pub ret: i64,
    /// The wait had not ended when the recording stopped. Set on the share that reaches its end.
    pub in_flight: bool,
    /// The wait began before the recording. Set on the share that begins with it.
    pub began_earlier: bool,
}

/// Names one wait of the model: index of the thread in `Model::threads`, index in its `waits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId {
    pub thread: u32,
    pub index: u32,
}
