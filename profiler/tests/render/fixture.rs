//! Analyses as a recording of a training job would give them: small, but whole and consistent.

use serde_json::json;
use stallscope::analysis::Analysis;
use stallscope::analysis::report::{
    CauseRow, Distribution, Domain, EnvironmentRow, HostRow, Report, SCHEMA, TargetRow, ThreadRow, Totals,
    TraceState,
};
use stallscope::analysis::stall::Stall;
use stallscope::model::cause::Cause;
use stallscope::trace::record::{Frame, Space, Stack};

#[path = "rows.rs"]
mod rows;

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
const MAIN: u32 = 4242;
const STORE: u32 = 4250;
const GATHER: u32 = 4251;
const GATHER_2: u32 = 4252;
const IDLE: u32 = 4260;

const RESOLVER: &str = "127.0.0.53:53";
const MASTER: &str = "10.0.0.9:29500";
const LATE: &str = "10.0.1.17:43210";

/// A torch-like process: its main thread hangs in a lookup that nobody answers, a store thread in a connect
/// whose SYN is not answered, two threads gather from a peer that sends late.
pub fn training() -> Analysis {
    let mut analysis = Analysis { stalls: stalls(), ..Analysis::default() };
    for (id, space, truncated, frames) in stacks() {
        let frames = frames.into_iter().map(|(function, module)| Frame {
            function: function.to_owned(),
            module: module.to_owned(),
            offset: if function.is_empty() { 0x2_9f43 } else { 0 },
        });
        analysis.stacks.insert(id, Stack { id, space, frames: frames.collect(), truncated });
    }
    analysis.processes.insert(MAIN, "python3".to_owned());
    let names = ["python3", "pt_tcpstore", "gather", "gather", "heartbeat"];
    for (tid, name) in [MAIN, STORE, GATHER, GATHER_2, IDLE].into_iter().zip(names) {
        analysis.threads.insert(tid, name.to_owned());
    }
    analysis.report = report(&analysis);
    analysis
}

/// A job in which every name is out to break the format it is written in.
pub fn hostile() -> Analysis {
    let mut analysis = training();
    let name = "<script>alert(1)</script>";
    analysis.processes.insert(MAIN, "# a;b\x1b[31m\n".to_owned());
    analysis.threads.insert(MAIN, name.to_owned());
    if let Some(stack) = analysis.stacks.get_mut(&1) {
        "operator;<\"&'\u{202e}> 1 2".clone_into(&mut stack.frames[2].function);
    }
    if let Some(stall) = analysis.stalls.first_mut() {
        "]]><svg onload=\"x\"> 7".clone_into(&mut stall.detail);
    }
    let report = &mut analysis.report;
    name.clone_into(&mut report.target.comm);
    "\x1b]0;owned\x07<img src=x>".clone_into(&mut report.host.name);
    report.dns[0].name = Some("<script>.\n\x1b[2J.example".to_owned());
    name.clone_into(&mut report.connects[0].local);
    name.clone_into(&mut report.threads[0].name);
    report.hops[0].host = Some(name.to_owned());
    name.clone_into(&mut report.environment[0].value);
    name.clone_into(&mut report.coverage.probes[0].reason);
    report.coverage.losses.insert(name.to_owned(), 1);
    report.trace.damage.push(name.to_owned());
    report.findings[0].summary = format!("{name} never answered");
    "<img src=x onerror=alert(1)>\x1b[2J".clone_into(&mut report.findings[0].advice);
    report.findings[0].proof.insert(name.to_owned(), json!([name, { name: name }]));
    analysis
}

/// A job in which nothing waited long enough, recorded with one probe family off.
pub fn quiet() -> Analysis {
    let mut analysis = training();
    analysis.stalls.clear();
    let report = &mut analysis.report;
    report.causes.clear();
    report.dns.clear();
    report.connects.clear();
    report.sockets.clear();
    report.findings.clear();
    report.totals.stalled_ns = 0;
    for row in &mut report.threads {
        row.running_ns += row.stalled_ns;
        row.stalled_ns = 0;
    }
    analysis
}

fn stall(tid: u32, cause: Cause, peer: &str, start_ms: u64, length_ms: u64) -> Stall {
    Stall {
        pid: MAIN,
        tid,
        cause,
        peer: peer.to_owned(),
        detail: String::new(),
        start_ns: S + start_ms * MS,
        end_ns: S + (start_ms + length_ms) * MS,
        weight_ns: length_ms * MS,
        in_flight: false,
        began_earlier: false,
        user_stack: 0,
        kernel_stack: 0,
        api: "",
        call: "",
    }
}

fn stalls() -> Vec<Stall> {
    let dns = |start, length| Stall {
        detail: "node01.cluster.local no answer".to_owned(),
        user_stack: 1,
        kernel_stack: 6,
        api: "getaddrinfo",
        call: "poll",
        ..stall(MAIN, Cause::DnsResolve, RESOLVER, start, length)
    };
    let recv = |tid, start, length| Stall {
        user_stack: 3,
        call: "recvfrom",
        ..stall(tid, Cause::SockRecv, LATE, start, length)
    };
    let mut stalls = vec![
        dns(10, 5000),
        Stall { in_flight: true, ..dns(5010, 4990) },
        Stall {
            detail: "SYN unanswered".to_owned(),
            in_flight: true,
            began_earlier: true,
            user_stack: 2,
            call: "connect",
            ..stall(STORE, Cause::TcpConnect, MASTER, 0, 10_000)
        },
    ];
    for tid in [GATHER, GATHER_2] {
        stalls.extend((0..20).map(|step| recv(tid, step * 500, 120 + step)));
    }
    stalls.push(Stall {
        detail: "send buffer full".to_owned(),
        user_stack: 4,
        call: "sendto",
        ..stall(GATHER_2, Cause::SockSend, "[fd00:1::17]:43210", 9900, 40)
    });
    stalls
}

type Named = (&'static str, &'static str);

fn stacks() -> Vec<(u64, Space, bool, Vec<Named>)> {
    let python = ("_PyEval_EvalFrameDefault", "python3.11");
    vec![
        (
            1,
            Space::User,
            false,
            vec![
                ("__poll", "libc.so.6"),
                ("", "libresolv.so.2"),
                ("c10d::detail::Socket::connect(std::string const&, unsigned short)", "libtorch_cpu.so"),
                ("c10d::TCPStore::TCPStore(std::string, c10d::TCPStoreOptions const&)", "libtorch_cpu.so"),
                python,
                ("PyEval_EvalCode", "python3.11"),
                ("Py_RunMain", "python3.11"),
                ("__libc_start_main", "libc.so.6"),
                ("_start", "python3.11"),
            ],
        ),
        (
            2,
            Space::User,
            false,
            vec![
                ("__libc_connect", "libc.so.6"),
                ("uv_tcp_connect", "libtorch_cpu.so"),
                ("c10d::detail::BackgroundThread::run()", "libtorch_cpu.so"),
                ("start_thread", "libc.so.6"),
                ("clone3", "libc.so.6"),
            ],
        ),
        (
            3,
            Space::User,
            true,
            vec![("recv", "libc.so.6"), ("gather_worker", "train.so"), ("step", "train.so")],
        ),
        (
            4,
            Space::User,
            true,
            vec![("send", "libc.so.6"), ("gather_worker", "train.so"), ("step", "train.so")],
        ),
        (
            6,
            Space::Kernel,
            false,
            vec![("schedule", "[kernel]"), ("do_sys_poll", "[kernel]"), ("__x64_sys_poll", "[kernel]")],
        ),
    ]
}

/// Nearest-rank quantiles of some lengths.
fn distribution(mut lengths: Vec<u64>) -> Distribution {
    lengths.sort_unstable();
    let Some(max_ns) = lengths.last().copied() else { return Distribution::default() };
    let at = |share: f64| lengths[((lengths.len() as f64 * share).ceil() as usize).max(1) - 1];
    let sum_ns: u64 = lengths.iter().sum();
    let mean = sum_ns as f64 / lengths.len() as f64;
    let variance = lengths.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum::<f64>() / lengths.len() as f64;
    Distribution {
        count: lengths.len() as u64,
        min_ns: lengths[0],
        p50_ns: at(0.5),
        p90_ns: at(0.9),
        p99_ns: at(0.99),
        max_ns,
        sum_ns,
        stddev_ns: variance.sqrt() as u64,
    }
}

fn lengths(analysis: &Analysis, filter: impl Fn(&Stall) -> bool) -> Vec<u64> {
    analysis.stalls.iter().filter(|stall| filter(stall)).map(|stall| stall.weight_ns).collect()
}

fn report(analysis: &Analysis) -> Report {
    let threads = threads(analysis);
    Report {
        schema: SCHEMA.to_owned(),
        trace: TraceState { complete: true, ..TraceState::default() },
        host: HostRow { name: "node07".to_owned(), kernel: "6.18.5".to_owned(), cpus: 64 },
        target: TargetRow {
            pids: vec![MAIN],
            comm: "python3".to_owned(),
            start_unix_ns: 1_767_225_600 * S,
            duration_ns: 10 * S,
            ranks: vec![],
        },
        environment: vec![
            EnvironmentRow { what: "resolv.conf".to_owned(), value: "nameserver 127.0.0.53".to_owned() },
            EnvironmentRow { what: "NCCL_SOCKET_IFNAME".to_owned(), value: "eth0".to_owned() },
        ],
        coverage: rows::coverage(),
        totals: Totals {
            thread_wall_ns: threads.iter().map(|row| row.wall_ns).sum(),
            stalled_ns: threads.iter().map(|row| row.stalled_ns).sum(),
            idle_ns: threads.iter().map(|row| row.idle_ns).sum(),
        },
        threads,
        causes: causes(analysis),
        dns: rows::dns(),
        connects: rows::connects(),
        sockets: rows::sockets(analysis),
        hops: rows::hops(),
        findings: rows::findings(),
        ..Report::default()
    }
}

fn threads(analysis: &Analysis) -> Vec<ThreadRow> {
    let rows = [
        (MAIN, 8 * MS, 2 * MS, 0),
        (STORE, 0, 0, 0),
        (GATHER, 3 * S, 210 * MS, 0),
        (GATHER_2, 3 * S, 190 * MS, 0),
        (IDLE, 4 * MS, 0, 9_996 * MS),
    ];
    let row = |(tid, running_ns, runnable_ns, idle_ns): (u32, u64, u64, u64)| {
        let stalled_ns: u64 = lengths(analysis, |stall| stall.tid == tid).iter().sum();
        ThreadRow {
            pid: MAIN,
            tid,
            ns_pid: 7,
            name: analysis.threads[&tid].clone(),
            wall_ns: 10 * S,
            running_ns,
            runnable_ns,
            stalled_ns,
            idle_ns,
            other_ns: 10 * S - running_ns - runnable_ns - stalled_ns - idle_ns,
            on_cpu: None,
        }
    };
    rows.into_iter().map(row).collect()
}

fn causes(analysis: &Analysis) -> Vec<CauseRow> {
    let mut rows: Vec<CauseRow> = Cause::ALL
        .into_iter()
        .filter_map(|cause| {
            let duration = distribution(lengths(analysis, |stall| stall.cause == cause));
            let waiting = analysis.stalls.iter().filter(|stall| stall.cause == cause && stall.in_flight);
            (duration.count > 0).then(|| CauseRow {
                cause,
                domain: Domain::Thread,
                count: duration.count,
                stalled_ns: duration.sum_ns,
                in_flight: waiting.count() as u64,
                duration,
                longest_ns: duration.max_ns,
                began_earlier: false,
            })
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.stalled_ns));
    rows
}
