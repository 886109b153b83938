//! Requests that are made through the extended interface (`ibv_wr_*`): one function begins a request and says its operation, another
//! one says what is to be sent, and a last one hands all of them to the adapter.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_ktime_get_ns};
use aya_ebpf::macros::{map, uprobe};
use aya_ebpf::maps::LruHashMap;
use aya_ebpf::programs::ProbeContext;
use profiler_common::Loss;
use profiler_common::record::{Header, RecordKind};
use profiler_common::verbs::{
    END_COMPLETE, NO_COUNTER, PIECES_MOST, QP_EX_FLAGS, QP_EX_WR_ID, QP_NUM, SIZE_INLINE, SIZE_INLINES,
    SIZE_PIECE, SIZE_PIECES, VerbsPostRecord,
};

use crate::repeat::{DONE, ON, repeat};
use crate::user_memory::{Current, UserMemory};
use crate::verbs::counter;
use crate::verbs_poll::count_trap;
use crate::{emit, maps};

/// The request that a thread is making: it is recorded when its size is known.
#[map]
pub static VERBS_MAKING: LruHashMap<u64, VerbsPostRecord> = LruHashMap::with_max_entries(8192, 0);

/// Pieces of a request as they are added up.
struct Pieces {
    bytes: u64,
    next: u64,
    left: u64,
}

/// The cookie: the operation, and the provider from bit 8 on.
#[uprobe]
pub fn verbs_wr(ctx: ProbeContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if maps::TARGETS.get_ptr(tgid).is_none() {
        return 0;
    }
    count_trap();
    let Some(qp) = ctx.arg::<u64>(0) else { return 0 };
    let (Some(qp_num), Some(wr_id), Some(flags)) = (
        Current.read::<u32>(qp + QP_NUM),
        Current.read::<u64>(qp + QP_EX_WR_ID),
        Current.read::<u32>(qp + QP_EX_FLAGS),
    ) else {
        return 0;
    };
    // SAFETY: the program's own context.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u32;
    let mut index = 0;
    if let Some(before) = VERBS_MAKING.get_ptr_mut(&id) {
        // SAFETY: an entry of this thread, which does nothing else meanwhile.
        let before = unsafe { &*before };
        if before.qp == qp {
            index = before.index + 1;
        }
        emit::record(before, Loss::VerbsRing);
    }
    let provider = cookie >> 8;
    let record = VerbsPostRecord {
        header: Header { kind: RecordKind::VerbsPost as u32, len: size_of::<VerbsPostRecord>() as u32 },
        // SAFETY: no preconditions.
        time_ns: unsafe { bpf_ktime_get_ns() },
        tgid,
        tid: id as u32,
        qp,
        wr_id,
        bytes: 0,
        qp_num,
        opcode: cookie & 0xff,
        flags,
        index,
        counter: if index == 0 { counter(qp, provider) } else { NO_COUNTER },
        provider,
    };
    // The thread of longest ago makes room.
    let _ = VERBS_MAKING.insert(&id, &record, 0);
    0
}

/// The cookie: which of the functions, `SIZE_*`.
#[uprobe]
pub fn verbs_wr_size(ctx: ProbeContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    let Some(making) = VERBS_MAKING.get_ptr_mut(&id) else { return 0 };
    count_trap();
    let (Some(first), Some(second), Some(third)) = (ctx.arg::<u64>(1), ctx.arg::<u64>(2), ctx.arg::<u64>(3))
    else {
        return 0;
    };
    // SAFETY: the program's own context.
    let which = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let bytes = match which {
        SIZE_PIECE => third & 0xffff_ffff,
        SIZE_INLINE => second,
        SIZE_PIECES | SIZE_INLINES => {
            let mut pieces = Pieces { bytes: 0, next: second + 8, left: first };
            repeat(PIECES_MOST, if which == SIZE_PIECES { add_piece } else { add_inline }, &mut pieces);
            pieces.bytes
        }
        _ => 0,
    };
    // SAFETY: an entry of this thread, which does nothing else meanwhile.
    unsafe { (*making).bytes += bytes };
    0
}

/// `struct ibv_sge`.
unsafe extern "C" fn add_piece(_: u32, pieces: *mut Pieces) -> i64 {
    // SAFETY: `repeat` hands on what it was given.
    add(unsafe { &mut *pieces }, 0xffff_ffff)
}

/// `struct ibv_data_buf`.
unsafe extern "C" fn add_inline(_: u32, pieces: *mut Pieces) -> i64 {
    // SAFETY: `repeat` hands on what it was given.
    add(unsafe { &mut *pieces }, u64::MAX)
}

#[inline(always)]
fn add(pieces: &mut Pieces, mask: u64) -> i64 {
    if pieces.left == 0 {
        return DONE;
    }
    let Some(length) = Current.read::<u64>(pieces.next) else { return DONE };
    pieces.bytes += length & mask;
    pieces.next += 16;
    pieces.left -= 1;
    ON
}

/// The cookie: whether the requests are handed over or thrown away, `END_*`.
#[uprobe]
pub fn verbs_wr_end(ctx: ProbeContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    let Some(making) = VERBS_MAKING.get_ptr_mut(&id) else { return 0 };
    count_trap();
    // SAFETY: the program's own context.
    let end = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    // SAFETY: an entry of this thread, which does nothing else meanwhile.
    let making = unsafe { &*making };
    if end == END_COMPLETE {
        emit::record(making, Loss::VerbsRing);
    } else if making.index > 0 {
        // Those before it are recorded already.
        emit::lost(Loss::VerbsList);
    }
    // It was found there above.
    let _ = VERBS_MAKING.remove(&id);
    0
}
