//! The agent: a small library that is loaded into a running CUDA process, and tells what runs on the GPU.
//!
//! [`check`] says whether a process can be entered at all, before anything of it is touched; [`safe_point`] finds a
//! thread that can be stopped for a moment, and [`seccomp`] whether the agent can live under its filters; [`remote`]
//! makes calls in it and puts it back; [`load`] does these in order, and maps the [`image`] of the library; [`ring`]
//! reads what the agent writes. All of what comes from the target is hostile.

pub mod check;
pub mod error;
pub mod forks;
#[cfg(target_arch = "x86_64")]
mod image;
#[cfg(target_arch = "x86_64")]
pub mod load;
#[cfg(not(target_arch = "x86_64"))]
#[path = "load_elsewhere.rs"]
pub mod load;
#[cfg(test)]
mod needs;
#[cfg(target_arch = "x86_64")]
mod remote;
pub mod ring;
#[cfg(target_arch = "x86_64")]
mod safe_point;
mod seccomp;
#[cfg(target_arch = "x86_64")]
mod tracee;
#[cfg(target_arch = "x86_64")]
mod way_back;

pub use error::AgentError;
pub use load::{Loaded, load};
pub use profiler_common::agent::State;
pub use seccomp::Objection;

/// The library, as `cargo xtask build` made it; empty where it did not.
#[cfg(target_arch = "x86_64")]
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.so"));
/// There is none for other machines.
#[cfg(not(target_arch = "x86_64"))]
static LIBRARY: &[u8] = &[];

/// The library as a file; `None` where this program was built without it.
pub fn library() -> Option<&'static [u8]> {
    (!LIBRARY.is_empty()).then_some(LIBRARY)
}
