//! Devices that are opened and queue pairs that are made ready while the recording runs: they are watched before the first request is
//! posted to them, and where they lead to is told.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use super::{Record, VerbsWatch, window};
use crate::probes::ProbeSet;
use crate::probes::event::{AddressVector, PairSetup, VerbsSetup};
use crate::record::host::monotonic_ns;
use crate::target::verbs::{self, Functions, Verbs, counters, library, resource};
use crate::trace::rdma::{RdmaBirth, RdmaPeer};

/// Calls that wait to be looked at, at most: a look later finds the rest.
const SETUPS_MAX: usize = 4096;
/// Libraries with probes, at most.
const LIBRARIES_MAX: usize = 256;
/// `IBV_QPS_RTS`: requests can be posted.
const READY: u32 = 3;

impl VerbsWatch {
    /// Sees to it that what the process sets up through libibverbs is told of.
    pub fn prepare(&mut self, pid: u32, probes: &mut ProbeSet) {
        if self.max_overhead.is_none() {
            return;
        }
        let mut found = Vec::new();
        if !std::mem::replace(&mut self.prepared, true) {
            found.extend(library::of_this_machine());
        }
        let known = |id| self.libraries.iter().any(|(known, _)| *known == id);
        found.extend(library::of_process(&self.root, pid, &known));
        for (id, library) in found {
            if self.libraries.iter().any(|(known, _)| *known == id) || self.libraries.len() >= LIBRARIES_MAX {
                continue;
            }
            if let Err(reason) = probes.attach_verbs_setup(&library) {
                // Devices and queue pairs are then found by a look at memory, a little later.
                log::debug!("{}: {reason}", library.path);
            }
            self.libraries.push((id, library));
        }
    }

    pub fn note_setup(&mut self, setup: VerbsSetup) {
        if self.setups.len() < SETUPS_MAX {
            self.setups.push(setup);
        }
    }

    /// Looks at what was set up since the last call.
    pub fn set_up(&mut self, probes: &mut ProbeSet) -> Vec<Record> {
        let mut records = Vec::new();
        for setup in std::mem::take(&mut self.setups) {
            let late_us = monotonic_ns().saturating_sub(setup.time_ns) / 1000;
            log::debug!("process {}: set-up {late_us} us ago: {:?}", setup.pid, setup.pair);
            let context = match setup.pair {
                None => Some(setup.address),
                Some(_) => verbs::context_of(&self.root, setup.pid, setup.address),
            };
            if let Some(context) = context {
                self.open_context(setup.pid, context, &mut records, probes);
            }
            if let Some(pair) = setup.pair {
                self.set_up_pair(&setup, pair, &mut records, probes);
            }
        }
        records
    }

    fn open_context(&mut self, pid: u32, context: u64, records: &mut Vec<Record>, probes: &mut ProbeSet) {
        let mut verbs = match self.processes.get(&pid) {
            Some(watched) if watched.verbs.found.contexts.iter().any(|known| known.address == context) => {
                return;
            }
            Some(watched) => watched.verbs.clone(),
            None if self.processes.len() >= super::PROCESSES_MAX => return,
            None => Verbs::default(),
        };
        let Some(new) = verbs.add_context(&self.root, pid, context) else { return };
        let attached = self.attach(pid, &new, &[], probes);
        let now_ns = monotonic_ns();
        records.extend(self.count_devices(&verbs, now_ns));
        let open = self.budget.is_open();
        let watched = self.processes.entry(pid).or_default();
        watched.verbs = verbs;
        if attached && !watched.attached {
            watched.attached = true;
            watched.open_ns = open.then_some(now_ns);
            records.extend(watched.open_ns.map(|start_ns| window(pid, start_ns, 0)));
        }
        if !new.is_empty() {
            watched.since_ns = now_ns;
            log::debug!(
                "process {pid}: {} new providers, completions: {:?}",
                new.len(),
                new.iter().map(|one| &one.completion).collect::<Vec<_>>()
            );
        }
    }

    fn set_up_pair(
        &mut self,
        setup: &VerbsSetup,
        pair: PairSetup,
        records: &mut Vec<Record>,
        probes: &mut ProbeSet,
    ) {
        let pid = setup.pid;
        let Some(watched) = self.processes.get(&pid) else { return };
        let Some(found) = watched.verbs.queue_pair_at(&self.root, pid, setup.address) else { return };
        records.extend(self.tell(pid, &found, setup.time_ns).map(Record::QueuePair));
        if found.extended {
            self.watch_makers(pid, found.address, probes);
        }
        records.extend(peer(setup, pair, &found.device).map(Record::RdmaPeer));
        let Some(watched) = self.processes.get(&pid) else { return };
        let seen = watched.open_ns.is_some_and(|open_ns| open_ns.max(watched.since_ns) <= setup.time_ns);
        if pair.state == Some(READY) && seen {
            let birth = RdmaBirth { time_ns: setup.time_ns, pid, qp: pair.number };
            records.push(Record::RdmaBirth(birth));
        }
    }

    /// Watches what makes requests for this queue pair through the extended interface.
    pub(super) fn watch_makers(&mut self, pid: u32, address: u64, probes: &mut ProbeSet) {
        let Some(watched) = self.processes.get_mut(&pid) else { return };
        let makers = watched.verbs.new_makers(&self.root, pid, address);
        if !makers.is_empty() {
            log::debug!("process {pid}: {} functions make requests", makers.len());
            self.attach(pid, &[], &makers, probes);
            if let Some(watched) = self.processes.get_mut(&pid) {
                watched.since_ns = monotonic_ns();
            }
        }
    }

    pub(super) fn attach(
        &mut self,
        pid: u32,
        functions: &[Functions],
        makers: &[verbs::Maker],
        probes: &mut ProbeSet,
    ) -> bool {
        let mut attached = false;
        for functions in functions {
            match probes.attach_verbs(pid, functions, self.budget.is_open()) {
                Ok(()) => attached = true,
                Err(reason) => {
                    self.failures.add(format_args!("{}: {reason}", functions.poll_cq.path_in_target));
                }
            }
        }
        if !makers.is_empty()
            && let Err(reason) = probes.attach_verbs_makers(pid, makers, self.budget.is_open())
        {
            self.gaps.add(format_args!("posts through ibv_wr_* are not seen: {reason}"));
        }
        attached
    }
}

/// Where queue pairs lead to that were there before the watch, as the kernel tells it.
pub(super) fn older_peers(pid: u32, found: &verbs::Found, time_ns: u64) -> Vec<Record> {
    let devices: BTreeSet<&str> = found.queue_pairs.iter().map(|pair| pair.device.as_str()).collect();
    let mut records = Vec::new();
    for device in devices {
        let resources = match resource::of_device(device) {
            Ok(resources) => resources,
            Err(error) => {
                // Their peers are then not known.
                log::debug!("queue pairs of {device}: {error}");
                continue;
            }
        };
        let own: BTreeSet<u32> =
            found.queue_pairs.iter().filter(|pair| pair.device == device).map(|pair| pair.number).collect();
        // By their numbers alone: the kernel counts processes in another namespace for some.
        let known = resources.iter().filter(|one| own.contains(&one.number));
        records.extend(known.filter(|one| one.peer_qp.is_some() || one.peer.is_some()).map(|one| {
            let gid = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            Record::RdmaPeer(RdmaPeer {
                time_ns,
                pid,
                qp: one.number,
                peer_qp: one.peer_qp,
                peer_gid: one.peer.map(gid),
                local_gid: one.local.map(gid),
            })
        }));
    }
    records
}

/// Where the queue pair leads to, as far as the call says.
fn peer(setup: &VerbsSetup, pair: PairSetup, device: &str) -> Option<RdmaPeer> {
    let local = |vector: &AddressVector| {
        counters::gid(&counters::folder(), device, vector.port.into(), vector.gid_index.into())
    };
    let vector = pair.vector.filter(|vector| vector.gid.is_some());
    (pair.peer_qp.is_some() || vector.is_some()).then(|| RdmaPeer {
        time_ns: setup.time_ns,
        pid: setup.pid,
        qp: pair.number,
        peer_qp: pair.peer_qp,
        peer_gid: vector.and_then(|vector| vector.gid).map(Ipv6Addr::from),
        local_gid: vector.as_ref().and_then(local),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_told_where_the_call_names_one() {
        let setup = VerbsSetup { time_ns: 5, pid: 7, ..VerbsSetup::default() };
        let pair = PairSetup { number: 9, state: Some(1), ..PairSetup::default() };
        assert_eq!(peer(&setup, pair, "none0"), None);
        let vector = AddressVector { gid: Some([1; 16]), port: 1, ..AddressVector::default() };
        let named =
            peer(&setup, PairSetup { peer_qp: Some(18), vector: Some(vector), ..pair }, "none0").unwrap();
        assert_eq!((named.time_ns, named.pid, named.qp, named.peer_qp), (5, 7, 9, Some(18)));
        assert_eq!((named.peer_gid, named.local_gid), (Some(Ipv6Addr::from([1; 16])), None));
        let local = AddressVector { gid: None, ..vector };
        assert_eq!(peer(&setup, PairSetup { vector: Some(local), ..pair }, "none0"), None);
    }
}
