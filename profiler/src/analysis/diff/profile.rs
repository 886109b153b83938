//! What a diff needs of one recording: times by cause, peer and call site, with their course over time. Its size is
//! that of the call sites and peers, not of the waits.

use std::collections::{BTreeMap, BTreeSet};

use super::course::{Course, Iterations};
use super::name::{PeerNames, plain_frames};
use super::series::{Durations, SLICES, Series};
use super::stacks::{Side, Sides};
use crate::analysis::Analysis;
use crate::analysis::report::TraceState;
use crate::analysis::stall::Stall;
use crate::model::cause::Cause;
use crate::render::tree::{Labels, StackFolder, Words, stall_frames};

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

    /// Adds the stalls by frames that another run has too.
    pub fn add_stacks(&self, peers: &PeerNames<'_>, side: Side, sides: &mut Sides) {
        let labels = Labels::without_ids(&self.names, &self.sites);
        let peer = |peer: &str| peers.name(peer);
        let words = Words { frames: &plain_frames, peer: &peer };
        let mut folder = StackFolder::new(&self.names, &labels, false, Some(words));
        for site in &self.sites {
            let leaf = folder.leaf_of(&mut sides.tree, site);
            sides.add(side, site.cause, leaf, site.weight_ns);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::trace::record::{Frame, Space, Stack};

    #[test]
    fn stacks_that_are_put_into_words_once_are_those_of_each_call_site() {
        let mut random = Random(3);
        let mut profile = Profile::default();
        let names = ["main", "worker3", "jit_0x7f12aa0010", "poll", "a;b", ""];
        for id in 1..9 {
            let frames = (0..random.below(5)).map(|_| Frame {
                function: names[random.below(names.len())].to_owned(),
                module: "libc.so.6".to_owned(),
                offset: 7,
            });
            let frames = frames.collect();
            let (space, truncated) = (Space::User, random.below(3) == 0);
            profile.names.stacks.insert(id, Stack { id, space, frames, truncated });
        }
        for id in 0..4 {
            profile.names.processes.insert(id, ["python3", "pool-7"][random.below(2)].to_owned());
            profile.names.threads.insert(id, ["python3", "pool-7", "pool-8", ""][random.below(4)].to_owned());
        }
        for _ in 0..300 {
            profile.sites.push(Stall {
                pid: random.below(4) as u32,
                tid: random.below(4) as u32,
                cause: [Cause::SockRecv, Cause::TcpConnect][random.below(2)],
                peer: ["10.0.0.1:80", "10.0.0.2:40001", "10.0.0.2:40002", ""][random.below(4)].to_owned(),
                detail: ["", "refused 3"][random.below(2)].to_owned(),
                start_ns: 0,
                end_ns: 0,
                weight_ns: random.below(1000) as u64,
                in_flight: false,
                began_earlier: false,
                user_stack: random.below(10) as u64,
                kernel_stack: 0,
                api: "",
                call: ["poll", "recvfrom"][random.below(2)],
            });
        }
        let known = profile.peers().filter(|peer| peer.ends_with('1')).collect();
        let peers = PeerNames::new(&known, &known);
        let labels = Labels::without_ids(&profile.names, &profile.sites);
        let (mut plain, mut sides) = (Sides::default(), Sides::default());
        for site in &profile.sites {
            let named = Stall { peer: peers.name(&site.peer), ..site.clone() };
            let names = plain_frames(&stall_frames(&profile.names, &labels, &named));
            let kind = crate::render::tree::FrameKind::User;
            let frames = names.into_iter().map(|name| crate::render::tree::ViewFrame { name, kind });
            let frames: Vec<_> = frames.collect();
            let leaf = plain.tree.descend(crate::render::tree::NodeId::ROOT, &frames);
            plain.add(Side::After, site.cause, leaf, site.weight_ns);
        }
        profile.add_stacks(&peers, Side::After, &mut sides);
        let units = (1.0, 1.0);
        let (told, expected) =
            (super::super::stacks::compare(&sides, units), super::super::stacks::compare(&plain, units));
        assert!(told.rows.len() > 20);
        assert_eq!(told, expected);
    }
}
