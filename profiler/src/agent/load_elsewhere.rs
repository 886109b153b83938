//! In the place of [`load`](super::load) on machines that the agent does not exist for.

use std::time::Duration;

use super::error::AgentError;
use super::{check, ring::Ring};
use crate::symbols::Symbolizer;
use crate::target::ProcRoot;

/// An agent at work, which there is none of.
#[derive(Debug)]
pub struct Loaded {
    pub ring: Ring,
    /// For how long a thread of the target was stopped.
    pub stopped: Duration,
    /// Which one.
    pub tid: u32,
}

/// Refuses the process.
///
/// # Errors
///
/// Always: [`AgentError::NoCuda`] where there is nothing to enter it for.
pub fn load(root: &ProcRoot, pid: u32, _: &mut Symbolizer) -> Result<Loaded, AgentError> {
    check::place(root, pid, "").and(Err(AgentError::Architecture))
}
