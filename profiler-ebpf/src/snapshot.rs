//! What was there before the probes, and what still waits when they go: iterators over tasks and their files.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_task_pt_regs};
use aya_log_ebpf::debug;
use core::ffi::c_void;
use profiler_common::call::RESTART_CALL;
use profiler_common::record::{WAIT_BEGAN_EARLIER, WAIT_IN_FLIGHT, WAIT_SLEPT};
use profiler_common::{Call, Loss};

use crate::call_class::ANY_FILE;
use crate::maps::{CALLS, CLOCK_LEADS, HANDSHAKES, RESTARTS, TARGETS};
use crate::mem::member;
use crate::regs::{Regs, UserRegs};
use crate::socket::{SOCK_STREAM, TCP_SYN_SENT};
use crate::thread::{self, Thread};
use crate::user_memory::Remote;
use crate::wait::{self, End};
use crate::{emit, offset, settings, socket, stack, tcp};

const TASK_INTERRUPTIBLE: u32 = 1;

/// An iterator's context: pointers to what it stands on.
struct IterContext(*mut c_void);

impl EbpfContext for IterContext {
    fn as_ptr(&self) -> *mut c_void {
        self.0
    }
}

impl IterContext {
    /// The `index`th member, eight bytes each; the first one is the iterator's own.
    #[inline(always)]
    fn get<T>(&self, index: usize) -> *mut T {
        // SAFETY: the verifier knows the context's members.
        unsafe { *self.0.cast::<*mut T>().add(index) }
    }
}

/// Learns the targets' TCP sockets, and the handshakes that last.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
pub extern "C" fn snapshot_files(ctx: *mut c_void) -> i32 {
    let ctx = IterContext(ctx);
    let task = ctx.get::<c_void>(1) as u64;
    let file = ctx.get::<c_void>(3) as u64;
    if task == 0 || file == 0 {
        return 0;
    }
    let tgid: u32 = member(task, offset!(task_tgid));
    if TARGETS.get_ptr(tgid).is_none() || !socket::is_socket(file) {
        return 0;
    }
    let sock = socket::sock_of(file);
    // SAFETY: no preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let mut record = tcp::new_record(sock, tgid, tgid, now_ns);
    record.sock.fd = ctx.get::<c_void>(2) as u64 as i32;
    tcp::own(sock, &record.sock, tgid);
    if record.sock.state == TCP_SYN_SENT && record.sock.sock_type == SOCK_STREAM {
        record.start_ns = syn_ns(sock, now_ns);
        record.flags = WAIT_BEGAN_EARLIER;
        record.syn_retransmits = member(sock, offset!(tcp_total_retrans));
        if HANDSHAKES.insert(sock, &record, 0).is_err() {
            emit::lost(Loss::HandshakeTable);
        }
    }
    0
}

/// When the first SYN went out: TCP keeps it, in milliseconds, until the handshake is over.
#[inline(always)]
fn syn_ns(sock: u64, now_ns: u64) -> u64 {
    /// Longer than any handshake lasts; above it the stamp is not what it is taken for.
    const LONGEST_MS: u32 = 3_600_000;
    let stamp: u32 = member(sock, offset!(tcp_retrans_stamp));
    let age_ms = ((now_ns / 1_000_000) as u32).wrapping_sub(stamp);
    if stamp == 0 || age_ms > LONGEST_MS {
        now_ns
    } else {
        now_ns.saturating_sub(u64::from(age_ms) * 1_000_000)
    }
}

/// Notes for every thread that is blocked in a watched call what it would have noted itself at entry.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter.s/task")]
pub extern "C" fn snapshot_tasks(ctx: *mut c_void) -> i32 {
    let ctx = IterContext(ctx);
    let task = ctx.get::<task_struct>(1);
    if task.is_null() {
        return 0;
    }
    begin_earlier(&ctx, task);
    0
}

#[inline(always)]
fn begin_earlier(ctx: &IterContext, task: *mut task_struct) -> Option<()> {
    let address = task as u64;
    let tgid: u32 = member(address, offset!(task_tgid));
    TARGETS.get_ptr(tgid)?;
    let tid: u32 = member(address, offset!(task_pid));
    if !is_asleep(address) || thread::find(tid).is_some_and(|thread| thread.call != 0) {
        return None;
    }
    // SAFETY: the verifier knows the task and what is returned.
    let regs = unsafe { &*(bpf_task_pt_regs(task) as *const Regs) };
    let number = regs.number();
    let mut call = u32::from(*CALLS.get(number)?);
    if call == u32::from(RESTART_CALL) {
        call = restarted(address)?;
    }
    if call == 0 || regs.is_foreign() {
        return None;
    }
    // SAFETY: no preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let thread = thread::find_or_add(tgid, tid)?;
    let start_ns = now_ns.saturating_sub(age_ns(address, now_ns));
    thread.enter(call, number, regs.args(), start_ns);
    thread.flags |= u32::from(WAIT_BEGAN_EARLIER | WAIT_SLEPT);
    thread.run_delay_ns = member(address, offset!(task_run_delay));
    thread.first_sleep_ns = start_ns;
    thread.sleep_ns = start_ns;
    thread.sleeps = 1;
    wait::resolve(thread, tid, Remote(task));
    if call == Call::Connect as u32 {
        join_handshake(thread, address, tid);
    }
    thread.sleep_stack = stack::kernel_of(task, u64::from(tgid) << 32 | u64::from(tid));
    thread.kernel_stack = thread.sleep_stack;
    // It may have gone on while it was looked at; then its own probes know better.
    if !is_asleep(address) {
        thread.call = 0;
        return None;
    }
    debug!(ctx, "thread {} of {} is blocked in call {} since {} ns", tid, tgid, call, now_ns - start_ns);
    Some(())
}

/// What `restart_syscall` goes on with in this task.
#[inline(always)]
fn restarted(task: u64) -> Option<u32> {
    let function: u64 = member(task, offset!(task_restart_fn));
    // SAFETY: userspace writes the map before the iterator runs.
    unsafe { RESTARTS.get(function) }.copied()
}

#[inline(always)]
fn is_asleep(task: u64) -> bool {
    member::<u32>(task, offset!(task_state)) & TASK_INTERRUPTIBLE != 0
}

/// A blocking `connect` began when its handshake did, and the handshake is this thread's.
#[inline(always)]
fn join_handshake(thread: &mut Thread, task: u64, tid: u32) {
    let sock = socket::sock_of(socket::file_of(task, thread.args[0] as u32));
    if let Some(open) = HANDSHAKES.get_ptr_mut(sock) {
        // SAFETY: fields of an entry that its end may copy meanwhile.
        let open = unsafe { &mut *open };
        open.tid = tid;
        thread.start_ns = open.start_ns;
        thread.first_sleep_ns = open.start_ns;
        thread.sleep_ns = open.start_ns;
    }
}

/// How long a sleeping task has slept at least, 0 where that cannot be told. The scheduler stamped it with its own
/// clock, which stands still while the processor serves interrupts or is taken away by a hypervisor; so the clock's
/// lead now is at least what it was then, and the age comes out too small, never too large.
#[inline(always)]
fn age_ns(task: u64, now_ns: u64) -> u64 {
    let stamp: u64 = member(task, offset!(task_exec_start));
    let cpu: u32 = member(task, offset!(task_cpu));
    let lead = CLOCK_LEADS.get(cpu).copied().unwrap_or(0);
    if stamp == 0 || lead == 0 {
        return 0;
    }
    let began = stamp.wrapping_add(lead - 1);
    let age = now_ns.saturating_sub(began);
    // The two clocks may run apart by some hundred millionths.
    age - age / 2000
}

/// Writes a record for every call that has not returned.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter.s/task")]
pub extern "C" fn finish_tasks(ctx: *mut c_void) -> i32 {
    let ctx = IterContext(ctx);
    let task = ctx.get::<task_struct>(1);
    if task.is_null() {
        return 0;
    }
    still_waits(task);
    0
}

#[inline(always)]
fn still_waits(task: *mut task_struct) -> Option<()> {
    let address = task as u64;
    let tgid: u32 = member(address, offset!(task_tgid));
    TARGETS.get_ptr(tgid)?;
    let tid: u32 = member(address, offset!(task_pid));
    let thread = thread::find(tid)?;
    if thread.call == 0 {
        return None;
    }
    // SAFETY: no preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    // SAFETY: the verifier knows the task and what is returned.
    let regs = unsafe { &*(bpf_task_pt_regs(task) as *const Regs) };
    if now_ns.saturating_sub(thread.start_ns) < settings::min_stall_ns()
        || regs.number() != thread.number
        || thread.stayed_awake()
    {
        return None;
    }
    wait::resolve(thread, tid, Remote(task));
    if ANY_FILE.has(thread.call) && thread.sock.family == 0 {
        return None;
    }
    let mut runq_ns = member::<u64>(address, offset!(task_run_delay)).saturating_sub(thread.run_delay_ns);
    if thread.sleep_ns != 0 {
        thread.end_sleep(now_ns);
        // The kernel adds the present delay when it is over.
        runq_ns += now_ns.saturating_sub(thread.last_wake_ns);
    }
    if is_asleep(address) {
        thread.kernel_stack = stack::kernel_of(task, u64::from(tgid) << 32 | u64::from(tid));
    }
    let end = End {
        now_ns,
        ret: 0,
        runq_ns,
        flags: u32::from(WAIT_IN_FLIGHT),
        user_stack: 0,
        regs: UserRegs::from(regs),
    };
    wait::emit(thread, tid, &end, Remote(task));
    // Its return makes no second record.
    thread.call = 0;
    Some(())
}
