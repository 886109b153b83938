//! The tables of a diff: total, causes, sockets and hops.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::bootstrap::{self, Draws, Ratio, Spread, holm};
use super::document::{CauseChange, Change, HopChange, SocketChange, delta_ns, delta_pct};
use super::name::PeerNames;
use super::profile::Profile;
use super::series::{Durations, SLICES, Series, median};
use super::significance::{Effect, LEVEL};
use super::unit::Units;
use crate::model::cause::Cause;

/// Rows of sockets and of hops that are told; those that were waited for longest.
const ROWS_MAX: usize = 1000;

/// Both sides, with what their figures are made of.
pub(super) struct Tables<'d> {
    pub before: &'d [Profile],
    pub after: &'d [Profile],
    pub units: &'d Units,
    /// How many units each side has.
    pub sums: (f64, f64),
    pub draws: &'d (Draws, Draws),
    pub peers: &'d PeerNames<'d>,
}

/// Durations of one recording by row.
type Rows<'p, K> = BTreeMap<K, Cow<'p, Durations>>;

fn round_trips(side: &[Profile]) -> Vec<Rows<'_, &str>> {
    side.iter()
        .map(|profile| profile.hops.iter().map(|(peer, one)| (peer.as_str(), Cow::Borrowed(one))).collect())
        .collect()
}

/// A row of medians before it is known whether it counts.
struct MedianRow {
    before: Option<f64>,
    after: Option<f64>,
    waits: (u64, u64),
    spread: Spread,
}

impl Tables<'_> {
    pub(super) fn total(&self, causes: &BTreeMap<Cause, (u64, u64)>) -> Change {
        let sums = causes
            .values()
            .fold((0_u64, 0_u64), |sum, next| (sum.0.saturating_add(next.0), sum.1.saturating_add(next.1)));
        let spread = self.spread(None);
        let mut change = change(sums, spread);
        change.significant = spread.p < LEVEL && effect(&change).matters(totals(&change));
        change
    }

    pub(super) fn causes(&self, causes: &BTreeMap<Cause, (u64, u64)>) -> Vec<CauseChange> {
        let mut rows: Vec<CauseChange> = causes
            .iter()
            .map(|(cause, sums)| CauseChange {
                cause: *cause,
                change: change(*sums, self.spread(Some(*cause))),
            })
            .collect();
        let total = rows
            .iter()
            .map(|row| totals(&row.change))
            .fold((0.0, 0.0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        let p: Vec<f64> = rows.iter().map(|row| row.change.p).collect();
        for (row, unlikely) in rows.iter_mut().zip(holm(&p, LEVEL)) {
            row.change.significant = unlikely && effect(&row.change).matters(total);
        }
        rows.sort_by_key(|row| {
            let change = &row.change;
            (std::cmp::Reverse((change.delta_ns.unsigned_abs(), change.before_ns)), row.cause)
        });
        rows
    }

    /// How a cause, or everything, varies by chance.
    fn spread(&self, cause: Option<Cause>) -> Spread {
        let ratios = |side: &[Profile], units: &[Series]| -> Vec<Ratio> {
            let ratio = |(profile, units): (&Profile, &Series)| {
                let mut over = [0.0; SLICES];
                let wanted =
                    profile.causes.iter().filter(|(one, _)| cause.is_none_or(|cause| **one == cause));
                for (_, series) in wanted {
                    for (sum, part) in over.iter_mut().zip(series) {
                        *sum += part;
                    }
                }
                Ratio { over, under: *units }
            };
            side.iter().zip(units).map(ratio).collect()
        };
        let old = ratios(self.before, &self.units.before);
        let new = ratios(self.after, &self.units.after);
        bootstrap::compare((&self.draws.0, &old), (&self.draws.1, &new))
    }

    pub(super) fn sockets(&self, total: &Change) -> Vec<SocketChange> {
        let (old, new) = (self.socket_waits(self.before), self.socket_waits(self.after));
        let rows = self.medians(&old, &new);
        let p: Vec<f64> = rows.iter().map(|(_, row)| row.spread.p).collect();
        let unlikely = holm(&p, LEVEL);
        let mut sockets: Vec<SocketChange> = rows
            .into_iter()
            .zip(unlikely)
            .map(|(((peer, direction), row), unlikely)| {
                let per_unit = |waits: u64, units: f64| waits as f64 / units.max(f64::MIN_POSITIVE);
                let waits = per_unit(row.waits.0, self.sums.0).max(per_unit(row.waits.1, self.sums.1));
                let matters = |before: f64, after: f64| {
                    let of_total = Some((after - before) * waits);
                    Effect { before, after, of_total }.matters(totals(total))
                };
                SocketChange {
                    peer,
                    direction: direction.to_owned(),
                    before_p50_ns: row.before.map(whole),
                    after_p50_ns: row.after.map(whole),
                    delta_pct: row.before.zip(row.after).and_then(|(one, two)| delta_pct(one, two)),
                    significant: unlikely
                        && row.before.zip(row.after).is_some_and(|(one, two)| matters(one, two)),
                    before_waits: row.waits.0,
                    after_waits: row.waits.1,
                    p: row.spread.p,
                }
            })
            .collect();
        sockets.sort_by(|a, b| {
            let order = |row: &SocketChange| {
                let change = row.delta_pct.map_or(0.0, f64::abs);
                (row.significant, change)
            };
            let (one, two) = (order(a), order(b));
            two.0
                .cmp(&one.0)
                .then(two.1.total_cmp(&one.1))
                .then_with(|| (&a.peer, &a.direction).cmp(&(&b.peer, &b.direction)))
        });
        sockets
    }

    fn socket_waits<'p>(&self, side: &'p [Profile]) -> Vec<Rows<'p, (String, &'static str)>> {
        let rows = |profile: &'p Profile| {
            let mut rows: Rows<'p, (String, &'static str)> = BTreeMap::new();
            for row in &profile.sockets {
                match rows.entry((self.peers.name(&row.peer), row.direction)) {
                    Entry::Vacant(new) => drop(new.insert(Cow::Borrowed(&row.durations))),
                    Entry::Occupied(known) => known.into_mut().to_mut().merge(&row.durations),
                }
            }
            rows
        };
        side.iter().map(rows).collect()
    }

    pub(super) fn hops(&self) -> Vec<HopChange> {
        let rows = self.medians(&round_trips(self.before), &round_trips(self.after));
        let p: Vec<f64> = rows.iter().map(|(_, row)| row.spread.p).collect();
        let unlikely = holm(&p, LEVEL);
        let hop = |((peer, row), unlikely): ((&str, MedianRow), bool)| {
            let matters = row
                .before
                .zip(row.after)
                .is_some_and(|(before, after)| Effect { before, after, of_total: None }.matters((0.0, 0.0)));
            HopChange {
                peer: peer.to_owned(),
                rack: None,
                before_p50_ns: row.before.map(whole),
                after_p50_ns: row.after.map(whole),
                delta_pct: row.before.zip(row.after).and_then(|(one, two)| delta_pct(one, two)),
                significant: unlikely && matters,
                p: row.spread.p,
            }
        };
        rows.into_iter().zip(unlikely).map(hop).collect()
    }

    /// Medians of both sides by key, in the order of keys, of those with the most durations. What is tested is the
    /// mean of the medians of the slices, by the number of their durations.
    fn medians<K: Ord + Clone>(&self, old: &[Rows<'_, K>], new: &[Rows<'_, K>]) -> Vec<(K, MedianRow)> {
        let keys: BTreeSet<&K> = old.iter().chain(new).flat_map(BTreeMap::keys).collect();
        let count = |side: &[Rows<'_, K>], key: &K| -> u64 {
            side.iter().filter_map(|rows| rows.get(key)).map(|durations| durations.count).sum()
        };
        let mut most: Vec<(u64, &K)> =
            keys.into_iter().map(|key| (count(old, key) + count(new, key), key)).collect();
        most.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
        most.truncate(ROWS_MAX);
        most.sort_by(|a, b| a.1.cmp(b.1));
        let row = |(_, key): (u64, &K)| {
            let ratios = |side: &[Rows<'_, K>]| -> Vec<Ratio> {
                let ratio = |rows: &Rows<'_, K>| {
                    rows.get(key).map_or_else(nothing, |durations| medians_by_slice(durations))
                };
                side.iter().map(ratio).collect()
            };
            let middle =
                |side: &[Rows<'_, K>]| median(side.iter().filter_map(|rows| rows.get(key).map(Cow::as_ref)));
            let spread = bootstrap::compare((&self.draws.0, &ratios(old)), (&self.draws.1, &ratios(new)));
            let waits = (count(old, key), count(new, key));
            (key.clone(), MedianRow { before: middle(old), after: middle(new), waits, spread })
        };
        most.into_iter().map(row).collect()
    }
}

fn nothing() -> Ratio {
    Ratio { over: [0.0; SLICES], under: [0.0; SLICES] }
}

fn medians_by_slice(durations: &Durations) -> Ratio {
    let (mut over, under) = durations.medians();
    for (median, count) in over.iter_mut().zip(&under) {
        *median *= count;
    }
    Ratio { over, under }
}

fn whole(ns: f64) -> u64 {
    ns.round() as u64
}

fn totals(change: &Change) -> (f64, f64) {
    (change.before_ns as f64, change.after_ns as f64)
}

fn effect(change: &Change) -> Effect {
    let of_total = Some(change.delta_ns as f64);
    Effect { before: change.before_ns as f64, after: change.after_ns as f64, of_total }
}

fn change((before_ns, after_ns): (u64, u64), spread: Spread) -> Change {
    Change {
        before_ns,
        after_ns,
        delta_ns: delta_ns(before_ns, after_ns),
        delta_pct: delta_pct(before_ns as f64, after_ns as f64),
        ci95_pct: spread.ci95_pct,
        significant: false,
        p: spread.p,
    }
}
