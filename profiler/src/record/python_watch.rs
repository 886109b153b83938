//! Decides which threads of Python processes are looked at, and makes sure that they slept through the look.
//!
//! The scheduler counts how often a thread was given a processor. As long as the count stands still the thread is in
//! the same sleep, so each sleep is looked at once, and a look whose count moved is thrown away.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use procfs::FromRead;
use procfs::process::Schedstat;
use profiler_common::Call;

use super::python_looks::Look;
use crate::probes::CallNumbers;
use crate::symbols::python::{PythonError, PythonProcess};
use crate::target::ProcRoot;
use crate::target::blocked::{Activity, activity};
use crate::target::process::thread;
use crate::target::root::{monotonic_ns, read_bounded};

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
/// Threads of one process that are watched.
const THREADS: usize = 4096;
const SCHEDSTAT: usize = 256;

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
    /// Before it was seen asleep.
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
        let Ok(mut tids) = self.root.tids(self.pid) else { return };
        tids.truncate(THREADS);
        let there: HashSet<u32> = tids.iter().copied().collect();
        threads.retain(|tid, _| there.contains(tid));
        let candidates: Vec<Candidate> =
            tids.iter().filter_map(|tid| self.candidate(*tid, threads)).collect();
        if candidates.is_empty() {
            return;
        }
        let known = threads.values().map(|sleeper| sleeper.ns_tid).collect();
        let listed = self.python.threads(&known);
        for candidate in candidates {
            let seen = self.python.look(&listed, candidate.ns_tid);
            let same = self.count(candidate.tid) == Some(candidate.count);
            let end_ns = monotonic_ns();
            let Some(sleeper) = threads.get_mut(&candidate.tid) else { continue };
            let Candidate { tid, call, count, start_ns, .. } = candidate;
            if let (Some(seen), true) = (seen, same) {
                sleeper.done = Some(count);
                let seen = Arc::new(seen);
                told(Told::Look(Look { pid: self.pid, tid, call, start_ns, end_ns, seen }));
            } else {
                sleeper.failed(count);
            }
        }
    }

    /// The thread, where it sleeps in a watched call and was not looked at in this sleep.
    fn candidate(&self, tid: u32, threads: &mut HashMap<u32, Sleeper>) -> Option<Candidate> {
        let start_ns = monotonic_ns();
        let count = self.count(tid)?;
        let ns_tid = match threads.get(&tid) {
            Some(sleeper) if sleeper.done == Some(count) => return None,
            Some(sleeper) => sleeper.ns_tid,
            None => {
                let ns_tid = thread(self.root, self.pid, tid, start_ns).ok()?.ns_tid;
                threads.insert(tid, Sleeper { ns_tid, ..Sleeper::default() });
                ns_tid
            }
        };
        let call = match activity(self.root, self.pid, tid)? {
            Activity::InCall(state) => self.numbers.call(state.number),
            Activity::Running | Activity::OutsideCall { .. } => None,
        };
        call.map(|call| Candidate { tid, ns_tid, call, count, start_ns })
    }

    /// How often the thread was given a processor. A kernel that does not count says 0 always; the looks then rest on
    /// the wait alone, which they must lie in.
    fn count(&self, tid: u32) -> Option<u64> {
        let text = read_bounded(&self.root.task_path(self.pid, tid, "schedstat"), SCHEDSTAT).ok()?;
        Some(Schedstat::from_read(text.bytes.as_slice()).ok()?.pcount)
    }
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
