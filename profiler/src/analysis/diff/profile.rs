//! What a diff needs of one recording: times by cause, peer and call site, with their course over time. Its size is
//! that of the call sites and peers, not of the waits.

use std::collections::{BTreeMap, BTreeSet};

use super::name::{PeerNames, plain_frames};
use super::series::{Durations, SLICES, Series};
use crate::analysis::Analysis;
use crate::analysis::report::TraceState;
use crate::analysis::stall::Stall;
use crate::model::cause::Cause;
use crate::render::tree::{FrameKind, Labels, ViewFrame, stall_frames};

/// Stalled time of a cause by slice, nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct CauseSeries {
    /// Each wait as a whole where it ended: what belongs to the waits that are counted there.
    pub ended: Series,
    /// Each wait where it was: what belongs to the seconds.
    pub spread: Series,
}

impl Default for CauseSeries {
    fn default() -> CauseSeries {
        CauseSeries { ended: [0.0; SLICES], spread: [0.0; SLICES] }
    }
}

/// Waits on a peer in one direction.
#[derive(Clone, Debug)]
pub struct SocketWaits {
    pub peer: String,
    pub direction: &'static str,
    pub durations: Durations,
}

/// A call site with the number of its waits that came to an end by slice.
#[derive(Clone, Debug)]
pub struct Repeat {
    /// Without cause and peer.
    pub site: Stall,
    pub counts: Box<[u32; SLICES]>,
}

/// Stalled nanoseconds by cause and frames, outermost frame first.
pub type Stacks = BTreeMap<(Cause, Vec<String>), u64>;

/// One recording.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub duration_ns: u64,
    pub stalled_ns: u64,
    pub state: TraceState,
    pub lost_events: u64,
    /// Values by name.
    pub environment: BTreeMap<String, BTreeSet<String>>,
    pub causes: BTreeMap<Cause, CauseSeries>,
    pub sockets: Vec<SocketWaits>,
    /// Round-trip times by address.
    pub hops: BTreeMap<String, Durations>,
    /// One entry a call site, peer and cause; the times of its waits are added up.
    pub sites: Vec<Stall>,
    pub repeats: Vec<Repeat>,
    /// Waits at call sites that were too many to be told apart.
    pub merged_waits: u64,
    /// Stacks and names of processes and threads.
    pub names: Analysis,
}

impl Profile {
    /// The peers of all stalls.
    pub fn peers(&self) -> impl Iterator<Item = &str> {
        let of_sites = self.sites.iter().map(|site| site.peer.as_str());
        of_sites.chain(self.sockets.iter().map(|row| row.peer.as_str()))
    }

    /// The stalls by frames that another run has too.
    pub fn stacks(&self, peers: &PeerNames<'_>) -> Stacks {
        let labels = Labels::of_stalls(&self.names, &self.sites);
        let mut stacks = Stacks::new();
        for site in &self.sites {
            let plain = Stall { peer: peers.name(&site.peer), ..site.clone() };
            let frames = plain_frames(&stall_frames(&self.names, &labels, &plain));
            let weight = stacks.entry((site.cause, frames)).or_default();
            *weight = weight.saturating_add(site.weight_ns);
        }
        stacks
    }

    /// Stalled time by process and thread, under the names of [`Profile::call_sites`].
    pub fn threads(&self) -> BTreeMap<Vec<String>, u64> {
        let labels = Labels::of_stalls(&self.names, &self.sites);
        let mut threads: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        let mut by_id: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for site in &self.sites {
            let weight = by_id.entry((site.pid, site.tid)).or_default();
            *weight = weight.saturating_add(site.weight_ns);
        }
        for ((pid, tid), weight_ns) in by_id {
            let names = [labels.process(pid), labels.thread(pid, tid)];
            let frames = names.map(|name| ViewFrame::new(&name, FrameKind::Task));
            let sum = threads.entry(plain_frames(&frames)).or_default();
            *sum = sum.saturating_add(weight_ns);
        }
        threads
    }

    /// The call sites by frames, without the frame for cause and peer, with the waits that ended in each slice.
    pub fn call_sites(&self) -> BTreeMap<Vec<String>, Series> {
        let labels = Labels::of_stalls(&self.names, &self.sites);
        let mut sites: BTreeMap<Vec<String>, Series> = BTreeMap::new();
        for repeat in &self.repeats {
            let mut frames = plain_frames(&stall_frames(&self.names, &labels, &repeat.site));
            frames.pop();
            let series = sites.entry(frames).or_insert([0.0; SLICES]);
            for (sum, count) in series.iter_mut().zip(repeat.counts.iter()) {
                *sum += f64::from(*count);
            }
        }
        sites
    }
}
