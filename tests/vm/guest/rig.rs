//! Assertions that go on after a failure, and the programs that they are about.

use std::fmt::Display;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Counts assertions and prints each.
#[derive(Default)]
pub struct Checks {
    passed: u64,
    failed: u64,
}

impl Checks {
    /// One assertion; `seen` is shown where it fails.
    pub fn that(&mut self, what: &str, holds: bool, seen: &dyn Display) {
        if holds {
            self.passed += 1;
            println!("vm-guest: ok {what}");
        } else {
            self.failed += 1;
            println!("vm-guest: FAILED {what}: {seen}");
        }
    }

    pub fn equal(&mut self, what: &str, seen: &Value, expected: u64) {
        self.that(&format!("{what} = {expected}"), *seen == expected, seen);
    }

    pub fn end(self) {
        // A count is only printed where everything holds.
        if self.failed == 0 {
            println!("vm-guest: passed {}", self.passed);
        } else {
            println!("vm-guest: {} passed, {} failed", self.passed, self.failed);
            std::process::exit(1);
        }
    }
}

/// Standard output of stallscope as JSON; nothing, and a failed assertion, where it fails.
pub fn stallscope(checks: &mut Checks, arguments: &[&str]) -> Option<Value> {
    let what = format!("stallscope {}", arguments.join(" "));
    let output = Command::new("stallscope").args(arguments).stdin(Stdio::null()).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            checks.that(&what, false, &error);
            return None;
        }
    };
    let document = serde_json::from_slice(&output.stdout);
    let seen = format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    checks.that(&what, output.status.success() && document.is_ok(), &seen);
    document.ok()
}

/// Records a command until it ends; its output and the report.
pub fn record(
    checks: &mut Checks,
    name: &str,
    options: &[&str],
    command: &[&str],
) -> Option<(String, Value)> {
    let trace = format!("/tmp/{name}.stall");
    let output = Command::new("stallscope")
        .args(["record", "-v", "-o", &trace])
        .args(options)
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            checks.that(&format!("record {name}"), false, &error);
            return None;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let seen = format!("{}: {said} {}", output.status, String::from_utf8_lossy(&output.stderr));
    checks.that(&format!("record of {}", command.join(" ")), output.status.success(), &seen);
    let report = stallscope(checks, &["report", &trace, "--format", "json"])?;
    checks.that(
        &format!("{name}: the trace is complete"),
        report["trace"]["complete"] == true,
        &report["trace"],
    );
    Some((said, report))
}

/// The coverage's row of a family of probes.
pub fn coverage<'a>(report: &'a Value, family: &str) -> &'a Value {
    let rows = report["coverage"]["probes"].as_array();
    rows.and_then(|rows| rows.iter().find(|row| row["family"] == family)).unwrap_or(&Value::Null)
}
