//! Decides which threads of Python processes are looked at, and makes sure that they slept through the look.
//!
//! The scheduler counts how often a thread was given a processor. As long as the count stands still the thread is in
//! the same sleep, so each sleep is looked at once, and a look whose count moved is thrown away.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use profiler_common::Call;

use super::python_looks::Look;
use crate::probes::CallNumbers;
use crate::symbols::python::{PythonError, PythonProcess};
use crate::target::ProcRoot;
use crate::target::blocked::{Activity, activity};
use crate::target::process::{thread, times_scheduled};
use crate::target::root::{STATUS, monotonic_ns, read_bounded};

/// Before each search for an interpreter: the loader maps it after the program has begun. The last one comes again and
/// again, for programs that load it later.
const SEARCHES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(30),
    Duration::from_millis(300),
    Duration::from_secs(2),
    Duration::from_secs(10),
];
/// Looks at one sleep that brought nothing, after which it is left alone.
const TRIES: u8 = 3;
/// Threads of one process that are looked at in one round, those that sleep longest first.
const LOOKS: usize = 16;
/// Looks that share one reading of the list of threads: all of these must sleep from then on.
const BATCH: usize = 4;
/// For so long a thread that the interpreter does not know is left alone.
const STRANGER: Duration = Duration::from_secs(1);
/// Threads of one process that are watched.
const THREADS: usize = 4096;

/// What is known of a target.
enum Interpreter {
    /// Looked for so many times; the next time then.
    Unknown {
        searches: usize,
        due: Instant,
    },
    Found(PythonProcess),
    /// It is there and cannot be read.
    Unreadable,
}

#[derive(Clone, Copy, Default)]
struct Sleeper {
    /// Its id as the process numbers it.
    ns_tid: u32,
    /// The sleep that needs no look, by the scheduler's count.
    done: Option<u64>,
    tried: Option<(u64, u8)>,
    /// The sleep it was in at the round before.
    seen: Option<u64>,
    /// Of no use to look at it before then.
    stranger_until: Option<Instant>,
}

struct Target {
    interpreter: Interpreter,
    threads: HashMap<u32, Sleeper>,
}

/// A thread that sleeps in a watched call.
#[derive(Clone, Copy)]
struct Candidate {
    tid: u32,
    ns_tid: u32,
    call: Call,
    count: u64,
    /// After it was seen asleep.
    start_ns: u64,
}

/// What a round found beside the looks.
pub enum Told {
    Look(Look),
    /// A process runs this version of CPython.
    Python {
        pid: u32,
        version: (u8, u8),
    },
    Failed(PythonError),
}

pub struct PythonWatch {
    root: ProcRoot,
    numbers: CallNumbers,
    targets: HashMap<u32, Target>,
}

impl PythonWatch {
    pub fn new(root: ProcRoot) -> PythonWatch {
        PythonWatch { root, numbers: CallNumbers::new(), targets: HashMap::new() }
    }

    /// `pid` is a target, or runs another program now.
    pub fn enter(&mut self, pid: u32) {
        let due = Instant::now() + SEARCHES[0];
        let interpreter = Interpreter::Unknown { searches: 0, due };
        self.targets.insert(pid, Target { interpreter, threads: HashMap::new() });
    }

    pub fn leave(&mut self, pid: u32) {
        self.targets.remove(&pid);
    }

    /// Looks for interpreters where it is time to.
    pub fn search(&mut self, told: &mut dyn FnMut(Told)) {
        for (pid, target) in &mut self.targets {
            target.search(*pid, told);
        }
    }

    /// Whether there is nothing to look at, and will not be soon.
    pub fn is_quiet(&self) -> bool {
        self.targets.values().all(|target| match &target.interpreter {
            Interpreter::Unknown { searches, .. } => *searches >= SEARCHES.len() - 1,
            Interpreter::Found(_) => false,
            Interpreter::Unreadable => true,
        })
    }

    /// Looks at every thread whose sleep was not looked at yet.
    pub fn look(&mut self, told: &mut dyn FnMut(Told)) {
        for (pid, target) in &mut self.targets {
            if let Interpreter::Found(python) = &target.interpreter {
                let round = Round { root: &self.root, numbers: &self.numbers, pid: *pid, python };
                round.look(&mut target.threads, told);
            }
        }
    }
}

impl Target {
    fn search(&mut self, pid: u32, told: &mut dyn FnMut(Told)) {
        let Interpreter::Unknown { searches, due } = &self.interpreter else { return };
        if Instant::now() < *due {
            return;
        }
        let searches = searches + 1;
        self.interpreter = match PythonProcess::find(pid) {
            Ok(Some(python)) => {
                told(Told::Python { pid, version: python.version() });
                Interpreter::Found(python)
            }
            Ok(None) => {
                let wait = SEARCHES.get(searches).or(SEARCHES.last()).copied().unwrap_or_default();
                Interpreter::Unknown { searches, due: Instant::now() + wait }
            }
            Err(error) => {
                told(Told::Failed(error));
                Interpreter::Unreadable
            }
        };
    }
}

/// One round of looks at one process.
struct Round<'a> {
    root: &'a ProcRoot,
    numbers: &'a CallNumbers,
    pid: u32,
    python: &'a PythonProcess,
}

impl Round<'_> {
    fn look(&self, threads: &mut HashMap<u32, Sleeper>, told: &mut dyn FnMut(Told)) {
        let due = due(self.root, self.pid, threads);
        let mut left = LOOKS;
        for batch in due.chunks(BATCH) {
            if left == 0 {
                return;
            }
            let candidates: Vec<Candidate> =
                batch.iter().filter_map(|tid| self.candidate(*tid, threads)).take(left).collect();
            left -= candidates.len();
            self.look_at(&candidates, threads, told);
        }
    }

    fn look_at(
        &self,
        candidates: &[Candidate],
        threads: &mut HashMap<u32, Sleeper>,
        told: &mut dyn FnMut(Told),
    ) {
        if candidates.is_empty() {
            return;
        }
        let known = threads.values().map(|sleeper| sleeper.ns_tid).collect();
        let listed = self.python.threads(&known);
        for candidate in candidates {
            let seen = self.python.look(&listed, candidate.ns_tid);
            let same = count(self.root, self.pid, candidate.tid) == Some(candidate.count);
            let end_ns = monotonic_ns();
            let Some(sleeper) = threads.get_mut(&candidate.tid) else { continue };
            let Candidate { tid, call, count, start_ns, .. } = *candidate;
            match seen {
                Some(seen) if same => {
                    sleeper.done = Some(count);
                    let seen = Arc::new(seen);
                    told(Told::Look(Look { pid: self.pid, tid, call, start_ns, end_ns, seen }));
                }
                None if same && !listed.has(candidate.ns_tid) => {
                    sleeper.stranger_until = Some(Instant::now() + STRANGER);
                }
                _ => sleeper.failed(count),
            }
        }
    }

    /// The thread, where it sleeps in a watched call.
    fn candidate(&self, tid: u32, threads: &HashMap<u32, Sleeper>) -> Option<Candidate> {
        let count = count(self.root, self.pid, tid)?;
        let ns_tid = threads.get(&tid)?.ns_tid;
        let call = match activity(self.root, self.pid, tid)? {
            Activity::InCall(state) => self.numbers.call(state.number),
            Activity::Running | Activity::OutsideCall { .. } => None,
        };
        call.map(|call| Candidate { tid, ns_tid, call, count, start_ns: monotonic_ns() })
    }
}

/// Threads that have not been looked at since they were given a processor the last time: first those that sleep, or
/// run, since the round before or longer.
fn due(root: &ProcRoot, pid: u32, threads: &mut HashMap<u32, Sleeper>) -> Vec<u32> {
    let Ok(mut tids) = root.tids(pid) else { return Vec::new() };
    tids.truncate(THREADS);
    let there: HashSet<u32> = tids.iter().copied().collect();
    threads.retain(|tid, _| there.contains(tid));
    let now = Instant::now();
    let (mut long, mut fresh) = (Vec::new(), Vec::new());
    for tid in tids {
        let Some(count) = count(root, pid, tid) else { continue };
        let Some(sleeper) = sleeper(root, pid, tid, threads) else { continue };
        let seen = sleeper.seen.replace(count);
        if sleeper.done == Some(count) || sleeper.stranger_until.is_some_and(|until| now < until) {
            continue;
        }
        if seen == Some(count) { long.push(tid) } else { fresh.push(tid) }
    }
    // Each its turn, where there are more than can be looked at.
    let turn = (monotonic_ns() >> 10) as usize % fresh.len().max(1);
    fresh.rotate_left(turn);
    long.append(&mut fresh);
    long
}

/// What is known of a thread; read where it is new.
fn sleeper<'t>(
    root: &ProcRoot,
    pid: u32,
    tid: u32,
    threads: &'t mut HashMap<u32, Sleeper>,
) -> Option<&'t mut Sleeper> {
    match threads.entry(tid) {
        Entry::Occupied(entry) => Some(entry.into_mut()),
        Entry::Vacant(entry) => {
            let ns_tid = thread(root, pid, tid, 0).ok()?.ns_tid;
            Some(entry.insert(Sleeper { ns_tid, ..Sleeper::default() }))
        }
    }
}

/// How often the thread was given a processor. Kernels that do not count that count switches.
fn count(root: &ProcRoot, pid: u32, tid: u32) -> Option<u64> {
    let count = times_scheduled(root, pid, tid).ok().filter(|count| *count > 0);
    count.or_else(|| switches(root, pid, tid))
}

fn switches(root: &ProcRoot, pid: u32, tid: u32) -> Option<u64> {
    let text = read_bounded(&root.task_path(pid, tid, "status"), STATUS).ok()?;
    parse_switches(&text.bytes)
}

/// Voluntary and other switches together.
fn parse_switches(status: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(status);
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.ends_with("voluntary_ctxt_switches").then(|| value.trim().parse::<u64>().ok()).flatten()
    });
    let values: Vec<u64> = values.collect();
    (values.len() == 2).then(|| values.into_iter().fold(0, u64::saturating_add))
}

impl Sleeper {
    fn failed(&mut self, count: u64) {
        let tries = match self.tried {
            Some((tried, tries)) if tried == count => tries.saturating_add(1),
            _ => 1,
        };
        self.tried = Some((count, tries));
        if tries >= TRIES {
            self.done = Some(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_counted_where_the_scheduler_counts_nothing_else() {
        let status = b"Name:\tpython3\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(parse_switches(status), Some(695));
        assert_eq!(parse_switches(b"Name:\tvoluntary_ctxt_switches\n"), None);
    }

    #[test]
    fn a_sleep_that_brings_nothing_is_left_alone() {
        let mut sleeper = Sleeper::default();
        for _ in 1..TRIES {
            sleeper.failed(7);
        }
        assert_eq!(sleeper.done, None);
        // Another sleep has tries of its own.
        sleeper.failed(8);
        assert_eq!(sleeper.done, None);
        for _ in 1..TRIES {
            sleeper.failed(8);
        }
        assert_eq!(sleeper.done, Some(8));
    }

    /// A thread of this process that waits until it is told to go on.
    #[test]
    fn each_sleep_is_due_once_it_began_and_until_it_was_looked_at() {
        let root = ProcRoot::default();
        let (send, receive) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(nix::unistd::gettid().as_raw().cast_unsigned()).unwrap();
            wait.recv()
        });
        let tid = receive.recv().unwrap();
        let pid = root.own_pid();
        let round = |threads: &mut HashMap<u32, Sleeper>| {
            // It may still be on its way to sleep.
            let before = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap();
            let due = due(&root, pid, threads);
            let after = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap();
            (before == after).then(|| due.contains(&tid))
        };
        let mut threads = HashMap::new();
        assert!(round(&mut threads).unwrap_or(true));
        loop {
            let seen = threads[&tid].seen;
            threads.get_mut(&tid).unwrap().done = seen;
            if let Some(due) = round(&mut threads)
                && threads[&tid].seen == seen
            {
                assert!(!due);
                break;
            }
        }
        go.send(()).unwrap();
        thread.join().unwrap().unwrap();
        assert!(!due(&root, pid, &mut threads).contains(&tid));
        assert!(!threads.contains_key(&tid));
    }
}
