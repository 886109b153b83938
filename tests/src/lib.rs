//! The live tests' rig: programs to record, peers that are late by a script, and the product run as a child.
//!
//! Every test makes its own network namespaces or binds ports of the kernel's choice, so that they can run
//! side by side.

pub mod check;
pub mod compiled;
pub mod cuda_job;
pub mod peer;
pub mod process;
pub mod recorder;
pub mod resolver;
pub mod softhca;
pub mod whereabouts;

pub use check::{Measured, assert_between, assert_close, finding, require_root, rows, sum};
pub use peer::Peer;
pub use process::{Program, Values};
pub use recorder::{RecordedTrace, Recorder, Recording, record_run, report, stallscope};
pub use resolver::Resolver;
