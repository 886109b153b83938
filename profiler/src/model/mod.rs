//! What a trace means: threads, spans, peers and causes, without any view of them.

use std::collections::{BTreeMap, HashMap};

use crate::trace::record::{
    ApiCall, CallCount, Clock, Coverage, DnsMessage, Environment, Handshake, Host, Process, Retransmit,
    SocketSample, Stack, Window,
};

pub mod cause;
pub mod dns;
pub mod intern;
pub mod socket;
pub mod thread;
pub mod wait;

/// Everything that a trace says, sorted and without contradictions. Made by [`Model::from_records`].
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub host: Host,
    pub clock: Option<Clock>,
    /// `end_ns` is always set: the recording's end, or the latest time in the trace of a killed recorder.
    pub window: Window,
    pub environment: Vec<Environment>,
    pub coverage: Vec<Coverage>,
    /// By pid.
    pub processes: BTreeMap<u32, Process>,
    /// Latest name by tid.
    pub thread_names: HashMap<u32, String>,
    /// By pid and tid.
    pub threads: Vec<thread::ThreadTrack>,
    /// By time.
    pub dns_messages: Vec<DnsMessage>,
    /// By time.
    pub api_calls: Vec<ApiCall>,
    /// By start.
    pub handshakes: Vec<Handshake>,
    /// By time.
    pub retransmits: Vec<Retransmit>,
    /// By time.
    pub samples: Vec<SocketSample>,
    pub stacks: HashMap<u64, Stack>,
    /// Last totals of each call.
    pub calls: Vec<CallCount>,
    /// Last total of each kind of loss, and whether whole events are missing.
    pub losses: BTreeMap<String, (u64, bool)>,
    /// Sockets that waits refer to.
    pub sockets: socket::SocketTable,
    /// Sets of descriptors that waits refer to.
    pub sets: wait::SetTable,
    /// Names of peers.
    pub names: intern::Interner,
}
