//! Looks at the Python stacks of waiting threads, on a thread of its own and within a budget.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::python_watch::{PythonWatch, Told};
use crate::target::ProcRoot;

/// Between two rounds, where they are cheap.
const INTERVAL: Duration = Duration::from_millis(20);
/// Rounds may take this share of a processor: one percent.
const SHARE: u32 = 100;
const SLOWEST: Duration = Duration::from_secs(5);
/// Between two rounds where no target has an interpreter.
const QUIET: Duration = Duration::from_millis(500);

enum Order {
    Enter(u32),
    Leave(u32),
    /// Waits are recorded from now on: what was seen before would belong to none.
    Begin,
    /// A round now, then an answer.
    Look,
}

enum Answer {
    Told(Told),
    Done,
}

pub struct PythonThread {
    orders: Option<Sender<Order>>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
}

impl PythonThread {
    pub fn start(root: ProcRoot) -> io::Result<PythonThread> {
        let (orders, queue) = channel();
        let (results, answers) = channel();
        let work = move || work(PythonWatch::new(root), &queue, &results);
        let thread = std::thread::Builder::new().name("python".into()).spawn(work)?;
        Ok(PythonThread { orders: Some(orders), answers, thread: Some(thread) })
    }

    /// `pid` is a target, or runs another program now.
    pub fn enter(&self, pid: u32) {
        self.send(Order::Enter(pid));
    }

    pub fn leave(&self, pid: u32) {
        self.send(Order::Leave(pid));
    }

    /// Begins to look. Until then interpreters are searched for only.
    pub fn begin(&self) {
        self.send(Order::Begin);
    }

    /// Looks now, and waits for what was found.
    pub fn look(&self) -> Vec<Told> {
        self.send(Order::Look);
        let told = |answer| match answer {
            Answer::Told(told) => Some(told),
            Answer::Done => None,
        };
        // A round is bounded by the number of threads; a thread that died closes the channel.
        self.answers.iter().map_while(told).collect()
    }

    /// What was found since the last call.
    pub fn take(&self) -> impl Iterator<Item = Told> + '_ {
        self.answers.try_iter().filter_map(|answer| match answer {
            Answer::Told(told) => Some(told),
            Answer::Done => None,
        })
    }

    fn send(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

impl Drop for PythonThread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(mut watch: PythonWatch, queue: &Receiver<Order>, results: &Sender<Answer>) {
    let mut tell = |told| {
        // Without a receiver the recording is over.
        let _ = results.send(Answer::Told(told));
    };
    let mut interval = INTERVAL;
    let mut begun = false;
    loop {
        match queue.recv_timeout(interval) {
            Ok(Order::Enter(pid)) => {
                watch.enter(pid);
                interval = INTERVAL;
            }
            Ok(Order::Leave(pid)) => watch.leave(pid),
            Ok(Order::Begin) => begun = true,
            Ok(Order::Look) => {
                watch.search(&mut tell);
                watch.look(&mut tell);
                if results.send(Answer::Done).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                // Searches are rare, and not to be paid for with looks.
                watch.search(&mut tell);
                if !begun {
                    continue;
                }
                let before = processor_time();
                watch.look(&mut tell);
                let cost = processor_time().saturating_sub(before);
                interval = if watch.is_quiet() { QUIET } else { pace(cost) };
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn pace(cost: Duration) -> Duration {
    (cost * SHARE).clamp(INTERVAL, SLOWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_take_one_percent_of_a_processor_at_most() {
        assert_eq!(pace(Duration::from_micros(10)), INTERVAL);
        assert_eq!(pace(Duration::from_millis(2)), Duration::from_millis(200));
        assert_eq!(pace(Duration::from_secs(1)), SLOWEST);
    }

    #[test]
    fn a_process_without_an_interpreter_has_no_looks() {
        let thread = PythonThread::start(ProcRoot::default()).unwrap();
        thread.enter(std::process::id());
        assert!(thread.look().is_empty());
        thread.leave(std::process::id());
        assert!(thread.look().is_empty());
    }
}
