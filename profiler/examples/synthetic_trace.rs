//! Writes the recording that `cargo xtask bench traces` reads: eight processes of eight threads, waits of every kind
//! at 2,000 call sites, names that are looked up, connections that fail, segments that are lost.
//!
//! `synthetic_trace WAITS PEERS SEED FILE`; the same arguments make the same file.

use std::net::SocketAddr;
use std::path::Path;

use profiler_common::{Api, Call};
use stallscope::random::Random;
use stallscope::trace::TraceWriter;
use stallscope::trace::record::{
    ApiCall, CallCount, Clock, Coverage, Direction, DnsMessage, End, Ends, Environment, FamilyState, Frame,
    Handshake, Host, Process, Record, Retransmit, Sched, Socket, SocketSample, Space, Stack, Thread,
    ThreadTime, Wait, WaitFlags, Window,
};

const START_NS: u64 = 7_000_000_000_000;
const PROCESSES: u32 = 8;
const THREADS: u32 = 8;
const STACKS: usize = 2000;
/// A wait and the work behind it take that long on average.
const TURN_NS: u64 = 400_000;

struct Job {
    random: Random,
    writer: TraceWriter,
    peers: Vec<SocketAddr>,
    /// When each thread is free again.
    free_ns: Vec<u64>,
    end_ns: u64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [waits, peers, seed, path] = arguments.as_slice() else { panic!("WAITS PEERS SEED FILE") };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (waits, peers) = (number(waits), number(peers) as u32);
    let threads = u64::from(PROCESSES * THREADS);
    let mut job = Job {
        random: Random(number(seed)),
        writer: TraceWriter::create(Path::new(path)).expect("a file that can be written"),
        peers: (0..peers.max(1)).map(peer).collect(),
        free_ns: vec![START_NS; threads as usize],
        end_ns: START_NS + (waits / threads + 1) * TURN_NS * 11 / 10,
    };
    job.head();
    for _ in 0..waits {
        job.turn();
    }
    job.tail(waits);
}

fn peer(number: u32) -> SocketAddr {
    SocketAddr::from(([10, 1 + (number >> 16) as u8, (number >> 8) as u8, number as u8], 29_500))
}

fn tcp(number: usize, peer: SocketAddr, fd: i32) -> Socket {
    let local = SocketAddr::from(([10, 0, 0, 3], 40_000 + (number % 20_000) as u16));
    let ends = Ends::Inet { local, peer };
    Socket { ino: 90_000 + number as u64, fd, kind: 1, state: 1, ends, events: 0, revents: 0 }
}

fn dns_server() -> Socket {
    let ends = Ends::Inet {
        local: "10.0.0.3:41000".parse().expect("an address"),
        peer: "10.0.0.53:53".parse().expect("an address"),
    };
    Socket { ino: 70_000, fd: 9, kind: 2, state: 1, ends, events: 1, revents: 1 }
}

/// A query, or its answer, for the address of one of a thousand hosts.
fn message(id: u16, host: usize, answer: bool) -> Vec<u8> {
    let mut data = Vec::from(id.to_be_bytes());
    data.extend(if answer { [0x81, 0x83] } else { [0x01, 0x00] });
    data.extend([0, 1, 0, 0, 0, 0, 0, 0]);
    for label in [format!("node{host:04}"), "cluster".to_owned(), "local".to_owned()] {
        data.push(label.len() as u8);
        data.extend(label.bytes());
    }
    data.extend([0, 0, 1, 0, 1]);
    data
}

impl Job {
    fn write(&mut self, record: Record) {
        self.writer.write(record).expect("a file that can be written");
    }

    fn head(&mut self) {
        let (start_ns, end_ns) = (START_NS, self.end_ns);
        self.write(Record::Host(Host {
            name: "node03".to_owned(),
            kernel: "6.1.0".to_owned(),
            cpus: 64,
            arch: "x86_64".to_owned(),
            recorder: "0.1.0".to_owned(),
        }));
        self.write(Record::Clock(Clock { monotonic_ns: start_ns, unix_ns: 1_700_000_000_000_000_000 }));
        self.write(Record::Window(Window { start_ns, end_ns, min_stall_ns: 100_000 }));
        for family in ["net", "dns", "sched"] {
            let (family, reason) = (family.to_owned(), String::new());
            self.write(Record::Coverage(Coverage { family, state: FamilyState::On, reason }));
        }
        for process in 0..PROCESSES {
            let pid = 4000 + process * 100;
            let (what, value) = ("RANK".to_owned(), process.to_string());
            self.write(Record::Environment(Environment { what, value, pid }));
            let comm = "python3".to_owned();
            let known =
                Process { pid, ns_pid: pid, comm, seen_ns: start_ns, asked_for: true, ..Process::default() };
            self.write(Record::Process(known));
            for thread in 0..THREADS {
                let (tid, name) = (pid + thread, format!("worker-{thread}"));
                self.write(Record::Thread(Thread { pid, tid, ns_tid: tid, name, seen_ns: start_ns }));
                self.write(Record::ThreadTime(ThreadTime {
                    time_ns: start_ns,
                    pid,
                    tid,
                    ..ThreadTime::default()
                }));
            }
        }
        for id in 0..STACKS {
            let names =
                ["__recv", "read_exactly", "all_reduce", "layer", "backward", "train_step", "main", "_start"];
            // Each has one function of its own, below those that many share.
            let function = |(at, name): (usize, &&str)| match at {
                2 => format!("{name}_{}", id % 40),
                3 => format!("{name}_{id}"),
                _ => (*name).to_owned(),
            };
            let frame = |function| Frame { function, module: "libtrain.so".to_owned(), offset: 0 };
            let frames = names.iter().enumerate().map(function).map(frame).collect();
            let id = 10_000 + id as u64;
            self.write(Record::Stack(Stack { id, space: Space::User, frames, truncated: false }));
        }
    }

    /// One more wait, of the thread that is furthest behind: ends come nearly in order.
    fn turn(&mut self) {
        let thread = (0..self.free_ns.len()).min_by_key(|at| self.free_ns[*at]).unwrap_or(0);
        let (pid, at) = (4000 + thread as u32 / THREADS * 100, thread as u32 % THREADS);
        let start_ns = self.free_ns[thread] + (TURN_NS as f64 * 0.5 * self.random.share()) as u64;
        let end_ns = start_ns + 100_000 + (100_000.0 * self.random.share().powi(2) * 4.5) as u64;
        self.free_ns[thread] = end_ns;
        let peers = self.peers.len();
        // A call site belongs to one kind of thread, and each process waits there for four peers.
        let site = self.random.below(STACKS / THREADS as usize) * THREADS as usize + at as usize;
        let near = site * 7 + pid as usize + self.random.below(4);
        // Where there are more peers than call sites, every one has its turn.
        let number = if peers > STACKS { self.random.below(peers) } else { near % peers };
        let fd = 10 + (number % 500) as i32;
        let socket = tcp(number, self.peers[number], fd);
        let mut wait = Wait {
            start_ns,
            end_ns,
            pid,
            tid: pid + at,
            call: Call::Recvfrom,
            flags: WaitFlags { slept: true, timed: true, ..WaitFlags::default() },
            fd,
            set_size: 0,
            polls: 0,
            ret: 64 + self.random.below(65_536) as i64,
            arg: 0,
            off_cpu_ns: end_ns - start_ns - 2_000 - self.random.below(5_000) as u64,
            user_stack: 10_000 + site as u64,
            kernel_stack: 0,
            api: Api::None,
            api_start_ns: 0,
            sockets: vec![socket],
            sched: Sched {
                sleep_ns: start_ns + 500 + self.random.below(2_000) as u64,
                wake_ns: end_ns - 1_000 - self.random.below(3_000) as u64,
                runq_ns: 300 + self.random.below(2_000) as u64,
                owner: 0,
            },
        };
        match self.random.below(1000) {
            0 | 1 => self.look_up(&mut wait),
            2 => self.connect(&mut wait, number),
            3..=102 => wait.call = Call::Sendto,
            103..=202 => self.poll(&mut wait, number),
            203..=232 => (wait.call, wait.sockets, wait.arg, wait.ret) = (Call::Futex, Vec::new(), 0x189, 0),
            233..=242 => {
                (wait.call, wait.sockets, wait.fd, wait.ret) = (Call::ClockNanosleep, Vec::new(), -1, 0);
            }
            243 => {
                let socket = wait.sockets[0].clone();
                self.write(Record::Retransmit(Retransmit { time_ns: start_ns + 50_000, pid, socket }));
            }
            // Two threads of each process look at their sockets by turns instead of sleeping.
            _ if at < 2 => {
                wait.flags = WaitFlags { nonblocking: true, ..WaitFlags::default() };
                (wait.polls, wait.off_cpu_ns) = (100 + self.random.below(1000) as u32, 0);
                (wait.sched.sleep_ns, wait.sched.wake_ns) = (0, 0);
            }
            _ => {}
        }
        self.write(Record::Wait(wait));
    }

    fn poll(&mut self, wait: &mut Wait, number: usize) {
        (wait.call, wait.fd, wait.arg, wait.ret) = (Call::EpollWait, 5, 1000, 1);
        let others = (1..4).map(|next| (number + next) % self.peers.len());
        wait.sockets.extend(others.map(|other| tcp(other, self.peers[other], 10 + (other % 500) as i32)));
        wait.set_size = wait.sockets.len() as u16;
        wait.sockets.iter_mut().for_each(|socket| socket.events = 1);
    }

    fn look_up(&mut self, wait: &mut Wait) {
        let (pid, tid, time_ns) = (wait.pid, wait.tid, wait.start_ns - 20_000);
        let (host, id) = (self.random.below(1000), self.random.any() as u16);
        let argument = format!("node{host:04}.cluster.local");
        let api = Api::Getaddrinfo;
        self.write(Record::Api(ApiCall { time_ns, pid, tid, api, argument, address: None }));
        for (direction, time_ns) in
            [(Direction::Send, wait.start_ns - 5_000), (Direction::Receive, wait.end_ns + 2_000)]
        {
            let data = message(id, host, direction == Direction::Receive);
            let (ret, socket) = (data.len() as i64, dns_server());
            let record = DnsMessage {
                time_ns,
                pid,
                tid,
                direction,
                ret,
                api,
                api_start_ns: wait.start_ns - 20_000,
                socket,
                data,
            };
            self.write(Record::Dns(record));
        }
        (wait.call, wait.sockets, wait.set_size, wait.ret) = (Call::Poll, vec![dns_server()], 1, 1);
        (wait.api, wait.api_start_ns, wait.fd, wait.arg) = (api, time_ns, -1, 5000);
    }

    fn connect(&mut self, wait: &mut Wait, number: usize) {
        let refused = self.random.below(3) == 0;
        let ino = 10_000_000 + self.random.below(1 << 30) as u64;
        let socket =
            Socket { ino, state: if refused { 7 } else { 1 }, ..tcp(number, self.peers[number], wait.fd) };
        let error = if refused { libc::ECONNREFUSED } else { 0 };
        self.write(Record::Handshake(Handshake {
            start_ns: wait.start_ns + 1_000,
            end_ns: wait.end_ns - 1_000,
            pid: wait.pid,
            tid: wait.tid,
            error,
            began_earlier: false,
            in_flight: false,
            syn_retransmits: 0,
            socket: socket.clone(),
        }));
        (wait.call, wait.ret) = (Call::Connect, -i64::from(error));
        wait.sockets = vec![Socket { state: 2, ..socket }];
    }

    /// Looks at the sockets, four times a second as far as a file of ordinary size allows, and totals.
    fn tail(mut self, waits: u64) {
        let ticks = ((self.end_ns - START_NS) / 250_000_000).clamp(1, 40_000 / self.peers.len() as u64 + 1);
        for tick in 0..ticks {
            for number in 0..self.peers.len() {
                let rtt_ns = 80_000 + self.random.below(40_000) as u64;
                let sample = SocketSample {
                    time_ns: START_NS + tick * 250_000_000,
                    pid: 4000 + (number as u32 % PROCESSES) * 100,
                    socket: tcp(number, self.peers[number], 10 + (number % 500) as i32),
                    rtt_ns,
                    rtt_var_ns: 10_000,
                    total_retransmits: 0,
                    current_retransmits: 0,
                    bytes_acked: tick * 64_000,
                    bytes_received: tick * 64_000,
                    send_queue: 0,
                    receive_queue: 0,
                    last_receive_age_ns: 0,
                    at_start: tick == 0,
                };
                self.write(Record::Socket(sample));
            }
        }
        let time_ns = self.end_ns;
        for thread in 0..PROCESSES * THREADS {
            let pid = 4000 + thread / THREADS * 100;
            let running_ns = (time_ns - START_NS) / 4;
            let times = ThreadTime {
                time_ns,
                pid,
                tid: pid + thread % THREADS,
                running_ns,
                runnable_ns: running_ns / 50,
            };
            self.write(Record::ThreadTime(times));
        }
        for (call, share) in [(Call::Recvfrom, 6), (Call::Sendto, 20), (Call::EpollWait, 2)] {
            let count = CallCount {
                call,
                seen: waits * share,
                below: waits * (share - 1),
                below_ns: waits * share * 900,
            };
            self.write(Record::CallCount(count));
        }
        self.writer
            .finish(End { time_ns, reason: "duration".to_owned() })
            .expect("a file that can be written");
    }
}
