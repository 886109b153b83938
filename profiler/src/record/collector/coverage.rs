//! What was counted, lost and not seen, as it goes into the trace.

use super::{Collector, Python};
use crate::probes::ProbeSet;
use crate::record::marker_watch::MarkerWatch;
use crate::symbols::Symbolizer;
use crate::trace::record::{Coverage, FamilyState, Loss, Record};

/// Why a family is off that `--probes` leaves out.
pub(super) const NOT_ASKED: &str = "not asked for (--probes)";

/// What is missing of a process that has a ring.
const IO_URING: &str = "io_uring";

/// Replaced files that are told by name.
const FILES_TOLD: usize = 8;

impl Python {
    /// `None` where no target has an interpreter.
    fn coverage(&self) -> Option<Coverage> {
        let state = match (self.processes, self.failures.is_empty()) {
            (0, true) => return None,
            (0, false) => FamilyState::Off,
            (_, true) => FamilyState::On,
            (_, false) => FamilyState::Partial,
        };
        Some(Coverage { family: "python".into(), state, reason: self.failures.text() })
    }
}

impl Collector {
    /// Totals so far; the last ones of a trace count.
    pub fn write_counts(&mut self, probes: &ProbeSet) {
        for count in probes.call_counts() {
            self.write(Record::CallCount(count));
        }
        self.write_rdma_totals(probes);
        let mut losses = probes.losses();
        let refused = self.symbols.refused() + self.held.dropped_stacks();
        if refused > 0 {
            losses.push(Loss { what: "stacks_not_named".into(), count: refused, events: false });
        }
        self.totals.lost = losses.iter().filter(|loss| loss.events).map(|loss| loss.count).sum();
        for loss in losses {
            self.write(Record::Loss(loss));
        }
    }

    /// What could be seen, at the end of the recording.
    pub fn write_coverage(&mut self, probes: &ProbeSet, unavailable: &[String]) {
        let mut rows = probes.coverage();
        if !self.rings.was_there(&self.targets, &probes.call_counts()) {
            rows.retain(|row| row.family != IO_URING);
        }
        if !self.families.net() {
            let of_net = |row: &&mut Coverage| matches!(row.family.as_str(), "net" | "tcp");
            rows.iter_mut().filter(of_net).for_each(|row| *row = off(&row.family, NOT_ASKED));
        }
        if let Some(dns) = rows.iter_mut().find(|row| row.family == "dns") {
            if !self.families.dns() {
                *dns = off("dns", NOT_ASKED);
            } else if !self.failed_libraries.is_empty() {
                dns.state = FamilyState::Partial;
                let own = self.failed_libraries.text();
                dns.reason = if dns.reason.is_empty() { own } else { format!("{own}; {}", dns.reason) };
            }
        }
        rows.push(match &self.socket_failure {
            _ if !self.families.net() => off("rtt", NOT_ASKED),
            None => Coverage { family: "rtt".into(), state: FamilyState::On, reason: String::new() },
            Some(reason) => off("rtt", reason),
        });
        rows.extend(self.python.coverage());
        rows.extend(self.verbs.coverage());
        rows.extend(self.marker.as_ref().map(MarkerWatch::coverage));
        rows.extend(unavailable.iter().map(|family| off(family, "not built into this version")));
        for row in rows {
            self.write(Record::Coverage(row));
        }
    }
}

/// Files whose functions have no names because they were replaced; `None` where there are none.
pub(super) fn of_symbols(symbolizer: &Symbolizer) -> Option<Coverage> {
    let files: Vec<&str> = symbolizer.replaced_files().collect();
    if files.is_empty() {
        return None;
    }
    let mut names = files.iter().take(FILES_TOLD).copied().collect::<Vec<_>>().join(", ");
    if files.len() > FILES_TOLD {
        names.push_str(&format!(" and {} more", files.len() - FILES_TOLD));
    }
    let reason = format!(
        "replaced or removed on disk since the target mapped it, so that its functions have no names: {names}; restart \
         the target, or record with CAP_SYS_ADMIN, to have them"
    );
    Some(Coverage { family: "symbols".into(), state: FamilyState::Partial, reason })
}

fn off(family: &str, reason: &str) -> Coverage {
    Coverage { family: family.into(), state: FamilyState::Off, reason: reason.into() }
}
