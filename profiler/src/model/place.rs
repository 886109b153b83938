//! Where GPUs and network adapters sit, and who uses them.

use std::collections::{BTreeMap, BTreeSet};

use crate::trace::place::{DeviceUse, PciDevice, PciRole, RdmaPort, ThreadPlace};

/// No machine has as many; more in a trace is damage.
const DEVICES_MAX: usize = 16384;
const USES_MAX: usize = 1 << 16;
const PORTS_MAX: usize = 8192;
const THREADS_MAX: usize = 16384;
/// Bridges above one device, at most.
const DEPTH_MAX: usize = 64;

/// What the trace says of places. Impossible amounts are cut, and bridges that lie above themselves end the way up.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// By address.
    pub devices: BTreeMap<String, PciDevice>,
    pub ports: BTreeMap<(String, u32), RdmaPort>,
    /// Process and device's name.
    pub uses: BTreeSet<(u32, String)>,
    /// How often a thread was seen on each node.
    pub threads: BTreeMap<(u32, u32), BTreeMap<i32, u64>>,
}

impl Place {
    pub fn add_device(&mut self, device: PciDevice) {
        if self.devices.len() < DEVICES_MAX {
            self.devices.insert(device.address.clone(), device);
        }
    }

    pub fn add_port(&mut self, port: RdmaPort) {
        if self.ports.len() < PORTS_MAX {
            self.ports.insert((port.device.clone(), port.port), port);
        }
    }

    pub fn add_use(&mut self, one: DeviceUse) {
        if self.uses.len() < USES_MAX {
            self.uses.insert((one.pid, one.device));
        }
    }

    pub fn add_thread(&mut self, place: ThreadPlace) {
        let room = self.threads.len() < THREADS_MAX;
        let key = (place.pid, place.tid);
        if place.node < 0 || place.node > 4096 || (!room && !self.threads.contains_key(&key)) {
            return;
        }
        *self.threads.entry(key).or_default().entry(place.node).or_default() += 1;
    }

    /// The device and the bridges above it, up to the root complex.
    pub fn way_up<'a>(&'a self, device: &'a PciDevice) -> Vec<&'a PciDevice> {
        let mut way = vec![device];
        let mut address = &device.parent;
        while way.len() < DEPTH_MAX
            && let Some(bridge) = self.devices.get(address)
        {
            if way.iter().any(|known| known.address == bridge.address) {
                break;
            }
            way.push(bridge);
            address = &bridge.parent;
        }
        way
    }

    /// The lowest bridge above both.
    pub fn common<'a>(&'a self, one: &'a PciDevice, other: &'a PciDevice) -> Option<&'a PciDevice> {
        let way = self.way_up(other);
        let mut up = self.way_up(one).into_iter().skip(1);
        up.find(|bridge| way.iter().skip(1).any(|known| known.address == bridge.address))
    }

    pub fn named(&self, name: &str) -> Option<&PciDevice> {
        self.devices.values().find(|device| !name.is_empty() && device.name == name)
    }

    /// Devices of a role that a process has open.
    pub fn used(&self, pid: u32, role: PciRole) -> Vec<&PciDevice> {
        let of_pid = self.uses.iter().filter(|(user, _)| *user == pid);
        of_pid.filter_map(|(_, name)| self.named(name)).filter(|device| device.role == role).collect()
    }

    pub fn pids(&self) -> BTreeSet<u32> {
        self.uses.iter().map(|(pid, _)| *pid).collect()
    }

    /// Devices that any process has open, once.
    pub fn all_used(&self) -> Vec<&PciDevice> {
        let names: BTreeSet<&str> = self.uses.iter().map(|(_, name)| name.as_str()).collect();
        self.devices.values().filter(|device| names.contains(device.name.as_str())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(address: &str, parent: &str) -> PciDevice {
        PciDevice { address: address.into(), parent: parent.into(), ..PciDevice::default() }
    }

    #[test]
    fn the_lowest_bridge_above_two_devices_is_theirs() {
        let mut place = Place::default();
        for (address, parent) in
            [("r", ""), ("u", "r"), ("d1", "u"), ("d2", "u"), ("nic", "d1"), ("gpu", "d2"), ("x", "")]
        {
            place.add_device(device(address, parent));
        }
        let at = |address: &str| place.devices.get(address).unwrap();
        assert_eq!(place.common(at("nic"), at("gpu")), Some(at("u")));
        assert_eq!(place.common(at("nic"), at("x")), None);
        let way: Vec<&str> = place.way_up(at("gpu")).iter().map(|one| one.address.as_str()).collect();
        assert_eq!(way, ["gpu", "d2", "u", "r"]);
    }

    #[test]
    fn bridges_above_themselves_end_the_way() {
        let mut place = Place::default();
        for (address, parent) in [("a", "b"), ("b", "c"), ("c", "a"), ("self", "self")] {
            place.add_device(device(address, parent));
        }
        assert_eq!(place.way_up(&place.devices["a"]).len(), 3);
        assert_eq!(place.way_up(&place.devices["self"]).len(), 1);
    }
}
