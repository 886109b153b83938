//! `dns.reverse_lookup`: names for addresses that nobody can tell, asked again and again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::text::{count, ip_of, list, some, time};
use super::{Scene, Weight, dns_server, finding, resolver};
use crate::analysis::dns::Lookup;
use crate::analysis::report::{Distribution, Finding};
use crate::model::cause::Cause;
use crate::model::dns::query::Outcome;

#[derive(Default)]
struct Reverse<'a> {
    /// Stalled time of each call.
    calls: Vec<u64>,
    failed: u64,
    in_flight_ns: u64,
    in_flight: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    attempts: u64,
    answered: u64,
    addresses: BTreeSet<&'a str>,
    servers: BTreeSet<&'a str>,
    pids: BTreeSet<u32>,
    /// What the failed calls returned, from the answers.
    results: BTreeSet<&'static str>,
}

pub(super) fn reverse(scene: &Scene<'_>) -> Vec<Finding> {
    let mut by_api: BTreeMap<&str, Reverse<'_>> = BTreeMap::new();
    for lookup in scene.dns.lookups.iter().filter(|lookup| is_reverse(lookup)) {
        by_api.entry(lookup.api).or_default().take(lookup);
    }
    by_api.iter().filter_map(|(api, reverse)| finding_of(scene, api, reverse)).collect()
}

fn is_reverse(lookup: &Lookup) -> bool {
    lookup.api == "getnameinfo"
        || lookup.api.starts_with("gethostbyaddr")
        || lookup.asked.iter().any(|asked| asked.qtype.as_deref() == Some("PTR"))
}

impl<'a> Reverse<'a> {
    fn take(&mut self, lookup: &'a Lookup) {
        self.calls.push(lookup.stalled_ns);
        self.first_ns = Some(self.first_ns.map_or(lookup.start_ns, |first| first.min(lookup.start_ns)));
        self.last_ns = self.last_ns.max(lookup.end_ns);
        self.pids.insert(lookup.pid);
        let name = || lookup.asked.iter().find_map(|asked| asked.name.as_deref());
        self.addresses.extend(lookup.argument.as_deref().or_else(name));
        for asked in &lookup.asked {
            self.attempts += asked.sends.len() as u64;
            self.answered += u64::from(asked.outcome.is_answer());
            self.servers.insert(&asked.server);
        }
        if lookup.in_flight {
            self.in_flight += 1;
            self.in_flight_ns = self.in_flight_ns.max(lookup.longest_wait_ns);
        }
        // Through a local service the answer is not seen.
        let seen = lookup.asked.iter().any(|asked| asked.transport != "unix");
        if seen && dns_server::has_failed(lookup) {
            self.failed += 1;
            self.results.insert(result(lookup));
        }
    }
}

/// The code that the call ends with, as follows from the answers.
fn result(lookup: &Lookup) -> &'static str {
    let no_such_name =
        lookup.asked.iter().any(|asked| matches!(asked.outcome, Outcome::Answered { rcode: 0 | 3, .. }));
    if no_such_name { "EAI_NONAME" } else { "EAI_AGAIN" }
}

fn finding_of(scene: &Scene<'_>, api: &str, reverse: &Reverse<'_>) -> Option<Finding> {
    let calls = reverse.calls.len() as u64;
    let each = Distribution::of(reverse.calls.clone());
    let stalled_ns = each.sum_ns;
    let span_ns = reverse.last_ns.saturating_sub(reverse.first_ns.unwrap_or(reverse.last_ns));
    let slow = scene.counts(stalled_ns, scene.thresholds.dns.reverse_stall);
    let repeated = scene.is_repeated(reverse.failed, span_ns);
    if !slow && !repeated {
        return None;
    }
    let api = if api.is_empty() { "reverse lookups" } else { api };
    let mut summary = format!(
        "{api} waits for the names of addresses ({}): {}, {} each at the median, {} at most, {} in all",
        list(reverse.addresses.iter().copied()),
        count(calls, "call", "calls"),
        time(each.p50_ns),
        time(each.max_ns),
        time(stalled_ns),
    );
    if reverse.failed > 0 {
        summary.push_str(&format!(
            "; {} failed ({})",
            reverse.failed,
            reverse.results.iter().copied().collect::<Vec<_>>().join(", ")
        ));
    }
    let pid = reverse.pids.first().copied().unwrap_or(0);
    let server = reverse.servers.first().copied().and_then(ip_of);
    let address = reverse.addresses.first().and_then(|text| text.parse().ok());
    let advice = [
        resolver::ask_reverse(pid, server, address),
        "Give the cluster's address ranges a reverse zone (even an empty one answers at once), or list all hosts in /etc/hosts on every node.".to_string(),
        "In the program: a look-up for a log line only is not worth the wait; PyTorch's TCPStore and others make one for each connection, newer versions less often.".to_string(),
        "Private ranges (10/8, 172.16/12, 192.168/16) are often forwarded to a server that drops them: serve them locally (RFC 6303).".to_string(),
    ];
    let lost_ns = if repeated { stalled_ns.max(span_ns) } else { stalled_ns };
    let failing = reverse.failed > 0 || reverse.in_flight > 0;
    let severity = scene.severity(Weight { lost_ns, failing, in_flight_ns: reverse.in_flight_ns });
    let proof = json!({
        "api": api,
        "calls": calls,
        "failed": reverse.failed,
        "results": some(&reverse.results),
        "result_evidence": "derived",
        "in_flight": reverse.in_flight,
        "call": each,
        "attempts": reverse.attempts,
        "answered": reverse.answered,
        "span_ns": span_ns,
        "stalled_ns": stalled_ns,
        "addresses": some(&reverse.addresses),
        "servers": some(&reverse.servers),
        "pids": some(&reverse.pids),
    });
    Some(finding("dns.reverse_lookup", severity, Cause::DnsResolve, stalled_ns, summary, proof, &advice))
}
