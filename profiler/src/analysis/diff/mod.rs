//! What changed between two sets of recordings: pure functions over [`Profile`]s.
//!
//! The way: each recording is reduced to a profile ([`reduce`]); a unit is chosen that both sides have ([`unit`]);
//! names are made comparable ([`name`]); stacks, causes, peers and hops are put side by side, per unit; a bootstrap
//! says which changes are more than chance ([`bootstrap`]).

pub mod bootstrap;
pub mod course;
pub mod document;
pub mod environment;
pub mod name;
pub mod portion;
pub mod profile;
pub mod reduce;
pub mod series;
pub mod significance;
pub mod stacks;
mod table;
pub mod unit;

use std::collections::BTreeSet;

use self::bootstrap::Draws;
use self::course::Course;
use self::document::{Diff, Normaliser, SCHEMA, Side};
use self::name::PeerNames;
use self::portion::Portion;
use self::profile::Profile;
use self::reduce::Reducer;
use self::series::Series;
use self::stacks::Sides;
use self::table::Tables;
use super::OnProgress;
use super::connects::Connects;
use super::context::Context;
use super::partition::partition;
use super::report::TraceState;
use crate::model::Model;
use crate::model::packed;
use crate::parallel::in_order;

/// Reduces a recording that is in memory as a whole, and tells how far it is.
pub fn profile_of(mut model: Model, state: TraceState, progress: OnProgress<'_>) -> Profile {
    let course = Course::of(model.whole(), &model.marker);
    let mut reducer = Reducer::new(course.clone());
    let connects = Connects::new(&model);
    let context = Context::new(&model);
    let prepared = |(thread, portion): (usize, packed::Portion)| {
        let (track, _) = model.portion(model.threads.get(thread)?, &portion);
        let part = partition(&context, &track);
        Some(Portion::of(&model, &course, &connects, &track, &part))
    };
    let portions = model.portions();
    let (mut done, all) = (0, portions.len() as u64);
    in_order(portions.into_iter(), prepared, |portion| {
        done += 1;
        progress(done, all);
        if let Some(portion) = portion {
            reducer.take(&model, &portion);
        }
    });
    drop(context);
    // What they were packed into is not needed any more.
    model.threads.iter_mut().for_each(|thread| thread.waits = packed::PackedWaits::default());
    reducer.finish(model, state)
}

/// Compares the recordings of two sides, at least one each.
pub fn compare(before: &[Profile], after: &[Profile]) -> Diff {
    let (old_peers, new_peers) = (peers(before), peers(after));
    let peers = PeerNames::new(&old_peers, &new_peers);
    let units = unit::choose(before, after, &peers);
    let sums = [&units.before, &units.after].map(|side| match units.by {
        Normaliser::Time => total(side),
        // Shares of waits by slice add up to whole ones.
        _ => total(side).round(),
    });
    let sums = (sums[0], sums[1]);
    let stacks = stacks::compare(&both_stacks(before, after, &peers), sums);
    let draws = (draws(before, 0), draws(after, 1));
    let tables = Tables { before, after, units: &units, sums, draws: &draws, peers: &peers };
    let causes = tables.causes(&stacks.causes);
    let total = tables.total(&stacks.causes);
    Diff {
        schema: SCHEMA.to_owned(),
        before: side(before, sums.0),
        after: side(after, sums.1),
        sockets: tables.sockets(&total),
        hops: tables.hops(),
        total,
        causes,
        stacks: stacks.rows,
        environment: environment::changes(before, after),
        remarks: remarks(before, after, units.by),
        normalised_by: units.by,
        normalised_site: units.site,
    }
}

fn peers(side: &[Profile]) -> BTreeSet<&str> {
    side.iter().flat_map(Profile::peers).collect()
}

fn draws(side: &[Profile], number: u64) -> Draws {
    let used: Vec<Vec<usize>> = side.iter().map(|profile| profile.course.used()).collect();
    Draws::new(&used, number)
}

fn total(side: &[Series]) -> f64 {
    side.iter().flatten().sum()
}

fn both_stacks(before: &[Profile], after: &[Profile], peers: &PeerNames<'_>) -> Sides {
    let mut sides = Sides::default();
    for (side, profiles) in [(stacks::Side::Before, before), (stacks::Side::After, after)] {
        for profile in profiles {
            profile.add_stacks(peers, side, &mut sides);
        }
    }
    sides
}

fn side(profiles: &[Profile], units: f64) -> Side {
    let sum = |of: fn(&Profile) -> u64| profiles.iter().map(of).fold(0, u64::saturating_add);
    Side {
        duration_ns: sum(|profile| profile.duration_ns),
        stalled_ns: sum(|profile| profile.stalled_ns),
        steps: None,
        traces: profiles.len() as u64,
        units,
        complete: profiles.iter().all(|profile| profile.state.complete),
        lost_events: sum(|profile| profile.lost_events),
    }
}

/// Why hardly any change can be significant with that many recordings. Two show that runs differ and not how much: their
/// variance has one degree of freedom.
pub fn too_few(before: u64, after: u64) -> Option<String> {
    let which = match (before, after) {
        (2, 2) => "a side",
        (2, _) => "before",
        (_, 2) => "after",
        _ => return None,
    };
    Some(format!(
        "with two recordings {which} hardly any change is significant, however large: two show that runs differ, and \
         not how much. Give three or more"
    ))
}

/// What the reader must know before the figures.
fn remarks(before: &[Profile], after: &[Profile], by: Normaliser) -> Vec<String> {
    let mut remarks: Vec<String> = environment::other_program(before, after).into_iter().collect();
    let sides = [("before", before), ("after", after)];
    for (name, side) in sides {
        let broken = side.iter().filter(|profile| !profile.state.complete).count();
        if broken > 0 {
            remarks.push(format!(
                "{broken} of {} recordings {name} are not whole: their times are lower bounds",
                side.len()
            ));
        }
        let lost = side.iter().map(|profile| profile.lost_events).fold(0, u64::saturating_add);
        if lost > 0 {
            remarks.push(format!("{lost} events were lost {name}: times are lower bounds"));
        }
        let merged = side.iter().map(|profile| profile.merged_waits).fold(0, u64::saturating_add);
        if merged > 0 {
            remarks.push(format!("{merged} waits {name} were at too many call sites to be told apart"));
        }
    }
    if before.len() == 1 || after.len() == 1 {
        let which = match (before.len(), after.len()) {
            (1, 1) => "with one recording a side",
            (1, _) => "with one recording before",
            _ => "with one recording after",
        };
        remarks.push(format!(
            "{which} the variation from run to run could not be seen, only that within a run: give more with \
             --before and --after"
        ));
    }
    remarks.extend(too_few(before.len() as u64, after.len() as u64));
    if by != Normaliser::Marker && before.iter().chain(after).any(|profile| profile.iterations.is_some()) {
        remarks.push(
            "a marker's calls are in some recordings and not in all, or they are of other functions: they are not used"
                .to_owned(),
        );
    }
    if by == Normaliser::Time {
        remarks.push(
            "no wait recurs on both sides, so times are per second: a side that did more work in a second shows it \
             as a change"
                .to_owned(),
        );
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_recordings_a_side_are_told_to_be_too_few_and_one_or_three_are_not() {
        let told = |before, after| {
            let side = |count| vec![Profile::default(); count];
            let remarks = compare(&side(before), &side(after)).remarks;
            remarks.into_iter().find(|remark| remark.contains("hardly any change is significant"))
        };
        assert!(told(2, 2).unwrap().starts_with("with two recordings a side "));
        assert!(told(2, 3).unwrap().starts_with("with two recordings before "));
        assert!(told(1, 2).unwrap().starts_with("with two recordings after "));
        assert_eq!([told(1, 1), told(3, 3), told(1, 3)], [None, None, None]);
    }
}
