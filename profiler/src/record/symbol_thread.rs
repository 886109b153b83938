//! Unwinds and names stacks on a thread of its own: reading symbol tables must not hold up the ring buffer.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use crate::probes::KnownStacks;
use crate::probes::event::RawStack;
use crate::symbols::{Symbolizer, Unwound};
use crate::trace::record::Stack;

/// Memory that stacks may take while they wait to be unwound, bytes.
const WAITING: usize = 16 << 20;
/// Stacks that may wait for their names.
const UNNAMED: usize = 256;
/// Stacks that are recognised when they come in another copy.
const RECOGNISED: usize = 8192;

enum Job {
    Enter(u32),
    Exec(u32),
    Forget(u32),
    Name(Box<RawStack>),
}

/// What the thread found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// The copy `id` of a user stack is the stack `same_as`, which can be itself.
    Same {
        id: u64,
        same_as: u64,
    },
    Stack(Stack),
}

pub struct SymbolThread {
    jobs: Option<Sender<Job>>,
    named: Receiver<Named>,
    waiting: Arc<AtomicUsize>,
    refused: AtomicU64,
    thread: Option<JoinHandle<Symbolizer>>,
}

/// What the thread works with.
struct Worker {
    symbolizer: Symbolizer,
    /// Tells the probes.
    known: Option<KnownStacks>,
    recognised: HashMap<Unwound, u64>,
    unnamed: VecDeque<(u64, Unwound)>,
    results: Sender<Named>,
    waiting: Arc<AtomicUsize>,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Job>) -> Symbolizer {
        loop {
            // Unwinding goes before naming: until it is done the same stacks are copied again and again.
            let job = if self.unnamed.is_empty() {
                queue.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                queue.try_recv()
            };
            match job {
                Ok(job) => self.take(job),
                Err(TryRecvError::Disconnected) if self.unnamed.is_empty() => return self.symbolizer,
                Err(_) => self.name_one(),
            }
        }
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Enter(pid) => self.symbolizer.add_process(pid),
            Job::Exec(pid) => {
                self.end_of_program(pid);
                self.symbolizer.exec(pid);
            }
            Job::Forget(pid) => {
                self.end_of_program(pid);
                self.symbolizer.forget(pid);
            }
            Job::Name(raw) => {
                self.waiting.fetch_sub(size_of_stack(&raw), Ordering::Relaxed);
                if raw.kernel {
                    let stack = self.symbolizer.stack(&raw);
                    self.tell(Named::Stack(stack));
                } else {
                    self.unwind(&raw);
                }
            }
        }
    }

    /// Addresses mean something else from here on.
    fn end_of_program(&mut self, pid: u32) {
        while !self.unnamed.is_empty() {
            self.name_one();
        }
        self.recognised.retain(|unwound, _| unwound.pid() != pid);
        if let Some(known) = &mut self.known {
            known.forget(pid);
        }
    }

    fn unwind(&mut self, raw: &RawStack) {
        let (unwound, known) = self.symbolizer.unwind(raw);
        let same_as = match self.recognised.get(&unwound) {
            Some(&id) => id,
            None => self.add(raw.id, unwound),
        };
        if let (Some(probes), Some(known)) = (&mut self.known, &known) {
            probes.tell(known, same_as);
        }
        self.tell(Named::Same { id: raw.id, same_as });
    }

    fn add(&mut self, id: u64, unwound: Unwound) -> u64 {
        if self.recognised.len() >= RECOGNISED {
            // They come again under new ids.
            self.recognised.clear();
        }
        if self.unnamed.len() >= UNNAMED {
            self.name_one();
        }
        self.recognised.insert(unwound.clone(), id);
        self.unnamed.push_back((id, unwound));
        id
    }

    fn name_one(&mut self) {
        if let Some((id, unwound)) = self.unnamed.pop_front() {
            let stack = self.symbolizer.name(id, &unwound);
            self.tell(Named::Stack(stack));
        }
    }

    fn tell(&self, named: Named) {
        // Without a receiver the recording is over.
        let _ = self.results.send(named);
    }
}

impl SymbolThread {
    /// `known` is told of every stack that was unwound.
    pub fn start(known: Option<KnownStacks>) -> io::Result<SymbolThread> {
        let (jobs, queue) = channel::<Job>();
        let (results, named) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let worker = Worker {
            symbolizer: Symbolizer::new(),
            known,
            recognised: HashMap::new(),
            unnamed: VecDeque::new(),
            results,
            waiting: Arc::clone(&waiting),
        };
        let thread = std::thread::Builder::new().name("symbols".into()).spawn(move || worker.run(&queue))?;
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

    /// Queues a stack. False where too many wait already: it is counted and dropped.
    pub fn name(&self, raw: RawStack) -> bool {
        let size = size_of_stack(&raw);
        if self.waiting.load(Ordering::Relaxed) + size > WAITING {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.waiting.fetch_add(size, Ordering::Relaxed);
        self.send(Job::Name(Box::new(raw)))
    }

    /// What was found by now.
    pub fn take(&self) -> impl Iterator<Item = Named> + '_ {
        self.named.try_iter()
    }

    /// Stacks that were dropped.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Ends the thread when everything queued is done: the rest of the stacks, and the symbolizer for those
    /// threads that are still blocked. `None` where the thread came to harm.
    pub fn finish(&mut self) -> (Vec<Named>, Option<Symbolizer>) {
        self.jobs = None;
        let rest = self.named.iter().collect();
        (rest, self.thread.take().and_then(|thread| thread.join().ok()))
    }

    fn send(&self, job: Job) -> bool {
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if !sent {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }
}

fn size_of_stack(raw: &RawStack) -> usize {
    size_of::<RawStack>() + raw.frames.len() * 8 + raw.snippet.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel_stack(id: u64, snippet: usize) -> RawStack {
        RawStack { id, kernel: true, frames: vec![1], snippet: vec![0; snippet], ..RawStack::default() }
    }

    /// Of no process: its addresses are all there is.
    fn user_stack(id: u64, frames: &[u64]) -> RawStack {
        RawStack { id, pid: 1 << 30, frames: frames.to_vec(), ..RawStack::default() }
    }

    fn stacks(named: &[Named]) -> Vec<u64> {
        let stack = |named: &Named| match named {
            Named::Stack(stack) => Some(stack.id),
            Named::Same { .. } => None,
        };
        named.iter().filter_map(stack).collect()
    }

    #[test]
    fn every_queued_stack_comes_back() {
        let mut thread = SymbolThread::start(None).unwrap();
        for id in 1..=100 {
            assert!(thread.name(kernel_stack(id, 0)));
        }
        let mut named: Vec<Named> = thread.take().collect();
        let refused = thread.refused();
        let (rest, symbolizer) = thread.finish();
        named.extend(rest);
        assert_eq!(stacks(&named), (1..=100).collect::<Vec<u64>>());
        assert_eq!(refused, 0);
        assert!(symbolizer.is_some());
    }

    #[test]
    fn copies_of_one_stack_are_named_once() {
        let mut thread = SymbolThread::start(None).unwrap();
        for (id, frames) in [(1, [5, 6]), (2, [5, 7]), (3, [5, 6]), (4, [5, 7])] {
            thread.name(user_stack(id, &frames));
        }
        let (named, _) = thread.finish();
        assert_eq!(stacks(&named), [1, 2]);
        for (id, same_as) in [(1, 1), (2, 2), (3, 1), (4, 2)] {
            assert!(named.contains(&Named::Same { id, same_as }), "{id}: {named:?}");
        }
    }

    #[test]
    fn another_program_of_the_process_has_stacks_of_its_own() {
        let mut thread = SymbolThread::start(None).unwrap();
        thread.name(user_stack(1, &[5, 6]));
        thread.exec(1 << 30);
        thread.name(user_stack(2, &[5, 6]));
        assert_eq!(stacks(&thread.finish().0), [1, 2]);
    }

    #[test]
    fn a_stack_that_does_not_fit_is_counted() {
        let mut thread = SymbolThread::start(None).unwrap();
        assert!(!thread.name(kernel_stack(1, WAITING)));
        assert_eq!(thread.refused(), 1);
        assert_eq!(thread.finish().0.len(), 0);
    }
}
