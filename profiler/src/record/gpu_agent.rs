//! A process with an agent, as its recorder knows it: kernels and copies wait here for their launches.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use profiler_common::agent::{Kind, State};

use crate::agent::Loaded;
use crate::agent::ring::Activity;
use crate::trace::gpu::{GpuActivity, GpuWhat};
use crate::trace::record::{Environment, Record};

/// Launches that are remembered, of each process.
const LAUNCHES: usize = 1 << 18;
/// An activity whose launch has not come after this is written without.
const LATE: Duration = Duration::from_millis(700);

pub(super) struct Agent {
    pub pid: u32,
    pub loaded: Loaded,
    /// Ids of names by the agent's hash.
    pub names: HashMap<u64, u32>,
    /// Beginning of each launch by its correlation.
    launches: HashMap<u32, u64>,
    launch_order: VecDeque<u32>,
    /// Activities whose launch may still come.
    pending: VecDeque<(Instant, Activity)>,
    pub damaged: u64,
    pub told: Option<State>,
    /// When the recorder began to enter the process.
    pub begun: Instant,
    /// A kernel or a copy has come.
    pub has_begun_to_tell: bool,
}

impl Agent {
    pub fn new(pid: u32, loaded: Loaded, begun: Instant) -> Agent {
        Agent {
            pid,
            loaded,
            names: HashMap::new(),
            launches: HashMap::new(),
            launch_order: VecDeque::new(),
            pending: VecDeque::new(),
            damaged: 0,
            told: None,
            begun,
            has_begun_to_tell: false,
        }
    }

    pub fn launched(&mut self, launch: &Activity) {
        if self.launch_order.len() >= LAUNCHES
            && let Some(oldest) = self.launch_order.pop_front()
        {
            self.launches.remove(&oldest);
        }
        // The runtime's call and the driver's within it have one correlation: the outer one began first.
        if let Some(known) = self.launches.get_mut(&launch.correlation) {
            *known = (*known).min(launch.start_ns);
        } else {
            self.launches.insert(launch.correlation, launch.start_ns);
            self.launch_order.push_back(launch.correlation);
        }
    }

    /// A kernel or a copy that came at `now`.
    pub fn came(&mut self, now: Instant, activity: Activity) {
        self.pending.push_back((now, activity));
    }

    /// Takes out the activities whose launches are known, and those that have waited long enough, or `all`.
    pub fn settled(&mut self, now: Instant, all: bool) -> Vec<GpuActivity> {
        let mut settled = Vec::new();
        for (came, activity) in std::mem::take(&mut self.pending) {
            let launch = self.launches.get(&activity.correlation).copied();
            if launch.is_none() && !all && now.duration_since(came) < LATE {
                self.pending.push_back((came, activity));
                continue;
            }
            let what = match activity.kind {
                Kind::Copy => GpuWhat::Copy { kind: u32::from(activity.detail), bytes: activity.bytes },
                _ => GpuWhat::Kernel(self.names.get(&activity.name).copied().unwrap_or(0)),
            };
            settled.push(GpuActivity {
                pid: self.pid,
                device: activity.device,
                stream: activity.stream,
                what,
                start_ns: activity.start_ns,
                end_ns: activity.end_ns,
                queue_ns: launch.and_then(|launch| activity.start_ns.checked_sub(launch)),
            });
        }
        settled
    }

    /// How long ago the recorder began to enter the process, milliseconds.
    pub fn since(&self, what: &str) -> Record {
        let value = format!("{:.1} ms", self.begun.elapsed().as_secs_f64() * 1e3);
        Record::Environment(Environment { what: what.into(), value, pid: self.pid })
    }
}
