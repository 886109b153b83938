//! Places of devices, and ports' counters, on their way into the trace.

use super::Collector;
use crate::record::host::monotonic_ns;
use crate::record::place::PlaceWatch;
use crate::target::place::SysRoot;

impl Collector {
    /// Looks at the devices of the targets from now on.
    pub fn watch_place(&mut self, wanted: bool) {
        self.place = PlaceWatch::new(self.root.clone(), SysRoot::default(), wanted);
    }

    pub fn look_at_place(&mut self) {
        let pids: Vec<u32> = self.targets.pids().collect();
        let records = self.place.tick(pids.into_iter(), monotonic_ns());
        for record in records {
            self.write(record);
        }
    }

    /// What ports have counted when the recording ends.
    pub fn finish_place(&mut self, end_ns: u64) {
        for record in self.place.finish(end_ns) {
            self.write(record);
        }
    }
}
