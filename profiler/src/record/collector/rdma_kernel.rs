//! The kernel's side of RDMA on its way into the trace.

use super::Collector;
use crate::probes::ProbeSet;
use crate::trace::record::Record;

impl Collector {
    /// Says which of the kernel's RDMA functions are watched.
    pub fn write_rdma_kernel(&mut self, probes: &ProbeSet) {
        if let Some(row) = probes.rdma_kernel_environment() {
            self.write(Record::Environment(row));
        }
    }

    /// What all calls add up to so far.
    pub(super) fn write_rdma_totals(&mut self, probes: &ProbeSet) {
        let (calls, commands) = probes.rdma_kernel_totals();
        for totals in calls {
            self.write(Record::RdmaSetupTotals(totals));
        }
        for totals in commands {
            self.write(Record::RdmaCommandTotals(totals));
        }
    }
}
