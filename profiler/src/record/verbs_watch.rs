//! Which processes' verbs are watched, from when to when, and what that costs them.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::reasons::Reasons;
use crate::probes::ProbeSet;
use crate::target::ProcRoot;
use crate::target::verbs::{self, Verbs, counters};
use crate::trace::rdma::{PortCounter, QueuePair, RdmaPost, RdmaWindow};
use crate::trace::record::{Coverage, FamilyState, Record};

/// What the target loses for each time that it comes by a probe, nanoseconds: 2.6 µs were measured on plain hosts for
/// a kernel uprobe, the record included.
const HIT_NS: u64 = 2_600;
/// Over how long the rate is measured before it is judged, nanoseconds.
const JUDGED_NS: u64 = 300_000_000;
/// Queue pairs that are told of, at most.
const QUEUE_PAIRS_MAX: usize = 65536;
/// Processes that are looked at, at most.
const PROCESSES_MAX: usize = 4096;

/// A process whose verbs are watched.
#[derive(Debug)]
struct Watched {
    start_ns: u64,
    end_ns: Option<u64>,
    verbs: Verbs,
}

#[derive(Debug)]
pub(super) struct VerbsWatch {
    root: ProcRoot,
    /// Share of a core that the target may lose; `None`: not asked for.
    max_overhead: Option<f64>,
    processes: HashMap<u32, Watched>,
    /// Have been told of: process and address or number.
    known: HashSet<(u32, u64)>,
    devices: BTreeMap<String, Vec<counters::Counter>>,
    /// Something of verbs is not seen.
    gaps: Reasons,
    /// Processes with devices that are not watched at all.
    failures: Reasons,
    hits: u64,
    judged_ns: u64,
    let_go: bool,
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
            judged_ns: 0,
            let_go: false,
        }
    }

    /// Looks for verbs in a process and attaches to what there is.
    pub(super) fn look(&mut self, pid: u32, now_ns: u64, probes: &mut ProbeSet) -> Vec<Record> {
        if self.max_overhead.is_none() || self.let_go || self.processes.contains_key(&pid) {
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
        let attached = self.attach(pid, &verbs, probes);
        for pair in &verbs.found.queue_pairs {
            records.extend(self.tell(pid, pair, now_ns).map(Record::QueuePair));
        }
        records.extend(self.count_devices(&verbs, now_ns));
        if attached {
            records.push(window(pid, now_ns, 0));
        }
        let end_ns = if attached { None } else { Some(now_ns) };
        self.processes.insert(pid, Watched { start_ns: now_ns, end_ns, verbs });
        records
    }

    fn attach(&mut self, pid: u32, verbs: &Verbs, probes: &mut ProbeSet) -> bool {
        let mut attached = false;
        for functions in &verbs.functions {
            match probes.attach_verbs(pid, functions) {
                Ok(()) => attached = true,
                Err(reason) => {
                    self.failures.add(format_args!("{}: {reason}", functions.poll_cq.path_in_target));
                }
            }
        }
        attached
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
        if self.known.len() >= QUEUE_PAIRS_MAX || !self.known.insert((pid, pair.address)) {
            return None;
        }
        if pair.extended {
            self.gaps.add("posts through ibv_wr_* are not seen");
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
        if self.known.contains(&(post.pid, address)) || self.known.len() >= QUEUE_PAIRS_MAX {
            return None;
        }
        let watched = self.processes.get(&post.pid)?;
        let Some(pair) = watched.verbs.queue_pair_at(&self.root, post.pid, address) else {
            // It is not asked for at every post.
            self.known.insert((post.pid, address));
            return None;
        };
        self.tell(post.pid, &pair, post.time_ns)
    }

    pub(super) fn completed(&mut self) {
        self.hits += 1;
    }

    pub(super) fn leave(&mut self, pid: u32) {
        self.known.retain(|(of, _)| *of != pid);
    }

    /// Takes the probes off where they cost the targets too much.
    pub(super) fn check(&mut self, now_ns: u64, probes: &mut ProbeSet) -> Vec<Record> {
        let lasted = now_ns.saturating_sub(self.judged_ns);
        let Some(allowed) = self.max_overhead.filter(|_| lasted >= JUDGED_NS && !self.let_go) else {
            return Vec::new();
        };
        let hits = std::mem::take(&mut self.hits);
        let first = std::mem::replace(&mut self.judged_ns, now_ns) == 0;
        let share = hits as f64 * HIT_NS as f64 / lasted as f64;
        if first || share <= allowed {
            return Vec::new();
        }
        probes.detach_verbs();
        self.let_go = true;
        let rate = hits as f64 * 1e9 / lasted as f64;
        self.gaps.add(format_args!(
            "let go during the recording: {rate:.0} posts and completions a second would take about {:.1} % of a \
             core, and --max-overhead allows {:.1} %",
            share * 100.0,
            allowed * 100.0
        ));
        let open = self.processes.iter_mut().filter(|(_, watched)| watched.end_ns.is_none());
        open.map(|(pid, watched)| {
            watched.end_ns = Some(now_ns);
            window(*pid, watched.start_ns, now_ns)
        })
        .collect()
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
        let watched =
            self.processes.values().any(|one| one.end_ns.is_none_or(|end_ns| end_ns > one.start_ns));
        let reasons: Vec<String> = [&self.failures, &self.gaps]
            .iter()
            .map(|all| all.text())
            .filter(|text| !text.is_empty())
            .collect();
        let (state, reason) = match (watched, reasons.is_empty()) {
            (true, true) => (FamilyState::On, String::new()),
            (true, false) => (FamilyState::Partial, reasons.join("; ")),
            (false, true) => (FamilyState::Off, "no target has an RDMA device open".to_owned()),
            (false, false) => (FamilyState::Off, reasons.join("; ")),
        };
        let mut rows = vec![row("verbs", state, reason)];
        if !self.processes.is_empty() {
            let reason = "the paths through ib_uverbs and the driver are not watched in this version";
            rows.push(row("rdma_kernel", FamilyState::Off, reason.to_owned()));
        }
        rows
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

    #[test]
    fn coverage_says_why_nothing_is_watched() {
        let watch = |asked| VerbsWatch::new(ProcRoot::default(), asked);
        assert!(watch(None).coverage().is_empty());
        let mut asked = watch(Some(0.005));
        let rows = asked.coverage();
        assert_eq!((rows.len(), rows[0].state), (1, FamilyState::Off));
        assert_eq!(rows[0].reason, "no target has an RDMA device open");
        asked.failures.add("libmlx5.so.1: something");
        asked.processes.insert(1, Watched { start_ns: 5, end_ns: Some(5), verbs: Verbs::default() });
        let rows = asked.coverage();
        assert_eq!((rows.len(), rows[0].state), (2, FamilyState::Off));
        assert_eq!(rows[0].reason, "libmlx5.so.1: something");
        asked.processes.insert(2, Watched { start_ns: 5, end_ns: None, verbs: Verbs::default() });
        assert_eq!(asked.coverage()[0].state, FamilyState::Partial);
    }
}
