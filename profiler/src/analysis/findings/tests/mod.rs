//! Scenes and the findings that they must, and must not, give.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Surroundings, Thresholds, find};
use crate::analysis::dns::DnsAnalysis;
use crate::analysis::dns::tests::script::Script;
use crate::analysis::far_end::FarEnds;
use crate::analysis::gpu_ranks::Ranks;
use crate::analysis::late::Late;
use crate::analysis::places::Places;
use crate::analysis::report::{Finding, Report, TargetRow};
use crate::analysis::socket_queues::SocketQueues;
use crate::model::gpu::Gpu;
use crate::model::place::Place;
use crate::trace::record::Environment;

mod dns;
mod dns_failure;
mod late;
mod net;
mod net_ends;
mod place;
mod rdma_setup;
mod tcp;

fn report(duration_ns: u64) -> Report {
    Report { target: TargetRow { pids: vec![100], duration_ns, ..TargetRow::default() }, ..Report::default() }
}

fn of_report(report: &Report) -> Vec<Finding> {
    with_environment(report, &[])
}

/// Environment as `(what, value)` of process 100.
fn with_environment(report: &Report, environment: &[(&str, &str)]) -> Vec<Finding> {
    found(report, &DnsAnalysis::default(), environment, &FarEnds::default())
}

fn found(
    report: &Report,
    dns: &DnsAnalysis,
    environment: &[(&str, &str)],
    far_ends: &FarEnds,
) -> Vec<Finding> {
    found_with(report, dns, environment, far_ends, &Late::default())
}

fn found_with(
    report: &Report,
    dns: &DnsAnalysis,
    environment: &[(&str, &str)],
    far_ends: &FarEnds,
    late: &Late,
) -> Vec<Finding> {
    let entry = |(what, value): &(&str, &str)| Environment {
        what: (*what).to_string(),
        value: (*value).to_string(),
        pid: 100,
    };
    let environment: Vec<Environment> = environment.iter().map(entry).collect();
    let places = Places::default();
    let place = Place::default();
    let surroundings = Surroundings {
        environment: &environment,
        far_ends,
        late,
        python: &BTreeSet::new(),
        socket_queues: &SocketQueues::default(),
        queues: &[],
        places: &places,
        place: &place,
        counters: &[],
        stalls: &[],
        window_start_ns: 0,
        gpu: &Gpu::default(),
        gpu_ranks: &Ranks::default(),
    };
    check(find(report, dns, surroundings, &Thresholds::default()))
}

fn of_script(script: &Script) -> Vec<Finding> {
    let dns = script.play();
    let mut report = report(script.window.end_ns - script.window.start_ns);
    report.dns.clone_from(&dns.rows);
    let resolv_conf =
        "nameserver 10.0.0.53; nameserver 10.0.0.54; search example; timeout 5s; attempts 2; ndots 1";
    found(&report, &dns, &[("resolv.conf", resolv_conf)], &FarEnds::default())
}

/// What holds for every finding.
fn check(findings: Vec<Finding>) -> Vec<Finding> {
    for finding in &findings {
        assert!(!finding.advice.is_empty() && !finding.proof.is_empty(), "{finding:?}");
        assert!(!finding.summary.contains('\n') && finding.summary.len() < 400, "{}", finding.summary);
        if let Some(stalled) = finding.proof.get("stalled_ns") {
            assert_eq!(stalled.as_u64(), Some(finding.stalled_ns));
        }
    }
    let order: Vec<_> = findings.iter().map(|finding| finding.severity).collect();
    assert!(order.is_sorted(), "worst first");
    findings
}

fn ids(findings: &[Finding]) -> Vec<&str> {
    let mut ids: Vec<&str> = findings.iter().map(|finding| finding.id.as_str()).collect();
    ids.sort_unstable();
    ids
}

fn get<'a>(findings: &'a [Finding], id: &str) -> &'a Finding {
    let mut found = findings.iter().filter(|finding| finding.id == id);
    let finding = found.next().unwrap_or_else(|| panic!("no {id} among {:?}", ids(findings)));
    assert!(found.next().is_none(), "more than one {id}");
    finding
}

fn number(finding: &Finding, field: &str) -> u64 {
    finding.proof.get(field).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number {field}"))
}

fn strings<'a>(finding: &'a Finding, field: &str) -> Vec<&'a str> {
    finding.proof[field].as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

/// The example in the document is the table of defaults, all of it.
#[test]
fn every_limit_is_documented() {
    let document = include_str!("../../../../../docs/findings.md");
    let toml = document.split("```toml").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let documented: Thresholds = toml::from_str(toml).unwrap();
    assert_eq!(documented, Thresholds::default());
    let named = toml.lines().filter(|line| line.contains(" = ")).count();
    let limits: toml::Table = toml::from_str(&toml::to_string(&documented).unwrap()).unwrap();
    assert_eq!(
        named,
        limits.values().filter_map(|group| group.as_table()).map(toml::Table::len).sum::<usize>()
    );
}
