//! `dns.retry_ladder`: questions that were sent again after the resolver's time-out.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::text::{count, ip_of, list, some, time};
use super::{Scene, Weight, dns_server, finding, nanos, resolver};
use crate::analysis::dns::{Asked, Lookup};
use crate::analysis::report::Finding;
use crate::model::cause::Cause;
use crate::model::dns::query::Outcome;

/// The steps that one server caused.
#[derive(Default)]
struct Ladder<'a> {
    lookups: u64,
    failed: u64,
    resent: u64,
    /// Of the lookup with the longest ladder.
    steps: Vec<u64>,
    stalled_ns: u64,
    in_flight_ns: u64,
    names: BTreeSet<&'a str>,
    apis: BTreeSet<&'a str>,
    pids: BTreeSet<u32>,
    unanswered_types: BTreeSet<&'a str>,
    /// Types that the same server answered in the same lookup.
    answered_types: BTreeSet<&'a str>,
}

pub(super) fn ladder(scene: &Scene<'_>) -> Vec<Finding> {
    let mut ladders: BTreeMap<&str, Ladder<'_>> = BTreeMap::new();
    for lookup in &scene.dns.lookups {
        take_lookup(scene, lookup, &mut ladders);
    }
    ladders.iter().filter_map(|(server, ladder)| finding_of(scene, server, ladder)).collect()
}

fn take_lookup<'a>(scene: &Scene<'_>, lookup: &'a Lookup, ladders: &mut BTreeMap<&'a str, Ladder<'a>>) {
    let mut questions: BTreeMap<(String, &str), Vec<&'a Asked>> = BTreeMap::new();
    for asked in lookup.asked.iter().filter(|asked| !asked.sends.is_empty()) {
        let (Some(name), Some(qtype)) = (&asked.name, &asked.qtype) else { continue };
        questions.entry((name.to_ascii_lowercase(), qtype)).or_default().push(asked);
    }
    let mut touched: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for question in questions.values() {
        let steps = steps(question, nanos(scene.thresholds.dns.retry_step));
        for asked in question.iter().filter(|asked| steps.contains_key(asked.server.as_str())) {
            let ladder = ladders.entry(&asked.server).or_default();
            ladder.names.extend(asked.name.as_deref());
            ladder.stalled_ns += asked.stalled_ns;
            if asked.in_flight {
                ladder.in_flight_ns = ladder.in_flight_ns.max(lookup.longest_wait_ns);
            }
            ladder.unanswered_types.extend(asked.qtype.as_deref());
        }
        for (server, steps) in steps {
            let longest = touched.entry(server).or_default();
            if steps.len() > longest.len() {
                *longest = steps;
            }
        }
    }
    for (server, steps) in touched {
        let ladder = ladders.entry(server).or_default();
        ladder.lookups += 1;
        ladder.failed += u64::from(dns_server::has_failed(lookup));
        ladder.resent += steps.len() as u64;
        ladder.pids.insert(lookup.pid);
        if !lookup.api.is_empty() {
            ladder.apis.insert(lookup.api);
        }
        let answered = lookup
            .asked
            .iter()
            .filter(|asked| asked.server == server && matches!(asked.outcome, Outcome::Answered { .. }));
        ladder.answered_types.extend(answered.filter_map(|asked| asked.qtype.as_deref()));
        if steps.iter().sum::<u64>() > ladder.steps.iter().sum::<u64>() {
            ladder.steps = steps;
        }
    }
}

/// Gaps between sending a question and sending it again without an answer in between, by the server that
/// was asked first.
fn steps<'a>(question: &[&'a Asked], least_ns: u64) -> BTreeMap<&'a str, Vec<u64>> {
    let mut sends: Vec<(u64, &Asked)> =
        question.iter().flat_map(|asked| asked.sends.iter().map(|time| (*time, *asked))).collect();
    sends.sort_by_key(|(time, _)| *time);
    let mut steps: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (position, (time, asked)) in sends.iter().enumerate() {
        let Some((next, _)) = sends.get(position + 1) else { continue };
        let answered = asked.closed_ns.is_some_and(|closed| closed <= *next) && asked.outcome.is_answer();
        let gap = next - time;
        if !answered && gap >= least_ns {
            steps.entry(&asked.server).or_default().push(gap);
        }
    }
    steps
}

fn finding_of(scene: &Scene<'_>, server: &str, ladder: &Ladder<'_>) -> Option<Finding> {
    if !scene.counts(ladder.stalled_ns, scene.thresholds.dns.retry_stall) {
        return None;
    }
    let steps: Vec<String> = ladder.steps.iter().map(|step| time(*step)).collect();
    let lost: Vec<&str> = ladder.unanswered_types.iter().copied().collect();
    let kept: Vec<&str> = ladder.answered_types.difference(&ladder.unanswered_types).copied().collect();
    let half = if kept.is_empty() {
        String::new()
    } else {
        format!(": {} is answered, {} is not", kept.join("+"), lost.join("+"))
    };
    let summary = format!(
        "lookups of {} time out at {server} and ask again after {}{half}; {}, {} waited",
        list(ladder.names.iter().copied()),
        steps.join(", "),
        count(ladder.lookups, "lookup", "lookups"),
        time(ladder.stalled_ns),
    );
    let pid = ladder.pids.first().copied().unwrap_or(0);
    let name = ladder.names.first().copied();
    let mut advice = Vec::new();
    if kept.is_empty() {
        advice.push(resolver::look_at_file(pid));
        advice.push(resolver::ask(pid, ip_of(server), name, ""));
        advice.push("If it answers by hand, queries or answers are lost on the way, or the server drops them under load: `nstat -az UdpInErrors UdpRcvbufErrors` here, query log and rate limits there.".into());
        advice.push(resolver::meanwhile(scene, server));
    } else {
        advice.push(resolver::ask(
            pid,
            ip_of(server),
            name,
            &format!("{} ", lost.first().copied().unwrap_or("AAAA")),
        ));
        advice.push("Both questions leave through one socket and one of them is lost: firewalls and NAT that track connections (Kubernetes service addresses) do that, and so do servers that drop the type.".into());
        advice.push("Add `options single-request-reopen` to /etc/resolv.conf (or set RES_OPTIONS=single-request-reopen for the job); with glibc 2.36 or later and no IPv6 in use, `options no-aaaa`.".into());
        advice.push("conntrack -S | grep -o 'insert_failed=[1-9][0-9]*'    # grows where connection tracking loses them".into());
    }
    let severity = scene.severity(Weight {
        lost_ns: ladder.stalled_ns,
        failing: ladder.failed > 0 || ladder.in_flight_ns > 0,
        in_flight_ns: ladder.in_flight_ns,
    });
    let proof = json!({
        "server": server,
        "steps_ns": ladder.steps,
        "resent": ladder.resent,
        "lookups": ladder.lookups,
        "failed_lookups": ladder.failed,
        "unanswered_types": lost,
        "answered_types": kept,
        "stalled_ns": ladder.stalled_ns,
        "names": some(&ladder.names),
        "apis": some(&ladder.apis),
        "pids": some(&ladder.pids),
        "resolv_conf": resolver::configurations(scene, &ladder.pids),
    });
    Some(finding("dns.retry_ladder", severity, Cause::DnsResolve, ladder.stalled_ns, summary, proof, &advice))
}
