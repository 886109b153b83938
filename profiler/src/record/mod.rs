//! The recorder: from probes to the trace file.

pub mod command;
pub mod progress;
pub mod host;
