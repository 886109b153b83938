//! What the agents in CUDA processes tell.

use super::Collector;
use crate::record::gpu_thread::{GpuThread, coverage};
use crate::record::options::{GpuTimes, RecordOptions};
use crate::trace::record::{FamilyState, Record};

impl Collector {
    /// From now on processes that come in are entered, where GPU times are wanted.
    pub fn watch_gpus(&mut self, thread: Option<GpuThread>) {
        self.gpu = thread;
    }

    pub(super) fn enter_gpu(&self, pid: u32) {
        if let Some(gpu) = &self.gpu {
            gpu.enter(pid);
        }
    }

    pub(super) fn leave_gpu(&self, pid: u32) {
        if let Some(gpu) = &self.gpu {
            gpu.leave(pid);
        }
    }

    pub(super) fn take_gpu(&mut self) {
        let records: Vec<Record> = self.gpu.iter().flat_map(GpuThread::take).collect();
        for record in records {
            self.write(record);
        }
    }

    /// Lets the agents leave, takes the last of what they told, and says how complete it is.
    pub fn finish_gpus(&mut self, options: &RecordOptions) {
        let reason = match options.gpu {
            GpuTimes::NotAsked => "not asked for (--probes)",
            GpuTimes::NotInjected => "not wanted (--no-inject)",
            GpuTimes::Wanted => "",
        };
        let records = match self.gpu.take() {
            Some(gpu) => gpu.finish(),
            None => vec![coverage(FamilyState::Off, reason)],
        };
        for record in records {
            self.write(record);
        }
    }
}
