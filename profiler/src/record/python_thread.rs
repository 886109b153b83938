//! Looks at the Python stacks of waiting threads, on a thread of its own and within a budget.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use super::errand::{Answer, Errand};
use super::python_watch::{PythonWatch, Told};
use crate::target::ProcRoot;
use crate::target::sockets::processor_time;

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

pub struct PythonThread(Errand<Order, Told>);

impl PythonThread {
    pub fn start(root: ProcRoot) -> io::Result<PythonThread> {
        Errand::start("python", |queue, results| work(PythonWatch::new(root), queue, results))
            .map(PythonThread)
    }

    /// `pid` is a target, or runs another program now.
    pub fn enter(&self, pid: u32) {
        self.0.order(Order::Enter(pid));
    }

    pub fn leave(&self, pid: u32) {
        self.0.order(Order::Leave(pid));
    }

    /// Begins to look. Until then interpreters are searched for only.
    pub fn begin(&self) {
        self.0.order(Order::Begin);
    }

    /// Looks now, and waits for what was found; false where the thread has come to harm. A round is bounded by the
    /// number of threads.
    pub fn look(&self) -> (Vec<Told>, bool) {
        self.0.carry_out(Order::Look)
    }

    /// What was found since the last call.
    pub fn take(&self) -> impl Iterator<Item = Told> + '_ {
        self.0.take()
    }
}

fn work(mut watch: PythonWatch, queue: &Receiver<Order>, results: &Sender<Answer<Told>>) {
    let mut tell = |told| {
        // Without a receiver the recording is over.
        let _ = results.send(Answer::Found(told));
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
        assert!(matches!(thread.look(), (found, true) if found.is_empty()));
        thread.leave(std::process::id());
        assert!(matches!(thread.look(), (found, true) if found.is_empty()));
    }
}
