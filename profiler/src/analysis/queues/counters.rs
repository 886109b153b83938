//! Counters of ports at the recording's two ends, and when they moved between.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::thread::Interval;
use crate::trace::rdma::PortCounter;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterRow {
    pub device: String,
    pub port: u32,
    pub name: String,
    pub start: u64,
    pub end: u64,
    /// 0 where the counter went back, as one that was reset does.
    pub delta: u64,
}

/// Device, port and name.
type Key<'a> = (&'a str, u32, &'a str);
/// Times and values.
type Samples = Vec<(u64, u64)>;

/// Rows of counters that were seen more than once.
pub fn rows(samples: &[PortCounter]) -> Vec<CounterRow> {
    let mut seen: BTreeMap<Key<'_>, Samples> = BTreeMap::new();
    for one in samples {
        seen.entry((&one.device, one.port, &one.name)).or_default().push((one.time_ns, one.value));
    }
    let row = |((device, port, name), values): (Key<'_>, Samples)| {
        let (first, last) = (values.iter().min()?, values.iter().max()?);
        (first.0 < last.0).then(|| CounterRow {
            device: device.to_owned(),
            port,
            name: name.to_owned(),
            start: first.1,
            end: last.1,
            delta: last.1.saturating_sub(first.1),
        })
    };
    seen.into_iter().filter_map(row).collect()
}

/// Between which looks a counter moved, in order.
pub fn moves(samples: &[PortCounter], device: &str, port: u32, name: &str) -> Vec<Interval> {
    let of_counter =
        samples.iter().filter(|one| one.port == port && one.device == device && one.name == name);
    let mut values: Samples = of_counter.map(|one| (one.time_ns, one.value)).collect();
    values.sort_unstable();
    let pairs = values.iter().zip(values.iter().skip(1));
    let moved = pairs.filter(|(before, after)| after.1 > before.1);
    moved.map(|(before, after)| Interval { start_ns: before.0, end_ns: after.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_seen_twice_has_a_difference() {
        let sample = |time_ns, name: &str, value| PortCounter {
            time_ns,
            device: "mlx5_0".to_owned(),
            port: 1,
            name: name.to_owned(),
            value,
        };
        let rows = rows(&[
            sample(9, "up", 70),
            sample(1, "up", 50),
            sample(1, "once", 3),
            sample(1, "reset", 9),
            sample(2, "reset", 4),
        ]);
        let found: Vec<(&str, u64, u64, u64)> =
            rows.iter().map(|row| (row.name.as_str(), row.start, row.end, row.delta)).collect();
        assert_eq!(found, [("reset", 9, 4, 0), ("up", 50, 70, 20)]);
    }
}
