//! Ways to wait for a peer. A request of one byte asks the peer for a reply of [`REPLY`] bytes, which it
//! sends late by its script.

use std::net::SocketAddr;
use std::os::fd::RawFd;

use stallscope_tests::peer::REPLY;

use super::sys::{checked, connected, epoll_wait_one, errno, monotonic_ns, recv, send as send_bytes};
use super::{Arguments, done, go, ready};

/// `recv HOW PEER TIMES [MS]`: connects, then asks and waits TIMES times, and on until it has run for so many milliseconds.
///
/// HOW: `blocking` (recvfrom), `read`, `recvmsg`, `poll`, `ppoll`, `select`, `epoll`, `spin` (asks without
/// blocking, again and again), `yield` (the same with 50 µs of sleep between), `work` (the same with a millisecond of work
/// between).
pub fn receive(arguments: &Arguments) {
    let how: String = arguments.get(0);
    let fd = connected(arguments.get(1));
    ready("");
    go();
    exchange(&how, fd, arguments.get(2), arguments.get_or(3, 0));
}

/// `recv-now HOW PEER TIMES`: the same without waiting for the word, for a program that was just exec'd.
pub fn receive_now(arguments: &Arguments) {
    let how: String = arguments.get(0);
    exchange(&how, connected(arguments.get(1)), arguments.get(2), 0);
}

fn exchange(how: &str, fd: RawFd, times: u32, least_ms: u64) {
    let start_ns = ran_ns();
    let (mut ns, mut asked) = (0, 0);
    let mut looks = Looks::default();
    let mut each = Vec::new();
    while asked < times || ran_ns() - start_ns < least_ms * 1_000_000 {
        asked += 1;
        let asking = monotonic_ns();
        assert_eq!(send_bytes(fd, b"?"), 1);
        let start = monotonic_ns();
        looks.kept(start - asking);
        looks.add(&stall_outer(how, fd));
        let waited = monotonic_ns() - start;
        ns += waited;
        // Enough of them for the tests that look at each one.
        if each.len() < 16 {
            each.push(waited.to_string());
        }
    }
    let Looks { count, gaps, kept_ns, worked_ns } = looks;
    done(&format!(
        "ns={ns} looks={count} gaps={gaps} kept_ns={kept_ns} worked_ns={worked_ns} each={}",
        each.join(",")
    ));
}

/// How often a program looked, and how often it was kept from looking: by a machine that gives it no time, not
/// even an account of the time.
#[derive(Debug, Default)]
pub struct Looks {
    count: u64,
    /// Pauses of more than 5 ms between two looks: long enough to end a wait.
    gaps: u64,
    /// All pauses between asking, the looks and the reply that are longer than a look takes: more than 500 us.
    kept_ns: u64,
    /// Work between the looks of `work`, by the processor's clock for this thread.
    worked_ns: u64,
}

impl Looks {
    fn add(&mut self, other: &Looks) {
        self.count += other.count;
        self.gaps += other.gaps;
        self.kept_ns += other.kept_ns;
        self.worked_ns += other.worked_ns;
    }

    fn kept(&mut self, pause_ns: u64) {
        self.gaps += u64::from(pause_ns > 5_000_000);
        self.kept_ns += if pause_ns > 500_000 { pause_ns } else { 0 };
    }
}

/// Outer of two functions that tests look for in stacks.
#[inline(never)]
pub fn stall_outer(how: &str, fd: RawFd) -> Looks {
    std::hint::black_box(stall_inner(how, fd))
}

/// Waits for one reply; how many times it looked.
#[inline(never)]
fn stall_inner(how: &str, fd: RawFd) -> Looks {
    let mut reply = [0; REPLY];
    let mut looks = Looks::default();
    let mut filled = 0;
    let mut last = monotonic_ns();
    while filled < REPLY {
        looks.count += 1;
        if matches!(how, "spin" | "yield") {
            let now = monotonic_ns();
            looks.kept(now - last);
            last = now;
        }
        let rest = &mut reply[filled..];
        let count = match how {
            "blocking" => recv(fd, rest, 0),
            "read" => read(fd, rest),
            "recvmsg" => recvmsg(fd, rest),
            "spin" => recv(fd, rest, libc::MSG_DONTWAIT),
            "yield" => {
                let count = recv(fd, rest, libc::MSG_DONTWAIT);
                if count < 0 {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
                count
            }
            "work" => {
                let count = recv(fd, rest, libc::MSG_DONTWAIT);
                if count < 0 {
                    looks.worked_ns += work_for(1_000_000);
                }
                count
            }
            ready_first => {
                wait_readable(ready_first, fd);
                recv(fd, rest, libc::MSG_DONTWAIT)
            }
        };
        match count {
            0 => break,
            count if count > 0 => filled += count as usize,
            count => assert_eq!(count, -(libc::EAGAIN as isize), "recv"),
        }
    }
    std::hint::black_box(reply);
    looks
}

/// For how long this thread has run.
fn ran_ns() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("has one");
    nix::sys::time::TimeValLike::num_nanoseconds(&time).cast_unsigned()
}

/// Computes until the thread has run for so long; for how long it did.
fn work_for(ns: u64) -> u64 {
    let start = ran_ns();
    loop {
        let worked = ran_ns() - start;
        if worked >= ns {
            return worked;
        }
        std::hint::spin_loop();
    }
}

fn read(fd: RawFd, buffer: &mut [u8]) -> isize {
    // SAFETY: pointer and length are the buffer's.
    let result = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    if result < 0 { -(errno() as isize) } else { result }
}

fn recvmsg(fd: RawFd, buffer: &mut [u8]) -> isize {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: an all-zero msghdr is valid; its one part is set next and outlives the call.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    // SAFETY: the message and its part are locals.
    let result = unsafe { libc::recvmsg(fd, &raw mut message, 0) };
    if result < 0 { -(errno() as isize) } else { result }
}

fn wait_readable(how: &str, fd: RawFd) {
    let mut set = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    match how {
        // SAFETY: one entry, a local.
        "poll" => checked(unsafe { libc::poll(&raw mut set, 1, 10_000) }, "poll"),
        "ppoll" => {
            // SAFETY: one entry, a local; no time-out, no mask.
            checked(unsafe { libc::ppoll(&raw mut set, 1, std::ptr::null(), std::ptr::null()) }, "ppoll")
        }
        "epoll" => i32::from(epoll_wait_one(fd, libc::EPOLLIN as u32, 10_000)),
        "select" => {
            // SAFETY: an all-zero set is the empty one; descriptors of these programs are below FD_SETSIZE.
            let result = unsafe {
                let mut readable: libc::fd_set = std::mem::zeroed();
                libc::FD_SET(fd, &raw mut readable);
                let none = std::ptr::null_mut();
                libc::select(fd + 1, &raw mut readable, none, none, std::ptr::null_mut())
            };
            checked(result, "select")
        }
        other => panic!("no way to wait named {other}"),
    };
}

/// `poll-crowd CONNECTIONS PEER…`: connects to the peers by turns, then polls all connections for half a second.
pub fn poll_crowd(arguments: &Arguments) {
    let peers: Vec<SocketAddr> = (1..arguments.len()).map(|index| arguments.get(index)).collect();
    let peers = peers.iter().cycle().take(arguments.get(0));
    let entry = |peer: &SocketAddr| libc::pollfd { fd: connected(*peer), events: libc::POLLIN, revents: 0 };
    let mut set: Vec<libc::pollfd> = peers.map(entry).collect();
    ready("");
    go();
    let start = monotonic_ns();
    // SAFETY: the vector's entries.
    checked(unsafe { libc::poll(set.as_mut_ptr(), set.len() as libc::nfds_t, 500) }, "poll");
    done(&format!("ns={}", monotonic_ns() - start));
}

/// `send PEER BYTES`: sends that much to a peer that reads late, in one blocking call.
pub fn send(arguments: &Arguments) {
    let fd = connected(arguments.get(0));
    let bytes = vec![7; arguments.get(1)];
    ready("");
    go();
    let start = monotonic_ns();
    let sent = stall_outer_send(fd, &bytes);
    let ns = monotonic_ns() - start;
    done(&format!("ns={ns} sent={sent} start={start}"));
}

#[inline(never)]
fn stall_outer_send(fd: RawFd, bytes: &[u8]) -> isize {
    std::hint::black_box(send_bytes(fd, bytes))
}

/// `udp-loop TIMES`: sends a datagram to itself and takes it back, as fast as it can.
pub fn udp_loop(arguments: &Arguments) {
    let socket = std::net::UdpSocket::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds");
    socket.connect(socket.local_addr().expect("has an address")).expect("connects to itself");
    ready("");
    go();
    let times: u64 = arguments.get(0);
    let start = monotonic_ns();
    let mut buffer = [0; 64];
    for _ in 0..times {
        socket.send(&buffer).expect("sends");
        socket.recv(&mut buffer).expect("receives");
    }
    done(&format!("ns={} times={times}", monotonic_ns() - start));
}
