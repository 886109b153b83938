//! Which host is in which rack: the topology file, as TOML or as two columns `host rack`.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::Range;
use std::str::FromStr;

use serde::Deserialize;
use toml::Spanned;

/// Racks by name, hosts and address ranges. An address in no rack is unknown, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    racks: Vec<Rack>,
    hosts: HashMap<String, usize>,
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

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
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

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CidrError {
    #[error("`{0}` is no address range such as 10.0.1.0/24 or fe80::/64")]
    Form(String),
    #[error("the prefix of `{0}` is longer than the address")]
    Prefix(String),
}

impl FromStr for Cidr {
    type Err = CidrError;

    /// An address alone is a range of one.
    fn from_str(text: &str) -> Result<Cidr, CidrError> {
        let form = || CidrError::Form(text.to_owned());
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.trim().parse().map_err(|_| form())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => bits,
            Some(prefix) => prefix.trim().parse::<u8>().map_err(|_| form())?,
        };
        if prefix > bits {
            return Err(CidrError::Prefix(text.to_owned()));
        }
        Ok(Cidr { address, prefix })
    }
}

impl Cidr {
    /// Whether the address lies in the range. IPv4 and IPv6 never match each other.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                own.to_bits() & mask == other.to_bits() & mask
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                own.to_bits() & mask == other.to_bits() & mask
            }
            _ => false,
        }
    }
}

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
}

impl Topology {
    /// Reads a topology file. It is taken for two columns if the first line that says something is two
    /// words without `=` and `[`.
    pub fn parse(text: &str) -> Result<Topology, TopologyError> {
        let first = text.lines().map(without_comment).find(|line| !line.is_empty()).unwrap_or("");
        let columns = first.split_whitespace().count() == 2 && !first.contains(['=', '[']);
        if columns { parse_columns(text) } else { parse_toml(text) }
    }

    pub fn racks(&self) -> &[Rack] {
        &self.racks
    }

    /// The rack of a host by its name, also by the name's first label.
    pub fn rack_of_host(&self, host: &str) -> Option<&Rack> {
        let short = || self.hosts.get(host.split('.').next().unwrap_or(host));
        self.hosts.get(host).or_else(short).and_then(|index| self.racks.get(*index))
    }

    /// The rack that lists the address as a host, or else the one with the longest range around it.
    pub fn rack_of_address(&self, address: IpAddr) -> Option<&Rack> {
        if let Some(index) = self.hosts.get(&address.to_string()) {
            return self.racks.get(*index);
        }
        let ranges = self.racks.iter().flat_map(|rack| rack.cidrs.iter().map(move |cidr| (cidr, rack)));
        ranges
            .filter(|(cidr, _)| cidr.contains(address))
            .max_by_key(|(cidr, _)| cidr.prefix)
            .map(|(_, rack)| rack)
    }

    fn add_host(&mut self, host: &str, rack: usize) -> Result<(), String> {
        // An address is kept in one spelling.
        let host = host.parse::<IpAddr>().map_or_else(|_| host.to_owned(), |address| address.to_string());
        match self.hosts.get(&host) {
            Some(known) if *known != rack => {
                let name = |index: usize| self.racks.get(index).map_or("", |rack| &rack.name);
                Err(format!("host `{host}` is in rack `{}` and in rack `{}`", name(*known), name(rack)))
            }
            Some(_) => Ok(()),
            None => {
                if let Some(rack) = self.racks.get_mut(rack) {
                    rack.hosts.push(host.clone());
                }
                self.hosts.insert(host, rack);
                Ok(())
            }
        }
    }

    /// The index of the rack with this name, a new one where there is none.
    fn rack(&mut self, name: &str) -> usize {
        if let Some(index) = self.racks.iter().position(|rack| rack.name == name) {
            return index;
        }
        self.racks.push(Rack { name: name.to_owned(), ..Rack::default() });
        self.racks.len() - 1
    }
}

fn without_comment(line: &str) -> &str {
    line.split_once('#').map_or(line, |(before, _)| before).trim()
}

fn parse_columns(text: &str) -> Result<Topology, TopologyError> {
    let mut topology = Topology::default();
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let at = offset + (line.len() - line.trim_start().len());
        offset += line.len();
        let words: Vec<&str> = without_comment(line).split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            [host, rack] => {
                let rack = topology.rack(rack);
                topology.add_host(host, rack).map_err(|message| TopologyError::at(text, at, message))?;
            }
            other => {
                let message = format!("expected `host rack`, found {} words", other.len());
                return Err(TopologyError::at(text, at, message));
            }
        }
    }
    Ok(topology)
}

fn parse_toml(text: &str) -> Result<Topology, TopologyError> {
    let file: RawFile = toml::from_str(text).map_err(|error| {
        TopologyError::at(text, error.span().map_or(0, |span| span.start), one_line(error.message()))
    })?;
    let mut topology = Topology::default();
    for raw in file.rack {
        let at = |span: Range<usize>, message: String| TopologyError::at(text, span.start, message);
        let name = raw.name.get_ref();
        if topology.racks.iter().any(|rack| rack.name == *name) {
            return Err(at(raw.name.span(), format!("rack `{name}` is there twice")));
        }
        let index = topology.rack(name);
        for host in &raw.hosts {
            topology.add_host(host.get_ref(), index).map_err(|message| at(host.span(), message))?;
        }
        let ranges = |list: &[Spanned<String>]| {
            list.iter()
                .map(|item| {
                    item.get_ref().parse().map_err(|error: CidrError| at(item.span(), error.to_string()))
                })
                .collect::<Result<Vec<Cidr>, TopologyError>>()
        };
        let (cidrs, gids) = (ranges(&raw.cidrs)?, ranges(&raw.gids)?);
        if let Some(rack) = topology.racks.get_mut(index) {
            (rack.cidrs, rack.gids, rack.rail) = (cidrs, gids, raw.rail);
        }
    }
    Ok(topology)
}

fn one_line(message: &str) -> String {
    message.lines().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[[rack]]
name = "A"
hosts = ["node01", "node02"]
cidrs = ["10.0.1.0/24"]
gids  = ["fe80::/64"]
rail  = { mlx5_0 = 0, mlx5_1 = 1 }

[[rack]]
name = "B"
hosts = ["node03", "192.0.2.7"]
cidrs = ["10.0.0.0/16", "2001:db8:b::/48"]
"#;

    fn name(rack: Option<&Rack>) -> &str {
        rack.map_or("-", |rack| &rack.name)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn finds_racks_by_host_and_by_address() {
        let topology = Topology::parse(FILE).unwrap();
        assert_eq!(name(topology.rack_of_host("node02")), "A");
        assert_eq!(name(topology.rack_of_host("node03.cluster.local")), "B");
        assert_eq!(name(topology.rack_of_host("node09")), "-");
        assert_eq!(name(topology.rack_of_address(address("192.0.2.7"))), "B");
        assert_eq!(name(topology.rack_of_address(address("2001:db8:b:1::9"))), "B");
        assert_eq!(name(topology.rack_of_address(address("2001:db8:c::9"))), "-");
        assert_eq!(topology.racks()[0].rail, BTreeMap::from([("mlx5_0".into(), 0), ("mlx5_1".into(), 1)]));
    }

    #[test]
    fn the_longest_range_wins() {
        let topology = Topology::parse(FILE).unwrap();
        assert_eq!(name(topology.rack_of_address(address("10.0.1.9"))), "A");
        assert_eq!(name(topology.rack_of_address(address("10.0.2.9"))), "B");
        assert_eq!(name(topology.rack_of_address(address("10.1.2.9"))), "-");
    }

    #[test]
    fn reads_two_columns() {
        let topology = Topology::parse("# host rack\nnode01 A\n10.0.0.2\tB # by address\n\n").unwrap();
        assert_eq!(name(topology.rack_of_host("node01")), "A");
        assert_eq!(name(topology.rack_of_address(address("10.0.0.2"))), "B");
    }

    #[test]
    fn an_empty_file_has_no_racks() {
        assert_eq!(Topology::parse("").unwrap().racks().len(), 0);
    }

    #[test]
    fn errors_say_line_and_column() {
        let at = |text: &str| {
            let error = Topology::parse(text).unwrap_err();
            (error.line, error.column, error.message)
        };
        let bad = "[[rack]]\nname = \"A\"\ncidrs = [\"10.0.0.0/8\", \"10.0.0.0/33\"]\n";
        assert_eq!(at(bad), (3, 24, "the prefix of `10.0.0.0/33` is longer than the address".into()));
        let (line, column, message) = at("[[rack]]\nname = \"A\"\nhost = [\"x\"]\n");
        assert_eq!((line, column), (3, 1));
        assert!(message.contains("unknown field `host`"), "{message}");
        let twice = "[[rack]]\nname=\"A\"\nhosts=[\"x\"]\n[[rack]]\nname=\"B\"\nhosts=[\"x\"]\n";
        assert_eq!(at(twice), (6, 8, "host `x` is in rack `A` and in rack `B`".into()));
        assert_eq!(at("node01 A\n  node02 B C\n"), (2, 3, "expected `host rack`, found 3 words".into()));
    }

    #[test]
    fn a_prefix_of_nothing_contains_everything_of_its_family() {
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains(address("255.1.2.3")));
        assert!(!all.contains(address("::1")));
        let all: Cidr = "::/0".parse().unwrap();
        assert!(all.contains(address("2001:db8::1")));
    }
}
