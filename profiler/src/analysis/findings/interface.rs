//! Which interface a connection goes out of.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Scene;

/// Beginnings of the names of interfaces that lead to containers or machines on the same host, or into a tunnel.
const VIRTUAL: [&str; 13] = [
    "veth", "docker", "br-", "cni", "virbr", "cali", "cilium", "flannel", "lxc", "podman", "kube", "tunl",
    "vxlan",
];

/// The interface that has this address in the network of one of `pids`, as recorded.
pub(super) fn of_address<'a>(scene: &Scene<'a>, address: IpAddr, pids: &BTreeSet<u32>) -> Option<&'a str> {
    let what = format!("interface.{}", address.to_canonical());
    let rows = scene.surroundings.environment.iter().filter(|row| row.what == what);
    // An address is looked up for the first process that uses it.
    let (own, other): (Vec<_>, Vec<_>) = rows.partition(|row| row.pid == 0 || pids.contains(&row.pid));
    own.first().or(other.first()).map(|row| row.value.as_str())
}

/// Whether other hosts can hardly be reached through it.
pub(super) fn is_local(name: &str) -> bool {
    name == "lo" || VIRTUAL.iter().any(|known| name.starts_with(known))
}
