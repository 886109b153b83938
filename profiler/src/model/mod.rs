//! What a trace means: threads, spans, peers and causes, without any view of them.

use std::collections::{BTreeMap, HashMap};

use self::packed::Portion;
use self::thread::{Interval, StoredThread, ThreadTrack};
use self::wait::WaitSpan;
use crate::trace::record::{
    ApiCall, CallCount, Clock, Coverage, DnsMessage, Environment, Handshake, Host, Process, Retransmit,
    SocketSample, Stack, TopologyFile, Window,
};

pub mod asleep;
pub mod block;
pub mod bounds;
pub mod build;
pub mod cause;
pub mod cuda;
pub mod dns;
#[cfg(test)]
pub mod fixture;
mod gil;
pub mod gpu;
pub mod intern;
pub mod marker;
pub mod owners;
pub mod packed;
pub mod place;
pub mod python;
pub mod queue;
pub mod setup;
pub mod socket;
pub mod thread;
pub mod topology;
pub mod wait;

/// Everything that a trace says, sorted and without contradictions. Made by [`Model::from_records`].
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub host: Host,
    pub clock: Option<Clock>,
    /// `end_ns` is always set: the recording's end, or the latest time in the trace of a killed recorder.
    pub window: Window,
    pub environment: Vec<Environment>,
    pub coverage: Vec<Coverage>,
    /// By pid.
    pub processes: BTreeMap<u32, Process>,
    /// Latest name by tid.
    pub thread_names: HashMap<u32, String>,
    /// By pid and tid.
    pub threads: Vec<thread::StoredThread>,
    /// By time.
    pub dns_messages: Vec<DnsMessage>,
    /// By time.
    pub api_calls: Vec<ApiCall>,
    /// By start.
    pub handshakes: Vec<Handshake>,
    /// By time.
    pub retransmits: Vec<Retransmit>,
    /// By time.
    pub samples: Vec<SocketSample>,
    pub stacks: HashMap<u64, Stack>,
    /// Which of them have Python functions.
    pub python: python::PythonStacks,
    /// Last totals of each call.
    pub calls: Vec<CallCount>,
    /// Last total of each kind of loss, and whether whole events are missing.
    pub losses: BTreeMap<String, (u64, bool)>,
    /// Sockets that waits refer to.
    pub sockets: socket::SocketTable,
    /// Sets of descriptors that waits refer to.
    pub sets: wait::SetTable,
    /// Who holds locks that are waited for.
    pub owners: owners::Owners,
    /// What packed waits refer to.
    pub waits: packed::WaitTables,
    /// How many of them are analysed at once.
    pub portion_len: packed::PortionLen,
    /// Names of peers.
    pub names: intern::Interner,
    /// Verbs: queue pairs, posts, completions.
    pub rdma: queue::Rdma,
    /// The kernel's side of verbs.
    pub setups: setup::Setups,
    /// Calls of the marker function.
    pub marker: marker::Markers,
    /// Where GPUs and adapters sit.
    pub place: place::Place,
    /// What ran on GPUs.
    pub gpu: gpu::Gpu,
    /// What of the trace was too much to keep.
    pub bounds: bounds::Bounds,
    /// The topology that the recording was given, as it stands in the trace.
    pub topology: Option<TopologyFile>,
}

impl Model {
    /// The thread with a portion of its waits; and how many waits of the portion are left out because they are there
    /// twice.
    pub fn portion(&self, thread: &StoredThread, portion: &Portion) -> (ThreadTrack, u64) {
        let (mut waits, duplicates) = thread.waits.unpack(portion, &self.waits);
        let (pid, tid) = (thread.track.pid, thread.track.tid);
        for wait in waits.iter_mut().filter(|wait| wait.owner != 0) {
            wait.owner = self.owners.resolve(pid, tid, wait.owner);
        }
        (ThreadTrack { first: portion.first, waits, ..thread.track.clone() }, duplicates)
    }

    /// All portions of all threads, in order, with the index of the thread.
    pub fn portions(&self) -> Vec<(usize, Portion)> {
        let threads = self.threads.iter().enumerate();
        threads
            .flat_map(|(at, thread)| {
                thread.waits.portions(self.portion_len).into_iter().map(move |one| (at, one))
            })
            .collect()
    }

    /// The recording window as an interval.
    pub fn whole(&self) -> Interval {
        Interval { start_ns: self.window.start_ns, end_ns: self.window.end_ns }
    }

    /// Events that are missing as a whole.
    pub fn lost_events(&self) -> u64 {
        // Traces of before say of kernels in flight that they were lost.
        let lost = self.losses.iter().filter(|(what, (_, events))| *events && *what != "gpu_unfinished");
        lost.map(|(_, (count, _))| *count).fold(0, u64::saturating_add)
    }

    /// Whether `part` of `wait` reaches to the wait's end and that end was not seen in the recording.
    pub fn is_in_flight(&self, track: &ThreadTrack, wait: &WaitSpan, part: Interval) -> bool {
        let unended = wait.flags.in_flight || wait.end_ns > self.window.end_ns;
        unended && part.end_ns >= wait.end_ns.min(track.presence.end_ns)
    }

    /// Whether `part` of `wait` begins with the wait and that began before the recording.
    pub fn began_earlier(&self, track: &ThreadTrack, wait: &WaitSpan, part: Interval) -> bool {
        let earlier = wait.flags.began_earlier || wait.start_ns < self.window.start_ns;
        earlier && part.start_ns <= wait.start_ns.max(track.presence.start_ns)
    }
}
