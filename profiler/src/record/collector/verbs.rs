//! RDMA verbs on their way into the trace.

use super::Collector;
use crate::probes::ProbeSet;
use crate::probes::event::Event;
use crate::record::host::monotonic_ns;
use crate::record::verbs_watch::VerbsWatch;
use crate::trace::record::Record;

impl Collector {
    /// Verbs are to be watched as long as the targets lose no more than this share of a core by it.
    pub fn watch_verbs(&mut self, max_overhead: Option<f64>) {
        self.verbs = VerbsWatch::new(self.root.clone(), max_overhead);
    }

    pub(super) fn verbs_event(&mut self, event: &Event) {
        match event {
            Event::RdmaPost(post, address) => {
                self.totals.events += 1;
                self.place.posted(post.pid, post.tid);
                if let Some(pair) = self.verbs.posted(post, *address) {
                    self.write(Record::QueuePair(pair));
                }
                self.write(Record::RdmaPost(*post));
            }
            Event::RdmaCompletion(completion) => {
                self.totals.events += 1;
                self.verbs.completed();
                self.write(Record::RdmaCompletion(*completion));
            }
            Event::RdmaEntry(entry) => {
                self.totals.events += 1;
                self.write(Record::RdmaEntry(*entry));
            }
            Event::VerbsSetup(setup) => self.verbs.note_setup(*setup),
            Event::RdmaAnchor(anchor) => self.write(Record::RdmaAnchor(*anchor)),
            // Images stay with the probes.
            _ => {}
        }
    }

    /// Watches the process's verbs, where it has any that are not watched.
    pub fn find_verbs(&mut self, pid: u32, probes: &mut ProbeSet) {
        self.verbs.prepare(pid, probes);
        self.look_at_verbs(pid, probes);
    }

    fn look_at_verbs(&mut self, pid: u32, probes: &mut ProbeSet) {
        let records = self.verbs.look(pid, monotonic_ns(), probes);
        self.write_all(records);
    }

    /// Looks for devices that processes have opened meanwhile.
    pub fn refresh_verbs(&mut self, probes: &mut ProbeSet) {
        let pids: Vec<u32> = self.targets.pids().collect();
        for pid in pids {
            self.look_at_verbs(pid, probes);
        }
    }

    /// Watches verbs in windows only where more costs the targets too much.
    pub(super) fn check_verbs(&mut self, now_ns: u64, probes: &mut ProbeSet) {
        let records = self.verbs.set_up(probes);
        self.write_all(records);
        let records = self.verbs.check(now_ns, probes);
        self.write_all(records);
    }

    pub(super) fn leave_verbs(&mut self, pid: u32) {
        let records = self.verbs.leave(pid, monotonic_ns());
        self.write_all(records);
    }

    /// What verbs leave to be written when the recording ends.
    pub fn finish_verbs(&mut self, end_ns: u64) {
        let records = self.verbs.finish(end_ns);
        self.write_all(records);
    }

    fn write_all(&mut self, records: Vec<Record>) {
        for record in records {
            self.write(record);
        }
    }
}
