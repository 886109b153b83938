//! The recorder: from probes to the trace file.

pub mod command;
