//! Time that a traced `sendto` and `recvfrom` take more, against other tracers of the same two calls.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::empty::EmptyPrograms;
use super::looper::Kind;
use super::stats::{self, Spread};
use crate::{paths, run};

const LOOP_CPU: &str = "0";
const TRACER_CPUS: &str = "1-1023";

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Plain,
    Stallscope,
    /// Stallscope attached to another process: what everybody else on the machine pays.
    StallscopeElsewhere,
    /// The least that anybody can add who watches all system calls by BPF.
    EmptyPrograms,
    BpftraceHistogram,
    BpftraceElsewhere,
    PerfTrace,
    Strace,
}

impl Mode {
    const ALL: [Mode; 8] = [
        Mode::Plain,
        Mode::EmptyPrograms,
        Mode::StallscopeElsewhere,
        Mode::BpftraceElsewhere,
        Mode::Stallscope,
        Mode::BpftraceHistogram,
        Mode::PerfTrace,
        Mode::Strace,
    ];

    fn name(self) -> &'static str {
        match self {
            Mode::Plain => "no tracer",
            Mode::Stallscope => "`stallscope record`",
            Mode::StallscopeElsewhere => "`stallscope record` of another process",
            Mode::EmptyPrograms => "empty BPF programs on `sys_enter` and `sys_exit`",
            Mode::BpftraceHistogram => "bpftrace, histogram of both calls",
            Mode::BpftraceElsewhere => "bpftrace, histogram of another process",
            Mode::PerfTrace => "`perf trace -s`",
            Mode::Strace => "`strace -f -c`",
        }
    }

    /// Slow tracers get fewer iterations.
    fn iterations(self) -> u64 {
        match self {
            Mode::Strace | Mode::PerfTrace => 20_000,
            _ => 300_000,
        }
    }

    fn tool(self) -> Option<&'static str> {
        match self {
            Mode::BpftraceHistogram | Mode::BpftraceElsewhere => Some("bpftrace"),
            Mode::PerfTrace => Some("perf"),
            Mode::Strace => Some("strace"),
            _ => None,
        }
    }
}

pub fn run(rounds: usize) -> Result<String> {
    ensure!(rounds >= 3, "at least three rounds are needed for a spread");
    let (modes, missing): (Vec<Mode>, Vec<Mode>) =
        Mode::ALL.into_iter().partition(|mode| mode.tool().is_none_or(run::exists));
    let mut samples = vec![Vec::new(); modes.len()];
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for (mode, sample) in modes.iter().zip(&mut samples) {
            sample.push(measure(*mode).with_context(|| format!("{}, round {round}", mode.name()))?);
        }
    }
    let mut table = String::from(
        "## Cost of a traced call\n\nOne iteration is a `sendto` and a `recvfrom` of 64 bytes over loopback UDP.\n\n\
         Those that watch another process or nothing show what everybody else on the machine pays.\n\n\
         | tracer | ns an iteration, median | middle half | added ns a call (middle half) |\n|---|---|---|---|\n",
    );
    let base = stats::spread(&samples[0]).context("no samples")?;
    for (mode, sample) in modes.iter().zip(&samples) {
        let spread = stats::spread(sample).context("no samples")?;
        let added: Vec<f64> =
            sample.iter().zip(&samples[0]).map(|(traced, plain)| (traced - plain) / 2.0).collect();
        let added = stats::spread(&added).context("no samples")?;
        let added = match mode {
            Mode::Plain => String::new(),
            _ => format!("{:+.0} ({:+.0} to {:+.0})", added.median, added.low, added.high),
        };
        let Spread { median, low, high, .. } = spread;
        table += &format!("| {} | {median:.0} | {low:.0} to {high:.0} | {added} |\n", mode.name());
    }
    for mode in missing {
        table += &format!("\n{} is not installed and was not measured.\n", mode.name());
    }
    table += &format!("\n{} rounds, modes in turn, loop on CPU {LOOP_CPU}.\n\n", base.count);
    Ok(table)
}

/// A loop process that waits for its start.
pub struct Loop {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Loop {
    pub fn start(iterations: u64, rate: u64) -> Result<Loop> {
        Loop::start_kind(Kind::Datagrams, iterations, rate)
    }

    pub fn start_kind(kind: Kind, iterations: u64, rate: u64) -> Result<Loop> {
        let mut child = Command::new(std::env::current_exe().context("own path")?)
            .args(["bench-loop", "--wait", "--cpu", LOOP_CPU, "--kind", kind.name()])
            .args(["--iterations", &iterations.to_string(), "--rate", &rate.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the loop")?;
        let input = child.stdin.take().context("no standard input")?;
        let mut output = BufReader::new(child.stdout.take().context("no standard output")?);
        let mut line = String::new();
        output.read_line(&mut line).context("the loop said nothing")?;
        ensure!(line.trim() == "ready", "the loop is not ready: {line}");
        Ok(Loop { child, input, output })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs the timed part; nanoseconds an iteration.
    pub fn go(&mut self) -> Result<f64> {
        self.input.write_all(b"go\n").context("the loop is gone")?;
        let mut line = String::new();
        self.output.read_line(&mut line).context("the loop said nothing")?;
        let figure = line.trim().strip_prefix("ns_per_iteration ").context("the loop gave no figure")?;
        figure.parse().with_context(|| format!("no figure: {figure}"))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn measure(mode: Mode) -> Result<f64> {
    let mut measured = Loop::start(mode.iterations(), 0)?;
    let other = Loop::start(1, 0)?;
    let folder = std::env::temp_dir().join(format!("stallscope-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let trace = folder.join("cost.stall");
    let pid = measured.pid().to_string();
    let mut tracer = match mode {
        Mode::Plain | Mode::EmptyPrograms => None,
        Mode::Stallscope => Some(Tracer::stallscope(&pid, &trace)?),
        Mode::StallscopeElsewhere => Some(Tracer::stallscope(&other.pid().to_string(), &trace)?),
        Mode::BpftraceHistogram => Some(Tracer::bpftrace(&pid)?),
        Mode::BpftraceElsewhere => Some(Tracer::bpftrace(&other.pid().to_string())?),
        Mode::PerfTrace => Some(Tracer::settled("perf", &["trace", "-s", "-p", &pid])?),
        Mode::Strace => Some(Tracer::settled("strace", &["-f", "-c", "-p", &pid])?),
    };
    let _empty = (mode == Mode::EmptyPrograms).then(EmptyPrograms::attach).transpose()?;
    let figure = measured.go()?;
    if let Some(tracer) = &mut tracer {
        tracer.stop()?;
    }
    if mode == Mode::Stallscope {
        let seen = calls_seen(&trace)?;
        ensure!(
            seen >= 2 * mode.iterations(),
            "the probes saw {seen} of {} calls: the figure would be worthless",
            2 * mode.iterations()
        );
    }
    Ok(figure)
}

/// `sendto` and `recvfrom` that a trace's report has seen.
pub fn calls_seen(trace: &std::path::Path) -> Result<u64> {
    let report = report(trace)?;
    let seen = &report["coverage"]["syscalls_seen"];
    Ok(["sendto", "recvfrom"].iter().filter_map(|name| seen[*name].as_u64()).sum())
}

pub fn report(trace: &std::path::Path) -> Result<serde_json::Value> {
    let output = Command::new(paths::stallscope())
        .args(["report", "--format", "json"])
        .arg(trace)
        .output()
        .context("cannot start stallscope")?;
    if !output.status.success() {
        bail!("stallscope report: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("the report is no JSON")
}

pub struct Tracer {
    child: Child,
    errors: Option<std::thread::JoinHandle<()>>,
}

impl Tracer {
    pub fn stallscope(pid: &str, trace: &std::path::Path) -> Result<Tracer> {
        Tracer::stallscope_with(pid, trace, &[])
    }

    pub fn stallscope_with(pid: &str, trace: &std::path::Path, more: &[&str]) -> Result<Tracer> {
        let mut command = Command::new("taskset");
        command.args(["-c", TRACER_CPUS]).arg(paths::stallscope());
        command.args(["record", "--pid", pid, "-d", "10m", "-o"]).arg(trace).args(more);
        Tracer::start(command, "recording")
    }

    fn bpftrace(pid: &str) -> Result<Tracer> {
        let program = format!(
            "BEGIN {{ printf(\"recording\\n\"); }} \
             tracepoint:syscalls:sys_enter_sendto,tracepoint:syscalls:sys_enter_recvfrom \
             /pid == {pid}/ {{ @start[tid] = nsecs; }} \
             tracepoint:syscalls:sys_exit_sendto,tracepoint:syscalls:sys_exit_recvfrom \
             /@start[tid]/ {{ @ns[probe] = hist(nsecs - @start[tid]); delete(@start[tid]); }}"
        );
        let mut command = Command::new("taskset");
        command.args(["-c", TRACER_CPUS, "sh", "-c", "exec bpftrace -e \"$0\" >&2"]).arg(program);
        Tracer::start(command, "recording")
    }

    /// A tracer that says nothing when it is ready: it gets a second.
    fn settled(program: &str, args: &[&str]) -> Result<Tracer> {
        let child = Command::new("taskset")
            .args(["-c", TRACER_CPUS, program])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        std::thread::sleep(Duration::from_secs(1));
        Ok(Tracer { child, errors: None })
    }

    fn start(mut command: Command, ready: &str) -> Result<Tracer> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the tracer (taskset is in util-linux)")?;
        let mut lines = BufReader::new(child.stderr.take().context("no standard error")?).lines();
        let mut said = Vec::new();
        loop {
            let Some(line) = lines.next() else {
                let _ = child.wait();
                bail!("the tracer ended before it was ready: {}", said.join(" / "));
            };
            let line = line.context("the tracer's output")?;
            if line.to_lowercase().contains(ready) {
                break;
            }
            said.push(line);
        }
        let errors = std::thread::spawn(move || for _ in lines {});
        Ok(Tracer { child, errors: Some(errors) })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end as Ctrl-C would, and waits.
    pub fn stop(&mut self) -> Result<()> {
        // SAFETY: the child has not been waited for, so its id is still its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        self.child.wait().context("the tracer")?;
        if let Some(errors) = self.errors.take() {
            let _ = errors.join();
        }
        Ok(())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
