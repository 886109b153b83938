//! The command line as data. Nothing here looks at the system.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use crate::analysis::findings::thresholds::parse_ratio;
use crate::model::cause::Cause;
use crate::render::tree::View;
use crate::target::marker::MarkerName;

/// Probe families that can be named.
pub const FAMILIES: [&str; 6] = ["dns", "net", "sched", "verbs", "nccl", "cuda"];
/// Those of them that this version does not have; a recording reports them as off.
pub const UNAVAILABLE: [&str; 1] = ["nccl"];

/// A profiler for communication stalls in distributed GPU training
#[derive(Debug, Parser)]
#[command(name = "stallscope", version, max_term_width = 100, arg_required_else_help = false)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Attach to a running job, or start one, and write what it waits for to a trace
    Record(RecordArgs),
    /// Draw the stalls of a trace as a flame graph (SVG)
    Flame(FlameArgs),
    /// Say where the waiting comes from, as text, JSON or HTML
    Report(ReportArgs),
    /// Say what changed between two recordings, or two sets of them
    Diff(DiffArgs),
    /// Write a trace for other programs
    Export(ExportArgs),
    /// Say what this machine and a process allow, and what to do about each lack
    Doctor(DoctorArgs),
    /// Run a small workload that stalls, record it and draw the result
    Demo(DemoArgs),
    /// Write the agent for GPU times to a file, for jobs that load it at their start (CUDA_INJECTION64_PATH)
    Agent(AgentArgs),
}

#[derive(Debug, Args)]
pub struct RecordArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Length of the recording, from when the probes are attached [default: 30s, with COMMAND its whole life]
    #[arg(short, long, value_name = "TIME", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// The trace to write; a file that exists is overwritten [default: stallscope-PID.stall or -NAME.stall]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Probe families, separated by commas: dns, net, sched, verbs, nccl, cuda
    #[arg(long, value_name = "FAMILY", value_delimiter = ',', value_parser = family, default_value = "dns,net,sched,verbs,cuda")]
    pub probes: Vec<String>,
    /// Shorter waits that did not fail are counted, and not recorded one by one
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "100us")]
    pub min_stall: Duration,
    /// Share of a core that watching verbs may take from the target; where it would take more, verbs are let go
    #[arg(long, value_name = "SHARE", value_parser = ratio, default_value = "0.5%")]
    pub max_overhead: f64,
    /// Function of the target whose calls mark iterations (LIB:FUNCTION to say in which file); `diff` then compares
    /// times per call
    #[arg(long, value_name = "FUNCTION", value_parser = marker)]
    pub marker: Option<MarkerName>,
    /// Racks and their hosts, kept in the trace (TOML, JSON, Slurm's topology.conf, lines `host rack`)
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Load nothing into CUDA processes; their GPU times are then not known
    #[arg(long)]
    pub no_inject: bool,
    /// Watch the named processes only, not their children
    #[arg(long)]
    pub no_children: bool,
    /// Show what stallscope does, and what its eBPF programs log
    #[arg(short, long)]
    pub verbose: bool,
}

/// Whom to record: exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct TargetArgs {
    /// Process to attach to; can be repeated
    #[arg(short, long, value_name = "PID", action = ArgAction::Append, value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,
    /// Processes whose name matches a regular expression
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    pub comm: Option<String>,
    /// Command to run and record from its first instruction; its exit status is passed on
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct FlameArgs {
    pub trace: PathBuf,
    /// The picture to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// What the frames are: the call stacks, the causes, or the other ends
    #[arg(long, value_name = "stack|cause|peer", default_value_t)]
    pub view: View,
    /// Racks and their hosts, in place of those in the trace (TOML, JSON, Slurm's topology.conf, lines `host rack`)
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Which stalls to show.
#[derive(Clone, Debug, Default, Args)]
pub struct FilterArgs {
    /// Only stalls of this cause, such as dns.resolve
    #[arg(long, value_name = "CAUSE")]
    pub cause: Option<Cause>,
    /// Only stalls of this rank
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// Only stalls of this thread
    #[arg(long, value_name = "TID")]
    pub tid: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    Text,
    Json,
    Html,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    pub trace: PathBuf,
    #[arg(long, value_enum, default_value = "text")]
    pub format: ReportFormat,
    /// The report to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Racks and their hosts, in place of those in the trace (TOML, JSON, Slurm's topology.conf, lines `host rack`)
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Thresholds of the findings, where they differ from the defaults (TOML; docs/findings.md has them all)
    #[arg(long, value_name = "FILE")]
    pub thresholds: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiffFormat {
    Text,
    Json,
    /// A flame graph of both sides: orange is longer after, blue is shorter
    Svg,
    Html,
}

#[derive(Debug, Args)]
pub struct DiffArgs {
    /// A recording from before the change
    #[arg(value_name = "BEFORE")]
    pub trace_before: Option<PathBuf>,
    /// A recording from after it
    #[arg(value_name = "AFTER")]
    pub trace_after: Option<PathBuf>,
    /// More recordings from before: they show how much one run differs from the next
    #[arg(long, value_name = "TRACE", num_args = 1..)]
    pub before: Vec<PathBuf>,
    /// More recordings from after
    #[arg(long, value_name = "TRACE", num_args = 1..)]
    pub after: Vec<PathBuf>,
    #[arg(long, value_enum, default_value = "text")]
    pub format: DiffFormat,
    /// The file to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Exit with status 3 where stalls became longer by more than this and it is significant
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub fail_above: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Stacks with stalled nanoseconds, one a line
    Folded,
    /// Every record of the trace as one JSON document
    Json,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    pub trace: PathBuf,
    #[arg(long, value_enum)]
    pub format: ExportFormat,
    /// The file to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DoctorFormat {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// A process that is to be recorded
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
    #[arg(long, value_enum, default_value = "text")]
    pub format: DoctorFormat,
}

#[derive(Debug, Args)]
pub struct AgentArgs {
    /// The file; one that exists is replaced
    #[arg(long, value_name = "FILE")]
    pub write: PathBuf,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Folder for demo.stall, racks.txt, flame.svg and report.txt
    #[arg(short, long, value_name = "DIR", default_value = "demo")]
    pub output: PathBuf,
    /// Length of the recording
    #[arg(short, long, value_name = "TIME", value_parser = positive_duration, default_value = "10s")]
    pub duration: Duration,
    /// What the processes of the workload are started with
    #[arg(long, hide = true)]
    pub role: Option<String>,
    #[arg(hide = true, requires = "role", allow_hyphen_values = true, trailing_var_arg = true)]
    pub role_arguments: Vec<String>,
}

/// `250us`, `30s`, `5m`.
fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; durations are written 250us, 30s, 5m"))
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be longer than nothing".to_owned()),
        duration => Ok(duration),
    }
}

/// `5%`, as 0.05.
fn ratio(text: &str) -> Result<f64, String> {
    parse_ratio(text).ok_or_else(|| "ratios are written 5%, and are not below 0%".to_owned())
}

fn family(text: &str) -> Result<String, String> {
    if FAMILIES.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(format!("no such probe family; one of: {}", FAMILIES.join(", ")))
    }
}

fn marker(text: &str) -> Result<MarkerName, String> {
    MarkerName::parse(text).ok_or_else(|| "markers are written FUNCTION or LIB:FUNCTION".to_owned())
}

fn pattern(text: &str) -> Result<String, String> {
    match regex::Regex::new(text) {
        Ok(_) => Ok(text.to_owned()),
        // The last line of the error says what is wrong; those before draw it.
        Err(error) => Err(error.to_string().lines().last().unwrap_or("not a regular expression").to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    fn parse(arguments: &str) -> Result<Command, clap::Error> {
        let words = std::iter::once("stallscope").chain(arguments.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.command)
    }

    fn record(arguments: &str) -> RecordArgs {
        match parse(&format!("record {arguments}")) {
            Ok(Command::Record(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_parser_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn record_has_the_defaults_of_the_contract() {
        let args = record("--pid 42");
        assert_eq!(args.target.pid, [42]);
        assert_eq!((args.duration, args.output), (None, None));
        assert_eq!(args.min_stall, Duration::from_micros(100));
        assert_eq!(args.probes, ["dns", "net", "sched", "verbs", "cuda"]);
        assert!(!args.no_children && !args.no_inject && !args.verbose);
    }

    #[test]
    fn record_takes_several_processes_durations_and_families() {
        let args =
            record("--pid 1 --pid 2 -d 5m --min-stall 250us --probes dns,cuda --no-children -o x.stall -v");
        assert_eq!(args.target.pid, [1, 2]);
        assert_eq!(args.duration, Some(Duration::from_mins(5)));
        assert_eq!(args.min_stall, Duration::from_micros(250));
        assert_eq!(args.probes, ["dns", "cuda"]);
        assert_eq!(args.output, Some("x.stall".into()));
        assert!(args.no_children && args.verbose);
    }

    #[test]
    fn what_follows_two_dashes_is_the_command() {
        let args = record("-d 1s -- python -d 30s --pid 4");
        assert_eq!(args.target.command, ["python", "-d", "30s", "--pid", "4"]);
        assert_eq!(args.duration, Some(Duration::from_secs(1)));
        assert_eq!(args.target.pid, [] as [u32; 0]);
    }

    #[test]
    fn wrong_usage_is_status_two_and_begins_with_error() {
        for arguments in [
            "",
            "frame",
            "record",
            "record --",
            "record --pid 1 --comm x",
            "record --comm x -- ls",
            "record --pid 1 -- ls",
            "record --pid 0",
            "record --pid -4",
            "record --pid x",
            "record --comm (",
            "record --pid 1 -d soon",
            "record --pid 1 -d 0s",
            "record --pid 1 --min-stall -5us",
            "record --pid 1 --marker lib:",
            "record --pid 1 --probes astrology",
            "flame",
            "flame x.stall --view side",
            "flame x.stall --cause weather",
            "report x.stall --format clay",
            "diff a.stall b.stall --fail-above 5",
            "diff a.stall b.stall --fail-above -5%",
            "diff a.stall b.stall --format clay",
            "diff a.stall b.stall c.stall",
            "diff --before",
            "export x.stall",
            "demo stray",
        ] {
            let error = parse(arguments).expect_err(arguments);
            assert_eq!(error.exit_code(), 2, "{arguments}");
            let text = error.render().to_string();
            assert!(text.starts_with("error: "), "{arguments}: {text}");
        }
    }

    #[test]
    fn unknown_families_and_causes_are_answered_with_the_known_ones() {
        let text = parse("record --pid 1 --probes astrology").unwrap_err().to_string();
        assert!(FAMILIES.iter().all(|family| text.contains(family)), "{text}");
        let text = parse("flame x.stall --cause weather").unwrap_err().to_string();
        assert!(text.contains("tcp.connect"), "{text}");
    }

    #[test]
    fn help_and_version_are_no_errors() {
        assert_eq!(parse("--help").unwrap_err().kind(), ErrorKind::DisplayHelp);
        assert_eq!(parse("record --help").unwrap_err().exit_code(), 0);
        assert_eq!(parse("--version").unwrap_err().kind(), ErrorKind::DisplayVersion);
    }

    #[test]
    fn doctor_takes_a_process_and_a_format() {
        let Ok(Command::Doctor(args)) = parse("doctor --pid 7 --format json") else { panic!("not doctor") };
        assert_eq!((args.pid, args.format), (Some(7), DoctorFormat::Json));
    }

    #[test]
    fn diff_takes_one_or_several_recordings_a_side() {
        let diff = |arguments: &str| match parse(&format!("diff {arguments}")) {
            Ok(Command::Diff(args)) => args,
            other => panic!("{other:?}"),
        };
        let args = diff("a.stall b.stall --fail-above 2.5% --format json");
        assert_eq!((args.trace_before, args.trace_after), (Some("a.stall".into()), Some("b.stall".into())));
        assert_eq!((args.fail_above, args.format), (Some(0.025), DiffFormat::Json));
        let args = diff("--before a.stall b.stall --after c.stall --after d.stall -o x");
        assert_eq!(args.before, ["a.stall", "b.stall"].map(PathBuf::from));
        assert_eq!(args.after, ["c.stall", "d.stall"].map(PathBuf::from));
        assert_eq!((args.trace_before, args.fail_above), (None, None));
    }

    #[test]
    fn the_workload_gets_its_arguments_as_they_are() {
        let Ok(Command::Demo(args)) = parse("demo --role rank 0 -x --role 10.0.0.1") else {
            panic!("not demo")
        };
        assert_eq!(args.role.as_deref(), Some("rank"));
        assert_eq!(args.role_arguments, ["0", "-x", "--role", "10.0.0.1"]);
    }
}
