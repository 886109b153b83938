//! A slow link between two network namespaces, without the kernel's netem: a device on each side, and a thread that
//! passes packets between them late, or not at all, by a script. It keeps a log of what it did to which packet.
//!
//! The delay is a lower bound: a busy machine makes packets later, never earlier, and the log says by how much.

mod device;
mod log;
mod packet;
mod script;
mod shaper;

use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::clock::monotonic_ns;
use super::error::DemoError;
use super::netns::{Namespace, Network};

pub use log::{PacketRecord, RoundTrip};
pub use packet::{Layer, Segment};
pub use script::{Direction, LinkScript, ScriptError, Settings};
pub use shaper::{Fate, Shaper};

/// Name of the device on each side.
pub const DEVICE: &str = "slow0";
/// Packets in the log at most.
const LOGGED: usize = 1 << 20;
/// Packets on their way at most; more are dropped as if a queue were full.
const UNDER_WAY: usize = 1 << 16;
/// Longest packet.
const PACKET: usize = 1 << 16;

struct Shared {
    log: Mutex<Vec<PacketRecord>>,
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Vec<PacketRecord>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running link; it stops, and its devices vanish, when dropped.
pub struct SlowLink {
    shared: Arc<Shared>,
    /// Closing it wakes the thread.
    waker: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl SlowLink {
    /// Links two namespaces with TUN devices: 10.78.0.1 and fd78::1 in `a`, 10.78.0.2 and fd78::2 in `b`.
    pub fn between(a: &Namespace, b: &Namespace, script: LinkScript) -> Result<SlowLink, DemoError> {
        let files = [device::make(a, DEVICE, Layer::Ip)?, device::make(b, DEVICE, Layer::Ip)?];
        for (namespace, own, other) in [(a, 1, 2), (b, 2, 1)] {
            namespace.ip(&format!(
                "link set {DEVICE} txqueuelen 10000 up\n\
                 addr add 10.78.0.{own} peer 10.78.0.{other} dev {DEVICE}\n\
                 addr add fd78::{own} peer fd78::{other} dev {DEVICE} nodad\n"
            ))?;
        }
        SlowLink::start(files, Layer::Ip, script)
    }

    /// Links two networks at their bridges with TAP devices, so that they are one to their hosts.
    pub fn bridge(a: &Network, b: &Network, script: LinkScript) -> Result<SlowLink, DemoError> {
        let make = |network: &Network| device::make(network.switch(), DEVICE, Layer::Ethernet);
        let files = [make(a)?, make(b)?];
        for network in [a, b] {
            network.switch().ip(&format!("link set {DEVICE} txqueuelen 10000 master br0 up\n"))?;
        }
        let link = SlowLink::start(files, Layer::Ethernet, script)?;
        a.wait_for_port(DEVICE)?;
        b.wait_for_port(DEVICE)?;
        Ok(link)
    }

    fn start(files: [File; 2], layer: Layer, script: LinkScript) -> Result<SlowLink, DemoError> {
        let failed = |source| DemoError::Thread { source };
        let (stop, waker) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)
            .map_err(|errno| failed(io::Error::from(errno)))?;
        let shared = Arc::new(Shared { log: Mutex::default() });
        let mut worker = Worker {
            files,
            layer,
            shaper: Shaper::new(script),
            began_ns: monotonic_ns(),
            shared: Arc::clone(&shared),
            under_way: BinaryHeap::new(),
            number: 0,
        };
        let thread = std::thread::Builder::new()
            .name("slow-link".into())
            .spawn(move || worker.work(&stop))
            .map_err(failed)?;
        Ok(SlowLink { shared, waker: Some(waker), thread: Some(thread) })
    }

    /// What was done to the packets so far, in the order in which they came.
    pub fn packets(&self) -> Vec<PacketRecord> {
        self.shared.log().clone()
    }

    /// Round trips as the link saw them: of segments that went `direction`, sent once, in their order. Their sender
    /// measures no less.
    pub fn round_trips(&self, direction: Direction) -> Vec<RoundTrip> {
        log::round_trips(&self.shared.log(), direction)
    }

    /// Segments with data that went `direction` after they had passed once.
    pub fn retransmissions(&self, direction: Direction) -> usize {
        log::retransmissions(&self.shared.log(), direction)
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.waker = None;
        if let Some(thread) = self.thread.take() {
            // It ends when the waker closes; what it did is in the log.
            let _ = thread.join();
        }
    }
}

/// A packet on its way, the earliest first in a heap.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    due_ns: std::cmp::Reverse<u64>,
    number: std::cmp::Reverse<u64>,
    to: usize,
    /// Place in the log.
    logged: Option<usize>,
    bytes: Vec<u8>,
}

struct Worker {
    /// Of side A and of side B.
    files: [File; 2],
    layer: Layer,
    shaper: Shaper,
    /// When the script began, `CLOCK_MONOTONIC`.
    began_ns: u64,
    shared: Arc<Shared>,
    under_way: BinaryHeap<UnderWay>,
    number: u64,
}

impl Worker {
    fn work(&mut self, stop: &OwnedFd) {
        let mut buffer = vec![0; PACKET];
        loop {
            self.deliver();
            let next_ns = self.under_way.peek().map(|packet| packet.due_ns.0);
            match wait(&self.files, stop, next_ns) {
                Ok(false) => {}
                Ok(true) | Err(_) => return,
            }
            for direction in Direction::BOTH {
                self.take_all(direction, &mut buffer);
            }
        }
    }

    /// Takes what has come on one side.
    fn take_all(&mut self, direction: Direction, buffer: &mut [u8]) {
        // Bounded, so that one side does not keep the other waiting.
        for _ in 0..64 {
            let Some(mut file) = self.files.get(direction.index()) else { return };
            match file.read(buffer) {
                Ok(len) => {
                    let taken_ns = monotonic_ns();
                    self.take(direction, taken_ns, buffer.get(..len).unwrap_or(&[]));
                }
                // Nothing more, or the interface is down.
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, direction: Direction, taken_ns: u64, bytes: &[u8]) {
        let mut fate = self.shaper.take(self.began_ns, taken_ns, direction, bytes.len());
        if self.under_way.len() >= UNDER_WAY && matches!(fate, Fate::Deliver { .. }) {
            fate = Fate::QueueFull;
        }
        let record = PacketRecord {
            direction,
            bytes: bytes.len(),
            taken_ns,
            fate,
            delivered_ns: None,
            segment: packet::segment(self.layer, bytes),
        };
        let mut log = self.shared.log();
        let logged = (log.len() < LOGGED).then_some(log.len());
        if logged.is_some() {
            log.push(record);
        }
        drop(log);
        if let Fate::Deliver { due_ns, .. } = fate {
            self.number += 1;
            self.under_way.push(UnderWay {
                due_ns: std::cmp::Reverse(due_ns),
                number: std::cmp::Reverse(self.number),
                to: direction.back().index(),
                logged,
                bytes: bytes.to_vec(),
            });
        }
    }

    /// Gives on what is due.
    fn deliver(&mut self) {
        while self.under_way.peek().is_some_and(|packet| packet.due_ns.0 <= monotonic_ns()) {
            let Some(packet) = self.under_way.pop() else { return };
            let Some(mut file) = self.files.get(packet.to) else { return };
            // Before the receiver can have it.
            let now = monotonic_ns();
            self.note_delivery(packet.logged, Some(now));
            if file.write(&packet.bytes).is_err() {
                // An interface that is down takes nothing.
                self.note_delivery(packet.logged, None);
            }
        }
    }

    fn note_delivery(&self, logged: Option<usize>, delivered_ns: Option<u64>) {
        let mut log = self.shared.log();
        if let Some(record) = logged.and_then(|place| log.get_mut(place)) {
            record.delivered_ns = delivered_ns;
        }
    }
}

/// Waits for a packet, the next one that is due, or the end; true: the end.
fn wait(files: &[File; 2], stop: &OwnedFd, next_ns: Option<u64>) -> io::Result<bool> {
    let [a, b] = files;
    let mut set = [a.as_fd(), b.as_fd(), stop.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    let left = next_ns.map(|next_ns| Duration::from_nanos(next_ns.saturating_sub(monotonic_ns())));
    match ppoll(&mut set, left.map(TimeSpec::from_duration), None) {
        Ok(_) => {}
        Err(nix::errno::Errno::EINTR) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    }
    let [a, b, stop] = set.map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
    // An interface that went away with its namespace.
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
    Ok(!stop.is_empty() || (a | b).intersects(gone))
}
