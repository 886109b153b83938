//! Which processes' verbs are watched, from when to when, and what that costs them.

use std::collections::{BTreeMap, HashMap, HashSet};

use profiler_common::verbs::HIT_NS;

use super::host::monotonic_ns;
use super::reasons::Reasons;
use super::verbs_budget::{Budget, Change};
use crate::probes::ProbeSet;
use crate::probes::event::VerbsSetup;
use crate::target::ProcRoot;
use crate::target::maps::FileId;
use crate::target::verbs::library::Library;
use crate::target::verbs::{self, Verbs, counters};
use crate::trace::rdma::{PortCounter, QueuePair, RdmaPost, RdmaWindow};
use crate::trace::record::{Coverage, FamilyState, Record};

mod setup;

/// Queue pairs that are told of, at most.
const QUEUE_PAIRS_MAX: usize = 65536;
/// Processes that are looked at, at most.
const PROCESSES_MAX: usize = 4096;

/// A process whose verbs are watched.
#[derive(Debug, Default)]
struct Watched {
    /// There are probes on it, in windows at least.
    attached: bool,
    /// Beginning of the window that is open.
    open_ns: Option<u64>,
    /// When the last of the probes was put on.
    since_ns: u64,
    gone: bool,
    verbs: Verbs,
}

#[derive(Debug)]
pub(super) struct VerbsWatch {
    root: ProcRoot,
    /// Share of a core that the target may lose; `None`: not asked for.
    max_overhead: Option<f64>,
    processes: HashMap<u32, Watched>,
    /// Have been told of: process, address and number.
    known: HashSet<(u32, u64, u32)>,
    devices: BTreeMap<String, Vec<counters::Counter>>,
    /// Something of verbs is not seen.
    gaps: Reasons,
    /// Processes with devices that are not watched at all.
    failures: Reasons,
    hits: u64,
    /// Traps of which no event tells, when they were last asked for.
    traps: u64,
    budget: Budget,
    /// Held open: the probes sit on these files.
    libraries: Vec<(FileId, Library)>,
    /// That of this machine is among them, if there is one.
    prepared: bool,
    setups: Vec<VerbsSetup>,
}

impl VerbsWatch {
    pub(super) fn new(root: ProcRoot, max_overhead: Option<f64>) -> VerbsWatch {
        VerbsWatch {
            root,
            max_overhead,
            processes: HashMap::new(),
            known: HashSet::new(),
            devices: BTreeMap::new(),
            gaps: Reasons::default(),
            failures: Reasons::default(),
            hits: 0,
            traps: 0,
            libraries: Vec::new(),
            prepared: false,
            setups: Vec::new(),
            budget: Budget::new(max_overhead.unwrap_or(0.0), monotonic_ns()),
        }
    }

    /// Looks for verbs in a process and attaches to what there is.
    pub(super) fn look(&mut self, pid: u32, now_ns: u64, probes: &mut ProbeSet) -> Vec<Record> {
        if self.max_overhead.is_none() || self.processes.contains_key(&pid) {
            return Vec::new();
        }
        let verbs = match verbs::look(&self.root, pid) {
            Ok(verbs) => verbs,
            Err(error) if error.is_gone() => return Vec::new(),
            Err(error) => {
                self.failures.add(error);
                return Vec::new();
            }
        };
        if verbs.found.contexts.is_empty() || self.processes.len() >= PROCESSES_MAX {
            // A device file without a context is one that is being opened, or is held for something else.
            return Vec::new();
        }
        if verbs.found.cut {
            self.gaps.add("more memory than is searched for queue pairs");
        }
        let mut records = Vec::new();
        let attached = self.attach(pid, &verbs.functions, &verbs.makers, probes);
        let since_ns = monotonic_ns();
        let open_ns = (attached && self.budget.is_open()).then(monotonic_ns);
        for pair in &verbs.found.queue_pairs {
            records.extend(self.tell(pid, pair, now_ns).map(Record::QueuePair));
        }
        records.extend(setup::older_peers(pid, &verbs.found, now_ns));
        records.extend(self.count_devices(&verbs, now_ns));
        records.extend(open_ns.map(|start_ns| window(pid, start_ns, 0)));
        self.processes.insert(pid, Watched { attached, open_ns, since_ns, gone: false, verbs });
        records
    }

    /// Counters of devices that are new, as they are now.
    fn count_devices(&mut self, verbs: &Verbs, now_ns: u64) -> Vec<Record> {
        let mut records = Vec::new();
        for context in &verbs.found.contexts {
            if self.devices.contains_key(&context.device) {
                continue;
            }
            let values = counters::read(&counters::folder(), &context.device);
            records.extend(values.iter().map(|one| counter(&context.device, one, now_ns)));
            self.devices.insert(context.device.clone(), values);
        }
        records
    }

    fn tell(&mut self, pid: u32, pair: &verbs::QueuePair, time_ns: u64) -> Option<QueuePair> {
        if self.known.len() >= QUEUE_PAIRS_MAX || !self.known.insert((pid, pair.address, pair.number)) {
            return None;
        }
        Some(QueuePair {
            time_ns,
            pid,
            number: pair.number,
            device: pair.device.clone(),
            port: counters::only_port(&counters::folder(), &pair.device).unwrap_or(0),
            qp_type: pair.kind,
            state: pair.state,
            extended: pair.extended,
        })
    }

    /// Notes a post; returns its queue pair where that was not known.
    pub(super) fn posted(&mut self, post: &RdmaPost, address: u64) -> Option<QueuePair> {
        self.hits += u64::from(post.index == 0);
        if self.known.contains(&(post.pid, address, post.qp)) || self.known.len() >= QUEUE_PAIRS_MAX {
            return None;
        }
        let watched = self.processes.get(&post.pid)?;
        let Some(pair) = watched.verbs.queue_pair_at(&self.root, post.pid, address) else {
            // It is not asked for at every post.
            self.known.insert((post.pid, address, post.qp));
            return None;
        };
        self.tell(post.pid, &pair, post.time_ns)
    }

    pub(super) fn completed(&mut self) {
        self.hits += 1;
    }

    /// The process has ended, and with it its window.
    pub(super) fn leave(&mut self, pid: u32, now_ns: u64) -> Vec<Record> {
        self.known.retain(|(of, ..)| *of != pid);
        let Some(watched) = self.processes.get_mut(&pid).filter(|watched| watched.attached) else {
            return Vec::new();
        };
        if std::mem::replace(&mut watched.gone, true) {
            return Vec::new();
        }
        let open = watched.open_ns.take().map(|start_ns| window(pid, start_ns, now_ns));
        open.into_iter().chain([window(pid, now_ns, now_ns)]).collect()
    }

    /// Takes the probes off where they cost the targets too much, and puts them on again when that has been made up for.
    pub(super) fn check(&mut self, now_ns: u64, probes: &mut ProbeSet) -> Vec<Record> {
        let attached = self.processes.values().any(|watched| watched.attached && !watched.gone);
        if self.max_overhead.is_none() || !attached {
            return Vec::new();
        }
        let traps = probes.verbs_traps();
        let hits = std::mem::take(&mut self.hits) + traps.saturating_sub(self.traps);
        self.traps = traps;
        match self.budget.step(now_ns, hits, hits as f64 * HIT_NS as f64) {
            None => Vec::new(),
            Some(Change::Close) => {
                let open = self.processes.iter_mut().filter_map(|(pid, watched)| {
                    watched.open_ns.take().map(|start_ns| window(*pid, start_ns, now_ns.max(start_ns + 1)))
                });
                let records = open.collect();
                probes.pause_verbs();
                records
            }
            Some(Change::Open) => {
                for (pid, reason) in probes.resume_verbs() {
                    let Some(watched) = self.processes.get_mut(&pid) else { continue };
                    watched.attached = false;
                    if !watched.gone {
                        self.failures
                            .add(format_args!("process {pid}: a window could not be opened: {reason}"));
                    }
                }
                let start_ns = monotonic_ns();
                let alive = self.processes.iter_mut().filter(|(_, one)| one.attached && !one.gone);
                alive
                    .map(|(pid, watched)| {
                        watched.open_ns = Some(start_ns);
                        window(*pid, start_ns, 0)
                    })
                    .collect()
            }
        }
    }

    /// Why, and how much, was watched in windows only.
    fn windows_text(&self) -> Option<String> {
        let windows = self.budget.windows();
        if windows < 2 && self.budget.is_open() {
            return None;
        }
        let (rate, share) = self.budget.rate();
        Some(format!(
            "watched in {windows} short window{}: {rate:.0} posts and completions a second would take about {:.1} % of \
             a core, and --max-overhead allows {:.1} %",
            if windows == 1 { "" } else { "s" },
            share * 100.0,
            self.budget.allowed * 100.0
        ))
    }

    /// The devices' counters at the end.
    pub(super) fn finish(&mut self, end_ns: u64) -> Vec<Record> {
        let mut records = Vec::new();
        for device in self.devices.keys() {
            let values = counters::read(&counters::folder(), device);
            records.extend(values.iter().map(|one| counter(device, one, end_ns)));
        }
        records
    }

    /// `None` where verbs were not asked for.
    pub(super) fn coverage(&self) -> Vec<Coverage> {
        if self.max_overhead.is_none() {
            return Vec::new();
        }
        let row = |family: &str, state, reason: String| Coverage { family: family.to_owned(), state, reason };
        let watched = self.processes.values().any(|one| one.attached);
        let all = [self.failures.text(), self.windows_text().unwrap_or_default(), self.gaps.text()];
        let reasons: Vec<String> = all.into_iter().filter(|text| !text.is_empty()).collect();
        let (state, reason) = match (watched, reasons.is_empty()) {
            (true, true) => (FamilyState::On, String::new()),
            (true, false) => (FamilyState::Partial, reasons.join("; ")),
            (false, true) => (FamilyState::Off, "no target has an RDMA device open".to_owned()),
            (false, false) => (FamilyState::Off, reasons.join("; ")),
        };
        vec![row("verbs", state, reason)]
    }
}

fn window(pid: u32, start_ns: u64, end_ns: u64) -> Record {
    Record::RdmaWindow(RdmaWindow { pid, start_ns, end_ns })
}

fn counter(device: &str, one: &counters::Counter, time_ns: u64) -> Record {
    Record::PortCounter(PortCounter {
        time_ns,
        device: device.to_owned(),
        port: one.port,
        name: one.name.clone(),
        value: one.value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched() -> Watched {
        Watched { attached: true, open_ns: Some(5), ..Watched::default() }
    }

    #[test]
    fn a_process_that_ends_closes_its_window_and_says_when() {
        let mut watch = VerbsWatch::new(ProcRoot::default(), Some(0.005));
        watch.processes.insert(7, watched());
        let of = |records: Vec<Record>| -> Vec<(u64, u64)> {
            let times = |record| match record {
                Record::RdmaWindow(one) => Some((one.start_ns, one.end_ns)),
                _ => None,
            };
            records.into_iter().filter_map(times).collect()
        };
        assert_eq!(of(watch.leave(7, 90)), [(5, 90), (90, 90)]);
        assert_eq!(of(watch.leave(7, 95)), []);
        assert_eq!(of(watch.leave(8, 95)), []);
    }

    #[test]
    fn coverage_says_why_nothing_is_watched() {
        let watch = |asked| VerbsWatch::new(ProcRoot::default(), asked);
        assert!(watch(None).coverage().is_empty());
        let mut asked = watch(Some(0.005));
        let rows = asked.coverage();
        assert_eq!((rows.len(), rows[0].state), (1, FamilyState::Off));
        assert_eq!(rows[0].reason, "no target has an RDMA device open");
        asked.failures.add("libmlx5.so.1: something");
        asked.processes.insert(1, Watched { attached: false, ..watched() });
        let rows = asked.coverage();
        assert_eq!((rows.len(), rows[0].state), (1, FamilyState::Off));
        assert_eq!(rows[0].reason, "libmlx5.so.1: something");
        asked.processes.insert(2, watched());
        assert_eq!(asked.coverage()[0].state, FamilyState::Partial);
    }
}
