//! Peers in the test's own process: TCP servers that are late by a script.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stallscope::demo::{Host, Namespace, monotonic_ns};

/// Length of a reply in bytes.
pub const REPLY: usize = 8;

/// How long a blocked call of the server lasts before it looks whether the test is over.
const GLANCE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
enum Script {
    /// Answers request number n of a connection after delay n (the last delay again when they run out).
    Reply(Vec<Duration>),
    /// Accepts, reads, and says nothing until it is told to.
    Held,
    /// Reads everything, from when it is told to.
    ReadLate,
}

#[derive(Debug, Default)]
struct State {
    stopping: AtomicBool,
    /// When requests came, `CLOCK_MONOTONIC`, in order.
    asked_ns: Mutex<Vec<u64>>,
    released: AtomicBool,
    hurrying: AtomicBool,
    /// Nanoseconds between each request and its reply, in order.
    served_ns: Mutex<Vec<u64>>,
    /// In place of the script's, for replies from now on.
    delay: Mutex<Option<Duration>>,
    /// When `ReadLate` began to read, `CLOCK_MONOTONIC`.
    began_reading_ns: Mutex<Option<u64>>,
    connections: Mutex<Vec<JoinHandle<()>>>,
}

/// A TCP server that follows a script; it stops when dropped.
#[derive(Debug)]
pub struct Peer {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// On loopback: answers each request after `delay`.
    pub fn late(delay: Duration) -> Peer {
        Peer::start(listen(Ipv4Addr::LOCALHOST.into()), Script::Reply(vec![delay]))
    }

    /// On loopback: answers the requests of a connection after these delays.
    pub fn late_by(delays: &[Duration]) -> Peer {
        Peer::start(listen(Ipv4Addr::LOCALHOST.into()), Script::Reply(delays.to_vec()))
    }

    /// On loopback: accepts and says nothing, until [`Peer::release`].
    pub fn silent() -> Peer {
        Peer::start(listen(Ipv4Addr::LOCALHOST.into()), Script::Held)
    }

    /// From now on late peers are late no more.
    pub fn hurry(&self) {
        self.state.hurrying.store(true, Ordering::Relaxed);
    }

    /// Lets a silent peer answer each connection once, and one that reads late read, from now on; `CLOCK_MONOTONIC` before.
    pub fn release(&self) -> u64 {
        let now = monotonic_ns();
        self.state.released.store(true, Ordering::Relaxed);
        now
    }

    /// Waits until a request has come: when, `CLOCK_MONOTONIC`.
    ///
    /// # Panics
    /// When none comes.
    pub fn wait_asked(&self) -> u64 {
        let give_up = Instant::now() + Duration::from_mins(1);
        loop {
            let asked = self.state.asked_ns.lock().unwrap_or_else(PoisonError::into_inner).last().copied();
            if let Some(asked) = asked {
                return asked;
            }
            assert!(Instant::now() < give_up, "no request came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// On loopback: reads nothing until [`Peer::release`].
    pub fn reads_late() -> Peer {
        Peer::start(listen(Ipv4Addr::LOCALHOST.into()), Script::ReadLate)
    }

    /// On a host of the rig: answers each request after `delay`.
    ///
    /// # Panics
    /// When it cannot listen there.
    pub fn late_on(host: &Host, address: IpAddr, delay: Duration) -> Peer {
        Peer::late_in(host.namespace(), address, delay)
    }

    /// In a network namespace: answers each request after `delay`.
    ///
    /// # Panics
    /// When it cannot listen there.
    pub fn late_in(namespace: &Namespace, address: IpAddr, delay: Duration) -> Peer {
        let listener = namespace.run(|| listen(address)).expect("enters the namespace");
        Peer::start(listener, Script::Reply(vec![delay]))
    }

    fn start(listener: TcpListener, script: Script) -> Peer {
        let address = listener.local_addr().expect("is bound");
        let state = Arc::new(State::default());
        let for_thread = Arc::clone(&state);
        let thread = std::thread::spawn(move || accept_all(&listener, &script, &for_thread));
        Peer { address, state, thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `ip:port` as in reports.
    pub fn name(&self) -> String {
        self.address.to_string()
    }

    /// Nanoseconds between request and reply of everything served so far.
    pub fn served_ns(&self) -> Vec<u64> {
        self.state.served_ns.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Answers each request after `delay` from now on.
    pub fn set_delay(&self, delay: Duration) {
        *self.state.delay.lock().unwrap_or_else(PoisonError::into_inner) = Some(delay);
    }

    /// When a peer that reads late began to read, `CLOCK_MONOTONIC`.
    pub fn began_reading_ns(&self) -> Option<u64> {
        *self.state.began_reading_ns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::Relaxed);
        // Wakes accept() where the address can be reached from here; elsewhere it looks by itself.
        drop(TcpStream::connect_timeout(&self.address, GLANCE));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(address: IpAddr) -> TcpListener {
    TcpListener::bind(SocketAddr::new(address, 0)).expect("binds a free port")
}

fn accept_all(listener: &TcpListener, script: &Script, state: &Arc<State>) {
    listener.set_nonblocking(true).expect("can be made non-blocking");
    while !state.stopping.load(Ordering::Relaxed) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_readable(listener);
                continue;
            }
            Err(_) => break,
        };
        let (script, for_thread) = (script.clone(), Arc::clone(state));
        let serve = std::thread::Builder::new().stack_size(64 * 1024).spawn(move || {
            // The program under test may leave in the middle.
            let _ = serve(stream, &script, &for_thread);
        });
        let mut connections = state.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.push(serve.expect("starts a thread"));
    }
    let mut connections = state.connections.lock().unwrap_or_else(PoisonError::into_inner);
    for connection in connections.drain(..) {
        let _ = connection.join();
    }
}

fn wait_readable(listener: &TcpListener) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut set = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut set, PollTimeout::from(50_u16));
}

fn serve(mut stream: TcpStream, script: &Script, state: &State) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GLANCE))?;
    match script {
        Script::Held => hold(&mut stream, state)?,
        Script::Reply(delays) => {
            let mut next = delays.iter();
            let mut delay = Duration::ZERO;
            while read_some(&mut stream, &mut [0], state)? {
                let start = monotonic_ns();
                delay = next.next().copied().unwrap_or(delay);
                let changed = *state.delay.lock().unwrap_or_else(PoisonError::into_inner);
                if !state.hurrying.load(Ordering::Relaxed) {
                    std::thread::sleep(changed.unwrap_or(delay));
                }
                // Not after the write: the program may have woken up by then.
                let served = monotonic_ns() - start;
                stream.write_all(&[1; REPLY])?;
                state.served_ns.lock().unwrap_or_else(PoisonError::into_inner).push(served);
            }
        }
        Script::ReadLate => {
            if !wait_released(state) {
                return Ok(());
            }
            *state.began_reading_ns.lock().unwrap_or_else(PoisonError::into_inner) = Some(monotonic_ns());
            let mut buffer = vec![0; 1 << 20];
            while read_some(&mut stream, &mut buffer, state)? {}
        }
    }
    Ok(())
}

/// Reads one request, answers when released, reads on.
fn hold(stream: &mut TcpStream, state: &State) -> io::Result<()> {
    if read_some(stream, &mut [0], state)? {
        state.asked_ns.lock().unwrap_or_else(PoisonError::into_inner).push(monotonic_ns());
        if !wait_released(state) {
            return Ok(());
        }
        stream.write_all(&[1; REPLY])?;
    }
    while read_some(stream, &mut [0; 64], state)? {}
    Ok(())
}

/// False where the test ends before.
fn wait_released(state: &State) -> bool {
    while !state.released.load(Ordering::Relaxed) {
        if state.stopping.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Reads once; false at the end of the stream or of the test.
fn read_some(stream: &mut TcpStream, buffer: &mut [u8], state: &State) -> io::Result<bool> {
    loop {
        match stream.read(buffer) {
            Ok(count) => return Ok(count > 0),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if state.stopping.load(Ordering::Relaxed) {
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
