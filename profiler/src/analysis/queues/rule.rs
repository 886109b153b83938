//! Rule 1 of the numbers: how long requests of a reliable queue pair waited behind others, and how long the wire and
//! the peer took.
//!
//! The link is a pipeline: a request can leave while earlier ones are still on the wire. With `p` the post, `c` the
//! completion as polled, `L` the unloaded latency and `d = c - L` when a request had left:
//! `queue = max(0, d of the one before - p)`, `wire = L`, and `transmit` is the rest.

use std::collections::BTreeMap;

use crate::model::queue::{Class, Unit};

/// Requests to an idle queue pair that an unloaded latency rests on, at least.
pub const SAMPLES_MIN: usize = 5;
/// Sizes that a fit looks at, at most.
const SIZES_MAX: usize = 64;

/// What a request to an idle queue pair takes: `latency + bytes * ns_per_byte`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Unloaded {
    pub latency_ns: u64,
    /// `None` where all requests were of one size: their transmission is then part of the latency.
    pub ns_per_byte: Option<f64>,
}

/// Where a unit's time from post to completion went; the three add up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub queue_ns: u64,
    pub transmit_ns: u64,
    pub wire_ns: u64,
}

/// Fits single requests that were posted to an idle queue pair. `None` where they are too few.
///
/// Of each size the first decile counts: what disturbs a request, most often the scheduler of either side, only ever makes
/// it longer.
pub fn fit(units: &[Unit], class: Class) -> Option<Unloaded> {
    let mut sizes: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut samples = 0;
    let alone = |unit: &&Unit| unit.class == class && unit.requests == 1 && unit.idle && !unit.lead;
    for unit in units.iter().filter(alone) {
        samples += 1;
        sizes.entry(unit.bytes).or_default().push(unit.done_ns.saturating_sub(unit.post_ns));
    }
    if samples < SAMPLES_MIN {
        return None;
    }
    // Small sizes first: where there are too many, the large ones are left out.
    let points: Vec<(f64, f64)> =
        sizes.into_iter().take(SIZES_MAX).map(|(bytes, ns)| (bytes as f64, floor(ns))).collect();
    let slopes = points.iter().enumerate().flat_map(|(index, one)| {
        let behind = points.get(index + 1..).unwrap_or_default();
        behind.iter().map(move |other| (other.1 - one.1) / (other.0 - one.0))
    });
    let slope = middle(slopes.collect()).map(|slope| slope.max(0.0));
    let rest: Vec<f64> = points.iter().map(|(bytes, ns)| ns - bytes * slope.unwrap_or(0.0)).collect();
    let latency = middle(rest)?.max(0.0);
    Some(Unloaded { latency_ns: latency.round() as u64, ns_per_byte: slope })
}

/// Splits the units of one class, in the order of completion; `None` for those whose predecessor is not known.
pub fn split(units: &[Unit], class: Class, unloaded: Unloaded) -> Vec<Parts> {
    let mut left_ns = 0;
    let of_class = units.iter().filter(|unit| unit.class == class);
    let parts = of_class.map(|unit| {
        let total = unit.done_ns.saturating_sub(unit.post_ns);
        let queue_ns = total.min(u64::saturating_sub(left_ns, unit.post_ns));
        let wire_ns = (total - queue_ns).min(unloaded.latency_ns);
        left_ns = unit.done_ns.saturating_sub(unloaded.latency_ns);
        Parts { queue_ns, transmit_ns: total - queue_ns - wire_ns, wire_ns }
    });
    parts.collect()
}

/// The first decile by nearest rank; 0 of nothing.
fn floor(mut values: Vec<u64>) -> f64 {
    values.sort_unstable();
    values.get(values.len().div_ceil(10).saturating_sub(1)).copied().unwrap_or(0) as f64
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get((values.len().max(1) - 1) / 2).copied()
}

#[cfg(test)]
mod tests;
