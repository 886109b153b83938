//! JSON: Kubernetes nodes with their labels, as `kubectl get nodes -o json` prints them or as an object
//! `{"node": {"label": "value"}}`; or our own form.
//!
//! The rack is the value of the label whose name is `rack` or ends in it: `topology.kubernetes.io/rack`,
//! `example.com/topology-rack`. A zone is no rack. Pods are in the rack of their node by its `podCIDRs`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::own::{self, PlainFile};
use super::{Cidr, CidrError, Topology, TopologyError, one_line};

#[derive(Deserialize)]
struct Node {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
struct Spec {
    /// Addresses of the pods on the node.
    #[serde(default, rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    addresses: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    address: String,
}

#[derive(Deserialize)]
struct NodeList {
    items: Vec<Node>,
}

/// What kind of document it is, without keeping any of it.
#[derive(Deserialize)]
struct Fields {
    rack: Option<IgnoredAny>,
    items: Option<IgnoredAny>,
    metadata: Option<IgnoredAny>,
}

pub(super) fn parse_json(text: &str) -> Result<Topology, TopologyError> {
    if text.trim_start().starts_with('[') {
        return from_nodes(read::<Vec<Node>>(text)?);
    }
    let fields: Fields = read(text)?;
    if fields.rack.is_some() {
        own::from_plain(read::<PlainFile>(text)?)
    } else if fields.items.is_some() {
        from_nodes(read::<NodeList>(text)?.items)
    } else if fields.metadata.is_some() {
        from_nodes(vec![read::<Node>(text)?])
    } else {
        let labels: BTreeMap<String, BTreeMap<String, String>> = read(text)?;
        let node = |(name, labels)| {
            let metadata = Metadata { name, labels };
            Node { metadata, spec: Spec::default(), status: Status::default() }
        };
        from_nodes(labels.into_iter().map(node).collect())
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, TopologyError> {
    serde_json::from_str(text).map_err(|error| {
        let whole = one_line(&error.to_string());
        // The place is told in its own words.
        let message =
            whole.rsplit_once(" at line ").map_or(whole.as_str(), |(message, _)| message).to_owned();
        TopologyError { line: error.line().max(1), column: error.column().max(1), message }
    })
}

fn from_nodes(nodes: Vec<Node>) -> Result<Topology, TopologyError> {
    let mut topology = Topology::default();
    let count = nodes.len();
    for node in nodes {
        let name = node.metadata.name.clone();
        add_node(&mut topology, node).map_err(|message| nowhere(format!("node `{name}`: {message}")))?;
    }
    if topology.racks.is_empty() && count > 0 {
        let message = format!("none of {count} nodes has a label whose name is `rack` or ends in `-rack`");
        return Err(nowhere(message));
    }
    Ok(topology)
}

/// An error of meaning, whose place JSON's reader does not tell.
fn nowhere(message: String) -> TopologyError {
    TopologyError { line: 1, column: 1, message }
}

fn add_node(topology: &mut Topology, node: Node) -> Result<(), String> {
    let racks: BTreeSet<&str> = (node.metadata.labels.iter())
        .filter(|(label, value)| is_rack(label) && !value.is_empty())
        .map(|(_, value)| value.as_str())
        .collect();
    let mut racks = racks.into_iter();
    let Some(rack) = racks.next() else { return Ok(()) };
    if let Some(other) = racks.next() {
        return Err(format!("its labels name two racks, `{rack}` and `{other}`"));
    }
    let rack = topology.rack(rack)?;
    topology.add_host(&node.metadata.name, rack)?;
    for Address { address } in node.status.addresses {
        // Names are among them.
        if let Ok(address) = address.parse::<IpAddr>() {
            topology.add_address(address, &node.metadata.name)?;
        }
    }
    for range in node.spec.pod_cidrs {
        let range: Cidr = range.parse().map_err(|error: CidrError| error.to_string())?;
        topology.count_range()?;
        topology.add_range(range, rack)?;
        if let Some(rack) = topology.racks.get_mut(rack) {
            rack.cidrs.push(range);
        }
    }
    Ok(())
}

fn is_rack(label: &str) -> bool {
    let name = label.rsplit_once('/').map_or(label, |(_, name)| name).to_ascii_lowercase();
    name.strip_suffix("rack").is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.', '_']))
}
