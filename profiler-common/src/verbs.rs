//! RDMA verbs: requests as they are posted, completions as they are found, and how a queue pair looks in memory.
//!
//! The offsets are those of the public structures of `infiniband/verbs.h` for 64-bit programs, which do not change
//! within `libibverbs.so.1`, and of the completion entry of mlx5 adapters, which the hardware fixes.

use crate::record::Header;

/// Offset of `qp_num` in `struct ibv_qp`.
pub const QP_NUM: u64 = 52;
/// Bytes of `struct ibv_qp_ex`: what the provider keeps of a queue pair begins here at the earliest.
pub const QP_PRIVATE: u64 = 352;

/// A work request that is handed to `post_send`. One record for each request of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VerbsPostRecord {
    pub header: Header,
    pub time_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    /// Address of the `struct ibv_qp`.
    pub qp: u64,
    pub wr_id: u64,
    pub bytes: u64,
    pub qp_num: u32,
    /// `IBV_WR_*`.
    pub opcode: u32,
    /// `IBV_SEND_*`.
    pub flags: u32,
    /// Place in the list, 0 first.
    pub index: u32,
    /// Number of the queue's next entry as the provider keeps it, for the first of a list; [`NO_COUNTER`]: unknown.
    pub counter: u32,
    /// Which provider: the cookie of its probe.
    pub provider: u32,
}

/// No counter: the provider's structure is not known (yet).
pub const NO_COUNTER: u32 = u32::MAX;

/// A completion that a provider found in its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VerbsCompletionRecord {
    pub header: Header,
    pub time_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    pub qp_num: u32,
    pub bytes: u32,
    /// Entry of the send queue that has completed, modulo 2^16.
    pub counter: u16,
    /// `MLX5_CQE_*`.
    pub opcode: u8,
    /// `MLX5_CQE_SYNDROME_*`, 0 where it is no error.
    pub syndrome: u8,
    pub vendor: u8,
    pub reserved: [u8; 3],
}

/// 32-bit words of a [`VerbsImageRecord`].
pub const IMAGE_WORDS: usize = 192;
/// Images of a queue pair at most.
pub const IMAGES: u32 = 64;

/// What the provider keeps of a queue pair, at the entry of `post_send`. Userspace finds the queue's counters in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct VerbsImageRecord {
    pub header: Header,
    /// That of the post.
    pub time_ns: u64,
    pub qp: u64,
    pub tgid: u32,
    pub qp_num: u32,
    pub provider: u32,
    /// Requests in the list that is being posted.
    pub posted: u32,
    /// From [`QP_PRIVATE`] on.
    pub words: [u32; IMAGE_WORDS],
}

/// Key of the map `VERBS_IMAGES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct VerbsQpKey {
    pub qp: u64,
    pub tgid: u32,
    pub qp_num: u32,
}

/// Providers that are told apart: entries of the map `VERBS_LAYOUTS`, the offset of the send queue's counter of entries
/// in the provider's queue pair, 0: unknown.
pub const PROVIDERS: u32 = 64;
/// Requests of one list at most; the rest is a loss.
pub const LIST_MOST: u32 = 256;
/// Pieces of memory of one request that are added up at most.
pub const PIECES_MOST: u32 = 16;

/// A completion as a provider hands it out: an entry of the array that `poll_cq` filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VerbsEntryRecord {
    pub header: Header,
    pub time_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    pub wr_id: u64,
    pub qp_num: u32,
    /// `IBV_WC_*`, the status.
    pub status: u32,
    /// `IBV_WC_*`, the operation; undefined where the status is an error.
    pub opcode: u32,
    pub vendor: u32,
    pub bytes: u32,
    pub reserved: u32,
}

/// A call that sets something up: what it is about is looked at by userspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VerbsSetupRecord {
    pub header: Header,
    pub time_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    /// Address of the `ibv_context` ([`SETUP_CONTEXT`]) or `ibv_qp` ([`SETUP_QP`]).
    pub address: u64,
    /// `SETUP_*`.
    pub what: u32,
    /// Of `ibv_modify_qp`: `IBV_QP_*`, which members of the attributes count.
    pub mask: u32,
    pub qp_num: u32,
    /// `enum ibv_qp_state`.
    pub state: u32,
    pub peer_qp: u32,
    /// The address vector: `is_global`, entry of the port's GID table, port, service level; bits 0, 8, 16, 24 on.
    pub vector: u32,
    /// In network order.
    pub peer_gid: [u8; 16],
}

/// The first argument is an `ibv_context` with all that belongs to it.
pub const SETUP_CONTEXT: u32 = 1;
/// `ibv_modify_qp`.
pub const SETUP_QP: u32 = 2;
/// `IBV_QP_STATE`, `IBV_QP_AV`, `IBV_QP_DEST_QPN`.
pub const SETUP_MASK_STATE: u32 = 1;
pub const SETUP_MASK_VECTOR: u32 = 1 << 7;
pub const SETUP_MASK_PEER: u32 = 1 << 20;

/// Offsets in `struct ibv_qp_attr`.
pub const ATTR_STATE: u64 = 0;
pub const ATTR_PEER_QP: u64 = 28;
pub const ATTR_VECTOR: u64 = 56;

/// Offsets in `struct ibv_qp_ex`, of what a program writes there for the request that it makes next.
pub const QP_EX_WR_ID: u64 = 168;
pub const QP_EX_FLAGS: u64 = 176;

/// Completions of one poll that are read at most; the rest is a loss.
pub const ENTRIES_MOST: u32 = 1024;

/// Cookies of the probes on the functions that say what a request is made of (`ibv_wr_set_*`), and on those that end it.
pub const SIZE_PIECE: u64 = 0;
pub const SIZE_PIECES: u64 = 1;
pub const SIZE_INLINE: u64 = 2;
pub const SIZE_INLINES: u64 = 3;
pub const END_COMPLETE: u64 = 0;
pub const END_ABORT: u64 = 1;

const _: () = assert!(size_of::<VerbsEntryRecord>() == 56);
const _: () = assert!(size_of::<VerbsSetupRecord>() == 72);
/// What a thread loses each time that it comes by a probe, nanoseconds: 2.6 µs were measured on plain hosts for a kernel uprobe,
/// the record included.
pub const HIT_NS: u64 = 2_600;

const _: () = assert!(size_of::<VerbsPostRecord>() == 72);
const _: () = assert!(size_of::<VerbsCompletionRecord>() == 40);
const _: () = assert!(size_of::<VerbsImageRecord>() == 40 + 4 * IMAGE_WORDS);
const _: () = assert!(size_of::<VerbsQpKey>() == 16);
