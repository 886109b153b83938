//! Synthetic traces for tests. The window is `[1000, 2000)`, the process 100 with the thread 100.

use std::net::SocketAddr;

use profiler_common::{Api, Call};

use super::Model;
use crate::analysis::report::{CauseRow, TraceState};
use crate::analysis::{Analysis, AnalysisOptions, analyse};
use crate::model::cause::Cause;
use crate::trace::gpu::{GpuActivities, GpuActivity, GpuName, GpuWhat};
use crate::trace::gpu_sync::{GpuSync, GpuSyncs};
use crate::trace::record::{
    CpuSamples, Direction, DnsMessage, Ends, Frame, Handshake, Life, LifeEvent, Process, Record, Retransmit,
    Sched, Socket, SocketSample, Space, Stack, Thread, ThreadTime, Wait, WaitFlags, Window,
};

pub const PID: u32 = 100;

#[derive(Clone, Debug, Default)]
pub struct Trace(pub Vec<Record>);

impl Trace {
    pub fn new() -> Trace {
        Trace::with_window(1000, 2000)
    }

    pub fn with_window(start_ns: u64, end_ns: u64) -> Trace {
        let mut trace = Trace(vec![Record::Window(Window { start_ns, end_ns, min_stall_ns: 0 })]);
        trace.add(Record::Process(Process {
            pid: PID,
            ns_pid: 7,
            comm: "train".into(),
            seen_ns: start_ns,
            asked_for: true,
            ..Process::default()
        }));
        trace.thread(PID, start_ns);
        trace
    }

    pub fn add(&mut self, record: Record) -> &mut Trace {
        self.0.push(record);
        self
    }

    pub fn thread(&mut self, tid: u32, seen_ns: u64) -> &mut Trace {
        let name = format!("t{tid}");
        self.add(Record::Thread(Thread { pid: PID, tid, ns_tid: tid, name, seen_ns }))
    }

    pub fn life(&mut self, event: LifeEvent, tid: u32, time_ns: u64) -> &mut Trace {
        let comm = format!("t{tid}");
        self.add(Record::Life(Life { time_ns, event, pid: PID, tid, parent: 1, comm }))
    }

    pub fn times(&mut self, time_ns: u64, running_ns: u64, runnable_ns: u64) -> &mut Trace {
        self.add(Record::ThreadTime(ThreadTime { time_ns, pid: PID, tid: PID, running_ns, runnable_ns }))
    }

    /// Samples of the first thread, one each `period_ns`.
    pub fn samples(&mut self, period_ns: u64, counts: [u64; 4]) -> &mut Trace {
        let [samples, looking, waiting, working] = counts;
        let time_ns = 2000;
        let all = CpuSamples { time_ns, pid: PID, tid: PID, period_ns, samples, looking, waiting, working };
        self.add(Record::CpuSamples(all))
    }

    pub fn wait(&mut self, wait: Wait) -> &mut Trace {
        self.add(Record::Wait(wait))
    }

    pub fn retransmit(&mut self, time_ns: u64, socket: Socket) -> &mut Trace {
        self.add(Record::Retransmit(Retransmit { time_ns, pid: PID, socket }))
    }

    pub fn handshake(&mut self, handshake: Handshake) -> &mut Trace {
        self.add(Record::Handshake(handshake))
    }

    pub fn model(&self) -> Model {
        Model::from_records(self.0.iter().cloned())
    }

    pub fn analyse(&self) -> Analysis {
        analyse(self.0.iter().cloned(), TraceState::default(), &AnalysisOptions::default())
    }
}

impl Analysis {
    pub fn cause(&self, cause: Cause) -> Option<&CauseRow> {
        self.report.causes.iter().find(|row| row.cause == cause)
    }

    /// Stalled time by cause, the largest first.
    pub fn by_cause(&self) -> Vec<(Cause, u64)> {
        self.report.causes.iter().map(|row| (row.cause, row.stalled_ns)).collect()
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub fn inet(kind: u8, ino: u64, peer: &str) -> Socket {
    let peer = address(peer);
    let local = address(if peer.is_ipv4() { "10.0.0.1:40000" } else { "[fd00::1]:40000" });
    Socket { ino, fd: 3, kind, state: 1, ends: Ends::Inet { local, peer }, events: 0, revents: 0 }
}

/// A connected TCP socket.
pub fn tcp(ino: u64, peer: &str) -> Socket {
    inet(1, ino, peer)
}

pub fn udp(ino: u64, peer: &str) -> Socket {
    inet(2, ino, peer)
}

pub fn listener(ino: u64) -> Socket {
    Socket { state: 10, ..tcp(ino, "0.0.0.0:0") }
}

pub fn unix(path: &str) -> Socket {
    Socket { ends: Ends::Unix { path: path.into() }, ..tcp(90, "0.0.0.0:0") }
}

/// A pipe, an eventfd.
pub fn no_socket() -> Socket {
    Socket { ino: 0, kind: 0, state: 0, ends: Ends::Other { family: 0 }, ..tcp(0, "0.0.0.0:0") }
}

/// In a poll set, asked for reading.
pub fn readable(socket: Socket) -> Socket {
    Socket { events: 1, ..socket }
}

pub fn writable(socket: Socket) -> Socket {
    Socket { events: 4, ..socket }
}

pub fn connecting(socket: Socket) -> Socket {
    Socket { state: 2, ..socket }
}

pub fn wait(call: Call, start_ns: u64, end_ns: u64, sockets: Vec<Socket>) -> Wait {
    Wait {
        start_ns,
        end_ns,
        pid: PID,
        tid: PID,
        call,
        flags: WaitFlags::default(),
        fd: sockets.first().map_or(-1, |socket| socket.fd),
        set_size: sockets.len() as u16,
        polls: 0,
        ret: 0,
        arg: -1,
        off_cpu_ns: 0,
        user_stack: 0,
        kernel_stack: 0,
        api: Api::None,
        api_start_ns: 0,
        sockets,
        sched: Sched::default(),
    }
}

/// A wait whose thread slept in this interval and was on a processor, or waited for one, in the rest.
pub fn slept(start_ns: u64, end_ns: u64, wait: Wait) -> Wait {
    Wait {
        flags: WaitFlags { timed: true, slept: true, ..wait.flags },
        off_cpu_ns: end_ns - start_ns,
        sched: Sched { sleep_ns: start_ns, wake_ns: end_ns, ..wait.sched },
        ..wait
    }
}

pub fn in_flight(wait: Wait) -> Wait {
    Wait { flags: WaitFlags { in_flight: true, ..wait.flags }, ..wait }
}

/// Folded looks at non-blocking descriptors.
pub fn spin(wait: Wait) -> Wait {
    Wait { flags: WaitFlags { nonblocking: true, ..wait.flags }, ..wait }
}

pub fn shake(start_ns: u64, end_ns: u64, error: i32, socket: Socket) -> Handshake {
    Handshake {
        start_ns,
        end_ns,
        pid: PID,
        tid: PID,
        error,
        began_earlier: false,
        in_flight: false,
        syn_retransmits: 0,
        socket,
    }
}

pub fn query(time_ns: u64, socket: Socket) -> Record {
    Record::Dns(DnsMessage {
        time_ns,
        pid: PID,
        tid: PID,
        direction: Direction::Send,
        ret: 30,
        api: Api::None,
        api_start_ns: 0,
        socket,
        data: Vec::new(),
    })
}

/// A look at the socket of a process, with its own address.
///
/// # Panics
/// When `local` is no address with a port.
pub fn sample_of(pid: u32, local: &str, socket: Socket) -> SocketSample {
    let ends = match socket.ends {
        Ends::Inet { peer, .. } => Ends::Inet { local: local.parse().unwrap(), peer },
        other => other,
    };
    match sample(0, 0, 0, true, Socket { ends, ..socket }) {
        Record::Socket(sample) => SocketSample { pid, ..sample },
        _ => unreachable!("a sample is one"),
    }
}

pub fn sample(time_ns: u64, rtt_ns: u64, bytes: u64, at_start: bool, socket: Socket) -> Record {
    Record::Socket(SocketSample {
        time_ns,
        pid: PID,
        socket,
        rtt_ns,
        rtt_var_ns: 0,
        total_retransmits: 0,
        current_retransmits: 0,
        bytes_acked: bytes,
        bytes_received: 0,
        send_queue: 0,
        receive_queue: 0,
        last_receive_age_ns: 0,
        at_start,
    })
}

/// Kernels and copies of the process: stream, what, start, end and queueing. Kernel 1 is an all-reduce of NCCL, 2 computes.
pub fn gpu(trace: &mut Trace, activities: &[(u32, GpuWhat, u64, u64, Option<u64>)]) {
    let name = |id, name: &str| Record::GpuName(GpuName { id, name: name.into() });
    let mut batch = GpuActivities::new(PID);
    let mut last = 0;
    for &(stream, what, start_ns, end_ns, queue_ns) in activities {
        let one = GpuActivity { pid: PID, device: 0, stream, what, start_ns, end_ns, queue_ns };
        batch.push(&one, &mut last);
    }
    trace
        .add(name(1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"))
        .add(name(2, "gemm"))
        .add(Record::GpuActivities(batch));
}

/// Calls of the first thread that the CUDA runtime recorded: place in `SYNCS`, start and end.
pub fn syncs(trace: &mut Trace, calls: &[(u16, u64, u64)]) {
    let mut batch = GpuSyncs::new(PID);
    let mut last = 0;
    for &(function, start_ns, end_ns) in calls {
        batch.push(&GpuSync { pid: PID, ns_tid: PID, function, start_ns, end_ns }, &mut last);
    }
    trace.add(Record::GpuSyncs(batch));
}

/// A user stack with these functions, the innermost first: `poll@libc.so.6`.
pub fn stack(trace: &mut Trace, id: u64, frames: &[&str]) {
    let frame = |text: &&str| {
        let (function, module) = text.split_once('@').unwrap_or((text, "train"));
        Frame { function: function.into(), module: module.into(), offset: 0 }
    };
    let frames = frames.iter().map(frame).collect();
    trace.add(Record::Stack(Stack { id, space: Space::User, frames, truncated: false }));
}
