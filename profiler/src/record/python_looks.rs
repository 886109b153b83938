//! Which waits the looks at Python stacks belong to.
//!
//! A look is of a wait where it lies in it from its beginning to its end: the thread was in that one call all the time,
//! so its Python stack did not change. Folded waits, in which the thread ran in between, are left alone, and so is every
//! wait that no look fell into.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use profiler_common::Call;

use crate::symbols::python::PythonLook;
use crate::trace::record::{PythonFrame, PythonStack, Wait};

/// Looks kept of one thread. At the fastest pace they cover 300 ms; waits are told sooner, and a wait that lasts longer
/// has the last one.
const KEPT: usize = 16;
/// Memory that all looks may take, bytes.
const MEMORY: usize = 16 << 20;
/// Stacks that are known to be in the trace.
const WRITTEN: usize = 65536;

/// One look at a thread that slept in one call from its beginning to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    pub pid: u32,
    pub tid: u32,
    /// `Call::None` where it went on with an interrupted one.
    pub call: Call,
    pub start_ns: u64,
    pub end_ns: u64,
    pub seen: Arc<PythonLook>,
}

#[derive(Debug, Default)]
pub struct PythonLooks {
    threads: HashMap<(u32, u32), VecDeque<Look>>,
    memory: usize,
    written: HashSet<u64>,
}

impl PythonLooks {
    pub fn add(&mut self, look: Look) {
        if self.memory + size_of_look(&look) > MEMORY {
            self.shrink();
        }
        self.memory += size_of_look(&look);
        let looks = self.threads.entry((look.pid, look.tid)).or_default();
        if looks.len() >= KEPT
            && let Some(oldest) = looks.pop_front()
        {
            self.memory -= size_of_look(&oldest);
        }
        looks.push_back(look);
    }

    /// Keeps the last look of each thread, whose wait may still last; if these are too many, nothing.
    fn shrink(&mut self) {
        for looks in self.threads.values_mut() {
            looks.drain(..looks.len().saturating_sub(1));
        }
        self.memory = self.threads.values().flatten().map(size_of_look).sum();
        if self.memory > MEMORY / 2 {
            self.threads.clear();
            self.memory = 0;
        }
    }

    /// Gives the wait the stack with its Python functions, where there was a look in it. The record is to be written
    /// before the wait, once.
    pub fn attach(&mut self, wait: &mut Wait) -> Option<PythonStack> {
        let look = self.find(wait)?;
        let id = id_of(wait.user_stack, &look.seen);
        let record = PythonStack {
            id,
            native: wait.user_stack,
            frames: look.seen.frames.clone(),
            truncated: look.seen.truncated,
        };
        wait.user_stack = id;
        if self.written.len() >= WRITTEN {
            self.written.clear();
        }
        self.written.insert(id).then_some(record)
    }

    fn find(&self, wait: &Wait) -> Option<&Look> {
        if wait.flags.nonblocking {
            return None;
        }
        let within = |look: &&Look| {
            let same_call = look.call == wait.call || look.call == Call::None;
            same_call && look.start_ns >= wait.start_ns && look.end_ns <= wait.end_ns
        };
        self.threads.get(&(wait.pid, wait.tid))?.iter().rev().find(within)
    }
}

fn size_of_look(look: &Look) -> usize {
    let frame = |frame: &PythonFrame| size_of::<PythonFrame>() + frame.function.len() + frame.file.len();
    2 * size_of::<Look>() + look.seen.frames.iter().map(frame).sum::<usize>()
}

/// Equal for stacks that read the same, and never 0.
fn id_of(native: u64, seen: &PythonLook) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("python", native, seen).hash(&mut hasher);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture;
    use crate::trace::record::WaitFlags;

    fn look(start_ns: u64, function: &str) -> Look {
        let frame = PythonFrame { function: function.into(), ..PythonFrame::default() };
        Look {
            pid: fixture::PID,
            tid: fixture::PID,
            call: Call::Read,
            start_ns,
            end_ns: start_ns + 5,
            seen: Arc::new(PythonLook { frames: vec![frame], truncated: false }),
        }
    }

    fn wait(start_ns: u64, end_ns: u64, user_stack: u64) -> Wait {
        Wait { user_stack, ..fixture::wait(Call::Read, start_ns, end_ns, Vec::new()) }
    }

    #[test]
    fn a_look_belongs_to_the_wait_that_it_lies_in() {
        let mut looks = PythonLooks::default();
        looks.add(look(100, "f"));
        looks.add(look(200, "g"));
        for outside in [(101, 150), (90, 104), (106, 199), (300, 400)] {
            let mut wait = wait(outside.0, outside.1, 4);
            assert_eq!((looks.attach(&mut wait), wait.user_stack), (None, 4), "{outside:?}");
        }
        let mut inside = wait(100, 105, 4);
        let stack = looks.attach(&mut inside).unwrap();
        assert_eq!((stack.frames[0].function.as_str(), stack.native), ("f", 4));
        assert_eq!(inside.user_stack, stack.id);
        let mut other = wait(150, 250, 4);
        assert_eq!(looks.attach(&mut other).unwrap().frames[0].function, "g");
    }

    #[test]
    fn another_call_or_a_folded_wait_is_not_the_one_that_was_seen() {
        let mut looks = PythonLooks::default();
        looks.add(look(100, "f"));
        let mut other = Wait { call: Call::Poll, ..wait(90, 200, 4) };
        assert_eq!(looks.attach(&mut other), None);
        let mut folded = wait(90, 200, 4);
        folded.flags = WaitFlags { nonblocking: true, ..WaitFlags::default() };
        assert_eq!(looks.attach(&mut folded), None);
    }

    #[test]
    fn a_stack_is_told_once_for_each_native_one() {
        let mut looks = PythonLooks::default();
        looks.add(look(100, "f"));
        looks.add(look(200, "f"));
        let (mut first, mut again, mut elsewhere) = (wait(90, 150, 4), wait(190, 250, 4), wait(190, 250, 5));
        assert!(looks.attach(&mut first).is_some());
        assert!(looks.attach(&mut again).is_none());
        assert_eq!(first.user_stack, again.user_stack);
        assert!(looks.attach(&mut elsewhere).is_some());
        assert_ne!(elsewhere.user_stack, first.user_stack);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut looks = PythonLooks::default();
        for start_ns in 0..1000 {
            looks.add(look(start_ns * 10, "f"));
        }
        assert_eq!(looks.threads[&(fixture::PID, fixture::PID)].len(), KEPT);
        let long = "f".repeat(1 << 16);
        for tid in 0..2000 {
            looks.add(Look { tid, ..look(0, &long) });
            assert!(looks.memory <= MEMORY);
        }
        let kept: usize = looks.threads.values().flatten().map(size_of_look).sum();
        assert_eq!(kept, looks.memory);
    }
}
