//! Looks at the targets' TCP sockets a few times a second, on a thread of its own.

use std::collections::HashSet;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use super::errand::{Answer, Errand};
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
}

pub struct SocketThread(Errand<Order, Found>);

impl SocketThread {
    pub fn start(root: ProcRoot) -> io::Result<SocketThread> {
        Errand::start("sockets", |queue, results| {
            let samplers = SocketSamplers::new(root);
            Sampler { samplers, results, interfaces: HashSet::new(), failed: false }.work(queue);
        })
        .map(SocketThread)
    }

    pub fn enter(&self, pid: u32) {
        self.0.order(Order::Enter(pid));
    }

    pub fn leave(&self, pid: u32) {
        self.0.order(Order::Leave(pid));
    }

    /// Looks now and waits for the result. A look is bounded by the kernel's list of sockets.
    pub fn look(&self, at_start: bool) -> Vec<Found> {
        let (mut found, alive) = self.0.carry_out(Order::Look { at_start });
        if !alive {
            found.push(Found::Failed("the thread that looks at sockets came to harm".to_owned()));
        }
        found
    }

    /// What came in since the last call.
    pub fn take(&self) -> impl Iterator<Item = Found> + '_ {
        self.0.take()
    }
}

struct Sampler<'a> {
    samplers: SocketSamplers,
    results: &'a Sender<Answer<Found>>,
    /// Local addresses whose interface was asked for.
    interfaces: HashSet<std::net::IpAddr>,
    failed: bool,
}

impl Sampler<'_> {
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
                    if self.results.send(Answer::Done).is_err() {
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
            self.tell(Found::Sample(sample));
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
            self.tell(Found::Interface(Environment {
                what: format!("interface.{address}"),
                value,
                pid: sample.pid,
            }));
        }
    }

    fn tell(&self, found: Found) {
        // Without a receiver the recording is over.
        let _ = self.results.send(Answer::Found(found));
    }

    fn fail(&mut self, error: &SocketError) {
        if !error.is_gone() && !self.failed {
            self.failed = true;
            self.tell(Found::Failed(error.to_string()));
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
