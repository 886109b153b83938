//! Which host is in which rack. The file can be of several kinds, told apart by how it begins:
//!
//! | kind | begins with |
//! |---|---|
//! | our own, TOML | anything else |
//! | our own, JSON | `{`, with a field `rack` |
//! | Kubernetes nodes, JSON | `{` or `[`, with nodes or labels by node |
//! | Slurm `topology.conf` | `SwitchName=`, `BlockName=`, `NodeName=` … |
//! | two columns | two words `host rack` without `=` and `[` |

mod cidr;
mod columns;
mod hostlist;
mod kubernetes;
mod own;
mod slurm;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

pub use cidr::{Cidr, CidrError};

/// Racks of a file at most.
const RACKS_MAX: usize = 1 << 16;
/// Hosts, addresses and ranges of a file at most, each; lists of hosts such as `n[1-999999999]` are short and mean
/// many.
const HOSTS_MAX: usize = 1 << 18;
/// Longest name of a host or rack, bytes.
const NAME_MAX: usize = 255;

/// Racks by name, hosts and address ranges. An address in no rack is unknown, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    racks: Vec<Rack>,
    /// Racks by name.
    names: HashMap<String, usize>,
    /// Racks by host, an address among them in one spelling.
    hosts: HashMap<String, usize>,
    /// Hosts by address.
    addresses: BTreeMap<IpAddr, String>,
    /// Racks by prefix and network, the longest prefix first.
    ranges: BTreeMap<Reverse<u8>, HashMap<IpAddr, usize>>,
    range_count: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rack {
    pub name: String,
    pub hosts: Vec<String>,
    pub cidrs: Vec<Cidr>,
    /// Ranges of GIDs, which have the form of IPv6 addresses.
    pub gids: Vec<Cidr>,
    /// Rail by device.
    pub rail: BTreeMap<String, u32>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line}, column {column}: {message}")]
pub struct TopologyError {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub message: String,
}

impl TopologyError {
    fn at(text: &str, offset: usize, message: impl Into<String>) -> TopologyError {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        TopologyError {
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or("").chars().count() + 1,
            message: message.into(),
        }
    }
}

impl Topology {
    /// Reads a topology file of any of the kinds.
    pub fn parse(text: &str) -> Result<Topology, TopologyError> {
        // Files of some editors begin with a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let first = text.lines().map(without_comment).find(|line| !line.is_empty()).unwrap_or("");
        let columns = first.split_whitespace().count() == 2 && !first.contains(['=', '[', '{']);
        if is_json(text) {
            kubernetes::parse_json(text)
        } else if slurm::begins(first) {
            slurm::parse(text)
        } else if columns {
            columns::parse(text)
        } else {
            own::parse_toml(text)
        }
    }

    pub fn racks(&self) -> &[Rack] {
        &self.racks
    }

    /// The rack of a host by its name, also by the name's first label.
    pub fn rack_of_host(&self, host: &str) -> Option<&Rack> {
        self.known_host(host).and_then(|host| self.hosts.get(host)).and_then(|index| self.racks.get(*index))
    }

    /// The rack of the host with this address, or else the one with the longest range around it.
    pub fn rack_of_address(&self, address: IpAddr) -> Option<&Rack> {
        if let Some(index) = self.host_of_address(address).and_then(|host| self.hosts.get(host)) {
            return self.racks.get(*index);
        }
        // A prefix longer than an IPv4 address leaves it whole, and no range has that network.
        let mut ranges = self.ranges.iter();
        let index =
            ranges.find_map(|(Reverse(prefix), networks)| networks.get(&cidr::network(address, *prefix)))?;
        self.racks.get(*index)
    }

    /// The host with this address, as the file names it.
    pub fn host_of_address(&self, address: IpAddr) -> Option<&str> {
        if let Some(host) = self.addresses.get(&address) {
            return Some(host);
        }
        self.hosts.get_key_value(&address.to_string()).map(|(host, _)| host.as_str())
    }

    /// Takes the addresses of hosts that the topology names from a file in the form of `/etc/hosts`. What the
    /// topology says itself counts; loopback addresses say nothing about the way between hosts.
    pub fn learn_addresses(&mut self, hosts_file: &str) {
        for line in hosts_file.lines() {
            let mut words = without_comment(line).split_whitespace();
            let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
            if address.is_loopback() || address.is_unspecified() || self.rack_of_address(address).is_some() {
                continue;
            }
            let known = words.find_map(|name| self.known_host(name)).map(str::to_owned);
            if let Some(host) = known {
                // Beyond the limit addresses stay unknown.
                let _ = self.add_address(address, &host);
            }
        }
    }

    /// The topology in its own form, which [`Topology::parse`] reads.
    pub fn to_toml(&self) -> String {
        own::to_toml(self)
    }

    /// A host of the file by its whole name or by the name's first label.
    fn known_host(&self, name: &str) -> Option<&str> {
        let short = || self.hosts.get_key_value(name.split('.').next().unwrap_or(name));
        // The first label of an address is a number, which is a name that nobody means.
        let is_address = name.parse::<IpAddr>().is_ok();
        let found = self.hosts.get_key_value(name).or_else(|| if is_address { None } else { short() });
        found.map(|(host, _)| host.as_str())
    }

    /// Errors are texts without a place, which the readers of the files know.
    fn add_host(&mut self, host: &str, rack: usize) -> Result<(), String> {
        // An address is kept in one spelling.
        let host = host.parse::<IpAddr>().map_or_else(|_| host.to_owned(), |address| address.to_string());
        check_name("host", &host)?;
        match self.hosts.get(&host) {
            Some(known) if *known != rack => {
                let name = |index: usize| self.racks.get(index).map_or("", |rack| &rack.name);
                Err(format!("host `{host}` is in rack `{}` and in rack `{}`", name(*known), name(rack)))
            }
            Some(_) => Ok(()),
            None if self.hosts.len() >= HOSTS_MAX => Err(format!("it has more than {HOSTS_MAX} hosts")),
            None => {
                if let Some(rack) = self.racks.get_mut(rack) {
                    rack.hosts.push(host.clone());
                }
                self.hosts.insert(host, rack);
                Ok(())
            }
        }
    }

    fn add_address(&mut self, address: IpAddr, host: &str) -> Result<(), String> {
        match self.addresses.get(&address) {
            Some(known) if known != host => {
                Err(format!("address {address} is of host `{known}` and of host `{host}`"))
            }
            Some(_) => Ok(()),
            None if self.addresses.len() >= HOSTS_MAX => {
                Err(format!("it has more than {HOSTS_MAX} addresses"))
            }
            None => {
                self.addresses.insert(address, host.to_owned());
                Ok(())
            }
        }
    }

    /// Counts a range that is about to be added.
    fn count_range(&mut self) -> Result<(), String> {
        self.range_count += 1;
        let many = self.range_count > RACKS_MAX;
        if many { Err(format!("it has more than {RACKS_MAX} ranges")) } else { Ok(()) }
    }

    fn add_range(&mut self, range: Cidr, rack: usize) -> Result<(), String> {
        let networks = self.ranges.entry(Reverse(range.prefix)).or_default();
        match networks.insert(range.network(), rack) {
            Some(known) if known != rack => {
                let name = |index: usize| self.racks.get(index).map_or("", |rack| &rack.name);
                Err(format!("the range {range} is in rack `{}` and in rack `{}`", name(known), name(rack)))
            }
            _ => Ok(()),
        }
    }

    /// The index of the rack with this name, a new one where there is none.
    fn rack(&mut self, name: &str) -> Result<usize, String> {
        if let Some(index) = self.names.get(name) {
            return Ok(*index);
        }
        check_name("rack", name)?;
        if self.racks.len() >= RACKS_MAX {
            return Err(format!("it has more than {RACKS_MAX} racks"));
        }
        self.names.insert(name.to_owned(), self.racks.len());
        self.racks.push(Rack { name: name.to_owned(), ..Rack::default() });
        Ok(self.racks.len() - 1)
    }
}

fn check_name(what: &str, name: &str) -> Result<(), String> {
    match name.len() {
        0 => Err(format!("the name of a {what} is empty")),
        1..=NAME_MAX => Ok(()),
        len => Err(format!("the name of a {what} has {len} bytes, more than {NAME_MAX}")),
    }
}

fn without_comment(line: &str) -> &str {
    line.split_once('#').map_or(line, |(before, _)| before).trim()
}

/// `[[rack]]` and `[table]` are TOML, `[{` and `[]` are JSON.
fn is_json(text: &str) -> bool {
    let mut chars = text.chars().filter(|char| !char.is_whitespace());
    match chars.next() {
        Some('{') => true,
        Some('[') => matches!(chars.next(), Some('{' | ']')),
        _ => false,
    }
}

fn one_line(message: &str) -> String {
    message.lines().collect::<Vec<_>>().join("; ")
}
