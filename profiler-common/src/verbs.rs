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

/// What a thread loses each time that it comes by a probe, nanoseconds: 2.6 µs were measured on plain hosts for a kernel uprobe,
/// the record included.
pub const HIT_NS: u64 = 2_600;

const _: () = assert!(size_of::<VerbsPostRecord>() == 72);
const _: () = assert!(size_of::<VerbsCompletionRecord>() == 40);
const _: () = assert!(size_of::<VerbsImageRecord>() == 40 + 4 * IMAGE_WORDS);
const _: () = assert!(size_of::<VerbsQpKey>() == 16);
