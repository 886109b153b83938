//! Pure functions over the model: correlation, the stall tree, findings.

use std::collections::HashMap;

pub mod dns;
pub mod dns_wait;
pub mod report;
pub mod stall;

/// Everything that a view needs.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    pub report: report::Report,
    /// Exclusive stalled intervals of all threads, ordered by thread and start.
    pub stalls: Vec<stall::Stall>,
    /// Stacks by id, for `stalls`.
    pub stacks: HashMap<u64, crate::trace::record::Stack>,
    /// Process names by pid.
    pub processes: HashMap<u32, String>,
    /// Thread names by tid.
    pub threads: HashMap<u32, String>,
}
