//! What the times of two recordings are divided by, so that they compare although one is longer than the other or
//! did more work.
//!
//! Calls of a marker come before waits. Steps and collectives come before them once traces have them: each is one more
//! function beside [`by_waits`], tried in the order of [`Normaliser`].

use std::collections::BTreeMap;

use super::course::Iterations;
use super::document::Normaliser;
use super::name::PeerNames;
use super::profile::{CallSites, Profile, thread_of};
use super::series::{SLICES, Series};

/// Fewer waits at a site in one recording are no loop.
const WAITS_MIN: f64 = 16.0;
/// A loop's waits are in at least half of these parts of a recording.
const PARTS: usize = 8;
const PARTS_MIN: usize = 4;

/// The unit, and how many of it each slice of each recording has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Units {
    pub by: Normaliser,
    /// Call site of the waits, outermost frame first, and the peer where it is of one.
    pub site: Vec<String>,
    pub before: Vec<Series>,
    pub after: Vec<Series>,
}

/// The best unit that both sides have.
pub fn choose(before: &[Profile], after: &[Profile], peers: &PeerNames<'_>) -> Units {
    let sites =
        |side: &[Profile]| -> Vec<CallSites> { side.iter().map(|one| one.call_sites(peers)).collect() };
    let (old, new) = (sites(before), sites(after));
    let any = |side: &[CallSites]| -> Vec<CallSites> { side.iter().map(CallSites::of_any_peer).collect() };
    if let Some(units) = by_marker(before, after) {
        return units;
    }
    // A site that waits for one more peer than before waits more often in one turn of its loop: waits for one peer
    // are the better unit.
    by_waits(&old, &new)
        .or_else(|| by_waits(&any(&old), &any(&new)))
        .unwrap_or_else(|| by_time(before, after))
}

/// Calls of the marker function, where every recording has one of the same name.
fn by_marker(before: &[Profile], after: &[Profile]) -> Option<Units> {
    let (old, new) = (iterations(before)?, iterations(after)?);
    let site = marker_name(old.first()?);
    if old.iter().chain(&new).any(|one| marker_name(one) != site) {
        return None;
    }
    let series = |side: &[&Iterations]| side.iter().map(|one| one.calls).collect();
    Some(Units { by: Normaliser::Marker, site, before: series(&old), after: series(&new) })
}

fn iterations(side: &[Profile]) -> Option<Vec<&Iterations>> {
    side.iter().map(|profile| profile.iterations.as_ref()).collect()
}

/// Without the file: a library's name has its version.
fn marker_name(iterations: &Iterations) -> Vec<String> {
    let name =
        |function: &String| function.split_once(':').map_or(function.clone(), |(_, name)| name.to_owned());
    let mut names: Vec<String> = iterations.functions.iter().map(name).collect();
    names.dedup();
    names
}

fn by_time(before: &[Profile], after: &[Profile]) -> Units {
    let seconds =
        |side: &[Profile]| -> Vec<Series> { side.iter().map(|profile| profile.course.seconds()).collect() };
    Units { by: Normaliser::Time, site: Vec::new(), before: seconds(before), after: seconds(after) }
}

/// Waits of the most repeated call site of the busiest thread: of those that have a site which recurs in every
/// recording, the one that used the most CPU time, or where that is not known had the most waits.
fn by_waits(old: &[CallSites], new: &[CallSites]) -> Option<Units> {
    let all = || old.iter().chain(new);
    // CPU time and waits of the thread, waits of the site.
    let mut highest = (-1.0, 0.0, 0.0);
    let mut best: Option<&Vec<String>> = None;
    let mut of_thread: BTreeMap<&[String], f64> = BTreeMap::new();
    let mut recurring = Vec::new();
    for site in old.first()?.waits.keys() {
        if all().all(|sites| sites.waits.get(site).is_some_and(recurs)) {
            let waits: f64 = all().filter_map(|sites| sites.waits.get(site)).flatten().sum();
            *of_thread.entry(thread_of(site)).or_default() += waits;
            recurring.push((site, waits));
        }
    }
    for (site, waits) in recurring {
        let thread = thread_of(site);
        let running = all().filter_map(|sites| sites.running.get(thread)).sum();
        let rank = (running, of_thread.get(thread).copied().unwrap_or(0.0), waits);
        // Of equals the first in the order of names.
        if rank > highest {
            (highest, best) = (rank, Some(site));
        }
    }
    let site = best?;
    let series =
        |side: &[CallSites]| side.iter().filter_map(|sites| sites.waits.get(site).copied()).collect();
    Some(Units { by: Normaliser::Waits, site: site.clone(), before: series(old), after: series(new) })
}

fn recurs(series: &Series) -> bool {
    let parts = series.chunks(SLICES / PARTS).filter(|part| part.iter().any(|count| *count > 0.0));
    series.iter().sum::<f64>().round() >= WAITS_MIN && parts.count() >= PARTS_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_spread_over_the_recording() {
        let mut series = [0.0; SLICES];
        for slot in series.iter_mut().step_by(4) {
            *slot = 1.0;
        }
        assert!(recurs(&series));
        series[..68].fill(0.0);
        assert!(!recurs(&series));
        assert!(!recurs(&[0.0; SLICES]));
        let mut burst = [0.0; SLICES];
        burst[5] = 1000.0;
        assert!(!recurs(&burst));
    }
}
