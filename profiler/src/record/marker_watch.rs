//! The marker function: found before the recording, attached with it, and looked for in files that come later.

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;

use super::error::RecordError;
use super::host::monotonic_ns;
use super::options::TargetChoice;
use super::reasons::Reasons;
use crate::probes::ProbeSet;
use crate::target::ProcRoot;
use crate::target::marker::{MarkerError, MarkerFinder, MarkerName, MarkerPlace};
use crate::target::select::with_descendants;
use crate::trace::marker::{MarkerCalls, MarkerFunction};
use crate::trace::record::{Coverage, FamilyState, Record};

#[derive(Debug)]
pub(super) struct MarkerWatch {
    finder: MarkerFinder,
    /// Found and not attached.
    places: Vec<MarkerPlace>,
    /// Held open: the probes sit on these files.
    attached: Vec<MarkerPlace>,
    failures: Reasons,
    calls: u64,
    /// Of these: recorded by time slices.
    folded: u64,
    again: Again,
}

/// Which processes are looked at again, and when: a library can be loaded at any time, and nothing tells of it.
#[derive(Debug, Default)]
struct Again {
    /// In the order of their turns.
    processes: VecDeque<Process>,
    next_ns: u64,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    /// Size of its address space at the last look. What maps a library makes it larger.
    pages: u64,
    /// Turns in which the size had not changed.
    passed_over: u32,
}

/// Between two turns.
const TURN_NS: u64 = 1_000_000_000;
/// Looks take no more than this part of the time.
const SHARE: u64 = 100;
/// Processes of a turn.
const A_TURN: usize = 16;
/// Processes that are looked at again at all.
const PROCESSES: usize = 4096;
/// Turns after which a process is looked at although its size is the same.
const PASSED_OVER: u32 = 30;

impl Again {
    fn add(&mut self, pid: u32) {
        if self.processes.len() < PROCESSES && self.processes.iter().all(|known| known.pid != pid) {
            self.processes.push_back(Process { pid, pages: 0, passed_over: 0 });
        }
    }

    /// Those whose turn it is and that may have mapped something. One that is gone is forgotten.
    fn turn(&mut self, pages_of: impl Fn(u32) -> Option<u64>) -> Vec<u32> {
        let mut due = Vec::new();
        for _ in 0..self.processes.len().min(A_TURN) {
            let Some(mut process) = self.processes.pop_front() else { break };
            let Some(pages) = pages_of(process.pid) else { continue };
            process.passed_over += 1;
            if pages != process.pages || process.passed_over >= PASSED_OVER {
                (process.pages, process.passed_over) = (pages, 0);
                due.push(process.pid);
            }
            self.processes.push_back(process);
        }
        due
    }
}

impl MarkerWatch {
    /// Finds the function in the targets, or in the command that is to be started. A command may load it later.
    pub(super) fn find(
        root: &ProcRoot,
        name: &MarkerName,
        target: &TargetChoice,
        asked_for: &[u32],
        follow: bool,
    ) -> Result<MarkerWatch, RecordError> {
        let mut finder = MarkerFinder::new(root.clone(), name.clone());
        let mut again = Again::default();
        let places = if let TargetChoice::Command(program, _) = target {
            finder.in_program(program)
        } else {
            let pids = if follow { with_descendants(root, asked_for) } else { asked_for.to_vec() };
            for pid in &pids {
                again.add(*pid);
            }
            finder.in_processes(&pids)
        };
        let places = places.map_err(Box::new)?;
        let (attached, failures) = (Vec::new(), Reasons::default());
        Ok(MarkerWatch { finder, places, attached, failures, calls: 0, folded: 0, again })
    }

    /// Looks through what the process has mapped since, and attaches what was found.
    pub(super) fn look(&mut self, pid: u32, probes: &mut ProbeSet) -> Vec<Record> {
        self.again.add(pid);
        self.find_in(pid);
        self.attach(probes)
    }

    /// Looks through what some of the processes have mapped since, when it is time to.
    pub(super) fn look_again(&mut self, probes: &mut ProbeSet) -> Vec<Record> {
        let begin_ns = monotonic_ns();
        if begin_ns < self.again.next_ns {
            return Vec::new();
        }
        for pid in self.again.turn(|pid| self.finder.mapped_pages(pid)) {
            self.find_in(pid);
        }
        let took_ns = monotonic_ns().saturating_sub(begin_ns);
        self.again.next_ns = begin_ns.saturating_add(TURN_NS.max(took_ns.saturating_mul(SHARE)));
        self.attach(probes)
    }

    fn find_in(&mut self, pid: u32) {
        match self.finder.in_processes(&[pid]) {
            Ok(places) => self.places.extend(places),
            // Most processes have nothing new.
            Err(MarkerError::Unknown { .. } | MarkerError::NoLibrary { .. }) => {}
            Err(error) => self.failures.add(error),
        }
    }

    pub(super) fn attach(&mut self, probes: &mut ProbeSet) -> Vec<Record> {
        let mut records = Vec::new();
        for place in std::mem::take(&mut self.places) {
            // A command's file was found before it ran, and is found again among what the process has mapped.
            if self.attached.iter().any(|other| is_same(other, &place)) {
                continue;
            }
            let first = self.attached.first();
            if let Some(first) =
                first.filter(|first| first.module != place.module || first.function != place.function)
            {
                self.failures.add(format_args!(
                    "{}:{} of a later file is left out: {}:{} is counted",
                    place.module, place.function, first.module, first.function
                ));
                continue;
            }
            match probes.attach_marker(&place.open_path, place.offset) {
                Ok(()) => {
                    records.push(Record::MarkerFunction(MarkerFunction {
                        function: place.function.clone(),
                        module: place.module.clone(),
                        entry: place.entry,
                        probe: place.offset,
                        time_ns: monotonic_ns(),
                    }));
                    self.attached.push(place);
                }
                Err(error) => self.failures.add(format_args!("{}: {error}", place.module)),
            }
        }
        records
    }

    pub(super) fn called(&mut self, calls: &MarkerCalls) {
        self.calls = self.calls.saturating_add(calls.calls);
        if calls.calls > 1 {
            self.folded = self.folded.saturating_add(calls.calls);
        }
    }

    pub(super) fn coverage(&self) -> Coverage {
        let mut reasons = Vec::new();
        if !self.failures.is_empty() {
            reasons.push(self.failures.text());
        }
        if self.attached.is_empty() && reasons.is_empty() {
            reasons.push("no file that the targets mapped has the function".to_owned());
        }
        if self.folded > 0 {
            reasons.push(format!(
                "{} of {} calls came faster than 10000 a second and were counted by slices of 134 ms",
                self.folded, self.calls
            ));
        }
        if !self.attached.is_empty() && self.calls == 0 {
            reasons.push("the function was not called".to_owned());
        }
        let state = match (self.attached.is_empty(), reasons.is_empty()) {
            (true, _) => FamilyState::Off,
            (false, true) => FamilyState::On,
            (false, false) => FamilyState::Partial,
        };
        Coverage { family: "marker".to_owned(), state, reason: reasons.join("; ") }
    }
}

/// Whether a second probe at this place would count every call twice.
fn is_same(one: &MarkerPlace, other: &MarkerPlace) -> bool {
    let id = |place: &MarkerPlace| place.file.metadata().map(|file| (file.dev(), file.ino())).ok();
    one.offset == other.offset && id(one).is_some() && id(one) == id(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_found_by_two_ways_is_the_same() {
        let place = |path: &str, offset| MarkerPlace {
            file: std::sync::Arc::new(std::fs::File::open(path).unwrap()),
            open_path: path.into(),
            module: "job".to_owned(),
            function: "step".to_owned(),
            offset,
            entry: 0,
        };
        assert!(is_same(&place("/proc/self/exe", 4), &place("/proc/self/exe", 4)));
        assert!(!is_same(&place("/proc/self/exe", 4), &place("/proc/self/exe", 8)));
        assert!(!is_same(&place("/proc/self/exe", 4), &place("/proc/self/maps", 4)));
    }

    #[test]
    fn processes_take_turns_and_only_what_grew_is_looked_at() {
        let mut again = Again::default();
        (0..20).chain(0..20).for_each(|pid| again.add(pid));
        assert_eq!(again.turn(|_| Some(10)), (0..16).collect::<Vec<_>>());
        assert_eq!(again.turn(|_| Some(10)), [16, 17, 18, 19], "the others have not changed");
        let grown = |pid| if pid == 14 { Some(11) } else { Some(10) };
        assert_eq!(again.turn(|_| Some(10)), [] as [u32; 0]);
        let next: Vec<u32> = (0..2).flat_map(|_| again.turn(grown)).collect();
        assert_eq!(next, [14]);
        // Unmapped and mapped again, it is as large as before.
        let all: Vec<u32> = (0..2 * PASSED_OVER).flat_map(|_| again.turn(grown)).collect();
        assert!((0..20).all(|pid| all.contains(&pid)), "{all:?}");
        assert!(all.len() < 3 * 20, "{all:?}");
        // Those that are gone are forgotten.
        (0..2).for_each(|_| drop(again.turn(|pid| (pid < 3).then_some(10))));
        assert_eq!(again.processes.len(), 3);
    }

    #[test]
    fn coverage_says_what_was_not_found_not_called_or_only_counted() {
        let finder = MarkerFinder::new(ProcRoot::default(), MarkerName::parse("step").unwrap());
        let mut watch = MarkerWatch {
            finder,
            places: Vec::new(),
            attached: Vec::new(),
            failures: Reasons::default(),
            calls: 0,
            folded: 0,
            again: Again::default(),
        };
        assert_eq!(watch.coverage().state, FamilyState::Off);
        let file = std::sync::Arc::new(std::fs::File::open("/proc/self/exe").unwrap());
        let (open_path, module, function) = ("/x".into(), "job".to_owned(), "step".to_owned());
        watch.attached.push(MarkerPlace { file, open_path, module, function, offset: 4, entry: 0 });
        let row = watch.coverage();
        assert_eq!((row.state, row.reason.as_str()), (FamilyState::Partial, "the function was not called"));
        let calls = |calls| MarkerCalls { start_ns: 1, end_ns: 2, pid: 1, tid: 1, calls };
        watch.called(&calls(1));
        assert_eq!(watch.coverage().state, FamilyState::On);
        watch.called(&calls(500));
        let row = watch.coverage();
        assert_eq!(row.state, FamilyState::Partial);
        assert!(row.reason.starts_with("500 of 501 calls"), "{}", row.reason);
    }
}
