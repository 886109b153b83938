//! What was set up differently: often the whole answer.

use std::collections::{BTreeMap, BTreeSet};

use super::document::EnvironmentChange;
use super::profile::Profile;

/// Differ from run to run by nature and explain nothing.
const IGNORED: [&str; 1] = ["SLURM_JOB_ID"];

/// Name of the recorded programs: two of them are hardly a before and an after.
pub const PROGRAM: &str = "program";

type Values = BTreeMap<String, BTreeSet<String>>;

/// The names whose values are not the same on both sides: the program first, the others in the order of their names.
pub fn changes(before: &[Profile], after: &[Profile]) -> Vec<EnvironmentChange> {
    let (old, new) = (merge(before), merge(after));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let (programs, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| *name == PROGRAM);
    programs
        .into_iter()
        .chain(others)
        .filter(|name| !IGNORED.contains(&name.as_str()) && old.get(*name) != new.get(*name))
        .map(|name| EnvironmentChange {
            what: name.clone(),
            before: old.get(name).map(join),
            after: new.get(name).map(join),
        })
        .collect()
}

/// What to say of recordings that have no program in common.
pub fn other_program(before: &[Profile], after: &[Profile]) -> Option<String> {
    let (old, new) = (merge(before), merge(after));
    let (old, new) = (old.get(PROGRAM)?, new.get(PROGRAM)?);
    let differ = !old.is_empty() && !new.is_empty() && old.is_disjoint(new);
    differ.then(|| {
        format!(
            "the recordings are of different programs, {} before and {} after: what differs may be that alone",
            join(old),
            join(new)
        )
    })
}

fn merge(side: &[Profile]) -> Values {
    let mut values = Values::new();
    for (name, found) in side.iter().flat_map(|profile| &profile.environment) {
        values.entry(name.clone()).or_default().extend(found.iter().cloned());
    }
    values
}

fn join(values: &BTreeSet<String>) -> String {
    values.iter().map(String::as_str).collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(entries: &[(&str, &str)]) -> Profile {
        let mut profile = Profile::default();
        for (what, value) in entries {
            profile.environment.entry((*what).to_owned()).or_default().insert((*value).to_owned());
        }
        profile
    }

    #[test]
    fn only_what_differs_is_told() {
        let before =
            profile(&[("RANK", "0"), ("RANK", "1"), ("libc", "2.36"), ("SLURM_JOB_ID", "1"), ("gone", "x")]);
        let after =
            profile(&[("RANK", "1"), ("RANK", "0"), ("libc", "2.41"), ("SLURM_JOB_ID", "2"), ("new", "y")]);
        let told: Vec<_> =
            changes(&[before], &[after]).into_iter().map(|row| (row.what, row.before, row.after)).collect();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            told,
            [
                ("gone".to_owned(), some("x"), None),
                ("libc".to_owned(), some("2.36"), some("2.41")),
                ("new".to_owned(), None, some("y")),
            ]
        );
    }

    #[test]
    fn another_program_comes_first_and_is_remarked_on_where_none_is_the_same() {
        let before = [profile(&[("libc", "2.36"), (PROGRAM, "python3.11")])];
        let after = [profile(&[("libc", "2.41"), (PROGRAM, "trainer"), (PROGRAM, "helper")])];
        let told: Vec<_> = changes(&before, &after).into_iter().map(|row| row.what).collect();
        assert_eq!(told, [PROGRAM, "libc"]);
        let remark = other_program(&before, &after).unwrap();
        assert!(remark.contains("python3.11 before and helper | trainer after"), "{remark}");
        let more = [profile(&[(PROGRAM, "python3.11"), (PROGRAM, "ssh")])];
        assert_eq!(changes(&before, &more).len(), 2);
        assert_eq!(other_program(&before, &more), None);
        assert_eq!(other_program(&before, &[profile(&[])]), None);
    }

    #[test]
    fn values_of_several_processes_stand_side_by_side() {
        let before = profile(&[("NCCL_SOCKET_IFNAME", "eth0")]);
        let after = profile(&[("NCCL_SOCKET_IFNAME", "eth0"), ("NCCL_SOCKET_IFNAME", "docker0")]);
        assert_eq!(changes(&[before], &[after])[0].after.as_deref(), Some("docker0 | eth0"));
    }
}
