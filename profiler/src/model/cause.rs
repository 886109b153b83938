//! The closed set of causes that a stall can have.

use serde::{Deserialize, Serialize};

/// Why a thread, a queue pair or a GPU stream waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Cause {
    #[serde(rename = "dns.resolve")]
    DnsResolve,
    #[serde(rename = "tcp.connect")]
    TcpConnect,
    #[serde(rename = "tcp.retransmit")]
    TcpRetransmit,
    #[serde(rename = "sock.send")]
    SockSend,
    #[serde(rename = "sock.recv")]
    SockRecv,
    #[serde(rename = "nccl.bootstrap")]
    NcclBootstrap,
    #[serde(rename = "rdma.setup")]
    RdmaSetup,
    #[serde(rename = "rdma.queue")]
    RdmaQueue,
    #[serde(rename = "rdma.wire")]
    RdmaWire,
    #[serde(rename = "rdma.congestion")]
    RdmaCongestion,
    #[serde(rename = "rdma.retry")]
    RdmaRetry,
    #[serde(rename = "dma.map")]
    DmaMap,
    #[serde(rename = "gpu.queue")]
    GpuQueue,
    #[serde(rename = "gpu.copy")]
    GpuCopy,
    #[serde(rename = "nccl.kernel")]
    NcclKernel,
    #[serde(rename = "peer.late")]
    PeerLate,
    #[serde(rename = "sched.runq")]
    SchedRunq,
    #[serde(rename = "lock")]
    Lock,
    #[serde(rename = "other")]
    Other,
}

impl Cause {
    pub const ALL: [Cause; 19] = [
        Cause::DnsResolve,
        Cause::TcpConnect,
        Cause::TcpRetransmit,
        Cause::SockSend,
        Cause::SockRecv,
        Cause::NcclBootstrap,
        Cause::RdmaSetup,
        Cause::RdmaQueue,
        Cause::RdmaWire,
        Cause::RdmaCongestion,
        Cause::RdmaRetry,
        Cause::DmaMap,
        Cause::GpuQueue,
        Cause::GpuCopy,
        Cause::NcclKernel,
        Cause::PeerLate,
        Cause::SchedRunq,
        Cause::Lock,
        Cause::Other,
    ];

    /// The cause's name in reports and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cause::DnsResolve => "dns.resolve",
            Cause::TcpConnect => "tcp.connect",
            Cause::TcpRetransmit => "tcp.retransmit",
            Cause::SockSend => "sock.send",
            Cause::SockRecv => "sock.recv",
            Cause::NcclBootstrap => "nccl.bootstrap",
            Cause::RdmaSetup => "rdma.setup",
            Cause::RdmaQueue => "rdma.queue",
            Cause::RdmaWire => "rdma.wire",
            Cause::RdmaCongestion => "rdma.congestion",
            Cause::RdmaRetry => "rdma.retry",
            Cause::DmaMap => "dma.map",
            Cause::GpuQueue => "gpu.queue",
            Cause::GpuCopy => "gpu.copy",
            Cause::NcclKernel => "nccl.kernel",
            Cause::PeerLate => "peer.late",
            Cause::SchedRunq => "sched.runq",
            Cause::Lock => "lock",
            Cause::Other => "other",
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Cause {
    type Err = String;

    fn from_str(text: &str) -> Result<Cause, String> {
        Cause::ALL.into_iter().find(|cause| cause.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Cause::ALL.iter().map(|cause| cause.name()).collect();
            format!("no such cause; one of: {}", names.join(", "))
        })
    }
}
