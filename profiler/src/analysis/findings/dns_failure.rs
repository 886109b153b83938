//! `dns.nxdomain` and `dns.servfail`: answers that say no.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::json;

use super::text::{count, ip_of, list, some, time};
use super::{Scene, Weight, dns_server, finding, resolver};
use crate::analysis::dns::{Asked, Lookup};
use crate::analysis::report::{Finding, Severity};
use crate::model::cause::Cause;
use crate::model::dns::message::rcode_name;
use crate::model::dns::query::Outcome;

const NXDOMAIN: u16 = 3;
/// Outside of known calls: a success for a name with the same first label this close means that the
/// resolver only went through its search list.
const SEARCH_LIST_NS: u64 = 1_000_000_000;

/// Failures of the same kind.
#[derive(Default)]
struct Failures<'a> {
    answers: u64,
    lookups: u64,
    failed: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    stalled_ns: u64,
    names: BTreeSet<&'a str>,
    servers: BTreeSet<&'a str>,
    apis: BTreeSet<&'a str>,
    pids: BTreeSet<u32>,
    latest_end_ns: u64,
}

impl<'a> Failures<'a> {
    fn take(&mut self, lookup: &'a Lookup, failed: bool, answers: &[&'a Asked]) {
        self.lookups += 1;
        self.failed += u64::from(failed);
        self.answers += answers.len() as u64;
        self.first_ns = Some(self.first_ns.map_or(lookup.start_ns, |first| first.min(lookup.start_ns)));
        self.last_ns = self.last_ns.max(lookup.start_ns);
        self.latest_end_ns = self.latest_end_ns.max(lookup.end_ns);
        self.pids.insert(lookup.pid);
        if !lookup.api.is_empty() {
            self.apis.insert(lookup.api);
        }
        for asked in answers {
            self.stalled_ns += asked.stalled_ns;
            self.names.extend(asked.name.as_deref());
            self.servers.insert(&asked.server);
        }
    }

    /// From the first lookup to the end of the last.
    fn span_ns(&self) -> u64 {
        self.latest_end_ns.saturating_sub(self.first_ns.unwrap_or(self.latest_end_ns))
    }

    fn per_second(&self) -> f64 {
        let gaps = self.lookups.saturating_sub(1) as f64;
        let span = self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns));
        if span == 0 { 0.0 } else { (gaps / (span as f64 / 1e9) * 100.0).round() / 100.0 }
    }
}

fn answers(lookup: &Lookup, wanted: impl Fn(u16) -> bool) -> Vec<&Asked> {
    let answered = lookup.asked.iter().filter(|asked| match asked.outcome {
        Outcome::Answered { rcode, .. } => wanted(rcode),
        _ => false,
    });
    answered.collect()
}

/// Times at which threads got a name resolved, by thread and first label.
struct Successes<'a> {
    times: HashMap<(u32, u32, String), Vec<u64>>,
    by_subject: HashMap<&'a str, u64>,
}

impl<'a> Successes<'a> {
    fn new(lookups: &'a [Lookup]) -> Successes<'a> {
        let mut successes = Successes { times: HashMap::new(), by_subject: HashMap::new() };
        for lookup in lookups.iter().filter(|lookup| !dns_server::has_failed(lookup) && !lookup.in_flight) {
            for asked in &lookup.asked {
                let key = (lookup.pid, lookup.tid, first_label(asked.name.as_deref()));
                successes.times.entry(key).or_default().push(lookup.start_ns);
            }
            if let Some(subject) = subject(lookup) {
                let first = successes.by_subject.entry(subject).or_insert(lookup.end_ns);
                *first = (*first).min(lookup.end_ns);
            }
        }
        successes
    }

    fn is_search_list(&self, lookup: &Lookup) -> bool {
        lookup.api.is_empty()
            && lookup.asked.iter().any(|asked| {
                let key = (lookup.pid, lookup.tid, first_label(asked.name.as_deref()));
                let times = self.times.get(&key);
                times.is_some_and(|times| {
                    // By start, as lookups are.
                    let from = times.partition_point(|time| *time + SEARCH_LIST_NS < lookup.start_ns);
                    times.get(from).is_some_and(|time| time.abs_diff(lookup.end_ns) <= SEARCH_LIST_NS)
                })
            })
    }
}

fn first_label(name: Option<&str>) -> String {
    name.and_then(|name| name.split('.').next()).unwrap_or_default().to_ascii_lowercase()
}

/// What the lookup was for: the argument, or else the first name asked.
fn subject(lookup: &Lookup) -> Option<&str> {
    let first = || lookup.asked.iter().find_map(|asked| asked.name.as_deref());
    lookup.argument.as_deref().filter(|argument| !argument.is_empty()).or_else(first)
}

fn is_reverse(lookup: &Lookup) -> bool {
    lookup.asked.iter().any(|asked| asked.qtype.as_deref() == Some("PTR"))
}

/// Lookups that failed because the name does not exist. Tries with the search list that led to a success in
/// the end are none.
pub(super) fn nxdomain(scene: &Scene<'_>) -> Vec<Finding> {
    let successes = Successes::new(&scene.dns.lookups);
    let mut failures: BTreeMap<&str, Failures<'_>> = BTreeMap::new();
    for lookup in &scene.dns.lookups {
        let denied = answers(lookup, |rcode| rcode == NXDOMAIN);
        if denied.is_empty()
            || is_reverse(lookup)
            || !dns_server::has_failed(lookup)
            || successes.is_search_list(lookup)
        {
            continue;
        }
        if let Some(subject) = subject(lookup) {
            failures.entry(subject).or_default().take(lookup, true, &denied);
        }
    }
    let found = failures.iter();
    found.filter_map(|(subject, failures)| nxdomain_of(scene, subject, failures, &successes)).collect()
}

fn nxdomain_of(
    scene: &Scene<'_>,
    subject: &str,
    failures: &Failures<'_>,
    successes: &Successes<'_>,
) -> Option<Finding> {
    let (repeated, severity) = judge(scene, failures)?;
    let resolved_ns = successes
        .by_subject
        .get(subject)
        .and_then(|time| time.checked_sub(failures.first_ns.unwrap_or(*time)));
    let mut summary = format!("{subject} does not exist for {}", list(failures.servers.iter().copied()));
    if repeated {
        summary.push_str(&format!(
            ": {} failed in {} ({} a second)",
            count(failures.failed, "lookup", "lookups"),
            time(failures.span_ns()),
            failures.per_second()
        ));
    }
    if let Some(after) = resolved_ns {
        summary.push_str(&format!("; resolved {} after the first failure", time(after)));
    }
    let pid = failures.pids.first().copied().unwrap_or(0);
    let server = failures.servers.first().copied().and_then(ip_of);
    let advice = [
        resolver::ask(pid, server, Some(subject), "+search "),
        resolver::look_at_file(pid) + " and the search list?",
        "Is it the name that the other side publishes (MASTER_ADDR, hostname -f there)? On Kubernetes a headless service has a name only once its pods are ready (publishNotReadyAddresses: true).".to_string(),
        "If the name is right and new: servers cache \"does not exist\" for the zone's negative TTL; `resolvectl flush-caches`, or wait for it before the job starts.".to_string(),
    ];
    let proof = json!({
        "name": subject,
        "asked": some(&failures.names),
        "servers": some(&failures.servers),
        "apis": some(&failures.apis),
        "result": "EAI_NONAME",
        "result_evidence": "derived",
        "lookups": failures.failed,
        "answers": failures.answers,
        "per_second": failures.per_second(),
        "span_ns": failures.span_ns(),
        "stalled_ns": failures.stalled_ns,
        "resolved_after_ns": resolved_ns,
        "pids": some(&failures.pids),
    });
    let severity = if resolved_ns.is_some() { severity.max(Severity::Warning) } else { severity };
    let stalled_ns = failures.stalled_ns;
    Some(finding("dns.nxdomain", severity, Cause::DnsResolve, stalled_ns, summary, proof, &advice))
}

/// Whether it is repeated, and how bad; `None` where it is not worth a finding.
fn judge(scene: &Scene<'_>, failures: &Failures<'_>) -> Option<(bool, Severity)> {
    let span_ns = failures.span_ns();
    let repeated = scene.is_repeated(failures.failed, span_ns);
    let waited = scene.counts(failures.stalled_ns, scene.thresholds.dns.error_stall);
    if failures.failed == 0 && !waited {
        return None;
    }
    let lost_ns = if repeated { failures.stalled_ns.max(span_ns) } else { failures.stalled_ns };
    let failing = failures.failed > 0 && repeated;
    Some((repeated, scene.severity(Weight { lost_ns, failing, in_flight_ns: 0 })))
}

/// Servers that answer with an error other than NXDOMAIN.
pub(super) fn servfail(scene: &Scene<'_>) -> Vec<Finding> {
    let mut failures: BTreeMap<(&str, u16), Failures<'_>> = BTreeMap::new();
    for lookup in scene.dns.lookups.iter().filter(|lookup| !is_reverse(lookup)) {
        let mut by_server: BTreeMap<(&str, u16), Vec<&Asked>> = BTreeMap::new();
        for asked in answers(lookup, |rcode| rcode != 0 && rcode != NXDOMAIN) {
            if let Outcome::Answered { rcode, .. } = asked.outcome {
                by_server.entry((&asked.server, rcode)).or_default().push(asked);
            }
        }
        let failed = dns_server::has_failed(lookup);
        for (key, answers) in by_server {
            failures.entry(key).or_default().take(lookup, failed, &answers);
        }
    }
    let found = failures.iter();
    found.filter_map(|((server, rcode), failures)| servfail_of(scene, server, *rcode, failures)).collect()
}

fn servfail_of(scene: &Scene<'_>, server: &str, rcode: u16, failures: &Failures<'_>) -> Option<Finding> {
    let (_, severity) = judge(scene, failures)?;
    let code = rcode_name(rcode);
    let summary = format!(
        "{server} answers {code} for {}: {} in {}, {} of {} failed",
        list(failures.names.iter().copied()),
        count(failures.answers, "answer", "answers"),
        time(failures.span_ns()),
        failures.failed,
        count(failures.lookups, "lookup", "lookups"),
    );
    let pid = failures.pids.first().copied().unwrap_or(0);
    let name = failures.names.first().copied();
    let mut advice = vec![resolver::ask(pid, ip_of(server), name, "")];
    advice.push(match code.as_str() {
        "SERVFAIL" => format!(
            "{}    # answers now? then DNSSEC validation fails; else its upstream server or the zone's own servers do not answer it",
            resolver::ask(pid, ip_of(server), name, "+cd ")
        ),
        "REFUSED" => "The server does not serve this client or this zone: its allow-query / allow-recursion lists, or the wrong server in /etc/resolv.conf.".to_string(),
        _ => "The server does not understand the query: an old forwarder or a middlebox that dislikes EDNS; try with +noedns.".to_string(),
    });
    advice.push(
        "journalctl -u systemd-resolved -u named -u unbound -u coredns --since -10min    # on the server"
            .into(),
    );
    advice.push(resolver::meanwhile(scene, server));
    let proof = json!({
        "server": server,
        "rcode": code,
        "answers": failures.answers,
        "lookups": failures.lookups,
        "failed_lookups": failures.failed,
        "per_second": failures.per_second(),
        "span_ns": failures.span_ns(),
        "stalled_ns": failures.stalled_ns,
        "names": some(&failures.names),
        "apis": some(&failures.apis),
        "pids": some(&failures.pids),
    });
    let stalled_ns = failures.stalled_ns;
    Some(finding("dns.servfail", severity, Cause::DnsResolve, stalled_ns, summary, proof, &advice))
}
