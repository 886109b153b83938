#![no_std]
#![no_main]
use aya_ebpf::{macros::{btf_tracepoint, map}, maps::HashMap, programs::BtfTracePointContext, helpers::bpf_get_current_pid_tgid};

#[map]
static TARGETS: HashMap<u32, profiler_common::Target> = HashMap::with_max_entries(16384, 0);

#[btf_tracepoint(function = "sys_enter")]
pub fn call_enter(_ctx: BtfTracePointContext) -> i32 {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    if unsafe { TARGETS.get(&tgid) }.is_none() { return 0; }
    0
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
