//! Slurm's `topology.conf`: the hosts of a leaf switch, or of a block, are a rack. Lines of `slurm.conf` with
//! `NodeName=` and `NodeAddr=`, put into the same file, say which address a host has.

use std::net::IpAddr;

use super::hostlist::expand;
use super::{HOSTS_MAX, Topology, TopologyError};

/// Keys that such lines begin with.
const KEYS: [&str; 6] =
    ["switchname", "blockname", "blocksizes", "nodename", "topologyparam", "topologyplugin"];

/// Whether a file with this first line is one.
pub(super) fn begins(line: &str) -> bool {
    key_of(line).is_some_and(|key| KEYS.contains(&key.as_str()))
}

/// The first key of a line, lower case: Slurm does not tell cases apart.
fn key_of(line: &str) -> Option<String> {
    line.split_once('=').map(|(key, _)| key.trim().to_ascii_lowercase())
}

pub(super) fn parse(text: &str) -> Result<Topology, TopologyError> {
    let mut topology = Topology::default();
    let mut addresses = Vec::new();
    // The same hosts can be named in many lines, each of them short.
    let mut budget = 4 * HOSTS_MAX;
    for (offset, line) in joined_lines(text) {
        take_line(&mut topology, &mut addresses, &mut budget, &line)
            .map_err(|message| TopologyError::at(text, offset, message))?;
    }
    // Nodes can stand before the switches that they are at.
    for (host, address) in addresses {
        if topology.hosts.contains_key(&host) {
            topology.add_address(address, &host).map_err(|message| TopologyError::at(text, 0, message))?;
        }
    }
    Ok(topology)
}

/// Lines without comments, those that end in a backslash with the next one, and where they begin.
fn joined_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let at = offset + (line.len() - line.trim_start().len());
        offset += line.len();
        let bare = line.split_once('#').map_or(line, |(before, _)| before).trim();
        let (bare, goes_on) = bare.strip_suffix('\\').map_or((bare, false), |bare| (bare, true));
        let (at, mut whole) = open.take().unwrap_or((at, String::new()));
        whole.push_str(bare);
        if goes_on {
            open = Some((at, whole));
        } else if !whole.trim().is_empty() {
            lines.push((at, whole));
        }
    }
    lines.extend(open.filter(|(_, whole)| !whole.trim().is_empty()));
    lines
}

fn take_line(
    topology: &mut Topology,
    addresses: &mut Vec<(String, IpAddr)>,
    budget: &mut usize,
    line: &str,
) -> Result<(), String> {
    let mut expand = |list: &str| {
        let hosts = expand(list, HOSTS_MAX.min(*budget))?;
        *budget -= hosts.len();
        Ok::<_, String>(hosts)
    };
    let mut words = Vec::new();
    for word in line.split_whitespace() {
        let (key, value) =
            word.split_once('=').ok_or_else(|| "expected words such as Nodes=n[1-4]".to_owned())?;
        words.push((key.to_ascii_lowercase(), value));
    }
    let value = |wanted: &str| words.iter().find(|(key, _)| key == wanted).map(|(_, value)| *value);
    if let Some(name) = value("switchname").or_else(|| value("blockname")) {
        // A switch of switches is no rack.
        let Some(nodes) = value("nodes") else { return Ok(()) };
        let rack = topology.rack(name)?;
        for host in expand(nodes)? {
            topology.add_host(&host, rack)?;
        }
    } else if let Some(names) = value("nodename") {
        let Some(list) = value("nodeaddr") else { return Ok(()) };
        let (hosts, list) = (expand(names)?, expand(list)?);
        if hosts.len() != list.len() {
            return Err(format!("{} names and {} addresses", hosts.len(), list.len()));
        }
        if addresses.len() + hosts.len() > HOSTS_MAX {
            return Err(format!("it has more than {HOSTS_MAX} addresses"));
        }
        // An address can be a name too, which says nothing here.
        let pairs = hosts.into_iter().zip(list);
        addresses.extend(pairs.filter_map(|(host, address)| Some((host, address.parse().ok()?))));
    } else if !words.first().is_some_and(|(key, _)| KEYS.contains(&key.as_str())) {
        let known = "SwitchName, BlockName or NodeName";
        return Err(format!("expected {known}, found `{}`", line.chars().take(40).collect::<String>()));
    }
    Ok(())
}
