//! `net.slow_peer` by round-trip times: one host that is slower than the others at the same distance.

use serde_json::json;

use super::net_hops::{HostHops, Waited, hosts, is_slow, median, waited};
use super::text::{ip_of, time};
use super::{Scene, Weight, finding};
use crate::analysis::report::{Finding, HopRow, Severity};
use crate::model::cause::Cause;

/// A slow host, and what it was compared with.
struct SlowHost<'a> {
    host: HostHops<'a>,
    others_ns: u64,
    others: usize,
    /// Others at the same distance.
    compared: bool,
    relation: &'static str,
}

/// Adds findings for slow hosts; one that is waited for already has its finding say so.
pub(super) fn add_slow_hosts(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let samples = scene.thresholds.net.cross_rack_samples;
    let of = |relation| hosts(scene, relation, samples, |hop: &HopRow| hop.rtt.p50_ns);
    let (near, far) = (of("same-rack"), of("cross-rack"));
    let found = slow_hosts(scene, "same-rack", &near, &far).into_iter().chain(slow_hosts(
        scene,
        "cross-rack",
        &far,
        &near,
    ));
    for slow in found {
        let Waited { total_ns, explained_ns } =
            waited(scene, &slow.host.hops, slow.host.value_ns.saturating_sub(slow.others_ns));
        if !scene.counts(explained_ns, scene.thresholds.net.cross_rack_stall) {
            continue;
        }
        match findings.iter_mut().find(|finding| is_about(finding, &slow.host)) {
            Some(known) => amend(known, &slow),
            None => findings.push(slow_host(scene, &slow, total_ns, explained_ns)),
        }
    }
}

/// Of the hosts at one distance those that are slow against the others there: few, or it is not theirs. A host
/// that is alone there is set against those at the other distance.
fn slow_hosts<'a>(
    scene: &Scene<'_>,
    relation: &'static str,
    hosts: &[HostHops<'a>],
    elsewhere: &[HostHops<'a>],
) -> Vec<SlowHost<'a>> {
    let compared = hosts.len() > 1;
    let mut slow: Vec<SlowHost<'a>> = Vec::new();
    for (index, host) in hosts.iter().enumerate() {
        let mut others: Vec<u64> =
            if compared { hosts } else { elsewhere }.iter().map(|other| other.value_ns).collect();
        if compared {
            others.swap_remove(index);
        }
        let others_ns = median(others.iter().copied());
        if !others.is_empty() && is_slow(scene, host.value_ns, others_ns) {
            let others = others.len();
            slow.push(SlowHost { host: host.clone(), others_ns, others, compared, relation });
        }
    }
    let many = slow.len() > 1
        && slow.len() as f64 > (1.0 - scene.thresholds.net.cross_rack_agree) * hosts.len() as f64;
    if many { Vec::new() } else { slow }
}

fn is_about(finding: &Finding, host: &HostHops<'_>) -> bool {
    let peer = finding.proof.get("peer").and_then(serde_json::Value::as_str).and_then(ip_of);
    finding.id == "net.slow_peer"
        && peer.is_some_and(|peer| host.hops.iter().any(|hop| hop.peer == peer.to_string()))
}

/// Adds the round-trip times to a finding that rests on waits.
fn amend(finding: &mut Finding, slow: &SlowHost<'_>) {
    let text = format!(
        ". Its round-trip time is {} against {} of others: the way to it is slow",
        time(slow.host.value_ns),
        time(slow.others_ns)
    );
    finding.summary.push_str(&text);
    finding.proof.insert("rtt_ns".to_owned(), slow.host.value_ns.into());
    finding.proof.insert("others_rtt_ns".to_owned(), slow.others_ns.into());
}

fn slow_host(scene: &Scene<'_>, slow: &SlowHost<'_>, total_ns: u64, explained_ns: u64) -> Finding {
    let SlowHost { host, others_ns, others, compared, relation } = slow;
    let peer = host.hops.first().map_or(host.name, |hop| hop.peer.as_str());
    let against = match (*compared, *relation) {
        (true, "cross-rack") => format!("the other hosts across racks ({others})"),
        (true, _) => format!("the other hosts in the rack ({others})"),
        (false, "cross-rack") => "hosts in the own rack".to_owned(),
        (false, _) => "hosts across racks".to_owned(),
    };
    let mut summary = format!(
        "the round-trip time to {} is {} against {} of {against}; that explains up to {} of {} waited for it",
        host.name,
        time(host.value_ns),
        time(*others_ns),
        time(explained_ns),
        time(total_ns)
    );
    let alone_across = !compared && *relation == "cross-rack";
    if alone_across {
        summary.push_str(
            ". It is the only peer across racks: whether the host or the way between the racks is slow cannot be told",
        );
    }
    let proof = json!({
        "peer": peer,
        "evidence": "derived",
        "relation": relation,
        "rtt_ns": host.value_ns,
        "others_rtt_ns": others_ns,
        "others": others,
        "compared_at_same_distance": compared,
        "waited_ns": total_ns,
        "stalled_ns": explained_ns,
    });
    let advice = [
        format!("mtr -n -c 20 --report {peer}    # at which hop it grows; the same for a peer beside it"),
        format!(
            "on {peer}: ip -s link; ethtool -S DEVICE    # errors, drops, pause frames of its port; many senders to it at once fill its switch port"
        ),
    ];
    let severity = if alone_across {
        Severity::Info
    } else {
        scene.severity(Weight { lost_ns: explained_ns, ..Weight::default() })
    };
    finding("net.slow_peer", severity, Cause::SockRecv, explained_ns, summary, proof, &advice)
}
