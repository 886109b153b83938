//! `stallscope record`.

use std::ffi::OsStr;
use std::io::{Write, stderr, stdout};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use super::args::{RecordArgs, TargetArgs, UNAVAILABLE};
use super::error::{CliError, RECORDING_FAILED};
use super::load::{load_analysis, load_topology};
use super::output::{keep_inputs, write_output};
use super::report::colours_wanted;
use super::terminal;
use crate::out_of_memory;
use crate::record::{
    ChosenTopology, GpuTimes, HeldBack, Narrator, RecordOptions, Recording, TargetChoice, record,
};
use crate::render::RenderError;
use crate::render::text::{TextOptions, write_summary_with};
use crate::render::unit;

/// Window of a process that was attached to, unless `--duration` says otherwise.
const DURATION: Duration = Duration::from_secs(30);

/// Records, and returns the exit status: that of the command, where one was run.
pub fn run(args: &RecordArgs, held_back: HeldBack) -> Result<u8, CliError> {
    let mut options = record_options(args);
    let failed = if args.target.command.is_empty() { 1 } else { RECORDING_FAILED };
    out_of_memory::set_code(failed);
    run_as(args, &mut options, held_back).map_err(|error| match error.code {
        1 => error.with_code(failed),
        _ => error,
    })
}

fn run_as(args: &RecordArgs, options: &mut RecordOptions, held_back: HeldBack) -> Result<u8, CliError> {
    // Before anything is recorded, so that a mistake costs no recording.
    keep_inputs(Some(&options.output), args.topology.as_deref())?;
    options.topology = args.topology.as_deref().map(choose_topology).transpose()?;
    let recording = record(options, held_back, &mut Standard)?;
    let code = recording.command.map_or(0, status_code);
    if matches!(options.target, TargetChoice::Command(..))
        && recording.command.is_none()
        && recording.left_running.is_none()
    {
        return Err(CliError::new("stopped before the command was started"));
    }
    match conclude(&recording, &options.output, matches!(options.target, TargetChoice::Command(..))) {
        // The reader of the summary is gone; the recording is not.
        Err(error) if error.code == 0 => Ok(code),
        Err(error) => Err(error),
        Ok(()) => Ok(code),
    }
}

/// A topology that a trace can keep.
pub(super) fn choose_topology(path: &Path) -> Result<ChosenTopology, CliError> {
    let chosen = ChosenTopology { path: path.display().to_string(), topology: load_topology(path)? };
    match chosen.excess() {
        None => Ok(chosen),
        Some(_) => Err(CliError::new(format!("the topology {} is too large for a trace", path.display()))
            .with_help("record without it, and give it to report and flame")),
    }
}

fn record_options(args: &RecordArgs) -> RecordOptions {
    let target = target_choice(&args.target);
    let life = matches!(target, TargetChoice::Command(..));
    let asked = |family: &str| args.probes.iter().any(|probe| probe == family);
    RecordOptions {
        duration: args.duration.or(if life { None } else { Some(DURATION) }),
        output: args.output.clone().unwrap_or_else(|| default_output(&target)),
        target,
        min_stall: args.min_stall,
        follow: !args.no_children,
        unavailable: UNAVAILABLE.into_iter().filter(|family| asked(family)).map(str::to_owned).collect(),
        net: asked("net"),
        dns: asked("dns"),
        verbs: asked("verbs").then_some(args.max_overhead),
        gpu: match (asked("cuda"), args.no_inject) {
            (false, _) => GpuTimes::NotAsked,
            (true, true) => GpuTimes::NotInjected,
            (true, false) => GpuTimes::Wanted,
        },
        marker: args.marker.clone(),
        // A file, which is read when the rest is known to be right.
        topology: None,
        verbose: args.verbose,
    }
}

fn target_choice(args: &TargetArgs) -> TargetChoice {
    match (args.command.split_first(), &args.comm) {
        (Some((program, arguments)), _) => TargetChoice::Command(program.clone(), arguments.to_vec()),
        (None, Some(pattern)) => TargetChoice::Comm(pattern.clone()),
        (None, None) => TargetChoice::Pids(args.pid.clone()),
    }
}

/// A file in the current folder that says what was recorded.
fn default_output(target: &TargetChoice) -> PathBuf {
    let name = match target {
        TargetChoice::Pids(pids) => pids.iter().map(u32::to_string).collect::<Vec<_>>().join("-"),
        TargetChoice::Comm(pattern) => pattern.clone(),
        TargetChoice::Command(program, _) => {
            Path::new(program).file_name().unwrap_or(OsStr::new("command")).to_string_lossy().into_owned()
        }
    };
    let is_plain = |char: &char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    let name: String = name.chars().filter(is_plain).take(60).collect();
    PathBuf::from(format!("stallscope-{name}.stall"))
}

/// As a shell would say it.
fn status_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The summary first: a trace that could not be written to its end has one too. `aside` keeps it out of standard
/// output, which belongs to the command that was recorded.
pub(super) fn conclude(recording: &Recording, trace: &Path, aside: bool) -> Result<(), CliError> {
    let summary = summarise(trace, aside);
    tell(recording, trace);
    match &recording.write_error {
        Some(error) => Err(CliError::from(error)),
        None => summary,
    }
}

/// Says what the trace holds. A pipe or a device cannot be read again.
fn summarise(trace: &Path, aside: bool) -> Result<(), CliError> {
    if !std::fs::metadata(trace).is_ok_and(|meta| meta.is_file()) {
        return Ok(());
    }
    let analysis = load_analysis(trace, None)?;
    let options = TextOptions { colour: colours_wanted(), columns: terminal::columns(&stdout()) };
    if aside {
        let options = TextOptions { columns: terminal::columns(&stderr()), ..TextOptions::default() };
        // If it is closed, nobody wants to know.
        let _ = write_summary_with(&analysis, options, &mut stderr());
        return Ok(());
    }
    write_output(None, |out| write_summary_with(&analysis, options, out).map_err(RenderError::from))
}

fn tell(recording: &Recording, trace: &Path) {
    let totals = &recording.totals;
    let size = std::fs::metadata(trace).map_or(0, |meta| meta.len());
    let lost = if totals.lost == 0 { "nothing".to_owned() } else { unit::plural(totals.lost, "event") };
    let events = unit::plural(totals.events, "event");
    let path = trace.display();
    note(&format!("recorded {events}, {lost} lost, {} in {path}", unit::bytes(size)));
    if let Some(pid) = recording.left_running {
        note(&format!("the command runs on as process {pid}"));
    }
    note(&format!("next: stallscope report {path}; stallscope flame {path} -o flame.svg"));
}

/// Standard error, where what is not a result belongs. If it is closed, nobody wants to know.
pub(super) fn note(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// Tells the user on standard error.
pub(super) struct Standard;

impl Narrator for Standard {
    fn opened(&mut self, what: &str) {
        note(&format!("recording {what}"));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::{Cli, Command};
    use super::*;

    fn options(arguments: &[&str]) -> RecordOptions {
        let words = ["stallscope", "record"].iter().chain(arguments);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Record(args) => record_options(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_process_is_recorded_for_thirty_seconds_and_a_command_for_its_life() {
        assert_eq!(options(&["--pid", "7"]).duration, Some(Duration::from_secs(30)));
        assert_eq!(options(&["--comm", "x"]).duration, Some(Duration::from_secs(30)));
        assert_eq!(options(&["--", "x"]).duration, None);
        assert_eq!(options(&["-d", "2s", "--", "x"]).duration, Some(Duration::from_secs(2)));
    }

    #[test]
    fn the_trace_is_named_after_what_is_recorded() {
        let name = |arguments: &[&str]| options(arguments).output.to_string_lossy().into_owned();
        assert_eq!(name(&["--pid", "7"]), "stallscope-7.stall");
        assert_eq!(name(&["--pid", "7", "--pid", "8"]), "stallscope-7-8.stall");
        assert_eq!(name(&["--comm", "^../py(thon)?$"]), "stallscope-..python.stall");
        assert_eq!(name(&["--", "/usr/bin/torch run", "x"]), "stallscope-torchrun.stall");
        assert_eq!(name(&["--pid", "7", "-o", "x"]), "x");
    }

    #[test]
    fn families_that_are_not_built_are_off_when_asked_for() {
        assert_eq!(options(&["--pid", "7"]).unavailable, [""; 0]);
        let some = options(&["--pid", "7", "--probes", "net,cuda,verbs"]);
        assert_eq!(some.unavailable, [""; 0]);
        assert_eq!(options(&["--pid", "7", "--probes", "net,nccl"]).unavailable, ["nccl"]);
        assert_eq!(some.verbs, Some(0.005));
        assert!(some.net && !some.dns);
        let resolver = options(&["--pid", "7", "--probes", "dns"]);
        assert!(!resolver.net && resolver.dns);
        assert_eq!(some.gpu, GpuTimes::Wanted);
        assert_eq!(options(&["--pid", "7", "--no-inject"]).gpu, GpuTimes::NotInjected);
        assert_eq!(options(&["--pid", "7", "--probes", "net"]).gpu, GpuTimes::NotAsked);
    }

    #[test]
    fn a_killed_command_has_the_status_that_a_shell_gives() {
        assert_eq!(status_code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(status_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(status_code(ExitStatus::from_raw(0)), 0);
    }

    #[test]
    fn a_command_that_cannot_be_recorded_is_status_125() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("topology.toml").to_string_lossy().into_owned();
        for (target, code) in [(vec!["--pid", "1"], 1), (vec!["--", "true"], 125)] {
            let mut words = vec!["stallscope", "record", "--topology", &missing];
            words.extend(target);
            let Command::Record(args) = Cli::try_parse_from(words).unwrap().command else { panic!() };
            let error = run(&args, HeldBack::new()).unwrap_err();
            assert_eq!(error.code, code);
            assert!(error.message.contains("topology.toml"), "{error:?}");
        }
    }
}
