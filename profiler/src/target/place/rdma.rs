//! RDMA devices and their ports, as sysfs shows them.

use super::pci::is_address;
use super::tree::{SysRoot, is_plain};
use crate::trace::place::{Gid, RdmaPort};

/// Devices of a machine, at most.
const DEVICES_MAX: usize = 256;
const PORTS_MAX: usize = 16;
/// Entries of a GID table that are looked at, and of those that are told of.
const TABLE_MAX: u32 = 256;
const GIDS_MAX: usize = 32;

/// Names of all RDMA devices.
pub(super) fn devices(sys: &SysRoot) -> Vec<String> {
    sys.names("class/infiniband").into_iter().take(DEVICES_MAX).collect()
}

/// The device that belongs to `/dev/infiniband/uverbsN`.
pub(super) fn of_uverbs(sys: &SysRoot, number: u32) -> Option<String> {
    let name = sys.text(&format!("class/infiniband_verbs/uverbs{number}/ibdev"))?;
    is_plain(&name).then_some(name)
}

/// Address of the PCI function; `None` for devices in software.
pub(super) fn address(sys: &SysRoot, device: &str) -> Option<String> {
    let path = sys.resolve(&format!("class/infiniband/{device}/device"))?;
    let name = path.file_name()?.to_str()?;
    is_address(name).then(|| name.to_owned())
}

pub(super) fn ports(sys: &SysRoot, device: &str) -> Vec<RdmaPort> {
    let numbers = sys.names(&format!("class/infiniband/{device}/ports"));
    let mut numbers: Vec<u32> = numbers.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.into_iter().take(PORTS_MAX).map(|port| read(sys, device, port)).collect()
}

fn read(sys: &SysRoot, device: &str, port: u32) -> RdmaPort {
    let folder = format!("class/infiniband/{device}/ports/{port}");
    let text = |name: &str| {
        let text = sys.text(&format!("{folder}/{name}")).unwrap_or_default();
        text.chars().take(64).collect::<String>()
    };
    let mut gids = Vec::new();
    let mut netdev = String::new();
    for index in 0..TABLE_MAX {
        // Where an index has no GID, reading its type is an error.
        let Some(gid) = sys.text(&format!("{folder}/gids/{index}")) else { break };
        if gid.len() > 64 || gid.bytes().all(|byte| matches!(byte, b'0' | b':')) {
            continue;
        }
        if netdev.is_empty() {
            netdev = text(&format!("gid_attrs/ndevs/{index}"));
        }
        gids.push(Gid { index, gid, kind: text(&format!("gid_attrs/types/{index}")) });
        if gids.len() >= GIDS_MAX {
            break;
        }
    }
    if !is_plain(&netdev) {
        netdev.clear();
    }
    let mtu = is_of(sys, device, &netdev).then(|| sys.text(&format!("class/net/{netdev}/mtu"))).flatten();
    RdmaPort {
        device: device.to_owned(),
        port,
        link_layer: text("link_layer"),
        state: text("state"),
        rate: text("rate"),
        mtu: mtu.and_then(|text| text.parse().ok()).unwrap_or(0),
        netdev,
        gids,
    }
}

/// Whether the network device of this name, as we see it, belongs to the RDMA device: GID tables name those of other
/// network namespaces too.
pub(super) fn is_of(sys: &SysRoot, device: &str, netdev: &str) -> bool {
    if !is_plain(netdev) || !is_plain(device) {
        return false;
    }
    // Devices in software name it.
    if sys.text(&format!("class/infiniband/{device}/parent")).is_some_and(|parent| parent == netdev) {
        return true;
    }
    let card = sys.resolve(&format!("class/infiniband/{device}/device"));
    card.is_some() && card == sys.resolve(&format!("class/net/{netdev}/device"))
}

/// Switches of the congestion control of RoCE (DCQCN) that a network device shows: name and text.
pub(super) fn congestion_switches(sys: &SysRoot, netdev: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for side in ["roce_np", "roce_rp"] {
        let folder = format!("class/net/{netdev}/ecn/{side}/enable");
        let on = |priority: u32| {
            let text = sys.text(&format!("{folder}/{priority}"))?;
            Some(format!("{priority}:{}", if text == "1" { "on" } else { "off" }))
        };
        let all: Vec<String> = (0..8).filter_map(on).collect();
        if !all.is_empty() {
            found.push((format!("{netdev}.ecn.{side}"), all.join(" ")));
        }
    }
    found
}
