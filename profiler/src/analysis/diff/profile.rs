//! What a diff needs of one recording: times by cause, peer and call site, with their course over time. Its size is
//! that of the call sites and peers, not of the waits.

use std::collections::{BTreeMap, BTreeSet};

use super::course::{Course, Iterations};
use super::name::{PeerNames, plain_frames};
use super::series::{Durations, SLICES, Series};
use crate::analysis::Analysis;
use crate::analysis::report::TraceState;
use crate::analysis::stall::Stall;
use crate::model::cause::Cause;
use crate::render::tree::{Labels, stall_frames};

/// Waits on a peer in one direction.
#[derive(Clone, Debug)]
pub struct SocketWaits {
    pub peer: String,
    pub direction: &'static str,
    pub durations: Durations,
}

/// A call site with its waits that came to an end. Each counts over the time since the one before, so that a loop
/// whose turns are longer than a slice has the same part of a turn in each.
#[derive(Clone, Debug)]
pub struct Repeat {
    /// Without cause; of several peers awaited at once the first.
    pub site: Stall,
    pub counts: Box<Series>,
}

/// Stalled nanoseconds by cause and frames, outermost frame first.
pub type Stacks = BTreeMap<(Cause, Vec<String>), u64>;

/// One recording.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub duration_ns: u64,
    /// How it is cut into slices.
    pub course: Course,
    /// Calls of the marker.
    pub iterations: Option<Iterations>,
    pub stalled_ns: u64,
    pub state: TraceState,
    pub lost_events: u64,
    /// Values by name.
    pub environment: BTreeMap<String, BTreeSet<String>>,
    /// Stalled nanoseconds by slice.
    pub causes: BTreeMap<Cause, Series>,
    pub sockets: Vec<SocketWaits>,
    /// Round-trip times by address.
    pub hops: BTreeMap<String, Durations>,
    /// One entry a call site, peer and cause; the times of its waits are added up.
    pub sites: Vec<Stall>,
    pub repeats: Vec<Repeat>,
    /// CPU time by pid and tid, nanoseconds.
    pub running: BTreeMap<(u32, u32), u64>,
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
        let labels = Labels::without_ids(&self.names, &self.sites);
        let mut stacks = Stacks::new();
        for site in &self.sites {
            let plain = Stall { peer: peers.name(&site.peer), ..site.clone() };
            let frames = plain_frames(&stall_frames(&self.names, &labels, &plain));
            let weight = stacks.entry((site.cause, frames)).or_default();
            *weight = weight.saturating_add(site.weight_ns);
        }
        stacks
    }

    /// The call sites by frames and peer, with the waits that ended in each slice; and the CPU time of their
    /// threads.
    pub fn call_sites(&self, peers: &PeerNames<'_>) -> CallSites {
        let labels = Labels::without_ids(&self.names, &self.sites);
        let mut found = CallSites::default();
        let mut threads: BTreeMap<(u32, u32), Vec<String>> = BTreeMap::new();
        for repeat in &self.repeats {
            let mut frames = plain_frames(&stall_frames(&self.names, &labels, &repeat.site));
            frames.pop();
            frames.push(peers.name(&repeat.site.peer));
            threads.entry((repeat.site.pid, repeat.site.tid)).or_insert_with(|| thread_of(&frames).to_vec());
            let series = found.waits.entry(frames).or_insert([0.0; SLICES]);
            for (sum, count) in series.iter_mut().zip(repeat.counts.iter()) {
                *sum += count;
            }
        }
        for (thread, name) in threads {
            *found.running.entry(name).or_default() += self.running.get(&thread).map_or(0.0, |ns| *ns as f64);
        }
        found
    }
}

/// What recurs in a recording, by frames.
#[derive(Clone, Debug, Default)]
pub struct CallSites {
    /// The last name is the peer's.
    pub waits: BTreeMap<Vec<String>, Series>,
    /// CPU time by process and thread.
    pub running: BTreeMap<Vec<String>, f64>,
}

impl CallSites {
    /// The same whatever the peer.
    #[must_use]
    pub fn of_any_peer(&self) -> CallSites {
        let mut waits: BTreeMap<Vec<String>, Series> = BTreeMap::new();
        for (site, counts) in &self.waits {
            let frames = site.split_last().map_or(&[][..], |(_, frames)| frames);
            let series = waits.entry(frames.to_vec()).or_insert([0.0; SLICES]);
            for (sum, count) in series.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        CallSites { waits, running: self.running.clone() }
    }
}

/// Process and thread of a call site.
pub fn thread_of(site: &[String]) -> &[String] {
    site.get(..2).unwrap_or(site)
}
