//! Names stacks on a thread of its own: reading symbol tables must not hold up the ring buffer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::probes::event::RawStack;
use crate::symbols::Symbolizer;
use crate::trace::record::Stack;

/// Memory that stacks may take while they wait for their names, bytes.
const WAITING: usize = 16 << 20;

enum Job {
    Enter(u32),
    Exec(u32),
    Forget(u32),
    Name(Box<RawStack>),
}

pub struct SymbolThread {
    jobs: Option<Sender<Job>>,
    named: Receiver<Stack>,
    waiting: Arc<AtomicUsize>,
    refused: AtomicU64,
    thread: Option<JoinHandle<Symbolizer>>,
}

impl SymbolThread {
    pub fn start() -> io::Result<SymbolThread> {
        let (jobs, queue) = channel::<Job>();
        let (results, named) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&waiting);
        let thread = std::thread::Builder::new().name("symbols".into()).spawn(move || {
            let mut symbolizer = Symbolizer::new();
            for job in queue {
                match job {
                    Job::Enter(pid) => symbolizer.add_process(pid),
                    Job::Exec(pid) => symbolizer.exec(pid),
                    Job::Forget(pid) => symbolizer.forget(pid),
                    Job::Name(raw) => {
                        let stack = symbolizer.stack(&raw);
                        count.fetch_sub(size_of_stack(&raw), Ordering::Relaxed);
                        if results.send(stack).is_err() {
                            break;
                        }
                    }
                }
            }
            symbolizer
        })?;
        Ok(SymbolThread {
            jobs: Some(jobs),
            named,
            waiting,
            refused: AtomicU64::new(0),
            thread: Some(thread),
        })
    }

    pub fn enter(&self, pid: u32) {
        self.send(Job::Enter(pid));
    }

    pub fn exec(&self, pid: u32) {
        self.send(Job::Exec(pid));
    }

    pub fn forget(&self, pid: u32) {
        self.send(Job::Forget(pid));
    }

    /// Queues a stack; it is counted and dropped where too many wait already.
    pub fn name(&self, raw: RawStack) {
        let size = size_of_stack(&raw);
        if self.waiting.load(Ordering::Relaxed) + size > WAITING {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.waiting.fetch_add(size, Ordering::Relaxed);
        self.send(Job::Name(Box::new(raw)));
    }

    /// Stacks that have their names by now.
    pub fn take(&self) -> impl Iterator<Item = Stack> + '_ {
        self.named.try_iter()
    }

    /// Stacks that were dropped.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Ends the thread when everything queued is done: the rest of the stacks, and the symbolizer for those
    /// threads that are still blocked. `None` where the thread came to harm.
    pub fn finish(mut self) -> (Vec<Stack>, Option<Symbolizer>) {
        self.jobs = None;
        let rest = self.named.iter().collect();
        (rest, self.thread.take().and_then(|thread| thread.join().ok()))
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs
            && jobs.send(job).is_err()
        {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn size_of_stack(raw: &RawStack) -> usize {
    size_of::<RawStack>() + raw.frames.len() * 8 + raw.snippet.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(id: u64, snippet: usize) -> RawStack {
        RawStack { id, kernel: true, frames: vec![1], snippet: vec![0; snippet], ..RawStack::default() }
    }

    #[test]
    fn every_queued_stack_comes_back() {
        let thread = SymbolThread::start().unwrap();
        for id in 1..=100 {
            thread.name(stack(id, 0));
        }
        let mut ids: Vec<u64> = thread.take().map(|stack| stack.id).collect();
        let refused = thread.refused();
        let (rest, symbolizer) = thread.finish();
        ids.extend(rest.iter().map(|stack| stack.id));
        assert_eq!(ids, (1..=100).collect::<Vec<u64>>());
        assert_eq!(refused, 0);
        assert!(symbolizer.is_some());
    }

    #[test]
    fn a_stack_that_does_not_fit_is_counted() {
        let thread = SymbolThread::start().unwrap();
        thread.name(stack(1, WAITING));
        assert_eq!(thread.refused(), 1);
        assert_eq!(thread.finish().0.len(), 0);
    }
}
