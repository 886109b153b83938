//! Adapters on another NUMA node than what uses them, and RoCE addresses of the old kind.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::pcie::name;
use super::text::list;
use super::{Scene, finding};
use crate::analysis::report::{Finding, Severity};
use crate::model::cause::Cause;
use crate::model::place::Place;
use crate::trace::place::{PciDevice, PciRole, RdmaPort};

/// Looks at a thread's processor that a statement needs.
const LOOKS: u64 = 3;
/// Variables that choose an index of the GID table.
const GID_INDEX: [&str; 2] = ["NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"];
const ROCE_V1: &str = "IB/RoCE v1";
const ROCE_V2: &str = "RoCE v2";

pub(super) fn find(scene: &Scene<'_>) -> Vec<Finding> {
    let place = scene.surroundings.place;
    let mut findings = Vec::new();
    for pid in place.pids() {
        findings.extend(nics_of(scene, pid).into_iter().filter_map(|nic| remote_nic(place, pid, nic)));
    }
    findings.extend(roce_v1(scene));
    findings
}

/// Adapters with queue pairs of the process; where none are known, those that it has open.
fn nics_of<'a>(scene: &Scene<'a>, pid: u32) -> Vec<&'a PciDevice> {
    let place = scene.surroundings.place;
    let rows = scene.report.queues.iter().filter(|row| row.pid == pid && !row.device.is_empty());
    let with_queues: BTreeSet<&str> = rows.map(|row| row.device.as_str()).collect();
    if !with_queues.is_empty() {
        return with_queues.into_iter().filter_map(|device| place.named(device)).collect();
    }
    let open = place.used(pid, PciRole::Nic);
    // Libraries open all adapters to choose among them: one open adapter is in use, of several nobody knows.
    if open.len() == 1 { open } else { Vec::new() }
}

/// What the adapter is compared with: the GPUs of the process, or else the threads that post.
fn other_nodes(place: &Place, pid: u32) -> (&'static str, BTreeSet<i32>) {
    let gpus = place.used(pid, PciRole::Gpu);
    let nodes: BTreeSet<i32> = gpus.iter().map(|gpu| gpu.node).collect();
    if !gpus.is_empty() && !nodes.contains(&-1) {
        return ("GPU", nodes);
    }
    let mut looks: BTreeMap<i32, u64> = BTreeMap::new();
    for (_, seen) in place.threads.iter().filter(|((of, _), _)| *of == pid) {
        for (node, number) in seen {
            *looks.entry(*node).or_default() += number;
        }
    }
    let all: u64 = looks.values().sum();
    // Threads that wander are nowhere.
    let most = looks.into_iter().filter(|(_, number)| *number >= LOOKS && *number * 10 >= all * 9);
    ("posting thread", most.map(|(node, _)| node).collect())
}

fn remote_nic(place: &Place, pid: u32, nic: &PciDevice) -> Option<Finding> {
    let (what, nodes) = other_nodes(place, pid);
    if nic.node < 0 || nodes.is_empty() || nodes.contains(&nic.node) {
        return None;
    }
    let nearer: Vec<&str> = place
        .devices
        .values()
        .filter(|device| device.role == PciRole::Nic && nodes.contains(&device.node))
        .map(name)
        .collect();
    let shown: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    let at = list(shown.iter().map(String::as_str));
    let mut summary = format!(
        "Process {pid} uses {} on NUMA node {}, and its {what}s are on node {at}",
        name(nic),
        nic.node
    );
    if nearer.is_empty() {
        summary.push_str("; no adapter is on that node.");
    } else {
        summary.push_str(&format!(", where {} would be nearer.", list(nearer.iter().copied())));
    }
    let proof = json!({
        "pid": pid, "nic": nic.name, "nic_node": nic.node, "compared_with": what, "nodes": nodes, "nearer": nearer,
        "evidence": if what == "GPU" { "measured.kernel" } else { "inferred" },
    });
    let mut advice =
        vec!["nvidia-smi topo -m   # SYS between GPU and adapter: across the processors' link".to_owned()];
    if what == "GPU" {
        advice.push(
            "Let NCCL choose (unset NCCL_IB_HCA and NCCL_CROSS_NIC), or name an adapter of the GPU's node; check that the \
             container or virtual machine shows NCCL the real topology (NCCL_TOPO_FILE)."
                .to_owned(),
        );
    } else {
        advice.push(format!(
            "taskset -cap $(cat /sys/devices/system/node/node{}/cpulist) {pid}   # or start it with numactl --cpunodebind={0}",
            nic.node
        ));
    }
    let severity = if nearer.is_empty() { Severity::Info } else { Severity::Warning };
    Some(finding("numa.remote_nic", severity, Cause::RdmaWire, 0, summary, proof, &advice))
}

/// Ports of adapters in use where the job's own setting, or the lack of any other, makes it RoCE v1.
fn roce_v1(scene: &Scene<'_>) -> Vec<Finding> {
    let place = scene.surroundings.place;
    let mut findings = Vec::new();
    for port in place.ports.values().filter(|port| port.link_layer == "Ethernet") {
        let pids: Vec<u32> =
            place.uses.iter().filter(|(_, device)| *device == port.device).map(|(pid, _)| *pid).collect();
        let by_setting = pids.iter().find_map(|pid| set_index(scene, *pid, port));
        let has = |kind: &str| port.gids.iter().any(|gid| gid.kind == kind);
        let only = !pids.is_empty() && has(ROCE_V1) && !has(ROCE_V2);
        if by_setting.is_some() || only {
            findings.push(roce_finding(port, &pids, by_setting, has(ROCE_V2)));
        }
    }
    findings
}

/// The variable and index that choose an entry of the old kind.
fn set_index<'a>(scene: &Scene<'a>, pid: u32, port: &RdmaPort) -> Option<(&'a str, u32)> {
    let of_pid = scene.surroundings.environment.iter().filter(|entry| entry.pid == pid);
    of_pid
        .filter(|entry| GID_INDEX.contains(&entry.what.as_str()))
        .filter_map(|entry| Some((entry.what.as_str(), entry.value.trim().parse::<u32>().ok()?)))
        .find(|(_, index)| port.gids.iter().any(|gid| gid.index == *index && gid.kind == ROCE_V1))
}

fn roce_finding(port: &RdmaPort, pids: &[u32], by_setting: Option<(&str, u32)>, has_v2: bool) -> Finding {
    let v2 = port.gids.iter().filter(|gid| gid.kind == ROCE_V2);
    // One with an IPv4 address inside is what routers and lossless classes are set up for, as a rule.
    let better = v2.clone().find(|gid| gid.gid.contains(":ffff:")).or_else(|| v2.clone().next());
    let why = match by_setting {
        Some((variable, index)) => format!("{variable}={index} is a RoCE v1 address"),
        None => "it has no RoCE v2 address".to_owned(),
    };
    let summary = format!(
        "{} port {} speaks RoCE v1: {why}. Such packets are not routed, and switches cannot mark them for congestion.",
        port.device, port.port
    );
    let proof = json!({
        "device": port.device, "port": port.port, "netdev": port.netdev, "pids": pids,
        "variable": by_setting.map(|(variable, _)| variable), "index": by_setting.map(|(_, index)| index),
        "v2_index": better.map(|gid| gid.index), "mtu": port.mtu,
        "evidence": if by_setting.is_some() { "derived" } else { "measured.kernel" },
    });
    let mut advice = vec![
        "show_gids   # or: grep . /sys/class/infiniband/*/ports/*/gid_attrs/types/* 2>/dev/null".to_owned(),
    ];
    advice.push(match better {
        Some(gid) => format!(
            "Unset the variable (NCCL 2.21 and later choose v2), or set it to {}, a v2 address of this port.",
            gid.index
        ),
        None => {
            "Give the network device an IP address, and see that RoCE v2 is on (cma_roce_mode).".to_owned()
        }
    });
    let severity = if by_setting.is_some() && has_v2 { Severity::Warning } else { Severity::Info };
    finding("rdma.roce_v1", severity, Cause::RdmaWire, 0, summary, proof, &advice)
}
