//! The marker function on its way into the trace.

use super::Collector;
use crate::probes::ProbeSet;
use crate::record::marker_watch::MarkerWatch;
use crate::trace::marker::MarkerCalls;
use crate::trace::record::Record;

impl Collector {
    /// Counts the calls of a function that was found.
    pub(in crate::record) fn watch_marker(&mut self, watch: Option<MarkerWatch>) {
        self.marker = watch;
    }

    /// Attaches what was found before.
    pub(in crate::record) fn attach_marker(&mut self, probes: &mut ProbeSet) {
        let records = self.marker.as_mut().map(|marker| marker.attach(probes)).unwrap_or_default();
        for record in records {
            self.write(record);
        }
    }

    /// Looks for the function in what the process has mapped since.
    pub(super) fn find_marker(&mut self, pid: u32, probes: &mut ProbeSet) {
        let records = self.marker.as_mut().map(|marker| marker.look(pid, probes)).unwrap_or_default();
        for record in records {
            self.write(record);
        }
    }

    /// The same from time to time in what the processes have mapped since: a library can be loaded at any time.
    pub(super) fn find_marker_again(&mut self, probes: &mut ProbeSet) {
        let records = self.marker.as_mut().map(|marker| marker.look_again(probes)).unwrap_or_default();
        for record in records {
            self.write(record);
        }
    }

    pub(super) fn marker_called(&mut self, calls: MarkerCalls) {
        self.totals.events += 1;
        if let Some(marker) = &mut self.marker {
            marker.called(&calls);
        }
        self.write(Record::MarkerCalls(calls));
    }
}
