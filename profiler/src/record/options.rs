//! What to record, resolved from the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::topology::ChosenTopology;
use crate::target::marker::MarkerName;

/// Whom to watch.
#[derive(Clone, Debug)]
pub enum TargetChoice {
    Pids(Vec<u32>),
    /// A regular expression on names.
    Comm(String),
    /// A program and its arguments, started by the recorder.
    Command(OsString, Vec<OsString>),
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent wishes of the user")]
pub struct RecordOptions {
    pub target: TargetChoice,
    /// Length of the window; without one until a signal comes or the last target ends.
    pub duration: Option<Duration>,
    pub output: PathBuf,
    /// Waits below are counted and not recorded.
    pub min_stall: Duration,
    /// Watch the targets' children too.
    pub follow: bool,
    /// Families that were asked for and that this version does not have: reported as off.
    pub unavailable: Vec<String>,
    /// Whether waits on sockets, handshakes, retransmissions and round trips are recorded.
    pub net: bool,
    /// Whether resolver functions are probed, and DNS messages and waits on resolvers kept.
    pub dns: bool,
    /// Whether RDMA verbs are watched, and the share of a core that the target may lose by it at most.
    pub verbs: Option<f64>,
    /// Whether the agent is loaded into CUDA processes, without which there are no GPU times.
    pub gpu: GpuTimes,
    /// A function whose calls are counted.
    pub marker: Option<MarkerName>,
    /// Racks, kept in the trace.
    pub topology: Option<ChosenTopology>,
    /// Show what the eBPF programs log.
    pub verbose: bool,
}

/// Whether GPU times are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuTimes {
    Wanted,
    /// Nothing may be loaded into a target.
    NotInjected,
    NotAsked,
}

/// Why a recording ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    Duration,
    Signal,
    TargetsExited,
    CommandExited,
    /// The trace could not be written any more.
    WriteFailed,
}

impl StopReason {
    /// As the trace's last record names it.
    pub fn name(&self) -> &'static str {
        match self {
            StopReason::Duration => "duration",
            StopReason::Signal => "signal",
            StopReason::TargetsExited => "targets exited",
            StopReason::CommandExited => "command exited",
            StopReason::WriteFailed => "error: the trace could not be written",
        }
    }
}
