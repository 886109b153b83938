//! The recorder: from probes to the trace file.

mod collector;
pub mod command;
pub mod error;
pub mod held_waits;
mod host;
pub mod options;
pub mod progress;
pub mod python_looks;
pub mod python_thread;
pub mod python_watch;
pub mod session;
pub mod socket_thread;
pub mod symbol_thread;
mod topology;

pub use error::RecordError;
pub use options::{RecordOptions, StopReason, TargetChoice};
pub use session::{Narrator, Recording, record};
pub use topology::ChosenTopology;
