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
/// recording, the one that used the most CPU time, or where that is not known had the most waits. The call site is the
/// one with the most waits, for whichever peers; of these the one that was waited for most often is taken.
fn by_waits(old: &[CallSites], new: &[CallSites]) -> Option<Units> {
    let all = || old.iter().chain(new);
    // CPU time and waits of the thread, waits at the site for all peers, and for this one.
    let mut highest = (-1.0, 0.0, 0.0, 0.0);
    let mut best: Option<&Vec<String>> = None;
    let mut of_thread: BTreeMap<&[String], f64> = BTreeMap::new();
    let mut of_stack: BTreeMap<&[String], f64> = BTreeMap::new();
    for (site, series) in all().flat_map(|sites| &sites.waits) {
        *of_stack.entry(stack_of(site)).or_default() += series.iter().sum::<f64>();
    }
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
        let of = |sums: &BTreeMap<&[String], f64>, key: &[String]| sums.get(key).copied().unwrap_or(0.0);
        let rank = (running, of(&of_thread, thread), of(&of_stack, stack_of(site)), waits);
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

/// A call site without its peer.
fn stack_of(site: &[String]) -> &[String] {
    site.split_last().map_or(site, |(_, stack)| stack)
}

fn recurs(series: &Series) -> bool {
    let parts = series.chunks(SLICES / PARTS).filter(|part| part.iter().any(|count| *count > 0.0));
    series.iter().sum::<f64>().round() >= WAITS_MIN && parts.count() >= PARTS_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(rows: &[(&str, f64)]) -> CallSites {
        let path = |text: &str| text.split(';').map(str::to_owned).collect();
        CallSites {
            waits: rows.iter().map(|(text, waits)| (path(text), [*waits; SLICES])).collect(),
            ..CallSites::default()
        }
    }

    #[test]
    fn the_call_site_comes_first_and_then_the_peer_that_it_waits_for_most_often() {
        // All ranks are waited for in each step, by turns; the heartbeat has one peer alone.
        let old = [sites(&[
            ("p;t;all_reduce;10.0.0.1:80", 2.0),
            ("p;t;all_reduce;10.0.0.2:80", 3.0),
            ("p;t;all_reduce;10.0.0.3:80", 2.0),
            ("p;t;heartbeat;10.0.0.9:80", 4.0),
        ])];
        let units = by_waits(&old, &old).unwrap();
        assert_eq!(units.site, ["p", "t", "all_reduce", "10.0.0.2:80"]);
        assert_eq!((units.before, units.by), (vec![[3.0; SLICES]], Normaliser::Waits));
    }

    #[test]
    fn a_peer_that_one_side_never_waits_for_is_no_unit() {
        let old = [sites(&[("p;t;all_reduce;10.0.0.1:80", 9.0), ("p;t;all_reduce;10.0.0.2:80", 2.0)])];
        let new = [sites(&[("p;t;all_reduce;10.0.0.2:80", 2.0), ("p;t;heartbeat;10.0.0.9:80", 4.0)])];
        assert_eq!(by_waits(&old, &new).unwrap().site, ["p", "t", "all_reduce", "10.0.0.2:80"]);
    }

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
