//! A DNS server that follows a script and keeps a log of what it was asked, so that a recording can be
//! compared with it exactly.

use std::collections::BinaryHeap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::clock::{monotonic_ns, nanos};
use super::dns_script::{Action, Reply, Rule, replies};
use super::error::DemoError;
use super::netns::Namespace;

/// One query that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryRecord {
    /// As asked, with the final dot.
    pub name: String,
    /// `A`, `AAAA`, `PTR` …
    pub qtype: String,
    pub id: u16,
    pub over_tcp: bool,
    pub from: SocketAddr,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub received_ns: u64,
    /// Just before the last byte of the reply that carries its id was handed to the kernel.
    pub answered_ns: Option<u64>,
}

struct Shared {
    rules: Vec<Rule>,
    log: Mutex<Vec<QueryRecord>>,
    stopping: AtomicBool,
    released: AtomicBool,
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Vec<QueryRecord>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a query into the log; its index there, and what to send.
    fn take(&self, bytes: &[u8], from: SocketAddr, over_tcp: bool) -> Option<(usize, Vec<Reply>)> {
        let received_ns = monotonic_ns();
        let message = Message::from_vec(bytes).ok()?;
        let query = message.queries.first()?;
        let record = QueryRecord {
            name: query.name().to_ascii(),
            qtype: query.query_type().to_string(),
            id: message.metadata.id,
            over_tcp,
            from,
            received_ns,
            answered_ns: None,
        };
        let action =
            self.rules.iter().find(|rule| rule.fits(query)).map_or(Action::Never, |rule| rule.action);
        let mut log = self.log();
        let earlier =
            log.iter().filter(|other| other.name == record.name && other.qtype == record.qtype).count();
        log.push(record);
        Some((log.len() - 1, replies(&message, action, earlier, over_tcp)))
    }

    fn answered(&self, index: usize, at_ns: u64) {
        if let Some(record) = self.log().get_mut(index) {
            record.answered_ns = Some(at_ns);
        }
    }
}

/// A running server; it stops when dropped.
pub struct DnsServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Closing it wakes the threads.
    waker: Option<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl DnsServer {
    /// Serves UDP and TCP at `address`, port 53, inside of `namespace`. A query without a rule gets no answer.
    pub fn start(namespace: &Namespace, address: IpAddr, rules: Vec<Rule>) -> Result<DnsServer, DemoError> {
        let address = SocketAddr::new(address, 53);
        let failed = |source| DemoError::Socket { what: "DNS server", address: address.to_string(), source };
        let (udp, tcp) = namespace
            .run(|| Ok((UdpSocket::bind(address)?, TcpListener::bind(address)?)))?
            .map_err(failed)?;
        udp.set_nonblocking(true).map_err(failed)?;
        tcp.set_nonblocking(true).map_err(failed)?;
        let (stop, waker) =
            nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let stop_tcp = stop.try_clone().map_err(failed)?;
        let (stopping, released) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { rules, log: Mutex::default(), stopping, released });
        let mut server =
            DnsServer { shared: Arc::clone(&shared), address, waker: Some(waker), threads: Vec::new() };
        let for_udp = Arc::clone(&shared);
        server.thread("dns-udp", move || serve_udp(&for_udp, &udp, &stop))?;
        server.thread("dns-tcp", move || serve_tcp(&shared, &tcp, &stop_tcp))?;
        Ok(server)
    }

    fn thread(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), DemoError> {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|source| DemoError::Thread { source })?;
        self.threads.push(thread);
        Ok(())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets the answers of [`super::Action::Held`] go, from now on; `CLOCK_MONOTONIC` before.
    pub fn release(&self) -> u64 {
        let now = monotonic_ns();
        self.shared.released.store(true, Ordering::Relaxed);
        now
    }

    /// The queries so far, in order of arrival.
    pub fn log(&self) -> Vec<QueryRecord> {
        self.shared.log().clone()
    }

    /// The queries of one name (without the final dot) and type, in order of arrival.
    pub fn queries(&self, name: &str, qtype: RecordType) -> Vec<QueryRecord> {
        let wanted = format!("{}.", name.trim_end_matches('.'));
        let mut log = self.log();
        log.retain(|record| record.name.eq_ignore_ascii_case(&wanted) && record.qtype == qtype.to_string());
        log
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        drop(self.waker.take());
        for thread in self.threads.drain(..) {
            // A panic of a server thread has been printed; nothing is left to do.
            let _ = thread.join();
        }
    }
}

/// A reply that waits for its time; ordered by it, earliest greatest, as the heap wants it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: std::cmp::Reverse<u64>,
    index: usize,
    to: SocketAddr,
    bytes: Vec<u8>,
    answers: bool,
}

/// How often the server looks whether it may release what it holds.
const GLANCE_NS: u64 = 10_000_000;

fn serve_udp(shared: &Shared, socket: &UdpSocket, stop: &OwnedFd) {
    let mut due: BinaryHeap<Due> = BinaryHeap::new();
    let mut buffer = [0; 4096];
    // A held reply is sent soon after the word.
    let next = |due: &BinaryHeap<Due>| {
        let first = due.peek()?.at.0;
        Some(if first == u64::MAX { monotonic_ns() + GLANCE_NS } else { first })
    };
    while wait(socket.as_fd(), stop, next(&due)) {
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let arrived = monotonic_ns();
            let Some((index, replies)) =
                buffer.get(..length).and_then(|bytes| shared.take(bytes, from, false))
            else {
                continue;
            };
            due.extend(replies.into_iter().map(|reply| Due {
                at: std::cmp::Reverse(arrived.saturating_add(nanos(reply.delay))),
                index,
                to: from,
                bytes: reply.bytes,
                answers: reply.answers,
            }));
        }
        let released = shared.released.load(Ordering::Relaxed);
        while due
            .peek()
            .is_some_and(|first| first.at.0 <= monotonic_ns() || released && first.at.0 == u64::MAX)
        {
            let Some(reply) = due.pop() else { break };
            // The asker may be gone: then there is nobody to tell.
            let now = monotonic_ns();
            let sent = socket.send_to(&reply.bytes, reply.to);
            if reply.answers && sent.is_ok() {
                shared.answered(reply.index, now);
            }
        }
    }
}

fn serve_tcp(shared: &Arc<Shared>, listener: &TcpListener, stop: &OwnedFd) {
    let mut connections = Vec::new();
    while wait(listener.as_fd(), stop, None) {
        let Ok((stream, from)) = listener.accept() else { continue };
        let shared = Arc::clone(shared);
        let serve = move || {
            // A connection that breaks is the asker's business.
            let _ = serve_connection(&shared, stream, from);
        };
        if let Ok(thread) = std::thread::Builder::new().name("dns-tcp-conn".into()).spawn(serve) {
            connections.push(thread);
        }
    }
    for connection in connections {
        // One that failed has said so to its asker by hanging up.
        let _ = connection.join();
    }
}

fn serve_connection(shared: &Shared, mut stream: TcpStream, from: SocketAddr) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    loop {
        let mut length = [0; 2];
        if !read_or_stop(shared, &mut stream, &mut length)? {
            return Ok(());
        }
        let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
        if !read_or_stop(shared, &mut stream, &mut message)? {
            return Ok(());
        }
        let Some((index, replies)) = shared.take(&message, from, true) else { continue };
        for reply in replies {
            std::thread::sleep(reply.delay);
            let written = write_in_pieces(&mut stream, &reply)?;
            if reply.answers {
                shared.answered(index, written);
            }
        }
    }
}

/// Fills `buffer`; false at the end of the stream or when the server stops.
fn read_or_stop(shared: &Shared, stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match stream.read(rest) {
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if shared.stopping.load(Ordering::Relaxed) {
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The time just before the last piece, `CLOCK_MONOTONIC`.
fn write_in_pieces(stream: &mut TcpStream, reply: &Reply) -> io::Result<u64> {
    let length = u16::try_from(reply.bytes.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(&reply.bytes);
    let piece = framed.len().div_ceil(reply.segments.max(1)).max(1);
    let mut last = monotonic_ns();
    for (number, bytes) in framed.chunks(piece).enumerate() {
        if number > 0 {
            std::thread::sleep(reply.gap);
        }
        last = monotonic_ns();
        stream.write_all(bytes)?;
    }
    Ok(last)
}

/// Waits until `fd` is readable or `until_ns` has come; false when the server stops.
fn wait(fd: std::os::fd::BorrowedFd<'_>, stop: &OwnedFd, until_ns: Option<u64>) -> bool {
    let left =
        until_ns.map(|until| TimeSpec::from(Duration::from_nanos(until.saturating_sub(monotonic_ns()))));
    let mut set = [PollFd::new(fd, PollFlags::POLLIN), PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
    match ppoll(&mut set, left, None) {
        // The other end of `stop` closes: POLLHUP.
        Ok(_) => set.get(1).and_then(PollFd::any) != Some(true),
        Err(errno) => errno == nix::errno::Errno::EINTR,
    }
}
