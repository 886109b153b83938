//! Offsets in the public structures of `infiniband/verbs.h` (64-bit), which stay within `libibverbs.so.1`.

use profiler_common::verbs::{END_ABORT, END_COMPLETE, SIZE_INLINE, SIZE_INLINES, SIZE_PIECE, SIZE_PIECES};

/// `struct ibv_context`.
pub(super) const CONTEXT_DEVICE: usize = 0;
pub(super) const CONTEXT_POLL_CQ: usize = 96;
pub(super) const CONTEXT_POST_SEND: usize = 208;
pub(super) const CONTEXT_POST_RECV: usize = 216;
pub(super) const CONTEXT_CMD_FD: usize = 264;
pub(super) const CONTEXT_LEN: usize = 328;

/// `struct ibv_device`: the kernel's names of the device (`mlx5_0`) and of its file (`uverbs0`).
pub(super) const DEVICE_NAME: usize = 24;
pub(super) const DEVICE_FILE: usize = 88;
pub(super) const DEVICE_NAME_LEN: usize = 64;
pub(super) const DEVICE_HEAD: usize = 152;

/// `struct ibv_qp`, and of `struct ibv_qp_ex` behind it the function that begins a post.
pub(super) const QP_PD: usize = 16;
pub(super) const QP_SEND_CQ: usize = 24;
pub(super) const QP_RECV_CQ: usize = 32;
pub(super) const QP_NUMBER: usize = 52;
pub(super) const QP_STATE: usize = 56;
pub(super) const QP_TYPE: usize = 60;
pub(super) const QP_LEN: usize = 160;
pub(super) const QP_WR_START: usize = 320;
pub(super) const QP_EX_LEN: usize = 352;

/// What a function of `struct ibv_qp_ex` does to the request that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MakerRole {
    /// Begins one with this operation (`IBV_WR_*`).
    Begin(u8),
    /// Says what is sent: `SIZE_*`.
    Size(u64),
    /// Hands all of them over, or throws them away: `END_*`.
    End(u64),
}

/// Offsets of the functions.
pub(super) const MAKERS: [(usize, MakerRole); 17] = [
    (184, MakerRole::Begin(5)),
    (192, MakerRole::Begin(6)),
    (200, MakerRole::Begin(8)),
    (208, MakerRole::Begin(7)),
    (216, MakerRole::Begin(4)),
    (224, MakerRole::Begin(0)),
    (232, MakerRole::Begin(1)),
    (240, MakerRole::Begin(2)),
    (248, MakerRole::Begin(3)),
    (256, MakerRole::Begin(9)),
    (264, MakerRole::Begin(10)),
    (288, MakerRole::Size(SIZE_INLINE)),
    (296, MakerRole::Size(SIZE_INLINES)),
    (304, MakerRole::Size(SIZE_PIECE)),
    (312, MakerRole::Size(SIZE_PIECES)),
    (328, MakerRole::End(END_COMPLETE)),
    (336, MakerRole::End(END_ABORT)),
];

/// Types of queue pairs: RC, UC, UD, raw packet, XRC send and receive, driver.
pub(super) const QP_TYPES: [u32; 7] = [2, 3, 4, 8, 9, 10, 0xff];
/// The last `enum ibv_qp_state`.
pub(super) const QP_STATE_MAX: u32 = 7;

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// A name that ends with a zero byte and is fit to be one: letters, digits and `_`, `-`, `.`.
pub(super) fn name_at(bytes: &[u8], at: usize) -> Option<&str> {
    let field = bytes.get(at..at.checked_add(DEVICE_NAME_LEN)?)?;
    let name = field.get(..field.iter().position(|byte| *byte == 0)?)?;
    let fit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (!name.is_empty() && name.iter().all(fit)).then(|| std::str::from_utf8(name).ok())?
}
