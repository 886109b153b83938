//! Records of RDMA verbs.

use serde::{Deserialize, Serialize};

/// A queue pair as it was found in the process's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePair {
    pub time_ns: u64,
    pub pid: u32,
    /// The queue pair's number, 24 bits.
    pub number: u32,
    /// `mlx5_0`.
    pub device: String,
    /// 0: unknown.
    pub port: u32,
    /// `enum ibv_qp_type`: 2 RC, 3 UC, 4 UD, 8 raw packet, 9 and 10 XRC, 255 the provider's own.
    pub qp_type: u32,
    /// `enum ibv_qp_state`: 0 RESET, 1 INIT, 2 RTR, 3 RTS, 4 SQD, 5 SQE, 6 ERR.
    pub state: u32,
    /// It can be posted to through `ibv_wr_*`, which is not watched.
    pub extended: bool,
}

/// A work request at the entry of `post_send`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPost {
    pub time_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub qp: u32,
    pub wr_id: u64,
    /// `enum ibv_wr_opcode`.
    pub opcode: u32,
    /// `enum ibv_send_flags`.
    pub flags: u32,
    pub bytes: u64,
    /// Place in the list that was posted, 0 first.
    pub index: u32,
    /// Number of the queue's entry that it goes to, modulo 2^16; of the first of a list, where it is known.
    pub counter: Option<u16>,
}

/// The entry that a post went to, learned after it: the post of this process and queue pair at this time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaAnchor {
    pub time_ns: u64,
    pub pid: u32,
    pub qp: u32,
    pub counter: u16,
}

/// A completion, when the program's poll found it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaCompletion {
    pub time_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub qp: u32,
    pub bytes: u32,
    /// Number of the queue's entry that has completed, modulo 2^16.
    pub counter: u16,
    /// `MLX5_CQE_*`: 0 a request, 13 a request that failed, 14 a receive that failed, others receives.
    pub opcode: u8,
    /// `MLX5_CQE_SYNDROME_*`, 0: none.
    pub syndrome: u8,
    pub vendor: u8,
}

/// A completion of a provider of which nothing more is known, as `poll_cq` handed it to the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaEntry {
    pub time_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub qp: u32,
    pub wr_id: u64,
    /// `enum ibv_wc_status`: 0 success.
    pub status: u32,
    /// `enum ibv_wc_opcode`: from 128 on receives; undefined unless `status` is 0.
    pub opcode: u32,
    pub vendor: u32,
    pub bytes: u32,
}

/// The queue pair was made ready to send when its posts and completions were already watched: nothing was outstanding before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaBirth {
    pub time_ns: u64,
    pub pid: u32,
    pub qp: u32,
}

/// Where a queue pair leads to; of several records the one that says more counts, and of those the latest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPeer {
    pub time_ns: u64,
    pub pid: u32,
    pub qp: u32,
    pub peer_qp: Option<u32>,
    /// Its GID; for RoCE it has the IP address in it.
    pub peer_gid: Option<std::net::Ipv6Addr>,
    /// Ours.
    pub local_gid: Option<std::net::Ipv6Addr>,
}

/// Posts and completions of this process were watched from `start_ns` on; until `end_ns`, or to the recording's end
/// where that is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaWindow {
    pub pid: u32,
    pub start_ns: u64,
    pub end_ns: u64,
}

/// A counter of a device's port, as the kernel shows it in sysfs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounter {
    pub time_ns: u64,
    pub device: String,
    pub port: u32,
    pub name: String,
    pub value: u64,
}
