//! Calls of libibverbs that set something up: they tell userspace at once of devices that are opened and of queue pairs that
//! are made ready, before the first request is posted to them, and where queue pairs lead to.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_ktime_get_ns};
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use profiler_common::Loss;
use profiler_common::record::{Header, RecordKind};
use profiler_common::verbs::{
    ATTR_PEER_QP, ATTR_STATE, ATTR_VECTOR, QP_NUM, SETUP_MASK_PEER, SETUP_MASK_STATE, SETUP_MASK_VECTOR,
    SETUP_QP, VerbsSetupRecord,
};

use crate::user_memory::{Current, UserMemory};
use crate::{emit, maps};

/// `struct ibv_ah_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Vector {
    gid: [u8; 16],
    flow: u32,
    gid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved: u8,
    lid: u16,
    service_level: u8,
    path_bits: u8,
    rate: u8,
    is_global: u8,
    port: u8,
    reserved2: u8,
}

/// The cookie says which call it is, `SETUP_*`.
#[uprobe]
pub fn verbs_setup(ctx: ProbeContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if maps::TARGETS.get_ptr(tgid).is_none() {
        return 0;
    }
    let Some(address) = ctx.arg::<u64>(0) else { return 0 };
    // SAFETY: the program's own context.
    let what = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u32;
    let mut record = VerbsSetupRecord {
        header: Header { kind: RecordKind::VerbsSetup as u32, len: size_of::<VerbsSetupRecord>() as u32 },
        // SAFETY: no preconditions.
        time_ns: unsafe { bpf_ktime_get_ns() },
        tgid,
        tid: id as u32,
        address,
        what,
        ..VerbsSetupRecord::default()
    };
    if what == SETUP_QP {
        let (Some(attributes), Some(mask)) = (ctx.arg::<u64>(1), ctx.arg::<u64>(2)) else { return 0 };
        let Some(qp_num) = Current.read::<u32>(address + QP_NUM) else { return 0 };
        record.qp_num = qp_num;
        record.mask = mask as u32;
        if record.mask & SETUP_MASK_STATE != 0 {
            record.state = Current.read::<u32>(attributes + ATTR_STATE).unwrap_or(0);
        }
        if record.mask & SETUP_MASK_PEER != 0 {
            record.peer_qp = Current.read::<u32>(attributes + ATTR_PEER_QP).unwrap_or(0);
        }
        if record.mask & SETUP_MASK_VECTOR != 0
            && let Some(vector) = Current.read::<Vector>(attributes + ATTR_VECTOR)
        {
            record.peer_gid = vector.gid;
            record.vector = u32::from(vector.is_global != 0)
                | u32::from(vector.gid_index) << 8
                | u32::from(vector.port) << 16
                | u32::from(vector.service_level) << 24;
        }
    }
    emit::record(&record, Loss::VerbsRing);
    0
}
