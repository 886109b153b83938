//! The recorder: from probes to the trace file.

mod collector;
pub mod command;
mod errand;
pub mod error;
pub mod families;
mod gpu_agent;
mod gpu_thread;
mod held_back;
pub mod held_waits;
mod host;
mod marker_watch;
pub mod options;
mod place;
pub mod progress;
pub mod python_looks;
pub mod python_thread;
pub mod python_watch;
mod reasons;
mod ring_watch;
pub mod session;
pub mod socket_thread;
mod staged;
pub mod symbol_thread;
mod topology;
mod verbs_budget;
mod verbs_watch;

pub use error::RecordError;
pub use held_back::{HeldBack, survive_file_limit};
pub use options::{GpuTimes, RecordOptions, StopReason, TargetChoice};
pub use session::{Narrator, Recording, record};
pub use topology::ChosenTopology;
