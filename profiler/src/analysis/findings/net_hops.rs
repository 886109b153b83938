//! Hops in comparison: what a host's round-trip time is against others, and how much waiting it can explain.

use std::collections::{BTreeMap, BTreeSet};

use super::text::ip_of;
use super::{Scene, nanos};
use crate::analysis::report::{HopRow, SocketRow};

/// One host as the recorded processes see it from one side: several of its addresses are one host.
#[derive(Clone, Debug)]
pub(super) struct HostHops<'a> {
    /// The host's name, or its address.
    pub(super) name: &'a str,
    pub(super) hops: Vec<&'a HopRow>,
    /// Median over its addresses.
    pub(super) value_ns: u64,
}

/// The hosts at this relation of which enough was seen, by name.
pub(super) fn hosts<'a>(
    scene: &Scene<'a>,
    relation: &str,
    samples: u64,
    value: impl Fn(&HopRow) -> u64,
) -> Vec<HostHops<'a>> {
    let mut hosts: BTreeMap<&str, Vec<&HopRow>> = BTreeMap::new();
    for hop in &scene.report.hops {
        // Times of queue pairs are of other evidence.
        if hop.transport == "tcp" && hop.relation == relation && hop.rtt.count >= samples {
            hosts.entry(hop.host.as_deref().unwrap_or(&hop.peer)).or_default().push(hop);
        }
    }
    let of = |(name, hops): (&'a str, Vec<&'a HopRow>)| {
        let value_ns = median(hops.iter().map(|hop| value(hop)));
        HostHops { name, hops, value_ns }
    };
    hosts.into_iter().map(of).collect()
}

/// The lower median; 0 of nothing.
pub(super) fn median(values: impl IntoIterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.into_iter().collect();
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// Whether a time stands out against another one.
pub(super) fn is_slow(scene: &Scene<'_>, value_ns: u64, baseline_ns: u64) -> bool {
    let limits = &scene.thresholds.net;
    value_ns as f64 >= limits.cross_rack_ratio * baseline_ns as f64
        && value_ns.saturating_sub(baseline_ns) >= nanos(limits.cross_rack_rtt)
}

/// Waiting for data of some hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waited {
    pub(super) total_ns: u64,
    /// What round trips that are longer by a given time can have to do with at most.
    pub(super) explained_ns: u64,
}

/// Time that threads waited for data over these hops, and how much of it round trips that are `excess_ns` longer explain:
/// no more than that of each wait.
pub(super) fn waited(scene: &Scene<'_>, hops: &[&HopRow], excess_ns: u64) -> Waited {
    let mut seen = BTreeMap::<&str, u32>::new();
    for hop in scene.report.hops.iter().filter(|hop| hop.transport == "tcp") {
        *seen.entry(&hop.peer).or_default() += 1;
    }
    let relations: BTreeSet<(&str, &str)> =
        hops.iter().map(|hop| (hop.peer.as_str(), hop.relation.as_str())).collect();
    let peers: BTreeSet<&str> = relations.iter().map(|(peer, _)| *peer).collect();
    let belongs = |row: &&SocketRow| {
        let Some(ip) = ip_of(&row.peer).map(|ip| ip.to_string()) else { return false };
        // A peer that is near for some processes and far for others: which one waited decides.
        let relation =
            || scene.surroundings.places.of_peer(row.pid, &row.peer).map(|place| place.relation.name());
        peers.contains(ip.as_str())
            && (seen.get(ip.as_str()) == Some(&1)
                || relation().is_some_and(|relation| relations.contains(&(ip.as_str(), relation))))
    };
    let mut waited = Waited::default();
    for row in scene.report.sockets.iter().filter(|row| row.direction == "recv").filter(belongs) {
        waited.total_ns = waited.total_ns.saturating_add(row.stalled_ns);
        waited.explained_ns = waited.explained_ns.saturating_add(explained(row, excess_ns));
    }
    waited
}

/// The sum of all waits, each cut to `excess_ns`, from above: quantiles bound how many are how long.
fn explained(row: &SocketRow, excess_ns: u64) -> u64 {
    let waits = &row.duration;
    let parts = [(waits.p50_ns, 50), (waits.p90_ns, 40), (waits.p99_ns, 9), (waits.max_ns, 1)];
    let sum: u128 = parts
        .iter()
        .map(|(longest, share)| u128::from(excess_ns.min(*longest)) * u128::from(waits.count) * share)
        .sum();
    u64::try_from(sum / 100).unwrap_or(u64::MAX).min(row.stalled_ns)
}
