//! Resolver functions of libc, marked at their entry. There is no probe at their return: a mark holds while the
//! thread's stack pointer stays below the one at entry and the return address still lies there.

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{
    bpf_get_attach_cookie, bpf_ktime_get_ns, bpf_probe_read_user, bpf_probe_read_user_str,
};
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use profiler_common::call::ApiArgument;
use profiler_common::record::{ApiRecord, Header, RecordKind};
use profiler_common::{Api, Loss};

use crate::regs::{RETURN_ON_STACK, stack_pointer};
use crate::thread::{self, Thread};
use crate::user_memory::{Current, UserMemory};
use crate::{emit, maps};

#[uprobe]
pub fn api_entry(ctx: ProbeContext) -> u32 {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if maps::TARGETS.get_ptr(tgid).is_none() {
        return 0;
    }
    let tid = id as u32;
    let Some(thread) = thread::find_or_add(tgid, tid) else { return 0 };
    let sp = stack_pointer(&ctx);
    // `getaddrinfo` may call `res_nquery`: the outer function is the one that was asked.
    if current(thread, sp, Current) != 0 {
        return 0;
    }
    // SAFETY: the program's own context.
    thread.api = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u32;
    // SAFETY: no preconditions.
    thread.api_start_ns = unsafe { bpf_ktime_get_ns() };
    thread.api_sp = sp;
    thread.api_return = if RETURN_ON_STACK { Current.read(sp).unwrap_or(0) } else { 0 };
    record(&ctx, thread, tid);
    0
}

/// The resolver function that the thread is in, with its stack pointer at `sp`; 0: none. A mark that no longer
/// holds is removed.
#[inline(always)]
pub fn current<M: UserMemory>(thread: &mut Thread, sp: u64, memory: M) -> u32 {
    if thread.api == 0 {
        return 0;
    }
    let inside = sp < thread.api_sp
        && (!RETURN_ON_STACK || memory.read::<u64>(thread.api_sp) == Some(thread.api_return));
    if !inside {
        thread.api = 0;
    }
    thread.api
}

#[inline(always)]
fn record(ctx: &ProbeContext, thread: &Thread, tid: u32) {
    let Some(mut entry) = maps::EVENTS.reserve::<ApiRecord>(0) else {
        emit::lost(Loss::OtherRing);
        return;
    };
    // SAFETY: every field is written below.
    let record = unsafe { &mut *entry.as_mut_ptr() };
    record.header = Header { kind: RecordKind::Api as u32, len: size_of::<ApiRecord>() as u32 };
    record.time_ns = thread.api_start_ns;
    record.tgid = thread.tgid;
    record.tid = tid;
    record.api = thread.api;
    record.len = 0;
    record.argument = [0; 128];
    let to = (&raw mut record.argument).cast::<core::ffi::c_void>();
    let first = ctx.arg::<u64>(0).unwrap_or(0);
    let second = ctx.arg::<u64>(1).unwrap_or(0);
    match Api::from_u16(thread.api as u16).argument() {
        ApiArgument::NameFirst | ApiArgument::NameSecond => {
            let second_is_it = matches!(Api::from_u16(thread.api as u16).argument(), ApiArgument::NameSecond);
            let name = if second_is_it { second } else { first };
            // SAFETY: the buffer has 128 bytes.
            let len = unsafe { bpf_probe_read_user_str(to, 128, name as *const _) };
            // The terminator is counted.
            record.len = if len > 0 { (len - 1) as u32 } else { 0 };
        }
        ApiArgument::SockaddrFirst | ApiArgument::AddressFirst => {
            let len = if second > 28 { 28 } else { second as u32 };
            // SAFETY: `len` is below the buffer's 128 bytes.
            if unsafe { bpf_probe_read_user(to, len, first as *const _) } == 0 {
                record.len = len;
            }
        }
        ApiArgument::Nothing => {}
    }
    entry.submit(emit::wake_flags());
}
