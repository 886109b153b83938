//! Findings as text.

use serde_json::{Map, Value};

use crate::analysis::report::{Finding, Report, Severity};
use crate::render::name::escape_controls;
use crate::render::unit::{count, duration};

/// Deepest nesting and longest list of a proof that is shown.
const DEEPEST: usize = 3;
const LONGEST: usize = 8;

pub(in crate::render) struct FindingText {
    pub severity: Severity,
    pub id: String,
    pub cause: &'static str,
    pub stalled: String,
    pub summary: String,
    /// `answered 0, attempts 4`; empty without figures.
    pub proof: String,
    /// One line a step.
    pub advice: Vec<String>,
}

pub(in crate::render) fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "critical",
        Severity::Warning => "warning",
        Severity::Info => "info",
    }
}

/// The findings, the severe first, else in the analysis' order; without control characters.
pub(in crate::render) fn findings(report: &Report) -> Vec<FindingText> {
    let mut findings: Vec<&Finding> = report.findings.iter().collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
        .into_iter()
        .map(|finding| FindingText {
            severity: finding.severity,
            id: escape_controls(&finding.id),
            cause: finding.cause.name(),
            stalled: duration(finding.stalled_ns),
            summary: escape_controls(finding.summary.trim()),
            proof: object(&finding.proof, DEEPEST),
            advice: finding.advice.trim().lines().map(escape_controls).collect(),
        })
        .collect()
}

fn object(map: &Map<String, Value>, depth: usize) -> String {
    let parts = map.iter().take(LONGEST).map(|(key, value)| entry(key, value, depth));
    join(parts.collect(), map.len())
}

/// `p50 129 ms` for `"p50_ns": 129000000`, `attempts 4` for `"attempts": 4`.
fn entry(key: &str, value: &Value, depth: usize) -> String {
    let name = escape_controls(key).replace('_', " ");
    match (key.strip_suffix("_ns"), value.as_u64()) {
        (Some(_), Some(ns)) => {
            format!("{} {}", name.strip_suffix(" ns").unwrap_or(&name), duration(ns))
        }
        // Names, however they look.
        _ if ["pid", "pids", "tid", "tids"].iter().any(|id| key.ends_with(id)) => {
            format!("{name} {}", plain(value))
        }
        _ => format!("{name} {}", text(value, depth)),
    }
}

/// Process and thread ids without separators.
fn plain(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Array(items) => {
            let parts = items.iter().take(LONGEST).map(text_of_id);
            format!("[{}]", join(parts.collect(), items.len()))
        }
        other => text(other, 1),
    }
}

fn text_of_id(value: &Value) -> String {
    if value.is_number() { value.to_string() } else { text(value, 0) }
}

fn text(value: &Value, depth: usize) -> String {
    match value {
        Value::Null => "unknown".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(number) => number.as_u64().map_or_else(|| number.to_string(), count),
        Value::String(text) => escape_controls(text),
        Value::Array(_) | Value::Object(_) if depth == 0 => "..".to_owned(),
        Value::Array(items) => {
            let parts = items.iter().take(LONGEST).map(|item| text(item, depth - 1));
            format!("[{}]", join(parts.collect(), items.len()))
        }
        Value::Object(map) => format!("({})", object(map, depth - 1)),
    }
}

fn join(mut parts: Vec<String>, all: usize) -> String {
    if all > parts.len() {
        parts.push("..".to_owned());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn proof(value: &Value) -> String {
        object(value.as_object().unwrap(), DEEPEST)
    }

    #[test]
    fn proofs_are_written_with_units() {
        let value = json!({"age_ns": 9_990_000_000_u64, "attempts": 1234, "refused": false, "ratio": 0.25});
        assert_eq!(proof(&value), "age 9.99 s, attempts 1,234, ratio 0.25, refused no");
        assert_eq!(proof(&json!({"pids": [16327, 16328], "tid": 16327})), "pids [16327, 16328], tid 16327");
        assert_eq!(proof(&json!({"code": null, "steps_ns": [1, 2]})), "code unknown, steps ns [1, 2]");
    }

    #[test]
    fn long_and_deep_proofs_are_cut() {
        let list: Vec<u32> = (0..1000).collect();
        assert_eq!(proof(&json!({ "ids": list })), "ids [0, 1, 2, 3, 4, 5, 6, 7, ..]");
        let mut deep = json!(1);
        for _ in 0..50 {
            deep = json!([deep]);
        }
        assert_eq!(proof(&json!({ "deep": deep })), "deep [[[..]]]");
    }
}
