//! The agent: a small library that is loaded into a running CUDA process, and tells what runs on the GPU.
//!
//! [`check`] says whether a process can be entered at all, before anything of it is touched; [`safe_point`] finds a
//! thread that can be stopped for a moment, and [`seccomp`] whether the agent can live under its filters; [`remote`]
//! makes calls in it and puts it back; [`load`] does these in order, and maps the [`image`] of the library; [`ring`]
//! reads what the agent writes. All of what comes from the target is hostile.

pub mod check;
pub mod error;
pub mod forks;
mod image;
pub mod load;
#[cfg(test)]
mod needs;
mod remote;
pub mod ring;
mod safe_point;
mod seccomp;
mod tracee;
mod way_back;

pub use error::AgentError;
pub use load::{Loaded, load};
pub use profiler_common::agent::State;
pub use seccomp::Objection;

/// The library, as `cargo xtask build` made it; empty where it did not.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.so"));

/// The library as a file; `None` where this program was built without it.
pub fn library() -> Option<&'static [u8]> {
    (!LIBRARY.is_empty()).then_some(LIBRARY)
}
