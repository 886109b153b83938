//! Links of PCI Express that run below what both ends can, and bridges between GPUs and adapters.
//!
//! A GPU lowers the speed of its link when it has nothing to do, so its speed alone says nothing; the number of lanes
//! stays, and is decisive.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::text::{count, in_command, list};
use super::{Scene, finding};
use crate::analysis::report::{Finding, Severity};
use crate::model::cause::Cause;
use crate::model::place::Place;
use crate::target::place::ACS_REDIRECT;
use crate::trace::place::{PciDevice, PciRole};

/// Kinds of ports that have a link below them: root port, downstream port of a switch.
const LINK_BELOW: [u8; 2] = [4, 6];

pub(super) fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let place = scene.surroundings.place;
    let mut findings = degraded(place);
    findings.extend(acs(place));
    findings.extend(shared_uplinks(place));
    findings
}

pub(super) fn name(device: &PciDevice) -> &str {
    if device.name.is_empty() { &device.address } else { &device.name }
}

fn cause(device: &PciDevice) -> Cause {
    if device.role == PciRole::Gpu { Cause::GpuCopy } else { Cause::RdmaWire }
}

fn giga(speed: u32) -> f64 {
    f64::from(speed) / 1e3
}

/// The links on the ways up from all devices in use, each once: lower end, upper end where it is known, and the devices in
/// use below.
fn links(place: &Place) -> BTreeMap<&str, (&PciDevice, Option<&PciDevice>, BTreeSet<&str>)> {
    let mut links = BTreeMap::new();
    for device in place.all_used() {
        let way = place.way_up(device);
        // A link lies above the device, then above the upstream port two further up, and so on.
        for pair in way.chunks(2) {
            let Some(&lower) = pair.first() else { continue };
            let upper = pair.get(1).copied();
            let is_link =
                |kind: Option<u8>, below: bool| kind.is_none_or(|kind| LINK_BELOW.contains(&kind) == below);
            if !is_link(lower.port_type, false) || upper.is_some_and(|upper| !is_link(upper.port_type, true))
            {
                break;
            }
            let entry = links.entry(lower.address.as_str()).or_insert((lower, upper, BTreeSet::new()));
            entry.2.insert(name(device));
        }
    }
    links
}

fn degraded(place: &Place) -> Vec<Finding> {
    links(place).into_values().filter_map(|(lower, upper, used)| degraded_link(lower, upper, &used)).collect()
}

fn degraded_link(lower: &PciDevice, upper: Option<&PciDevice>, used: &BTreeSet<&str>) -> Option<Finding> {
    let link = lower.link;
    // Without the bridge above, a slot with fewer lanes cannot be told from lanes that failed.
    let above = upper.map(|upper| upper.link);
    let least = |own: u32, above: Option<u32>| match above {
        Some(above) if above != 0 => own.min(above),
        _ => own,
    };
    let width = least(link.width_max, above.map(|above| above.width_max));
    let speed = least(link.speed_max, above.map(|above| above.speed_max));
    let narrow = link.width != 0 && link.width < width;
    let slow = link.speed != 0 && link.speed < speed;
    if !narrow && (!slow || lower.role != PciRole::Nic) {
        return None;
    }
    let known = above.is_some_and(|above| above.width_max != 0);
    let ends = match upper {
        Some(upper) => format!("between {} and {} ({})", upper.address, lower.address, name(lower)),
        None => format!("of {} ({})", lower.address, name(lower)),
    };
    let mut parts = Vec::new();
    if narrow {
        parts.push(format!("x{} where {} x{width}", link.width, can(upper, known)));
    }
    if slow && lower.role != PciRole::Gpu {
        parts.push(format!("{} GT/s where {} {} GT/s", giga(link.speed), can(upper, known), giga(speed)));
    }
    let summary = format!(
        "The PCIe link {ends} runs at {}; {} below it.",
        parts.join(" and "),
        list(used.iter().copied())
    );
    let proof = json!({
        "device": lower.address, "name": lower.name, "upstream": upper.map(|upper| upper.address.as_str()),
        "width": link.width, "width_max": link.width_max, "upstream_width_max": above.map(|above| above.width_max),
        "speed_mts": link.speed, "speed_max_mts": link.speed_max,
        "upstream_speed_max_mts": above.map(|above| above.speed_max), "used_by": used, "evidence": "measured.kernel",
        "speed_counts": lower.role == PciRole::Nic,
    });
    let severity = if known { Severity::Warning } else { Severity::Info };
    Some(finding(
        "pcie.link_degraded",
        severity,
        cause(lower),
        0,
        summary,
        proof,
        &degraded_advice(lower, upper),
    ))
}

fn can(upper: Option<&PciDevice>, known: bool) -> &'static str {
    if upper.is_some() && known { "both ends can do" } else { "the device can do" }
}

fn degraded_advice(lower: &PciDevice, upper: Option<&PciDevice>) -> Vec<String> {
    let address = in_command(Some(&lower.address.replace(':', "-"))).replace('-', ":");
    let mut advice =
        vec![format!("sudo lspci -vvs {address} | grep -E 'LnkCap|LnkSta'   # \"downgraded\" says the same")];
    if upper.is_none() {
        advice
            .push("Its slot is not seen from here (a virtual machine?): look at it on the host.".to_owned());
    }
    advice.push(
        "sudo dmesg | grep -iE 'aer|pcie bus error|available pcie bandwidth'   # errors of the link"
            .to_owned(),
    );
    advice.push(
        "Drain the node, power it off, reseat the card and its riser or cable; when it comes back as narrow, move the \
         card to another slot to tell a bad card from a bad slot. Slot bifurcation in the firmware's setup does it too."
            .to_owned(),
    );
    advice
}

/// The GPU and adapter pairs that processes use together, each once.
fn pairs(place: &Place) -> BTreeSet<(&str, &str)> {
    let mut pairs = BTreeSet::new();
    for pid in place.pids() {
        for gpu in place.used(pid, PciRole::Gpu) {
            for nic in place.used(pid, PciRole::Nic).into_iter().filter(|nic| nic.root == gpu.root) {
                pairs.insert((gpu.address.as_str(), nic.address.as_str()));
            }
        }
    }
    pairs
}

/// Bridges that send what a GPU and an adapter say to each other up to the root complex.
fn acs(place: &Place) -> Option<Finding> {
    let mut bridges: BTreeSet<&str> = BTreeSet::new();
    let mut affected: BTreeSet<String> = BTreeSet::new();
    for (gpu, nic) in pairs(place) {
        let (Some(gpu), Some(nic)) = (place.devices.get(gpu), place.devices.get(nic)) else { continue };
        let top = place.common(gpu, nic).map(|bridge| bridge.address.as_str());
        for device in [gpu, nic] {
            let way = place.way_up(device).into_iter().skip(1);
            let between = way.take_while(|bridge| Some(bridge.address.as_str()) != top);
            for bridge in between.filter(|bridge| bridge.acs.is_some_and(|acs| acs & ACS_REDIRECT != 0)) {
                bridges.insert(&bridge.address);
                // Below different root ports the packets pass the root complex anyway.
                if top.is_some() {
                    affected.insert(format!("{} and {}", name(gpu), name(nic)));
                }
            }
        }
    }
    if bridges.is_empty() {
        return None;
    }
    let severity = if affected.is_empty() { Severity::Info } else { Severity::Warning };
    let what = if affected.is_empty() {
        "GPU and adapter sit below different root ports, so they meet in the root complex anyway".to_owned()
    } else {
        format!("{} could talk inside of one switch, and do not", list(affected.iter().map(String::as_str)))
    };
    let number = count(bridges.len() as u64, "bridge", "bridges");
    let summary = format!(
        "ACS at {number} ({}) sends peer-to-peer traffic of GPUs and adapters up to the root complex: {what}.",
        list(bridges.iter().copied())
    );
    let proof = json!({
        "bridges": bridges, "pairs": affected, "evidence": "measured.kernel",
        "control": bridges.iter().filter_map(|bridge| place.devices.get(*bridge)?.acs).collect::<Vec<u16>>(),
    });
    let mut advice =
        vec!["This matters with GPUDirect RDMA only (lsmod | grep nvidia_peermem, or NCCL_NET_GDR_LEVEL and dmabuf).".to_owned()];
    let set = |bridge: &&str| {
        let address = in_command(Some(&bridge.replace(':', "-"))).replace('-', ":");
        format!("sudo setpci -s {address} ECAP_ACS+6.w=0000   # until the next boot")
    };
    advice.extend(bridges.iter().take(8).map(set));
    advice.push(
        "Bare metal only: virtual machines that own devices need ACS. For good: ACS off in the firmware's setup, or a unit \
         that runs setpci at boot; the IOMMU off or in pass-through (iommu=pt)."
            .to_owned(),
    );
    Some(finding("pcie.acs", severity, Cause::RdmaWire, 0, summary, proof, &advice))
}

/// Bridges with adapters and GPUs in use below that can say more than the link above takes.
fn shared_uplinks(place: &Place) -> Vec<Finding> {
    let mut shared: BTreeSet<&str> = BTreeSet::new();
    for (gpu, nic) in pairs(place) {
        let (Some(gpu), Some(nic)) = (place.devices.get(gpu), place.devices.get(nic)) else { continue };
        shared.extend(place.common(gpu, nic).map(|bridge| bridge.address.as_str()));
    }
    shared.into_iter().filter_map(|bridge| shared_uplink(place, place.devices.get(bridge)?)).collect()
}

/// What a link carries, as lanes times speed; at their best, since GPUs slow their links down at rest.
fn capacity(device: &PciDevice) -> u64 {
    u64::from(device.link.width_max) * u64::from(device.link.speed_max)
}

fn shared_uplink(place: &Place, bridge: &PciDevice) -> Option<Finding> {
    let below: Vec<&PciDevice> = place
        .devices
        .values()
        .filter(|device| device.role != PciRole::Bridge)
        .filter(|device| place.way_up(device).iter().skip(1).any(|up| up.address == bridge.address))
        .collect();
    let used: Vec<&PciDevice> = place
        .all_used()
        .into_iter()
        .filter(|device| below.iter().any(|one| one.address == device.address))
        .collect();
    let up = u64::from(bridge.link.width) * u64::from(bridge.link.speed);
    let down: u64 = used.iter().map(|device| capacity(device)).sum();
    // An uplink whose figures are not known, or that takes it all, is no trouble.
    if up == 0 || down <= up {
        return None;
    }
    let names =
        |devices: &[&PciDevice]| devices.iter().map(|device| name(device).to_owned()).collect::<Vec<_>>();
    let (used, below) = (names(&used), names(&below));
    let summary = format!(
        "{} share the PCIe uplink of {} (x{} at {} GT/s), which carries 1/{:.1} of what their own links do.",
        list(used.iter().map(String::as_str)),
        bridge.address,
        bridge.link.width,
        giga(bridge.link.speed),
        down as f64 / up as f64
    );
    let proof: Value = json!({
        "uplink": bridge.address, "width": bridge.link.width, "speed_mts": bridge.link.speed, "used": used,
        "below": below, "oversubscribed": down as f64 / up as f64, "evidence": "measured.kernel",
    });
    let advice = [
        "nvidia-smi topo -m   # PIX or PXB between GPU and adapter: GPUDirect RDMA stays below the uplink".to_owned(),
        "With GPUDirect RDMA this is the best place for both. Without (data through host memory, ACS on, or a data loader \
         that copies to the GPU) both directions take the uplink: see pcie.acs, and NCCL_DEBUG=INFO for \"GDRDMA\"."
            .to_owned(),
    ];
    Some(finding("pcie.shared_uplink", Severity::Info, Cause::RdmaWire, 0, summary, proof, &advice))
}
