//! The diff as data: schema `stallscope.diff/1`. Field names, types and meanings are a contract with other
//! programs; fields may be added. Times are integer nanoseconds per unit of [`Diff::normalised_by`], those of
//! [`Side`] are whole.

use serde::{Deserialize, Serialize};

use crate::model::cause::Cause;

pub const SCHEMA: &str = "stallscope.diff/1";

/// What the times of both sides are divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normaliser {
    /// A step of the training loop. Not in this version: traces have no steps yet.
    Steps,
    /// A collective. Not in this version: traces have no collectives yet.
    Collectives,
    /// A call of the marker function (`record --marker`).
    Marker,
    /// A wait of the recurring call site.
    Waits,
    /// A second of the recordings.
    #[default]
    Time,
}

impl Normaliser {
    /// `per wait`, for figures.
    pub const fn per(self) -> &'static str {
        match self {
            Normaliser::Steps => "per step",
            Normaliser::Collectives => "per collective",
            Normaliser::Marker => "per call of the marker",
            Normaliser::Waits => "per wait",
            Normaliser::Time => "per second",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Diff {
    pub schema: String,
    pub before: Side,
    pub after: Side,
    pub normalised_by: Normaliser,
    /// The call site whose waits are the unit, outermost frame first, with the peer behind it where only the waits
    /// for one count; the marker's name; empty without one (an addition to the contract).
    pub normalised_site: Vec<String>,
    pub total: Change,
    /// By the size of the change, the largest first.
    pub causes: Vec<CauseChange>,
    pub sockets: Vec<SocketChange>,
    pub hops: Vec<HopChange>,
    pub stacks: Vec<StackChange>,
    pub environment: Vec<EnvironmentChange>,
    /// What could not be seen, and what makes a figure less than it looks (an addition to the contract).
    pub remarks: Vec<String>,
}

/// The recordings of one side, added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    pub duration_ns: u64,
    pub stalled_ns: u64,
    /// Null: the traces have no steps.
    pub steps: Option<u64>,
    /// Recordings of this side (an addition to the contract).
    pub traces: u64,
    /// Units that the times are divided by: calls of the marker, waits, or seconds (an addition to the contract).
    pub units: f64,
    /// All of them ended in order and were read whole (an addition to the contract).
    pub complete: bool,
    /// Events that the recordings lost (an addition to the contract).
    pub lost_events: u64,
}

/// A time per unit on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub before_ns: u64,
    pub after_ns: u64,
    pub delta_ns: i64,
    /// Of `before_ns`; null where that is 0 and the other is not.
    pub delta_pct: Option<f64>,
    /// 95 % confidence interval of `delta_pct`; null where there is none.
    pub ci95_pct: Option<[f64; 2]>,
    /// See [`super::significance`].
    pub significant: bool,
    /// Two-sided, before the correction for several rows (an addition to the contract).
    pub p: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CauseChange {
    pub cause: Cause,
    #[serde(flatten)]
    pub change: Change,
}

/// Waits on a peer. A side without waits on it is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SocketChange {
    /// `ip:port`; `ip:*` where the port is one that a client was given by chance.
    pub peer: String,
    /// `send` or `recv`.
    pub direction: String,
    /// Median of the waits.
    pub before_p50_ns: Option<u64>,
    pub after_p50_ns: Option<u64>,
    pub delta_pct: Option<f64>,
    pub significant: bool,
    /// Number of waits (an addition to the contract).
    pub before_waits: u64,
    pub after_waits: u64,
    /// An addition to the contract.
    pub p: f64,
}

/// Round-trip times to an address. A side without a sample is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HopChange {
    pub peer: String,
    pub rack: Option<String>,
    pub before_p50_ns: Option<u64>,
    pub after_p50_ns: Option<u64>,
    pub delta_pct: Option<f64>,
    pub significant: bool,
    /// An addition to the contract.
    pub p: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StackState {
    #[default]
    Both,
    /// In no recording before.
    New,
    /// In no recording after.
    Gone,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackChange {
    /// Outermost frame first; the last one is `[cause] peer detail`.
    pub stack: Vec<String>,
    pub before_ns: u64,
    pub after_ns: u64,
    pub delta_ns: i64,
    pub state: StackState,
}

/// Something about the machine or the processes that is not the same on both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentChange {
    pub what: String,
    /// Several values (of several processes) are joined by ` | `; null: not there.
    pub before: Option<String>,
    pub after: Option<String>,
}

/// `after - before`, at the ends of the type where it does not fit.
pub fn delta_ns(before_ns: u64, after_ns: u64) -> i64 {
    i64::try_from(i128::from(after_ns) - i128::from(before_ns)).unwrap_or(if after_ns > before_ns {
        i64::MAX
    } else {
        i64::MIN
    })
}

/// The change as a share of the first value, per cent; `None` where that is 0 and the other is not.
pub fn delta_pct(before: f64, after: f64) -> Option<f64> {
    let change = after - before;
    if change == 0.0 {
        Some(0.0)
    } else if before > 0.0 {
        Some(change / before * 100.0)
    } else {
        None
    }
}
