//! What the times of two recordings are divided by, so that they compare although one is longer than the other or
//! did more work.
//!
//! Steps, collectives and the calls of a marker come before waits once traces have them: each is one more function
//! beside [`by_waits`], tried in the order of [`Normaliser`].

use std::collections::BTreeMap;

use super::document::Normaliser;
use super::profile::Profile;
use super::series::{SLICES, Series};

/// Fewer waits at a site in one recording are no loop.
const WAITS_MIN: f64 = 16.0;
/// A loop's waits are in at least six of these eight parts of a recording.
const PARTS: usize = 8;
const PARTS_MIN: usize = 6;

/// The unit, and how many of it each slice of each recording has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Units {
    pub by: Normaliser,
    /// Call site of the waits, outermost frame first.
    pub site: Vec<String>,
    pub before: Vec<Series>,
    pub after: Vec<Series>,
}

/// The best unit that both sides have.
pub fn choose(before: &[Profile], after: &[Profile]) -> Units {
    by_waits(before, after).unwrap_or_else(|| by_time(before, after))
}

fn by_time(before: &[Profile], after: &[Profile]) -> Units {
    let seconds = |side: &[Profile]| -> Vec<Series> {
        side.iter().map(|profile| [profile.duration_ns as f64 / 1e9 / SLICES as f64; SLICES]).collect()
    };
    Units { by: Normaliser::Time, site: Vec::new(), before: seconds(before), after: seconds(after) }
}

type Sites = Vec<BTreeMap<Vec<String>, Series>>;

/// Waits of the most repeated call site of the thread that stalls longest, among the threads that have a site
/// which recurs in every recording.
fn by_waits(before: &[Profile], after: &[Profile]) -> Option<Units> {
    let sites = |side: &[Profile]| -> Sites { side.iter().map(Profile::call_sites).collect() };
    let (old, new) = (sites(before), sites(after));
    let stalled = stalled_by_thread(before.iter().chain(after));
    let mut best: Option<(u64, f64, &Vec<String>)> = None;
    for site in old.first()?.keys() {
        let everywhere = old.iter().chain(&new).all(|sites| sites.get(site).is_some_and(recurs));
        if !everywhere {
            continue;
        }
        let of_thread = stalled.get(site.get(..2).unwrap_or_default()).copied().unwrap_or(0);
        let waits: f64 = old.iter().chain(&new).filter_map(|sites| sites.get(site)).flatten().sum();
        // Of equals the first in the order of names.
        if best.is_none_or(|(stalled, most, _)| (of_thread, waits) > (stalled, most)) {
            best = Some((of_thread, waits, site));
        }
    }
    let (_, _, site) = best?;
    let series = |side: &Sites| side.iter().filter_map(|sites| sites.get(site).copied()).collect();
    Some(Units { by: Normaliser::Waits, site: site.clone(), before: series(&old), after: series(&new) })
}

fn recurs(series: &Series) -> bool {
    let parts = series.chunks(SLICES / PARTS).filter(|part| part.iter().any(|count| *count > 0.0));
    series.iter().sum::<f64>() >= WAITS_MIN && parts.count() >= PARTS_MIN
}

/// By process and thread name.
fn stalled_by_thread<'p>(profiles: impl Iterator<Item = &'p Profile>) -> BTreeMap<Vec<String>, u64> {
    let mut stalled: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for profile in profiles {
        for (thread, weight_ns) in profile.threads() {
            let sum = stalled.entry(thread).or_default();
            *sum = sum.saturating_add(weight_ns);
        }
    }
    stalled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_spread_over_the_recording() {
        let mut series = [0.0; SLICES];
        for slot in series.iter_mut().step_by(8) {
            *slot = 1.0;
        }
        assert!(recurs(&series));
        series[..40].fill(0.0);
        assert!(!recurs(&series));
        assert!(!recurs(&[0.0; SLICES]));
        let mut burst = [0.0; SLICES];
        burst[5] = 1000.0;
        assert!(!recurs(&burst));
    }
}
