//! Records of the marker function.

use serde::{Deserialize, Serialize};

/// One call of the marker, or the calls of one thread that came too fast to be recorded one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkerCalls {
    /// First call.
    pub start_ns: u64,
    /// Last call.
    pub end_ns: u64,
    pub pid: u32,
    pub tid: u32,
    pub calls: u64,
}

/// The function that is counted, in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkerFunction {
    /// Demangled.
    pub function: String,
    /// File name of the library or executable.
    pub module: String,
    /// Offset of its first instruction in the file.
    pub entry: u64,
    /// Offset of the instruction that the probe is on.
    pub probe: u64,
    /// When it was attached.
    pub time_ns: u64,
}
