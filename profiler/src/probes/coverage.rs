//! Which probe families run.

use std::collections::HashMap;

use super::load::PROGRAMS;
use crate::trace::record::{Coverage, FamilyState};

/// Programs that do not run, and what that takes away.
#[derive(Debug)]
pub(super) struct Families {
    failed: HashMap<&'static str, String>,
    missing_members: Vec<String>,
    /// Entries of resolver functions that are probed.
    resolver_entries: usize,
}

/// Families in the order of the report.
const FAMILIES: [&str; 7] = ["net", "dns", "tcp", "sched", "samples", "children", "snapshot"];

impl Families {
    pub(super) fn new(failed: HashMap<&'static str, String>, missing_members: Vec<String>) -> Families {
        Families { failed, missing_members, resolver_entries: 0 }
    }

    /// The program does not run after all.
    pub(super) fn failed(&mut self, program: &'static str, reason: String) {
        self.failed.insert(program, reason);
    }

    /// `entries` more resolver functions are probed.
    pub(super) fn resolver(&mut self, entries: usize) {
        self.resolver_entries += entries;
    }

    pub(super) fn rows(&self) -> Vec<Coverage> {
        let mut rows: Vec<Coverage> = FAMILIES.iter().map(|family| self.row(family)).collect();
        rows.push(Coverage {
            family: "lock".to_owned(),
            state: FamilyState::Partial,
            reason: "holders are known of glibc's pthread mutexes and of those that inherit priority; a wait for another \
                     lock (Rust, Go, musl, inside of libc) is an other wait"
                .to_owned(),
        });
        rows.push(Coverage {
            family: "io_uring".to_owned(),
            state: FamilyState::Partial,
            reason: "waits in io_uring_enter are seen, the sockets behind its requests are not".to_owned(),
        });
        rows
    }

    fn row(&self, family: &str) -> Coverage {
        let programs = || PROGRAMS.iter().filter(|(_, _, of)| *of == family);
        let mut reasons: Vec<String> = programs()
            .filter_map(|(name, ..)| self.failed.get(name).map(|reason| format!("{name}: {reason}")))
            .collect();
        let all_failed = reasons.len() == programs().count();
        // DNS messages come from system calls; only the functions that caused them are probed.
        let state = match (reasons.is_empty(), all_failed) {
            (true, _) => FamilyState::On,
            (false, true) if family != "dns" => FamilyState::Off,
            (false, _) => FamilyState::Partial,
        };
        let state = match family {
            "dns" if reasons.is_empty() && self.resolver_entries == 0 => {
                reasons.push("no resolver function is probed: messages are seen, not who asked".to_owned());
                FamilyState::Partial
            }
            "net" if state == FamilyState::On && !self.missing_members.is_empty() => {
                reasons.push(format!("this kernel has no {}", self.missing_members.join(", ")));
                FamilyState::Partial
            }
            _ => state,
        };
        Coverage { family: family.to_owned(), state, reason: reasons.join("; ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(families: &Families, family: &str) -> (FamilyState, String) {
        let row = families.rows().into_iter().find(|row| row.family == family).unwrap();
        (row.state, row.reason)
    }

    #[test]
    fn a_family_without_failures_is_on() {
        let families = Families::new(HashMap::new(), Vec::new());
        for family in ["net", "tcp", "sched", "samples", "children", "snapshot"] {
            assert_eq!(state(&families, family), (FamilyState::On, String::new()));
        }
    }

    #[test]
    fn one_failure_makes_a_family_partial_and_all_turn_it_off() {
        let mut failed = HashMap::from([("retransmit_skb", "EPERM".to_owned())]);
        let families = Families::new(failed.clone(), Vec::new());
        assert_eq!(state(&families, "tcp"), (FamilyState::Partial, "retransmit_skb: EPERM".to_owned()));
        failed.insert("handshake_state", "EPERM".to_owned());
        let families = Families::new(failed, Vec::new());
        assert_eq!(state(&families, "tcp").0, FamilyState::Off);
    }

    #[test]
    fn dns_is_partial_until_a_resolver_function_is_probed() {
        let mut families = Families::new(HashMap::new(), Vec::new());
        assert_eq!(state(&families, "dns").0, FamilyState::Partial);
        families.resolver(3);
        assert_eq!(state(&families, "dns"), (FamilyState::On, String::new()));
        let families = Families::new(HashMap::from([("api_entry", "EACCES".to_owned())]), Vec::new());
        assert_eq!(state(&families, "dns"), (FamilyState::Partial, "api_entry: EACCES".to_owned()));
    }
}
