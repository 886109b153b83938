//! GPUs, network adapters and the bridges above them, as sysfs shows them.

use std::collections::{BTreeMap, BTreeSet};

use super::config::{CONFIG_MAX, Config};
use super::tree::SysRoot;
use crate::trace::place::{PciDevice, PciLink, PciRole};

/// Makers of GPUs that train: NVIDIA, AMD.
const GPU_VENDORS: [u32; 2] = [0x10de, 0x1002];
/// Base class of display controllers and of accelerators, as `class` has it.
const GPU_CLASSES: [u32; 2] = [0x03, 0x12];
/// Devices that are told of, at most.
const DEVICES_MAX: usize = 2048;

/// `0000:17:00.0`.
pub(super) fn is_address(name: &str) -> bool {
    let mut parts = name.split([':', '.']);
    let mut hex = |len: std::ops::RangeInclusive<usize>| {
        parts
            .next()
            .is_some_and(|part| len.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    hex(4..=8) && hex(2..=2) && hex(2..=2) && hex(1..=1) && parts.next().is_none()
}

/// Addresses of all GPUs of the machine.
pub(super) fn gpus(sys: &SysRoot) -> Vec<String> {
    let is_gpu = |address: &String| {
        let number = |name: &str| hex(&sys.text(&format!("bus/pci/devices/{address}/{name}"))?);
        is_address(address)
            && number("class").is_some_and(|class| GPU_CLASSES.contains(&(class >> 16)))
            && number("vendor").is_some_and(|vendor| GPU_VENDORS.contains(&vendor))
    };
    sys.names("bus/pci/devices").into_iter().filter(is_gpu).collect()
}

/// The devices at these addresses, with the bridges above them.
pub(super) fn devices(sys: &SysRoot, named: &BTreeMap<String, (PciRole, String)>) -> Vec<PciDevice> {
    let mut found: Vec<PciDevice> = Vec::new();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for address in named.keys() {
        let Some(path) = sys.resolve(&format!("bus/pci/devices/{address}")) else { continue };
        let Some(path) = path.to_str() else { continue };
        let mut above = String::new();
        let mut root = String::new();
        for part in path.split('/') {
            if part.starts_with("pci") && part.contains(':') {
                part.clone_into(&mut root);
            }
            if !is_address(part) {
                continue;
            }
            if found.len() < DEVICES_MAX && seen.insert(part.to_owned()) {
                let (role, name) = named.get(part).cloned().unwrap_or_default();
                let parent = above.clone();
                found.push(PciDevice { role, name, parent, root: root.clone(), ..read(sys, part) });
            }
            part.clone_into(&mut above);
        }
    }
    found
}

fn read(sys: &SysRoot, address: &str) -> PciDevice {
    let file = |name: &str| format!("bus/pci/devices/{address}/{name}");
    let width = |name: &str| {
        let width = sys.text(&file(name)).and_then(|text| text.parse().ok());
        // Unknown is 255; no link has more than 32 lanes.
        width.filter(|width| *width <= 32).unwrap_or(0)
    };
    let speed = |name: &str| sys.text(&file(name)).and_then(|text| speed(&text)).unwrap_or(0);
    let config = sys.bytes(&file("config"), CONFIG_MAX).unwrap_or_default();
    PciDevice {
        address: address.to_owned(),
        node: node(sys, address),
        link: PciLink {
            width: width("current_link_width"),
            width_max: width("max_link_width"),
            speed: speed("current_link_speed"),
            speed_max: speed("max_link_speed"),
        },
        port_type: Config(&config).port_type(),
        acs: Config(&config).acs(),
        ..PciDevice::default()
    }
}

fn node(sys: &SysRoot, address: &str) -> i32 {
    let text = sys.text(&format!("bus/pci/devices/{address}/numa_node"));
    text.and_then(|text| text.parse().ok()).filter(|node| (0..=4096).contains(node)).unwrap_or(-1)
}

/// `16.0 GT/s PCIe` in mega-transfers a second.
fn speed(text: &str) -> Option<u32> {
    let (whole, tenths) = text.split_once(" GT/s")?.0.split_once('.')?;
    let tenths: u32 = (tenths.len() == 1).then(|| tenths.parse().ok())??;
    let speed = whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(tenths * 100)?;
    (speed <= 1_000_000).then_some(speed)
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_as_the_kernel_writes_them() {
        assert_eq!(speed("16.0 GT/s PCIe"), Some(16_000));
        assert_eq!(speed("2.5 GT/s"), Some(2_500));
        for text in ["Unknown", "", "16 GT/s", "x.0 GT/s", "99999999.0 GT/s", "1.99 GT/s"] {
            assert_eq!(speed(text), None, "{text}");
        }
    }

    #[test]
    fn addresses_are_told_from_other_names() {
        assert!(is_address("0000:17:00.0") && is_address("10000:e1:00.7"));
        for name in ["pci0000:16", "0000:17:00", "0000:17:00.0:pcie001", "infiniband", "000g:17:00.0"] {
            assert!(!is_address(name), "{name}");
        }
    }
}
