//! What a trace consists of: the decoded records, independent of the kernel's wire format and of the
//! encoding on disk.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC` of the recorded machine ([`Clock`] maps them to wall time).
//! Process and thread ids are those of the recorder's PID namespace unless a field says otherwise.

use std::net::{IpAddr, SocketAddr};

use profiler_common::{Api, Call};
use serde::{Deserialize, Serialize};

/// One record of a trace.
///
/// Names of variants are for JSON; a trace has the number of a [`Kind`](super::kind::Kind) instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Record {
    Host(Host),
    Clock(Clock),
    /// The recording window; written when it opens, and again when it closes.
    Window(Window),
    Environment(Environment),
    Coverage(Coverage),
    Process(Process),
    Thread(Thread),
    Life(Life),
    Wait(Wait),
    Dns(DnsMessage),
    Api(ApiCall),
    Handshake(Handshake),
    Retransmit(Retransmit),
    Socket(SocketSample),
    Stack(Stack),
    PythonStack(PythonStack),
    ThreadTime(ThreadTime),
    CallCount(CallCount),
    Loss(Loss),
    /// Last record of a recording that ended in order.
    End(End),
    Topology(TopologyFile),
    QueuePair(super::rdma::QueuePair),
    RdmaPost(super::rdma::RdmaPost),
    RdmaCompletion(super::rdma::RdmaCompletion),
    RdmaWindow(super::rdma::RdmaWindow),
    PortCounter(super::rdma::PortCounter),
    RdmaAnchor(super::rdma::RdmaAnchor),
    RdmaEntry(super::rdma::RdmaEntry),
    RdmaBirth(super::rdma::RdmaBirth),
    RdmaPeer(super::rdma::RdmaPeer),
    CpuSamples(CpuSamples),
    GpuName(super::gpu::GpuName),
    GpuActivities(super::gpu::GpuActivities),
    GpuSyncs(super::gpu_sync::GpuSyncs),
    MarkerFunction(super::marker::MarkerFunction),
    MarkerCalls(super::marker::MarkerCalls),
    RdmaSetup(super::rdma_setup::RdmaSetup),
    RdmaSetupTotals(super::rdma_setup::RdmaSetupTotals),
    RdmaCommandTotals(super::rdma_setup::RdmaCommandTotals),
    RdmaDeviceEvent(super::rdma_setup::RdmaDeviceEvent),
    PciDevice(super::place::PciDevice),
    RdmaPort(super::place::RdmaPort),
    DeviceUse(super::place::DeviceUse),
    ThreadPlace(super::place::ThreadPlace),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub name: String,
    /// Release, as `uname -r` prints it.
    pub kernel: String,
    pub cpus: u32,
    /// `x86_64`, `aarch64`.
    pub arch: String,
    /// Version of the stallscope that recorded.
    pub recorder: String,
}

/// Two clocks read together, so that times can be shown as wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, nanoseconds since 1970.
    pub unix_ns: u64,
}

/// `[start_ns, end_ns)`; `end_ns` is 0 while the recording runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub start_ns: u64,
    pub end_ns: u64,
    /// `--min-stall`, nanoseconds.
    pub min_stall_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// `resolv.conf`, `NCCL_SOCKET_IFNAME`, `libc` …; repeated for several processes where it differs.
    pub what: String,
    pub value: String,
    /// 0: of the machine.
    pub pid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FamilyState {
    On,
    Off,
    Partial,
}

/// What a probe family could see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// `net`, `dns`, `sched`, `verbs`, `nccl`, `cuda`; and parts that can be missing alone (`tcp`, `rtt`, `io_uring`).
    pub family: String,
    pub state: FamilyState,
    /// Empty where `state` is `On`.
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    pub ppid: u32,
    /// Id in the process's own PID namespace.
    pub ns_pid: u32,
    pub comm: String,
    /// Executable as the process itself sees it.
    pub exe: String,
    /// First time known of in the window.
    pub seen_ns: u64,
    /// Named by the user, as against a child that was followed.
    pub asked_for: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    pub pid: u32,
    pub tid: u32,
    pub ns_tid: u32,
    pub name: String,
    /// Start of its presence in the window.
    pub seen_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LifeEvent {
    /// `pid` was forked by `parent`.
    Fork,
    /// `tid` was born in `pid`.
    Thread,
    /// `pid` runs another program now.
    Exec,
    /// `tid` ended.
    Exit,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    pub time_ns: u64,
    pub event: LifeEvent,
    pub pid: u32,
    pub tid: u32,
    pub parent: u32,
    pub comm: String,
}

/// The two ends of a socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ends {
    Inet {
        local: SocketAddr,
        peer: SocketAddr,
    },
    /// The path of the peer, or of the socket itself where it has none; abstract names begin with `@`.
    Unix {
        path: String,
    },
    /// Another family (`AF_*`), or no socket at all (0).
    Other {
        family: u16,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Socket {
    /// 0: none.
    pub ino: u64,
    pub fd: i32,
    /// `SOCK_*`.
    pub kind: u8,
    /// `TCP_*`, as numbered by the kernel.
    pub state: u8,
    pub ends: Ends,
    /// Events asked for in a poll set.
    pub events: u16,
    /// Events returned.
    pub revents: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent marks of one wait")]
pub struct WaitFlags {
    pub began_earlier: bool,
    pub in_flight: bool,
    /// Folded looks at a non-blocking descriptor.
    pub nonblocking: bool,
    pub slept: bool,
    pub paused: bool,
    /// Of a poll set: not all descriptors were looked at, and none of those that were is a listening socket.
    #[serde(default)]
    pub set_cut: bool,
    /// The scheduler's probes ran: [`Wait::sched`] says where the thread slept, and that it did not where that is empty.
    #[serde(default)]
    pub timed: bool,
}

/// What the scheduler did with a thread inside of a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sched {
    /// Beginning of the first sleep; 0: it did not sleep, or that is not known.
    pub sleep_ns: u64,
    /// The wake-up that ended the last sleep; what follows is the wait for a processor, and work.
    pub wake_ns: u64,
    /// Time in which the thread waited for a processor, nanoseconds.
    pub runq_ns: u64,
    /// Of `futex`: the thread that held the lock, by its id in its own PID namespace; 0: the word does not tell.
    pub owner: u32,
}

/// An interval in which a thread was inside a watched call, or looked again and again at a descriptor
/// that had nothing for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    pub start_ns: u64,
    pub end_ns: u64,
    pub pid: u32,
    pub tid: u32,
    #[serde(with = "super::ids::call")]
    pub call: Call,
    pub flags: WaitFlags,
    /// -1 where the call has none.
    pub fd: i32,
    /// Descriptors in the poll set, also those that `sockets` lacks; where `sockets` has none but
    /// sockets, and as many as a record can have, only sockets are counted.
    pub set_size: u16,
    /// Looks folded into this wait.
    pub polls: u32,
    /// Result, or -errno.
    pub ret: i64,
    /// Time-out in milliseconds of poll calls (-1: none), operation of `futex` (with `FUTEX_CONTENDED`).
    pub arg: i32,
    /// Time asleep; until the thread ran again, or with `flags.timed` until it was woken up. 0: none, or unknown.
    pub off_cpu_ns: u64,
    /// Id of a [`Stack`], 0: none.
    pub user_stack: u64,
    /// Id of a [`Stack`], 0: none.
    pub kernel_stack: u64,
    #[serde(with = "super::ids::api")]
    pub api: Api,
    /// Start of the resolver call this wait is inside of; 0: none or begun earlier.
    pub api_start_ns: u64,
    pub sockets: Vec<Socket>,
    #[serde(default)]
    pub sched: Sched,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Send,
    Receive,
}

/// A DNS message, or the error that came in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsMessage {
    pub time_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub direction: Direction,
    /// Length of the whole message, or -errno.
    pub ret: i64,
    #[serde(with = "super::ids::api")]
    pub api: Api,
    pub api_start_ns: u64,
    pub socket: Socket,
    /// The first bytes of the message as they were in the program's buffer (with TCP: of the stream).
    pub data: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiCall {
    pub time_ns: u64,
    pub pid: u32,
    pub tid: u32,
    #[serde(with = "super::ids::api")]
    pub api: Api,
    /// What is looked up: a name, or an address for reverse look-ups. Empty where it could not be read.
    pub argument: String,
    /// Set where `argument` is an address.
    pub address: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshake {
    pub start_ns: u64,
    pub end_ns: u64,
    pub pid: u32,
    pub tid: u32,
    /// errno; 0 is success or, with `state` closed, given up by the program.
    pub error: i32,
    pub began_earlier: bool,
    pub in_flight: bool,
    pub syn_retransmits: u32,
    pub socket: Socket,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retransmit {
    pub time_ns: u64,
    pub pid: u32,
    pub socket: Socket,
}

/// One look at a TCP socket of the target (`sock_diag`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketSample {
    pub time_ns: u64,
    pub pid: u32,
    pub socket: Socket,
    /// Smoothed round-trip time, 0: none yet.
    pub rtt_ns: u64,
    pub rtt_var_ns: u64,
    pub total_retransmits: u32,
    /// Of the segment that is being sent now.
    pub current_retransmits: u32,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub send_queue: u32,
    pub receive_queue: u32,
    /// Since data last came in, 0: unknown.
    pub last_receive_age_ns: u64,
    /// Whether it was seen when the recording began (and so these totals are the base line).
    pub at_start: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Space {
    User,
    Kernel,
}

/// A call stack with its names, innermost frame first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    pub id: u64,
    pub space: Space,
    pub frames: Vec<Frame>,
    /// The outermost frame is not the thread's start.
    pub truncated: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Demangled, without arguments' types where the mangling allows; empty where it has no name.
    pub function: String,
    /// File name of the library or executable, `[kernel]`, `[vdso]`; empty where unknown.
    pub module: String,
    /// Offset into the module's file, for frames without a name.
    pub offset: u64,
}

/// The Python functions that a thread was in, with the native stack that they belong to. Waits refer to it as their user
/// stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonStack {
    pub id: u64,
    /// Id of the [`Stack`] with the frames of the interpreter, 0: none.
    pub native: u64,
    /// Innermost first.
    pub frames: Vec<PythonFrame>,
    /// Functions further out were left out.
    pub truncated: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PythonFrame {
    /// Qualified from CPython 3.11 on.
    pub function: String,
    /// As the code object has it: most often a path in the target's own root.
    pub file: String,
    /// Line that was executed, 0: unknown.
    pub line: u32,
    /// The interpreter was entered from C with this function; the next one inward came by a call within it.
    pub entry: bool,
}

/// CPU times of a thread from `/proc/PID/task/TID/schedstat`, cumulative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTime {
    pub time_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub running_ns: u64,
    pub runnable_ns: u64,
}

/// How often a thread was found on a processor, by a clock of each processor, since the window opened. Repeated while the
/// recording runs, the last one counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuSamples {
    pub time_ns: u64,
    pub pid: u32,
    pub tid: u32,
    /// Between two samples of one processor.
    pub period_ns: u64,
    pub samples: u64,
    /// Of these: looking whether a descriptor or a poll set has something, again and again and in vain.
    pub looking: u64,
    /// Within waits on non-blocking descriptors, from the first look to the last one.
    pub waiting: u64,
    /// Of those: about something else than looking.
    pub working: u64,
}

/// Totals of one call over the recording; repeated while it runs, the last one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCount {
    #[serde(with = "super::ids::call")]
    pub call: Call,
    pub seen: u64,
    pub below: u64,
    pub below_ns: u64,
}

/// Totals of one kind of loss; repeated while it runs, the last one counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// `profiler_common::Loss::name`, or a name of userspace's own.
    pub what: String,
    pub count: u64,
    /// Whether whole events are missing.
    pub events: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub time_ns: u64,
    /// `duration`, `signal`, `targets exited`, `error: …`.
    pub reason: String,
}

/// The topology that the recording was given, with the addresses of its hosts as far as they were known there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyFile {
    /// As the user named it.
    pub path: String,
    /// In the own form (TOML), whatever the form of the file.
    pub text: String,
}
