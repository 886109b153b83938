//! `dns.still_waiting`: lookups that had not ended when the recording stopped.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::text::{count, ip_of, list, some, time};
use super::{Scene, Weight, finding, nanos, resolver};
use crate::analysis::report::Finding;
use crate::model::cause::Cause;

#[derive(Default)]
struct Waiting<'a> {
    lookups: u64,
    age_ns: u64,
    stalled_ns: u64,
    began_earlier: bool,
    names: BTreeSet<&'a str>,
    apis: BTreeSet<&'a str>,
    threads: BTreeSet<(u32, u32)>,
}

pub(super) fn still_waiting(scene: &Scene<'_>) -> Vec<Finding> {
    let mut waiting: BTreeMap<&str, Waiting<'_>> = BTreeMap::new();
    let least = nanos(scene.thresholds.dns.still_waiting);
    let lookups = scene.dns.lookups.iter();
    for lookup in lookups.filter(|lookup| lookup.in_flight && lookup.longest_wait_ns >= least) {
        let mut servers = BTreeSet::new();
        for asked in lookup.asked.iter().filter(|asked| asked.in_flight) {
            let entry = waiting.entry(&asked.server).or_default();
            entry.names.extend(asked.name.as_deref().or(lookup.argument.as_deref()));
            servers.insert(&asked.server);
        }
        for server in servers {
            let entry = waiting.entry(server).or_default();
            entry.lookups += 1;
            // The whole call, not only its last step.
            let since_start = lookup.end_ns.saturating_sub(lookup.start_ns);
            entry.age_ns = entry.age_ns.max(lookup.longest_wait_ns).max(since_start);
            entry.stalled_ns += lookup.stalled_ns;
            entry.began_earlier |= lookup.began_earlier;
            entry.threads.insert((lookup.pid, lookup.tid));
            if !lookup.api.is_empty() {
                entry.apis.insert(lookup.api);
            }
        }
    }
    waiting.iter().map(|(server, waiting)| finding_of(scene, server, waiting)).collect()
}

fn finding_of(scene: &Scene<'_>, server: &str, waiting: &Waiting<'_>) -> Finding {
    let (pid, tid) = waiting.threads.first().copied().unwrap_or((0, 0));
    let subject = if waiting.names.is_empty() {
        "an unknown name (asked before the recording)".to_string()
    } else {
        list(waiting.names.iter().copied())
    };
    let from = if server.is_empty() { "a resolver" } else { server };
    let at_least = if waiting.began_earlier { "at least " } else { "" };
    let summary = format!(
        "{} of {subject} had no answer from {from} when the recording stopped, after {at_least}{} (pid {pid})",
        count(waiting.lookups, "lookup", "lookups"),
        time(waiting.age_ns),
    );
    let mut advice = vec![
        format!("cat /proc/{pid}/task/{tid}/stack /proc/{pid}/task/{tid}/syscall    # still there?"),
        resolver::look_at_file(pid),
    ];
    if let Some(ip) = ip_of(server) {
        advice.push(resolver::ask(pid, Some(ip), waiting.names.first().copied(), ""));
        advice.extend(resolver::revive(pid, ip));
    } else if server.contains("nscd") {
        advice.push(
            "systemctl status nscd; systemctl restart nscd    # the lookup goes through its cache".into(),
        );
    } else if server.contains("systemd/resolve") {
        advice.push(
            "systemctl status systemd-resolved; resolvectl query NAME; systemctl restart systemd-resolved"
                .into(),
        );
    }
    advice.push(resolver::meanwhile(scene, server));
    // A query that has just been sent may well be answered.
    let failing = waiting.age_ns >= nanos(scene.thresholds.dns.unreachable_wait);
    let severity =
        scene.severity(Weight { lost_ns: waiting.stalled_ns, failing, in_flight_ns: waiting.age_ns });
    let threads: Vec<u32> = waiting.threads.iter().map(|(_, tid)| *tid).take(super::text::LISTED).collect();
    let pids: BTreeSet<u32> = waiting.threads.iter().map(|(pid, _)| *pid).collect();
    let proof = json!({
        "server": server,
        "in_flight": waiting.lookups,
        "age_ns": waiting.age_ns,
        "began_earlier": waiting.began_earlier,
        "stalled_ns": waiting.stalled_ns,
        "names": some(&waiting.names),
        "apis": some(&waiting.apis),
        "pids": some(&pids),
        "tids": threads,
        "resolv_conf": resolver::configurations(scene, &pids),
    });
    let stalled_ns = waiting.stalled_ns;
    finding("dns.still_waiting", severity, Cause::DnsResolve, stalled_ns, summary, proof, &advice)
}
