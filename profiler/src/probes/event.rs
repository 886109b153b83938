//! What the probes hand to the recorder: trace records, and raw stacks that still need names.

use crate::trace::marker::MarkerCalls;
use crate::trace::rdma::{RdmaAnchor, RdmaCompletion, RdmaEntry, RdmaPost};
use crate::trace::rdma_setup::{RdmaDeviceEvent, RdmaSetup};
use crate::trace::record::{ApiCall, DnsMessage, Handshake, Life, Retransmit, Space, ThreadTime, Wait};

/// User-mode registers that an unwinder starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
}

/// A call stack as the kernel walked it, with the piece of stack memory above `regs.sp`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawStack {
    /// What waits refer to it by; unique for user and kernel stacks together, and for each copy of a user stack.
    pub id: u64,
    pub kernel: bool,
    pub pid: u32,
    pub tid: u32,
    /// Program counters by frame pointers, innermost first.
    pub frames: Vec<u64>,
    /// Hash of the frame records that these frames were found by.
    pub chain: u64,
    pub regs: Registers,
    /// Memory from `regs.sp` upward; empty for kernel stacks.
    pub snippet: Vec<u8>,
}

impl RawStack {
    pub fn space(&self) -> Space {
        if self.kernel { Space::Kernel } else { Space::User }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The registers serve to unwind a thread that is still blocked.
    Wait(Wait, Registers),
    Dns(DnsMessage),
    Api(ApiCall),
    Handshake(Handshake),
    Retransmit(Retransmit),
    Life(Life),
    /// Of a thread that ends.
    ThreadTime(ThreadTime),
    Stack(RawStack),
    /// With the address of the queue pair in the process.
    RdmaPost(RdmaPost, u64),
    RdmaCompletion(RdmaCompletion),
    RdmaEntry(RdmaEntry),
    VerbsSetup(VerbsSetup),
    RdmaImage(Box<QueueImage>),
    /// Where an earlier post went.
    RdmaAnchor(RdmaAnchor),
    Marker(MarkerCalls),
    Setup(RdmaSetup),
    DeviceEvent(RdmaDeviceEvent),
}

/// What a provider keeps of a queue pair, at the entry of a post.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueImage {
    /// That of the post.
    pub time_ns: u64,
    pub pid: u32,
    pub qp: u64,
    pub number: u32,
    pub provider: u32,
    /// Requests in the list that is being posted.
    pub posted: u32,
    pub words: Vec<u32>,
}

/// A call that sets up something of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsSetup {
    pub time_ns: u64,
    pub pid: u32,
    pub tid: u32,
    /// Address of the context, or of the queue pair.
    pub address: u64,
    /// It is `ibv_modify_qp`.
    pub pair: Option<PairSetup>,
}

/// What `ibv_modify_qp` was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairSetup {
    pub number: u32,
    /// `enum ibv_qp_state`.
    pub state: Option<u32>,
    pub peer_qp: Option<u32>,
    pub vector: Option<AddressVector>,
}

/// Where a queue pair's requests go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// `None`: by a local identifier alone.
    pub gid: Option<[u8; 16]>,
    /// Entry of the port's own table of GIDs.
    pub gid_index: u8,
    pub port: u8,
    pub service_level: u8,
}

impl Event {
    /// When it happened or began, `CLOCK_MONOTONIC`; `None` for what waits refer to.
    pub fn time_ns(&self) -> Option<u64> {
        match self {
            Event::Wait(wait, _) => Some(wait.start_ns),
            Event::Dns(message) => Some(message.time_ns),
            Event::Api(call) => Some(call.time_ns),
            Event::Handshake(handshake) => Some(handshake.start_ns),
            Event::Retransmit(retransmit) => Some(retransmit.time_ns),
            Event::Life(life) => Some(life.time_ns),
            Event::ThreadTime(time) => Some(time.time_ns),
            Event::RdmaPost(post, _) => Some(post.time_ns),
            Event::RdmaCompletion(completion) => Some(completion.time_ns),
            Event::RdmaEntry(entry) => Some(entry.time_ns),
            Event::VerbsSetup(setup) => Some(setup.time_ns),
            Event::Marker(calls) => Some(calls.start_ns),
            Event::Setup(setup) => Some(setup.start_ns),
            Event::DeviceEvent(event) => Some(event.time_ns),
            Event::Stack(_) | Event::RdmaImage(_) | Event::RdmaAnchor(_) => None,
        }
    }
}
