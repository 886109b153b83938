//! Python functions of a thread that is blocked, read out of the memory of a process that runs on.
//!
//! A blocked thread's Python stack does not change: only the thread itself pushes and pops its frames. So one look
//! inside of a wait is exact, and nothing has to be stopped. What makes it exact is the caller's: a look counts only
//! where the thread slept through all of it.
//!
//! # Why not py-spy
//!
//! The library (0.4, without native unwinding) was weighed against a reader of our own, and left out:
//!
//! - It adds 32 packages to a tree of 157, which may have 190.
//! - Its unit is the process: each call reads the stacks of all threads, however few of them wait. Here one look reads
//!   one thread.
//! - It tells system thread ids of CPython 3.8 to 3.10 by unwinding a thread that it has stopped. Without that the
//!   stacks of these versions belong to nobody.
//! - It does not tell which frames were entered from C, so that Python functions could not be put in the place of the
//!   interpreter's frames one by one.
//!
//! # How it is read
//!
//! `_PyRuntime` is found by its symbol. From there on 3.13 and newer say themselves where everything lies
//! (`layout::published`); the structures of 3.8 to 3.12 never changed within a minor version (`layout::fixed`). The
//! minor version is told by what the interpreter exports, never by a file's name.
//! No namespace is entered: memory is read by process id, files are opened through the target's own mappings.
//!
//! All of it is hostile input: every walk is bounded in steps, bytes and length, and a pointer that does not lead to
//! what it should ends the walk.

mod frames;
mod layout;
mod lines;
mod locate;
mod memory;
mod process;
mod text;
mod threads;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod live_tests;

pub use frames::PythonLook;
pub use process::{PythonError, PythonProcess, PythonThreads};
