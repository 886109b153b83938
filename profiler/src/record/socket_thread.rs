//! Looks at the targets' TCP sockets a few times a second, on a thread of its own.

use std::collections::HashSet;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::target::sockets::{Full, Look, SocketError};
use crate::target::{ProcRoot, SocketSamplers};
use crate::trace::record::{Ends, Environment, SocketSample};

/// Between two looks, where they are cheap.
const INTERVAL: Duration = Duration::from_millis(200);
/// A look may take this share of processor time: at most half a percent of one CPU.
const SHARE: u32 = 200;
const SLOWEST: Duration = Duration::from_secs(5);
/// Local addresses whose interface is looked up at most.
const ADDRESSES: usize = 256;

enum Order {
    Enter(u32),
    Leave(u32),
    /// One look now, then an answer.
    Look {
        at_start: bool,
    },
}

/// What the thread found.
pub enum Found {
    Sample(SocketSample),
    /// Which interface a local address belongs to.
    Interface(Environment),
    /// Why sockets cannot be seen; once.
    Failed(String),
    /// The look that was ordered is done.
    Done,
}

pub struct SocketThread {
    orders: Option<Sender<Order>>,
    found: Receiver<Found>,
    thread: Option<JoinHandle<()>>,
}

impl SocketThread {
    pub fn start(root: ProcRoot) -> io::Result<SocketThread> {
        let (orders, queue) = channel();
        let (results, found) = channel();
        let thread = std::thread::Builder::new().name("sockets".into()).spawn(move || {
            Sampler {
                samplers: SocketSamplers::new(root),
                results,
                interfaces: HashSet::new(),
                failed: false,
            }
            .work(&queue);
        })?;
        Ok(SocketThread { orders: Some(orders), found, thread: Some(thread) })
    }

    pub fn enter(&self, pid: u32) {
        self.send(Order::Enter(pid));
    }

    pub fn leave(&self, pid: u32) {
        self.send(Order::Leave(pid));
    }

    /// Looks now and waits for the result.
    pub fn look(&self, at_start: bool) -> Vec<Found> {
        self.send(Order::Look { at_start });
        // A look is bounded by the kernel's list of sockets; a thread that died closes the channel.
        self.found.iter().take_while(|found| !matches!(found, Found::Done)).collect()
    }

    /// What came in since the last call.
    pub fn take(&self) -> impl Iterator<Item = Found> + '_ {
        self.found.try_iter()
    }

    fn send(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

impl Drop for SocketThread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Sampler {
    samplers: SocketSamplers,
    results: Sender<Found>,
    /// Local addresses whose interface was asked for.
    interfaces: HashSet<std::net::IpAddr>,
    failed: bool,
}

impl Sampler {
    fn work(&mut self, queue: &Receiver<Order>) {
        let mut interval = INTERVAL;
        loop {
            match queue.recv_timeout(interval) {
                Ok(Order::Enter(pid)) => {
                    if let Err(error) = self.samplers.add(pid) {
                        self.fail(&error);
                    }
                }
                Ok(Order::Leave(pid)) => self.samplers.remove(pid),
                Ok(Order::Look { at_start }) => {
                    // Also at the end: what a short recording has not listed yet is listed then.
                    let cost = self.look(at_start, Full::Tcp);
                    interval = pace(cost);
                    if self.results.send(Found::Done).is_err() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => interval = pace(self.look(false, Full::WhereCheap)),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self, at_start: bool, full: Full) -> Duration {
        let Look { samples, cost, errors, .. } = self.samplers.look(at_start, full);
        for error in &errors {
            self.fail(error);
        }
        for sample in samples {
            self.interface(&sample);
            let _ = self.results.send(Found::Sample(sample));
        }
        cost
    }

    fn interface(&mut self, sample: &SocketSample) {
        let Ends::Inet { local, .. } = &sample.socket.ends else { return };
        let address = local.ip();
        if self.interfaces.len() >= ADDRESSES || !self.interfaces.insert(address) {
            return;
        }
        if let Some(value) = self.samplers.interface_for(sample.pid, address) {
            let _ = self.results.send(Found::Interface(Environment {
                what: format!("interface.{address}"),
                value,
                pid: sample.pid,
            }));
        }
    }

    fn fail(&mut self, error: &SocketError) {
        if !error.is_gone() && !self.failed {
            self.failed = true;
            let _ = self.results.send(Found::Failed(error.to_string()));
        }
    }
}

fn pace(cost: Duration) -> Duration {
    (cost * SHARE).clamp(INTERVAL, SLOWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expensive_look_is_taken_less_often() {
        assert_eq!(pace(Duration::from_micros(10)), INTERVAL);
        assert_eq!(pace(Duration::from_millis(10)), Duration::from_secs(2));
        assert_eq!(pace(Duration::from_secs(1)), SLOWEST);
    }

    #[test]
    fn finds_an_own_connection_with_its_interface() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(address).unwrap();
        let thread = SocketThread::start(ProcRoot::default()).unwrap();
        thread.enter(std::process::id());
        let found = thread.look(true);
        let wanted = Ends::Inet { local: client.local_addr().unwrap(), peer: address };
        assert!(found.iter().any(
            |found| matches!(found, Found::Sample(sample) if sample.socket.ends == wanted && sample.at_start)
        ));
        assert!(found.iter().any(
            |found| matches!(found, Found::Interface(row) if row.what == "interface.127.0.0.1" && row.value == "lo")
        ));
    }
}
