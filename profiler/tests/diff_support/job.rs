//! Made-up recordings of a training loop, with the noise of real ones, written with the trace writer.

use std::net::SocketAddr;
use std::path::Path;

use profiler_common::{Api, Call};
use stallscope::random::Random;
use stallscope::trace::TraceWriter;
use stallscope::trace::record::{
    Clock, End, Ends, Environment, Frame, Host, Process, Record, Sched, Socket, SocketSample, Space, Stack,
    Thread, ThreadTime, Wait, WaitFlags, Window,
};

const MS: f64 = 1e6;
const START_NS: u64 = 7_000_000_000_000;

/// A peer whose replies a loop waits for; its port is a service's.
pub const SLOW: &str = "10.0.1.7:29500";
pub const OTHER: &str = "10.0.1.8:29500";

/// Of the standard normal distribution, nearly.
fn normal(random: &mut Random) -> f64 {
    (0..12).map(|_| random.share()).sum::<f64>() - 6.0
}

/// A figure that varies about 1, and remembers where it was.
struct Noise {
    deviation: f64,
    now: f64,
}

impl Noise {
    /// Log-normal, half of the deviation kept from one to the next; one in 200 is up to four times as long.
    fn next(&mut self, random: &mut Random) -> f64 {
        self.now = 0.5 * self.now + 0.75_f64.sqrt() * normal(random);
        let long = if random.share() < 0.005 { 1.0 + 3.0 * random.share() } else { 1.0 };
        (self.deviation * self.now).exp() * long
    }
}

/// What is recorded.
#[derive(Clone, Debug)]
pub struct Job {
    pub seed: u64,
    pub seconds: u64,
    /// Deviation of the loop's times, as a share of them.
    pub noise: f64,
    /// Waits for [`SLOW`] are longer by this factor.
    pub slow: f64,
    pub pid: u32,
    /// Of the client that a worker serves.
    pub client_port: u16,
    /// The network's interface, a variable of NCCL.
    pub interface: &'static str,
    /// Whether the job also waits for a peer that only this version of it knows.
    pub has_new_peer: bool,
    /// Whether it also sends to a peer that only the other version knows.
    pub has_old_peer: bool,
}

impl Job {
    pub fn steady(seed: u64) -> Job {
        Job {
            seed,
            seconds: 20,
            noise: 0.15,
            slow: 1.0,
            pid: 4000 + (seed % 1000) as u32,
            client_port: 40_000 + (seed % 1000) as u16,
            interface: "eth0",
            has_new_peer: false,
            has_old_peer: false,
        }
    }

    /// # Panics
    /// When the trace cannot be written.
    pub fn write(&self, path: &Path) {
        let mut writer = TraceWriter::create(path).unwrap();
        let end_ns = START_NS + self.seconds * 1_000_000_000;
        for record in self.head(end_ns) {
            writer.write(record).unwrap();
        }
        let mut waits = self.train(end_ns);
        waits.extend(self.workers(end_ns));
        waits.extend(self.store(end_ns));
        waits.sort_by_key(|wait| wait.end_ns);
        for wait in waits {
            writer.write(Record::Wait(wait)).unwrap();
        }
        for record in self.samples(end_ns).into_iter().chain(self.cpu_times(end_ns)) {
            writer.write(record).unwrap();
        }
        writer.finish(End { time_ns: end_ns, reason: "duration".to_owned() }).unwrap();
    }

    fn head(&self, end_ns: u64) -> Vec<Record> {
        let pid = self.pid;
        let environment = |what: &str, value: &str| {
            Record::Environment(Environment { what: what.to_owned(), value: value.to_owned(), pid })
        };
        let mut records = vec![
            Record::Host(Host {
                name: "node03".to_owned(),
                kernel: "6.1.0".to_owned(),
                cpus: 8,
                arch: "x86_64".to_owned(),
                recorder: "0.1.0".to_owned(),
            }),
            Record::Clock(Clock { monotonic_ns: START_NS, unix_ns: 1_700_000_000_000_000_000 }),
            Record::Window(Window { start_ns: START_NS, end_ns, min_stall_ns: 100_000 }),
            environment("NCCL_SOCKET_IFNAME", self.interface),
            environment("RANK", "3"),
            Record::Process(Process {
                pid,
                ns_pid: pid,
                comm: "python3".to_owned(),
                seen_ns: START_NS,
                asked_for: true,
                ..Process::default()
            }),
        ];
        let names =
            [(0, "python3".to_owned()), (1, format!("worker-{}", pid % 7)), (2, "pt_store".to_owned())];
        for (at, name) in names {
            let thread = Thread { pid, tid: pid + at, ns_tid: pid + at, name, seen_ns: START_NS };
            records.push(Record::Thread(thread));
        }
        for (id, functions) in [
            (1, &["recv", "gather", "step", "main", "_start"][..]),
            (2, &["send", "scatter", "step", "main", "_start"][..]),
            (3, &["recv", "serve", "start_thread"][..]),
            (4, &["epoll_wait", "watch", "start_thread"][..]),
        ] {
            // Ids are hashes of addresses, which differ between runs.
            records.push(Record::Stack(Stack {
                id: self.stack(id),
                space: Space::User,
                frames: functions
                    .iter()
                    .map(|function| Frame {
                        function: (*function).to_owned(),
                        module: "train".to_owned(),
                        offset: 0,
                    })
                    .collect(),
                truncated: false,
            }));
        }
        records
    }

    /// Only the first thread computes.
    fn cpu_times(&self, end_ns: u64) -> Vec<Record> {
        let look = |thread: u32, time_ns: u64, running_ns: u64| {
            let (pid, tid) = (self.pid, self.pid + thread);
            Record::ThreadTime(ThreadTime { time_ns, pid, tid, running_ns, runnable_ns: 0 })
        };
        let share = [4, 100, 1000];
        (0..3)
            .zip(share)
            .flat_map(|(thread, share)| {
                [look(thread, START_NS, 0), look(thread, end_ns, (end_ns - START_NS) / share)]
            })
            .collect()
    }

    fn stack(&self, id: u64) -> u64 {
        id + 1000 * u64::from(self.pid)
    }

    fn wait(&self, thread: u32, call: Call, peer: &str, start_ns: f64, duration_ns: f64) -> Wait {
        let start_ns = START_NS + start_ns as u64;
        let peer: SocketAddr = peer.parse().unwrap();
        let stack = match (thread, call) {
            (0, Call::Sendto) => 2,
            (0, _) => 1,
            (1, _) => 3,
            _ => 4,
        };
        Wait {
            start_ns,
            end_ns: start_ns + duration_ns as u64,
            pid: self.pid,
            tid: self.pid + thread,
            call,
            flags: WaitFlags { slept: true, ..WaitFlags::default() },
            fd: 7,
            set_size: 0,
            polls: 0,
            ret: 64,
            arg: 0,
            off_cpu_ns: 0,
            user_stack: self.stack(stack),
            kernel_stack: 0,
            api: Api::None,
            api_start_ns: 0,
            sched: Sched::default(),
            sockets: vec![socket(peer, u16::from(call == Call::EpollWait))],
        }
    }

    /// Computes, waits for two peers, sends.
    fn train(&self, end_ns: u64) -> Vec<Wait> {
        let mut random = Random(self.seed.wrapping_mul(0x1234_5678_9abc_def1));
        let [mut compute, mut slow, mut other] = [0.0; 3].map(|now| Noise { deviation: self.noise, now });
        let mut waits = Vec::new();
        let mut now = 0.0;
        while now + 100.0 * MS < (end_ns - START_NS) as f64 {
            now += 8.0 * MS * compute.next(&mut random);
            for (call, peer, mean) in [
                (Call::Recvfrom, SLOW, 12.0 * self.slow * slow.next(&mut random)),
                (Call::Recvfrom, OTHER, 9.0 * other.next(&mut random)),
                (Call::Sendto, OTHER, 0.3 * (0.5 + random.share())),
            ] {
                waits.push(self.wait(0, call, peer, now, mean * MS));
                now += mean * MS + 20_000.0;
            }
            for (wanted, call, peer) in [
                (self.has_new_peer, Call::Recvfrom, "10.0.1.9:29500"),
                (self.has_old_peer, Call::Sendto, "10.0.1.10:29500"),
            ] {
                if wanted {
                    let length = MS * (0.5 + random.share());
                    waits.push(self.wait(0, call, peer, now, length));
                    now += length + 20_000.0;
                }
            }
        }
        waits
    }

    /// Serves a client that connected from a port given by chance.
    fn workers(&self, end_ns: u64) -> Vec<Wait> {
        let mut random = Random(self.seed.wrapping_mul(0x0fed_cba9_8765_4321));
        let peer = format!("10.0.2.4:{}", self.client_port);
        let mut waits = Vec::new();
        let mut now = 0.0;
        while now + 20.0 * MS < (end_ns - START_NS) as f64 {
            let length = MS * (3.0 + normal(&mut random).abs());
            waits.push(self.wait(1, Call::Recvfrom, &peer, now, length));
            now += length + MS * 2.0 * random.share();
        }
        waits
    }

    /// Looks once a second whether anything came, which it does not.
    fn store(&self, end_ns: u64) -> Vec<Wait> {
        let seconds = (end_ns - START_NS) / 1_000_000_000;
        (0..seconds)
            .map(|second| {
                let wait = self.wait(2, Call::EpollWait, "10.0.1.7:29400", second as f64 * 1e9, 999.0 * MS);
                Wait { ret: 0, arg: 999, set_size: 1, ..wait }
            })
            .collect()
    }

    fn samples(&self, end_ns: u64) -> Vec<Record> {
        let mut random = Random(self.seed.wrapping_mul(0x5555_1111_3333_7777));
        let mut records = Vec::new();
        for tick in 0..(end_ns - START_NS) / 250_000_000 {
            for (peer, rtt) in [(SLOW, 80_000.0), (OTHER, 120_000.0)] {
                records.push(Record::Socket(SocketSample {
                    time_ns: START_NS + tick * 250_000_000,
                    pid: self.pid,
                    socket: socket(peer.parse().unwrap(), 0),
                    rtt_ns: (rtt * (1.0 + 0.1 * normal(&mut random))).max(1000.0) as u64,
                    rtt_var_ns: 10_000,
                    total_retransmits: 0,
                    current_retransmits: 0,
                    bytes_acked: tick * 64,
                    bytes_received: tick * 64,
                    send_queue: 0,
                    receive_queue: 0,
                    last_receive_age_ns: 0,
                    at_start: tick == 0,
                }));
            }
        }
        records
    }
}

fn socket(peer: SocketAddr, events: u16) -> Socket {
    let local = SocketAddr::from(([10, 0, 0, 3], 50_000));
    Socket {
        ino: 90_000 + u64::from(peer.port()) + peer.to_string().len() as u64,
        fd: 7,
        kind: 1,
        state: 1,
        ends: Ends::Inet { local, peer },
        events,
        revents: 0,
    }
}
