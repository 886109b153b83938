//! RDMA verbs: requests at the entry of a provider's `post_send`, and completions where its `poll_cq` has found one.
//! Empty polls do not come by here.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_ktime_get_ns};
use aya_ebpf::macros::{map, uprobe};
use aya_ebpf::maps::{Array, LruHashMap, PerCpuArray};
use aya_ebpf::programs::ProbeContext;
use profiler_common::Loss;
use profiler_common::record::{Header, RecordKind};
use profiler_common::verbs::{
    IMAGE_WORDS, IMAGES, LIST_MOST, NO_COUNTER, PIECES_MOST, PROVIDERS, QP_NUM, QP_PRIVATE,
    VerbsCompletionRecord, VerbsImageRecord, VerbsPostRecord, VerbsQpKey,
};

use crate::regs::register;
use crate::repeat::{DONE, ON, repeat};
use crate::user_memory::{Current, UserMemory};
use crate::{emit, maps};

/// See [`PROVIDERS`].
#[map]
pub static VERBS_LAYOUTS: Array<u32> = Array::with_max_entries(PROVIDERS, 0);

/// Images taken so far of each queue pair.
#[map]
pub static VERBS_IMAGES: LruHashMap<VerbsQpKey, u32> = LruHashMap::with_max_entries(4096, 0);

/// Room for an image, which is too large for the stack.
#[map]
pub static VERBS_ROOM: PerCpuArray<VerbsImageRecord> = PerCpuArray::with_max_entries(1, 0);

/// The head of a `struct ibv_send_wr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Request {
    wr_id: u64,
    next: u64,
    pieces: u64,
    num_pieces: u32,
    opcode: u32,
    flags: u32,
    immediate: u32,
}

/// The list as it is followed.
struct List {
    record: VerbsPostRecord,
    next: u64,
}

#[uprobe]
pub fn verbs_post(ctx: ProbeContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if maps::TARGETS.get_ptr(tgid).is_none() {
        return 0;
    }
    let (Some(qp), Some(first)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1)) else { return 0 };
    let Some(qp_num) = Current.read::<u32>(qp + QP_NUM) else { return 0 };
    // SAFETY: the program's own context.
    let provider = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u32;
    let mut list = List {
        record: VerbsPostRecord {
            header: Header { kind: RecordKind::VerbsPost as u32, len: size_of::<VerbsPostRecord>() as u32 },
            // SAFETY: no preconditions.
            time_ns: unsafe { bpf_ktime_get_ns() },
            tgid,
            tid: id as u32,
            qp,
            qp_num,
            counter: counter(qp, provider),
            provider,
            ..VerbsPostRecord::default()
        },
        next: first,
    };
    repeat(LIST_MOST, post_one, &mut list);
    if list.next != 0 {
        emit::lost(Loss::VerbsList);
    }
    if list.record.counter == NO_COUNTER {
        image(VerbsQpKey { qp, tgid, qp_num }, provider, &list.record);
    }
    0
}

/// The number of the queue's next entry; unknown before userspace has found where the provider keeps it.
#[inline(always)]
pub fn counter(qp: u64, provider: u32) -> u32 {
    let offset = VERBS_LAYOUTS.get(provider).copied().unwrap_or(0);
    if offset == 0 {
        return NO_COUNTER;
    }
    Current.read::<u32>(qp + u64::from(offset)).map_or(NO_COUNTER, |counter| counter & 0xffff)
}

unsafe extern "C" fn post_one(_: u32, list: *mut List) -> i64 {
    // SAFETY: `repeat` hands on the list it was given.
    let list = unsafe { &mut *list };
    if list.next == 0 {
        return DONE;
    }
    let Some(request) = Current.read::<Request>(list.next) else { return DONE };
    list.record.wr_id = request.wr_id;
    list.record.opcode = request.opcode;
    list.record.flags = request.flags;
    list.record.bytes = 0;
    for piece in 0..PIECES_MOST {
        if piece >= request.num_pieces {
            break;
        }
        let length = Current.read::<u32>(request.pieces + 16 * u64::from(piece) + 8).unwrap_or(0);
        list.record.bytes += u64::from(length);
    }
    emit::record(&list.record, Loss::VerbsRing);
    list.record.index += 1;
    list.next = request.next;
    ON
}

/// A copy of what the provider keeps of this queue pair, for the first posts; `post` is as it stands behind the last.
#[inline(always)]
fn image(key: VerbsQpKey, provider: u32, post: &VerbsPostRecord) {
    // SAFETY: the value is copied at once.
    let taken = unsafe { VERBS_IMAGES.get(&key) }.copied().unwrap_or(0);
    if taken >= IMAGES {
        return;
    }
    // The queue pair of longest ago makes room; one more image is no harm.
    let _ = VERBS_IMAGES.insert(&key, &(taken + 1), 0);
    let Some(room) = VERBS_ROOM.get_ptr_mut(0) else { return };
    // SAFETY: a slot of this processor; a uprobe that interrupts this one would spoil an image, which is one of several.
    let room = unsafe { &mut *room };
    room.header = Header { kind: RecordKind::VerbsImage as u32, len: size_of::<VerbsImageRecord>() as u32 };
    room.qp = key.qp;
    room.tgid = key.tgid;
    room.qp_num = key.qp_num;
    room.provider = provider;
    room.time_ns = post.time_ns;
    room.posted = post.index;
    let to = (&raw mut room.words).cast::<u8>();
    if Current.read_bytes(to, 4 * IMAGE_WORDS as u32, key.qp + QP_PRIVATE) {
        emit::record(room, Loss::VerbsRing);
    }
}

/// Offsets in an mlx5 completion entry of 64 bytes, and its end, from byte 44 on.
const CQE_TAIL: u64 = 44;
const CQE_TAIL_BYTES: usize = 20;

/// The cookie is the number of the register that has the entry's address, see [`register`].
#[uprobe]
pub fn verbs_complete(ctx: ProbeContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if maps::TARGETS.get_ptr(tgid).is_none() {
        return 0;
    }
    // SAFETY: the program's own context.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let Some(entry) = register(&ctx, cookie) else { return 0 };
    let Some(tail) = Current.read::<[u8; CQE_TAIL_BYTES]>(entry + CQE_TAIL) else { return 0 };
    let opcode = tail[19] >> 4;
    // 13: requester's error, 14: responder's error. Other entries have something else in the syndrome's place.
    let failed = opcode == 13 || opcode == 14;
    let record = VerbsCompletionRecord {
        header: Header {
            kind: RecordKind::VerbsCompletion as u32,
            len: size_of::<VerbsCompletionRecord>() as u32,
        },
        // SAFETY: no preconditions.
        time_ns: unsafe { bpf_ktime_get_ns() },
        tgid,
        tid: id as u32,
        qp_num: u32::from_be_bytes([0, tail[13], tail[14], tail[15]]),
        bytes: if failed { 0 } else { u32::from_be_bytes([tail[0], tail[1], tail[2], tail[3]]) },
        counter: u16::from_be_bytes([tail[16], tail[17]]),
        opcode,
        syndrome: if failed { tail[11] } else { 0 },
        vendor: if failed { tail[10] } else { 0 },
        reserved: [0; 3],
    };
    emit::record(&record, Loss::VerbsRing);
    0
}
