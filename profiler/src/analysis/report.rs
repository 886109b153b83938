//! The report as data: schema `stallscope.report/1`. Field names, types and meanings are a contract with
//! other programs; fields may be added. All times are integer nanoseconds.

use serde::{Deserialize, Serialize};

use crate::model::cause::Cause;
use crate::trace::record::FamilyState;

pub const SCHEMA: &str = "stallscope.report/1";

/// Quantiles (nearest rank) and moments of a set of durations, all 0 where `count` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    pub count: u64,
    pub min_ns: u64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    pub sum_ns: u64,
    /// Population standard deviation.
    pub stddev_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    pub trace: TraceState,
    pub host: HostRow,
    pub target: TargetRow,
    pub environment: Vec<EnvironmentRow>,
    pub coverage: CoverageRow,
    pub totals: Totals,
    pub threads: Vec<ThreadRow>,
    pub causes: Vec<CauseRow>,
    /// By thread, cause and peer, most time first; the first thousand (an addition to the contract).
    #[serde(default)]
    pub stalls: Vec<StallRow>,
    pub dns: Vec<DnsRow>,
    pub connects: Vec<ConnectRow>,
    pub sockets: Vec<SocketRow>,
    pub hops: Vec<HopRow>,
    /// Queue pairs of RDMA adapters.
    pub queues: Vec<super::queues::QueueRow>,
    pub collectives: Vec<CollectiveRow>,
    /// Time on GPUs (an addition to the contract); absent without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuRow>,
    /// Waits of threads for GPUs (an addition to the contract); absent without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuda_waits: Vec<CudaWaitRow>,
    /// Filled by the NCCL layer.
    pub init: Vec<serde_json::Value>,
    /// Filled by the NCCL layer; null without steps.
    pub steps: Option<serde_json::Value>,
    pub clock: ClockRow,
    /// Counters of adapters' ports.
    pub counters: Vec<super::queues::counters::CounterRow>,
    /// What the kernel and the device did to set RDMA up (an addition to the contract); absent where nothing was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_setup: Option<super::rdma_setup::RdmaSetupSection>,
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceState {
    /// The recording ended in order and the whole file was read.
    pub complete: bool,
    pub damage: Vec<String>,
    pub bytes_unread: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRow {
    pub name: String,
    pub kernel: String,
    pub cpus: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRow {
    pub pids: Vec<u32>,
    pub comm: String,
    pub start_unix_ns: u64,
    pub duration_ns: u64,
    pub ranks: Vec<RankRow>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRow {
    pub pid: u32,
    pub rank: Option<u32>,
    pub nranks: Option<u32>,
    pub gpu: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentRow {
    pub what: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverageRow {
    pub probes: Vec<ProbeRow>,
    pub lost_events: u64,
    pub truncated_stacks: u64,
    pub unmatched_completions: u64,
    /// Different places in code (space, module, offset) that the stacks of the trace lead through and that have no
    /// name.
    pub unresolved_frames: u64,
    pub below_min_stall: BelowMinStall,
    /// Every call of the target that the probes saw, also those far below `--min-stall`.
    pub syscalls_seen: std::collections::BTreeMap<String, u64>,
    /// Every kind of loss by name (an addition to the contract).
    pub losses: std::collections::BTreeMap<String, u64>,
    /// Stalls in Python programs; absent where there are none (an addition to the contract).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonCoverage>,
}

/// Which stalls have Python functions in their stacks. Stalls of threads that ran no Python are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonCoverage {
    /// Stalls with functions, and their time.
    pub with: StallSum,
    /// Those of them whose functions stand in one block, since the native frames do not tell their places.
    pub unmatched: StallSum,
    /// Stalls with the interpreter's frames only: too short for a look, or it could not be read.
    pub without: StallSum,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallSum {
    pub count: u64,
    pub stalled_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRow {
    pub family: String,
    pub state: FamilyState,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BelowMinStall {
    pub count: u64,
    pub sum_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Sum over threads of their presence in the window.
    pub thread_wall_ns: u64,
    /// Sum over threads of the union of their stalled intervals.
    pub stalled_ns: u64,
    pub idle_ns: u64,
}

/// What samples of the processors say of a thread: another account of its running time than the kernel's, and what the
/// thread did then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnCpu {
    pub samples: u64,
    /// Of these, in which it looked in vain, again and again, for something to receive.
    pub looking_samples: u64,
    /// Between two samples of one processor.
    pub period_ns: u64,
    /// Samples times period, looking or not.
    pub running_ns: u64,
    /// Where the running time lies with a probability of 95 %.
    pub ci95_ns: [u64; 2],
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRow {
    pub pid: u32,
    pub tid: u32,
    pub ns_pid: u32,
    pub name: String,
    pub wall_ns: u64,
    pub running_ns: u64,
    pub runnable_ns: u64,
    pub stalled_ns: u64,
    pub idle_ns: u64,
    pub other_ns: u64,
    /// Left out where the recording did not sample the processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_cpu: Option<OnCpu>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Domain {
    Thread,
    Qp,
    Gpu,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseRow {
    pub cause: Cause,
    pub domain: Domain,
    pub count: u64,
    pub stalled_ns: u64,
    /// Count of spans not ended when the recording stopped.
    pub in_flight: u64,
    pub duration: Distribution,
    /// Age or length of the longest wait, with what lies before the recording (an addition to the contract).
    pub longest_ns: u64,
    /// That one began before the recording, so its length is a lower bound (an addition to the contract).
    pub began_earlier: bool,
}

/// All stalls of one thread with one cause and peer (an addition to the contract).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallRow {
    pub cause: Cause,
    /// Empty where unknown.
    pub peer: String,
    pub pid: u32,
    pub tid: u32,
    pub count: u64,
    pub stalled_ns: u64,
    pub in_flight: u64,
    pub longest_ns: u64,
    pub began_earlier: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsRow {
    /// Null where the query was sent before the recording and could not be recovered.
    pub name: Option<String>,
    pub qtype: Option<String>,
    /// `getaddrinfo` …, empty outside of a known function.
    pub api: String,
    /// `ip:port`, `[ip]:port`, or the socket's path.
    pub server: String,
    /// `udp`, `tcp`, `unix`.
    pub transport: String,
    /// DNS messages sent.
    pub attempts: u64,
    pub answered: u64,
    /// Last answer: `NOERROR`, `NXDOMAIN`, `SERVFAIL`, `REFUSED` …, `icmp-refused`; where this machine did not let the
    /// question out, the name of its errno (`ENETUNREACH`); null without an answer.
    pub rcode: Option<String>,
    pub stalled_ns: u64,
    pub in_flight: u64,
    pub began_earlier: bool,
    pub malformed: bool,
    pub pid: u32,
    pub tid: u32,
    /// Query to answer (an addition to the contract).
    pub latency: Distribution,
    /// Lookups (calls of the API, or bursts of queries with this name) (an addition to the contract).
    pub lookups: u64,
    /// Messages that came instead of an answer: wrong id or question, unreadable (an addition to the contract).
    pub mismatched: u64,
    /// Answers that said that they were cut, so that the question is asked again over TCP (an addition to
    /// the contract).
    pub truncated: u64,
    /// Failed attempts to send (an addition to the contract).
    pub unsent: u64,
    /// How many rows this one stands for, which says no name, peer or thread; absent in a row of one (an addition to the
    /// contract).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub folded: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectRow {
    /// `ip:port`, `[ip]:port`.
    pub peer: String,
    /// `inet`, `inet6`.
    pub family: String,
    /// `ok`, an errno's name, `aborted` (closed by the program), `in_flight`.
    pub result: String,
    pub count: u64,
    pub syn_retransmits: u64,
    pub stalled_ns: u64,
    pub began_earlier: bool,
    pub pid: u32,
    pub tid: u32,
    /// SYN to outcome (an addition to the contract).
    pub handshake: Distribution,
    /// The connecting socket's own address (an addition to the contract), without a port where that is not known,
    /// empty where nothing is.
    pub local: String,
    /// From the start of the first attempt to the end of the last, or of the recording: the age of the oldest
    /// attempt where the result is `in_flight` (an addition to the contract).
    pub span_ns: u64,
    /// How many rows this one stands for, which says no name, peer or thread; absent in a row of one (an addition to the
    /// contract).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub folded: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketRow {
    pub peer: String,
    /// `send` or `recv`.
    pub direction: String,
    pub waits: u64,
    pub stalled_ns: u64,
    pub in_flight: u64,
    pub duration: Distribution,
    pub pid: u32,
    pub tid: u32,
    /// Looks at the descriptor that found nothing (an addition to the contract).
    pub polls: u64,
    /// Age or length of the longest wait, with what lies before the recording (an addition to the contract).
    pub longest_ns: u64,
    /// That one began before the recording, so its length is a lower bound (an addition to the contract).
    pub began_earlier: bool,
    /// How many rows this one stands for, which says no name, peer or thread; absent in a row of one (an addition to the
    /// contract).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub folded: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HopRow {
    /// The address alone.
    pub peer: String,
    pub host: Option<String>,
    pub rack: Option<String>,
    /// `same-host`, `same-rack`, `cross-rack`, `unknown`.
    pub relation: String,
    /// `topology`, `address` (same host), `none`.
    pub relation_evidence: String,
    /// `tcp`, `rdma`.
    pub transport: String,
    pub device: Option<String>,
    pub rtt: Distribution,
    pub jitter_ns: u64,
    pub retransmits: u64,
    pub bytes: u64,
    pub share_of_bytes: f64,
}

/// Kernels of one name and process. All times are those of the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectiveRow {
    /// Null until the NCCL layer gives it, as are all that are `None` here.
    pub comm: Option<String>,
    /// `AllReduce` …
    pub op: String,
    /// Of the process, as its launcher's variables say.
    pub rank: Option<u32>,
    pub nranks: Option<u32>,
    pub count: u64,
    pub bytes: Option<u64>,
    pub kernel: Distribution,
    /// From the beginning of the launching call to the kernel's start, of those whose launch was seen.
    pub launch_queue: Distribution,
    pub peer_late_ns: Option<u64>,
    pub network_ns: Option<u64>,
    pub cross_rack_hops: Option<u64>,
    pub evidence: String,
    /// Between one of these kernels and the next on its stream (an addition to the contract).
    pub gap: Distribution,
    /// `f32` … (this and what follows are additions to the contract).
    pub data_type: Option<String>,
    /// `Sum` …
    pub reduction: Option<String>,
    pub algorithm: Option<String>,
    pub protocol: Option<String>,
    pub kernel_name: String,
    pub pid: u32,
    pub device: u32,
    /// Union of the times in which no compute kernel of the process ran on that device beside one of these.
    pub exposed_ns: u64,
    /// Union of the times in which one did.
    #[serde(default)]
    pub hidden_ns: u64,
}

/// What one process had a GPU do. Times are unions of intervals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRow {
    pub pid: u32,
    /// As the process numbers its devices.
    pub device: u32,
    pub kernels: u64,
    pub copies: u64,
    pub copied_bytes: u64,
    pub busy_ns: u64,
    pub compute_ns: u64,
    pub nccl_ns: u64,
    /// NCCL kernels with no compute kernel of the process beside them.
    pub nccl_exposed_ns: u64,
    pub copy_ns: u64,
    /// From the start of the first activity to the end of the last one (this and what follows are additions).
    #[serde(default)]
    pub span_ns: u64,
    /// Times between activities in which none of the process ran on the device.
    #[serde(default)]
    pub gaps: Distribution,
    /// Kernels and copies by name, most time first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_name: Vec<GpuKernelRow>,
}

/// Kernels, or copies, of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuKernelRow {
    /// Demangled, without arguments; of NCCL's kernels and of copies what they do.
    pub name: String,
    /// `compute`, `nccl`, `copy`.
    pub class: String,
    pub count: u64,
    pub sum_ns: u64,
    pub duration: Distribution,
    /// From the beginning of the launching call to the start, of those whose launch was seen.
    pub launch_queue: Distribution,
}

/// Waits of one thread in one function of CUDA, and what ran on the GPU meanwhile, by what counts most at each moment:
/// the five parts add up to `waited_ns`. `nccl_ns`, `copy_ns` and `queue_ns` are stalled time of the thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaWaitRow {
    pub pid: u32,
    pub tid: u32,
    /// `cudaStreamSynchronize` …
    pub function: String,
    pub count: u64,
    pub waited_ns: u64,
    pub compute_ns: u64,
    pub nccl_ns: u64,
    pub copy_ns: u64,
    pub queue_ns: u64,
    /// Nothing of the process was launched or running, as far as that was recorded.
    pub unknown_ns: u64,
    /// Part of `waited_ns` in which the thread looked again and again instead of sleeping.
    pub spin_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRow {
    pub aligned: bool,
    pub offset_error_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Critical,
    Warning,
    Info,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// One of the ids that the README lists.
    pub id: String,
    pub severity: Severity,
    /// One sentence with names and figures.
    pub summary: String,
    pub cause: Cause,
    pub stalled_ns: u64,
    /// The figures that the finding rests on.
    pub proof: serde_json::Map<String, serde_json::Value>,
    /// What to do, as commands where possible.
    pub advice: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}
