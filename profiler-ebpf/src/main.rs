//! stallscope's eBPF programs, one file for each family. They filter first, fold in the kernel, and emit records of
//! `profiler-common` only for waits that are long enough to matter or that failed.

#![no_std]
#![no_main]

mod api;
mod call;
mod call_class;
mod dns;
mod emit;
mod futex;
mod life;
mod maps;
mod marker;
mod mem;
mod nonblocking;
mod poll_set;
mod rdma_call;
mod rdma_probe;
mod regs;
mod repeat;
mod sample;
mod sched;
mod settings;
mod snapshot;
mod socket;
mod stack;
mod tcp;
mod thread;
mod user_memory;
mod verbs;
mod verbs_poll;
mod verbs_setup;
mod verbs_wr;
mod wait;

/// Several helpers are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// The verifier refuses programs in which this can be reached.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
