//! A process that runs a Python interpreter.

use std::collections::{HashMap, HashSet};

use super::frames::{self, Interpreter, PythonLook};
use super::layout::{self, Layout};
use super::locate::{self, Wanted};
use super::memory::{Memory, Remote};
use super::threads;

/// Why the functions of a Python process cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PythonError {
    #[error("process {pid} runs CPython older than 3.8")]
    TooOld { pid: u32 },
    #[error("process {pid} runs CPython {major}.{minor}, whose layout is not known")]
    UnknownVersion { pid: u32, major: u8, minor: u8 },
    #[error("the runtime of Python in process {pid} cannot be read")]
    Unreadable { pid: u32 },
}

/// An interpreter.
#[derive(Debug)]
pub struct PythonProcess {
    pid: u32,
    layout: Layout,
    runtime: u64,
    code_type: u64,
}

/// The threads of an interpreter at one moment: addresses of their states by the thread's id in the process's own
/// namespace.
#[derive(Clone, Debug, Default)]
pub struct PythonThreads(HashMap<u32, Vec<u64>>);

impl PythonThreads {
    /// Whether the interpreter knows the thread.
    pub fn has(&self, tid: u32) -> bool {
        self.0.contains_key(&tid)
    }
}

impl PythonProcess {
    /// Looks for an interpreter in the process. `None` where it has none.
    ///
    /// # Errors
    ///
    /// Where there is one that cannot be read.
    pub fn find(pid: u32) -> Result<Option<PythonProcess>, PythonError> {
        let Some(located) = locate::locate(pid) else { return Ok(None) };
        let Some(runtime) = located.get(Wanted::Runtime) else { return Ok(None) };
        let memory = &mut Remote::new(pid);
        let version = located.get(Wanted::Version).map(|at| read_version(memory, at));
        let layout = match version {
            Some(None) => return Err(PythonError::Unreadable { pid }),
            Some(Some((3, minor @ 11..=12))) => layout::fixed(minor),
            Some(Some((major, minor))) => match layout::published(memory, runtime) {
                Some(layout) if layout.version == (major, minor) => Some(layout),
                _ => return Err(PythonError::UnknownVersion { pid, major, minor }),
            },
            None => located.minor_by_exports().and_then(layout::fixed),
        };
        let layout = layout.ok_or(PythonError::TooOld { pid })?;
        let code_type = located.get(Wanted::CodeType).unwrap_or(0);
        Ok(Some(PythonProcess { pid, layout, runtime, code_type }))
    }

    /// `(3, minor)`.
    pub fn version(&self) -> (u8, u8) {
        self.layout.version
    }

    /// Reads the list of threads. `tids` are the process's threads, as it numbers them itself. The list holds for
    /// threads that sleep from before it is read until their look is over.
    pub fn threads(&self, tids: &HashSet<u32>) -> PythonThreads {
        let memory = &mut Remote::new(self.pid);
        let states = threads::list(memory, &self.layout, self.runtime);
        PythonThreads(threads::by_tid(memory, &states, tids))
    }

    /// The functions that the thread is in; `None` where it is in none, or where that cannot be told.
    pub fn look(&self, threads: &PythonThreads, tid: u32) -> Option<PythonLook> {
        let interpreter = Interpreter { layout: &self.layout, code_type: self.code_type };
        let memory = &mut Remote::new(self.pid);
        let mut found = None;
        for state in threads.0.get(&tid)? {
            let look = frames::read(memory, interpreter, *state).ok()?;
            // In several interpreters at once: their order is not known.
            if !look.frames.is_empty() && found.replace(look).is_some() {
                return None;
            }
        }
        found
    }
}

/// Major and minor version.
fn read_version(memory: &mut impl Memory, address: u64) -> Option<(u8, u8)> {
    let mut bytes = [0; 4];
    if !memory.fill(address, &mut bytes) {
        return None;
    }
    let [_, _, minor, major] = bytes;
    Some((major, minor))
}
