//! What failed, told again at the end: a log that is cut in its middle, as those of CI are, has it still.

use std::collections::VecDeque;
use std::io::{self, Write};

/// Lines kept of what one test binary says of its failures: the last ones.
const LINES: usize = 200;
/// Characters kept of a line.
const WIDTH: usize = 1000;
/// Test binaries of which that is kept; of the others the names of the tests alone.
const SECTIONS: usize = 40;

/// The failures of one test binary.
#[derive(Debug, Default)]
struct Section {
    binary: String,
    lines: VecDeque<String>,
    /// Lines that were too many.
    left_out: usize,
}

/// Reads the output of `cargo test` line by line.
#[derive(Debug, Default)]
pub struct Failures {
    /// The test binary that runs.
    binary: String,
    /// Inside of its `failures:`.
    open: Option<Section>,
    /// Since the last `failures:` inside of it: the list of names is what follows the last one.
    listed: Vec<String>,
    sections: Vec<Section>,
    names: Vec<String>,
}

impl Failures {
    /// Takes a line, without its end.
    pub fn take(&mut self, line: &str) {
        if let Some(binary) = began(line) {
            self.close();
            binary.clone_into(&mut self.binary);
        } else if let Some(end) = killed(line) {
            self.close();
            self.names.push(format!("{} ({end})", self.binary));
        }
        if line == "failures:" {
            self.listed.clear();
            let binary = &self.binary;
            self.open.get_or_insert_with(|| Section { binary: binary.clone(), ..Section::default() });
        }
        let Some(section) = &mut self.open else { return };
        section.lines.push_back(line.chars().take(WIDTH).collect());
        if section.lines.len() > LINES {
            section.lines.pop_front();
            section.left_out += 1;
        }
        if let Some(name) = line.strip_prefix("    ").filter(|name| !name.starts_with(' ')) {
            self.listed.push(name.to_owned());
        }
        if line.starts_with("test result: ") {
            self.close();
        }
    }

    /// The binary has said all that it says.
    fn close(&mut self) {
        let Some(section) = self.open.take() else { return };
        self.names.append(&mut self.listed);
        if self.sections.len() < SECTIONS {
            self.sections.push(section);
        }
    }

    /// The sections again.
    pub fn write(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.close();
        for section in &self.sections {
            writeln!(out, "\n==== {} ====", section.binary)?;
            if section.left_out > 0 {
                writeln!(out, "({} lines before these are left out)", section.left_out)?;
            }
            for line in &section.lines {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }

    /// One line with the names of the tests that failed, and of binaries that did not end by themselves; empty: none.
    pub fn summary(&self) -> String {
        match self.names.len() {
            0 => String::new(),
            1 => format!("1 test failed: {}", self.names.join(", ")),
            count => format!("{count} tests failed: {}", self.names.join(", ")),
        }
    }
}

/// What cargo says before it starts a test binary: `Running tests/idle.rs (target/…)`, `Doc-tests stallscope`.
fn began(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let binary = line.strip_prefix("Running ").filter(|rest| rest.ends_with(')'));
    binary.map(|rest| rest.split(" (").next().unwrap_or(rest)).or_else(|| line.strip_prefix("Doc-tests "))
}

/// How a test binary ended that a signal ended, as cargo says it.
fn killed(line: &str) -> Option<&str> {
    let (_, end) = line.split_once("process didn't exit successfully: ")?;
    let (_, end) = end.rsplit_once(" (signal: ")?;
    end.split_once(')').map(|(signal, _)| signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Failures {
        let mut failures = Failures::default();
        text.lines().for_each(|line| failures.take(line));
        failures
    }

    fn written(failures: &mut Failures) -> String {
        let mut out = Vec::new();
        failures.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const TWO: &str = "\
     Running tests/idle.rs (target/debug/deps/idle-1)

running 2 tests
test sleep_is_idle ... ok
test accept ... FAILED

failures:

---- accept stdout ----
thread 'accept' panicked at tests/idle.rs:7:5:
idle for 3 of 5 ns
    indented as a name is


failures:
    accept
    module::other

test result: FAILED. 1 passed; 2 failed; 0 ignored
     Running tests/rig.rs (target/debug/deps/rig-2)
test fine ... ok
test result: ok. 1 passed; 0 failed; 0 ignored
     Running tests/dns.rs (target/debug/deps/dns-3)
error: test failed, to rerun pass `--test dns`

Caused by:
  process didn't exit successfully: `/t/dns-3 --test-threads=2` (signal: 6, SIGABRT: process abort signal)
";

    #[test]
    fn the_output_of_failed_tests_is_told_again_with_their_names_last() {
        let mut failures = read(TWO);
        let text = written(&mut failures);
        assert!(text.starts_with("\n==== tests/idle.rs ====\nfailures:\n"), "{text}");
        assert!(text.contains("idle for 3 of 5 ns") && text.ends_with("2 failed; 0 ignored\n"), "{text}");
        assert!(!text.contains("rig") && !text.contains("... ok"), "{text}");
        let ended = "tests/dns.rs (6, SIGABRT: process abort signal)";
        assert_eq!(failures.summary(), format!("3 tests failed: accept, module::other, {ended}"));
    }

    #[test]
    fn nothing_is_said_where_nothing_failed() {
        let mut failures = read("     Running tests/rig.rs (target/rig)\ntest result: ok. 1 passed");
        assert_eq!((written(&mut failures), failures.summary()), (String::new(), String::new()));
    }

    #[test]
    fn an_endless_output_is_cut_at_its_beginning() {
        let mut text = "Running tests/a.rs (a)\nfailures:\n".to_owned();
        (0..1000).for_each(|line| text.push_str(&format!("line {line} {}\n", "x".repeat(5000))));
        text.push_str("failures:\n    one\n");
        let mut failures = read(&text);
        let again = written(&mut failures);
        assert!(
            again.lines().count() <= LINES + 3 && again.len() <= (LINES + 3) * (WIDTH + 1),
            "{}",
            again.len()
        );
        assert!(
            again.contains("803 lines before these are left out") && again.ends_with("failures:\n    one\n")
        );
        assert_eq!(failures.summary(), "1 test failed: one");
    }
}
