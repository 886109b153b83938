//! What was set up differently: often the whole answer.

use std::collections::{BTreeMap, BTreeSet};

use super::document::EnvironmentChange;
use super::profile::Profile;

/// Differ from run to run by nature and explain nothing.
const IGNORED: [&str; 1] = ["SLURM_JOB_ID"];

type Values = BTreeMap<String, BTreeSet<String>>;

/// The names whose values are not the same on both sides.
pub fn changes(before: &[Profile], after: &[Profile]) -> Vec<EnvironmentChange> {
    let (old, new) = (merge(before), merge(after));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    names
        .into_iter()
        .filter(|name| !IGNORED.contains(&name.as_str()) && old.get(*name) != new.get(*name))
        .map(|name| EnvironmentChange {
            what: name.clone(),
            before: old.get(name).map(join),
            after: new.get(name).map(join),
        })
        .collect()
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
    fn values_of_several_processes_stand_side_by_side() {
        let before = profile(&[("NCCL_SOCKET_IFNAME", "eth0")]);
        let after = profile(&[("NCCL_SOCKET_IFNAME", "eth0"), ("NCCL_SOCKET_IFNAME", "docker0")]);
        assert_eq!(changes(&[before], &[after])[0].after.as_deref(), Some("docker0 | eth0"));
    }
}
