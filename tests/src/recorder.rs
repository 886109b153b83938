//! The product, run as its users run it.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use stallscope::demo::monotonic_ns;
use tempfile::TempDir;

use crate::process::{Program, Values};
use crate::whereabouts::whereabouts;

/// How long the product may take to attach, to end, or to analyse. Generous: the machine may be busy.
const PATIENCE: Duration = Duration::from_mins(1);

/// The binary: `STALLSCOPE_BIN`, else the release build, else the debug build.
///
/// # Panics
/// When there is none.
pub fn stallscope_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("STALLSCOPE_BIN") {
        return PathBuf::from(path);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are inside the workspace");
    let candidates = ["target/release/stallscope", "target/debug/stallscope"].map(|path| root.join(path));
    let found = candidates.iter().find(|path| path.exists());
    found.cloned().expect("no stallscope binary: run `cargo xtask build`, or set STALLSCOPE_BIN")
}

/// Runs `stallscope ARGUMENTS…` to its end.
///
/// # Panics
/// When it cannot be started.
pub fn stallscope(arguments: &[&str]) -> Output {
    let mut command = Command::new(stallscope_binary());
    command.args(arguments).stdin(Stdio::null()).output().expect("starts stallscope")
}

/// `record` as it will be run.
#[derive(Debug)]
pub struct Recorder {
    arguments: Vec<String>,
    command: Vec<String>,
    output: Option<PathBuf>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder::new()
    }
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder { arguments: Vec::new(), command: Vec::new(), output: None }
    }

    #[must_use]
    pub fn pid(self, pid: u32) -> Recorder {
        self.args(&["--pid", &pid.to_string()])
    }

    /// `-d`; without it the test ends the recording by [`Recording::finish`].
    #[must_use]
    pub fn duration(self, text: &str) -> Recorder {
        self.args(&["-d", text])
    }

    #[must_use]
    pub fn args(mut self, arguments: &[&str]) -> Recorder {
        self.arguments.extend(arguments.iter().map(ToString::to_string));
        self
    }

    /// `-- COMMAND…`.
    #[must_use]
    pub fn command(mut self, command: &[&str]) -> Recorder {
        self.command = command.iter().map(ToString::to_string).collect();
        self
    }

    /// Where the trace goes; a temporary folder by default.
    #[must_use]
    pub fn output(mut self, path: &Path) -> Recorder {
        self.output = Some(path.to_owned());
        self
    }

    /// Starts recording and waits until the window is open.
    ///
    /// # Panics
    /// When the recording does not begin.
    pub fn start(self) -> Recording {
        let mut recording = self.launch();
        recording.wait_open();
        recording
    }

    /// Starts recording without waiting for the window.
    ///
    /// # Panics
    /// When the binary cannot be started.
    pub fn launch(self) -> Recording {
        let folder = tempfile::tempdir().expect("makes a temporary folder");
        let path = self.output.unwrap_or_else(|| folder.path().join("run.stall"));
        let mut command = Command::new(stallscope_binary());
        command.arg("record").args(&self.arguments).arg("-o").arg(&path);
        if !self.arguments.iter().any(|argument| argument == "-d") && self.command.is_empty() {
            // Longer than any test: the test ends it.
            command.args(["-d", "5m"]);
        }
        if !self.command.is_empty() {
            command.arg("--").args(&self.command);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("starts stallscope");
        let errors = child.stderr.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Recording { child: KilledOnDrop(child), lines, stderr: String::new(), path, folder, opened_ns: 0 }
    }
}

#[derive(Debug)]
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // Usually it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A recording that runs. It is killed when dropped.
#[derive(Debug)]
pub struct Recording {
    child: KilledOnDrop,
    lines: Receiver<String>,
    stderr: String,
    path: PathBuf,
    folder: TempDir,
    /// When the test saw that the window was open, `CLOCK_MONOTONIC`: a little after it did open.
    pub opened_ns: u64,
}

impl Recording {
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    fn wait_open(&mut self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    let _ = writeln!(self.stderr, "{line}");
                    if !line.starts_with("error") && line.to_lowercase().contains("recording") {
                        self.opened_ns = monotonic_ns();
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("record did not begin; it said: {}", self.stderr),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!(
                        "record ended ({:?}) before its window opened; it said: {}",
                        self.child.0.wait(),
                        self.stderr
                    )
                }
            }
        }
    }

    /// Ends the recording with SIGINT and reads its result.
    ///
    /// # Panics
    /// When `record` does not end.
    pub fn finish(self) -> RecordedTrace {
        self.end_with(nix::sys::signal::Signal::SIGINT)
    }

    /// Ends the recording with this signal and reads its result.
    ///
    /// # Panics
    /// When `record` does not end.
    pub fn end_with(self, signal: nix::sys::signal::Signal) -> RecordedTrace {
        let pid = nix::unistd::Pid::from_raw(self.child.0.id().cast_signed());
        // It may have ended already; waiting tells.
        let _ = nix::sys::signal::kill(pid, signal);
        self.wait()
    }

    /// Ends the recording with a signal that leaves it no time to write anything.
    ///
    /// # Panics
    /// When `record` does not end.
    pub fn kill(mut self) -> RecordedTrace {
        self.child.0.kill().expect("is our child");
        self.wait()
    }

    /// Waits for the recording to end by itself.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait(mut self) -> RecordedTrace {
        let until = Instant::now() + PATIENCE;
        loop {
            // Standard error closes when the process ends.
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let _ = writeln!(self.stderr, "{line}");
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!(
                    "record does not end; it said: {}\n{}",
                    self.stderr,
                    whereabouts(self.child.0.id())
                ),
            }
        }
        let status = self.child.0.wait().expect("is our child");
        RecordedTrace { path: self.path, status, stderr: self.stderr, folder: self.folder }
    }
}

/// What `record` left.
#[derive(Debug)]
pub struct RecordedTrace {
    pub path: PathBuf,
    pub status: ExitStatus,
    /// Everything that `record` said.
    pub stderr: String,
    folder: TempDir,
}

impl RecordedTrace {
    /// A folder for this test's own files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `report --format json`.
    ///
    /// # Panics
    /// When the report cannot be made.
    #[track_caller]
    pub fn report(&self) -> Value {
        report(&self.path)
    }

    /// `export --format folded`: frames from the process inward, and nanoseconds.
    ///
    /// # Panics
    /// When it cannot be made or a line has another form.
    #[track_caller]
    pub fn folded(&self) -> Vec<(Vec<String>, u64)> {
        let output = stallscope(&["export", &self.path.to_string_lossy(), "--format", "folded"]);
        assert!(output.status.success(), "export: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("folded output is UTF-8");
        let line = |line: &str| {
            let (stack, weight) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no weight: {line:?}"));
            let frames = stack.split(';').map(str::to_owned).collect();
            (frames, weight.parse().unwrap_or_else(|_| panic!("the weight is no number: {line:?}")))
        };
        text.lines().map(line).collect()
    }
}

/// `report --format json` of any trace.
///
/// # Panics
/// When the report cannot be made.
#[track_caller]
pub fn report(trace: &Path) -> Value {
    let output = stallscope(&["report", &trace.to_string_lossy(), "--format", "json"]);
    assert!(output.status.success(), "report: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("the report is one JSON document");
    assert_eq!(report["schema"], "stallscope.report/1");
    report
}

/// Records `program` from before its work begins until it is done; what it measured, and the trace.
///
/// # Panics
/// When one of them fails.
#[track_caller]
pub fn record_run(program: &mut Program) -> (Values, RecordedTrace) {
    let recording = Recorder::new().pid(program.pid()).start();
    let values = program.run();
    let trace = recording.finish();
    assert!(trace.status.success(), "record: {:?}: {}", trace.status, trace.stderr);
    (values, trace)
}
