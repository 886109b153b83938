//! Our own form, as TOML and as JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{Cidr, CidrError, Rack, Topology, TopologyError, one_line};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    rack: Vec<RawRack>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRack {
    name: Spanned<String>,
    #[serde(default)]
    hosts: Vec<Spanned<String>>,
    #[serde(default)]
    cidrs: Vec<Spanned<String>>,
    #[serde(default)]
    gids: Vec<Spanned<String>>,
    #[serde(default)]
    rail: BTreeMap<String, u32>,
    /// Addresses of hosts, which are hosts of the rack thereby.
    #[serde(default)]
    addresses: BTreeMap<String, Vec<Spanned<String>>>,
}

/// As written, and as read from JSON, where no places are known.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlainFile {
    #[serde(default)]
    rack: Vec<PlainRack>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainRack {
    name: String,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    cidrs: Vec<String>,
    #[serde(default)]
    gids: Vec<String>,
    #[serde(default)]
    rail: BTreeMap<String, u32>,
    #[serde(default)]
    addresses: BTreeMap<String, Vec<String>>,
}

/// What goes wrong, and the index of the list and the item where it does.
type Placed<'a> = &'a dyn Fn(&str, usize, String) -> TopologyError;

pub(super) fn parse_toml(text: &str) -> Result<Topology, TopologyError> {
    let file: RawFile = toml::from_str(text).map_err(|error| {
        TopologyError::at(text, error.span().map_or(0, |span| span.start), one_line(error.message()))
    })?;
    let mut topology = Topology::default();
    for raw in file.rack {
        let at = |span: Range<usize>, message: String| TopologyError::at(text, span.start, message);
        let addresses: Vec<&Spanned<String>> = raw.addresses.values().flatten().collect();
        let place = |list: &str, index: usize, message: String| {
            let item = match list {
                "hosts" => raw.hosts.get(index),
                "cidrs" => raw.cidrs.get(index),
                "gids" => raw.gids.get(index),
                "addresses" => addresses.get(index).copied(),
                _ => None,
            };
            at(item.map_or_else(|| raw.name.span(), Spanned::span), message)
        };
        let plain = |list: &[Spanned<String>]| list.iter().map(|item| item.get_ref().clone()).collect();
        let rack = PlainRack {
            name: raw.name.get_ref().clone(),
            hosts: plain(&raw.hosts),
            cidrs: plain(&raw.cidrs),
            gids: plain(&raw.gids),
            rail: raw.rail.clone(),
            addresses: raw.addresses.iter().map(|(host, list)| (host.clone(), plain(list))).collect(),
        };
        add_rack(&mut topology, rack, &place)?;
    }
    Ok(topology)
}

/// From JSON, whose reader knows the place of an error of form only.
pub(super) fn from_plain(file: PlainFile) -> Result<Topology, TopologyError> {
    let mut topology = Topology::default();
    for rack in file.rack {
        let name = rack.name.clone();
        let place = |list: &str, index: usize, message: String| TopologyError {
            line: 1,
            column: 1,
            message: if list.is_empty() {
                format!("rack `{name}`: {message}")
            } else {
                format!("rack `{name}`, {list}[{index}]: {message}")
            },
        };
        add_rack(&mut topology, rack, &place)?;
    }
    Ok(topology)
}

fn add_rack(topology: &mut Topology, raw: PlainRack, place: Placed<'_>) -> Result<(), TopologyError> {
    if topology.names.contains_key(&raw.name) {
        return Err(place("", 0, format!("rack `{}` is there twice", raw.name)));
    }
    let index = topology.rack(&raw.name).map_err(|message| place("", 0, message))?;
    for (position, host) in raw.hosts.iter().enumerate() {
        topology.add_host(host, index).map_err(|message| place("hosts", position, message))?;
    }
    let mut position = 0;
    for (host, addresses) in &raw.addresses {
        topology.add_host(host, index).map_err(|message| place("addresses", position, message))?;
        for address in addresses {
            let parsed: Result<IpAddr, String> =
                address.parse().map_err(|_| format!("`{address}` is no address"));
            parsed
                .and_then(|address| topology.add_address(address, host))
                .map_err(|message| place("addresses", position, message))?;
            position += 1;
        }
    }
    let mut ranges = |name: &str, list: &[String]| -> Result<Vec<Cidr>, TopologyError> {
        let read = |(position, text): (usize, &String)| {
            let range = topology
                .count_range()
                .and_then(|()| text.parse().map_err(|error: CidrError| error.to_string()))
                .and_then(|range: Cidr| match name {
                    "cidrs" => topology.add_range(range, index).map(|()| range),
                    _ => Ok(range),
                });
            range.map_err(|message| place(name, position, message))
        };
        list.iter().enumerate().map(read).collect()
    };
    let (cidrs, gids) = (ranges("cidrs", &raw.cidrs)?, ranges("gids", &raw.gids)?);
    if let Some(rack) = topology.racks.get_mut(index) {
        (rack.cidrs, rack.gids, rack.rail) = (cidrs, gids, raw.rail);
    }
    Ok(())
}

pub(super) fn to_toml(topology: &Topology) -> String {
    let mut addresses: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (address, host) in &topology.addresses {
        addresses.entry(host).or_default().push(address.to_string());
    }
    let rack = |rack: &Rack| PlainRack {
        name: rack.name.clone(),
        hosts: rack.hosts.clone(),
        cidrs: rack.cidrs.iter().map(Cidr::to_string).collect(),
        gids: rack.gids.iter().map(Cidr::to_string).collect(),
        rail: rack.rail.clone(),
        addresses: (rack.hosts.iter())
            .filter_map(|host| Some((host.clone(), addresses.get(host.as_str())?.clone())))
            .collect(),
    };
    let file = PlainFile { rack: topology.racks.iter().map(rack).collect() };
    // Strings, numbers and tables of them have a TOML form always.
    toml::to_string(&file).unwrap_or_default()
}
