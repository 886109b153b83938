//! `doctor`: what this machine and one target allow, and what to do about each lack.

use std::io::{self, Write};

use serde::Serialize;

use super::args::{DoctorArgs, DoctorFormat};
use super::error::{CliError, FAILED};
use super::output::write_output;
use crate::agent::AgentError;
use crate::agent::check::{self, Place};
use crate::kernel::features::{self, AttachKind, Availability, Capabilities, Capability, Features};
use crate::probes::{ProbeOptions, ProbeSet};
use crate::render::RenderError;
use crate::render::name::escape_controls;
use crate::target::select::select_pids;
use crate::target::traits::{Seccomp, Traits, traits};
use crate::target::{ProcRoot, ResolverLibraries, SelectError, process::process_info};
use crate::trace::record::FamilyState;

pub const SCHEMA: &str = "stallscope.doctor/1";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// Less can be seen.
    Degraded,
    /// Nothing can be recorded.
    Missing,
    Unknown,
    /// A fact, neither good nor bad.
    Info,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Degraded => "degraded",
            State::Missing => "missing",
            State::Unknown => "unknown",
            State::Info => "info",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// `machine`, `probes` or `target`.
    pub group: &'static str,
    pub name: String,
    pub state: State,
    pub detail: String,
    /// What to do about it; empty where there is nothing to do.
    pub help: String,
}

impl Check {
    fn new(group: &'static str, name: &str, state: State, detail: impl Into<String>) -> Check {
        Check { group, name: name.to_owned(), state, detail: detail.into(), help: String::new() }
    }

    fn help(mut self, text: &str) -> Check {
        text.clone_into(&mut self.help);
        self
    }
}

/// Everything that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    pub schema: &'static str,
    /// Whether `record` can run at all.
    pub can_record: bool,
    pub checks: Vec<Check>,
}

/// Prints what was found; status 1 where nothing can be recorded.
pub fn run(args: &DoctorArgs) -> Result<u8, CliError> {
    let diagnosis = diagnose(args.pid)?;
    write_output(None, |out| {
        let written = match args.format {
            DoctorFormat::Text => write_text(&diagnosis, out),
            DoctorFormat::Json => write_json(&diagnosis, out),
        };
        written.map_err(RenderError::from)
    })?;
    Ok(if diagnosis.can_record { 0 } else { FAILED })
}

/// Looks at the machine and, where one is named, at a process.
pub fn diagnose(pid: Option<u32>) -> Result<Diagnosis, SelectError> {
    let root = ProcRoot::default();
    if let Some(pid) = pid {
        select_pids(&root, &[pid])?;
    }
    let mut checks = machine(&features::inspect());
    let can_record = probes(&mut checks);
    if let Some(pid) = pid {
        checks.extend(target(&root, pid));
    }
    Ok(Diagnosis { schema: SCHEMA, can_record, checks })
}

fn machine(features: &Features) -> Vec<Check> {
    let mut checks = vec![Check::new("machine", "kernel", State::Info, &features.release)];
    checks.push(
        available("BTF", &features.btf, State::Missing)
            .help("boot a kernel with CONFIG_DEBUG_INFO_BTF=y; distributions have it since about 2021"),
    );
    checks.push(
        available("tracefs", &features.tracefs, State::Degraded).help(
            "mount -t tracefs tracefs /sys/kernel/tracing (record does without it on kernels with BTF)",
        ),
    );
    checks.push(capabilities(features.capabilities));
    for (name, value) in &features.sysctls {
        let name = name.replace('/', ".");
        let value = value.clone().unwrap_or_else(|| "not on this kernel".into());
        checks.push(Check::new("machine", &name, State::Info, value));
    }
    for (kind, availability) in &features.attach {
        checks.push(attach(*kind, availability));
    }
    for check in &mut checks {
        if matches!(check.state, State::Ok | State::Info) {
            check.help.clear();
        }
    }
    checks
}

fn available(name: &str, availability: &Availability, lack: State) -> Check {
    match availability {
        Availability::Yes => Check::new("machine", name, State::Ok, ""),
        Availability::No(reason) => Check::new("machine", name, lack, reason.as_str()),
        Availability::Unknown(reason) => Check::new("machine", name, State::Unknown, reason.as_str()),
    }
}

fn capabilities(own: Option<Capabilities>) -> Check {
    const NEEDED: [Capability; 4] =
        [Capability::Bpf, Capability::Perfmon, Capability::SysAdmin, Capability::SysPtrace];
    let Some(own) = own else {
        return Check::new("machine", "capabilities", State::Unknown, "/proc/self/status cannot be read");
    };
    let missing: Vec<&str> =
        NEEDED.into_iter().filter(|capability| !own.has(*capability)).map(Capability::name).collect();
    if missing.is_empty() {
        return Check::new("machine", "capabilities", State::Ok, NEEDED.map(Capability::name).join(", "));
    }
    Check::new("machine", "capabilities", State::Missing, format!("without {}", missing.join(", ")))
        .help("run stallscope as root (sudo); in a container: --privileged --pid=host")
}

fn attach(kind: AttachKind, availability: &Availability) -> Check {
    let lack = if kind.is_needed() {
        State::Missing
    } else if matches!(kind, AttachKind::Uprobe | AttachKind::Iterator) {
        State::Degraded
    } else {
        // Not used by what this version records.
        State::Info
    };
    let check = available(kind.name(), availability, lack);
    let help = match kind {
        AttachKind::BtfTracepoint | AttachKind::RingBuffer => {
            "a kernel of 5.8 or newer with BTF is needed, and the right to load programs (root)"
        }
        AttachKind::Uprobe => {
            "without it lookups are seen, but not which resolver function asked; CAP_SYS_ADMIN gives it"
        }
        AttachKind::Iterator => {
            "without it waits that began before the recording are missed; 5.8 or newer has it"
        }
        _ => "",
    };
    check.help(help)
}

/// Loads and attaches the real programs, to no target.
fn probes(checks: &mut Vec<Check>) -> bool {
    let probes = match ProbeSet::load(&ProbeOptions { ring_bytes: 1 << 16, ..ProbeOptions::default() }) {
        Ok(probes) => probes,
        Err(error) => {
            let detail = crate::probes::one_line(&error);
            let help = "see the lines above; as root, `stallscope record -v` logs what the verifier says";
            checks.push(Check::new("probes", "load", State::Missing, detail).help(help));
            return false;
        }
    };
    for row in probes.coverage() {
        // Resolver functions are probed in the target's own libraries only: nothing is attached here.
        let only_for_targets = row.family == "dns" && row.reason.starts_with("no resolver function");
        let (state, reason) = match row.state {
            _ if only_for_targets => (State::Ok, String::new()),
            FamilyState::On => (State::Ok, row.reason),
            FamilyState::Partial | FamilyState::Off => (State::Degraded, row.reason),
        };
        checks.push(Check::new("probes", &row.family, state, reason));
    }
    true
}

fn target(root: &ProcRoot, pid: u32) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Ok(info) = process_info(root, pid) {
        let threads = root.tids(pid).map_or(0, |tids| tids.len());
        checks.push(Check::new(
            "target",
            "process",
            State::Info,
            format!("{pid} ({}), {threads} threads", info.comm),
        ));
    }
    match traits(root, pid) {
        Ok(traits) => {
            checks.extend(trait_checks(&traits));
            if traits.uses_cuda {
                checks.push(gpu_times(check::place(root, pid, "")));
            }
        }
        Err(error) => checks.push(Check::new("target", "process", State::Unknown, error.to_string())),
    }
    checks.push(resolver(root, pid));
    checks
}

fn trait_checks(traits: &Traits) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |name: &str, state, detail: &str, help: &str| {
        checks.push(Check::new("target", name, state, detail).help(help));
    };
    let seccomp = match traits.seccomp {
        Seccomp::Filter => "filter; no return probes are used, so it makes no difference",
        other => other.name(),
    };
    add("seccomp", State::Info, seccomp, "");
    if traits.is_32_bit == Some(true) {
        add(
            "architecture",
            State::Degraded,
            "32-bit program: its system calls have other numbers and are not watched",
            "record a 64-bit build",
        );
    }
    for (name, other) in [
        ("PID namespace", traits.other_pid_namespace),
        ("mount namespace", traits.other_mount_namespace),
        ("network namespace", traits.other_net_namespace),
    ] {
        let (state, detail) = match other {
            Some(true) => (State::Info, "its own (a container)"),
            Some(false) => (State::Info, "the same as ours"),
            None => (State::Unknown, "cannot be read"),
        };
        add(name, state, detail, if other.is_none() { "run stallscope as root" } else { "" });
    }
    if traits.uses_io_uring {
        add("io_uring", State::Degraded, "in use: the sockets behind its requests are not seen", "");
    }
    if traits.uses_rdma {
        add(
            "RDMA",
            State::Info,
            "in use: posts and completions of mlx5 queue pairs are watched, the kernel's side is not",
            "",
        );
    }
    checks
}

/// Whether the process would be entered. Another user of CUPTI shows only when it is.
fn gpu_times(place: Result<Place, AgentError>) -> Check {
    match place {
        Ok(place) => {
            let detail = format!("GPU times with {} of the process", place.cupti.display());
            Check::new("target", "CUDA", State::Ok, detail)
        }
        Err(error) => Check::new("target", "CUDA", State::Degraded, format!("no GPU times: {error}"))
            .help("everything else is recorded; `record --no-inject` leaves the attempt out"),
    }
}

fn resolver(root: &ProcRoot, pid: u32) -> Check {
    let scan = match ResolverLibraries::new(root.clone()).scan(pid) {
        Ok(scan) => scan,
        Err(error) => return Check::new("target", "libc", State::Unknown, error.to_string()),
    };
    if scan.new.is_empty() {
        let detail =
            scan.errors.first().map_or("none with resolver functions found".into(), ToString::to_string);
        return Check::new("target", "libc", State::Degraded, detail)
            .help("lookups are seen, but not which function asked");
    }
    let names: Vec<String> = scan
        .new
        .iter()
        .map(|library| format!("{} ({} resolver functions)", library.path_in_target, library.functions.len()))
        .collect();
    Check::new("target", "libc", State::Ok, names.join(", "))
}

pub fn write_text(diagnosis: &Diagnosis, out: &mut dyn Write) -> io::Result<()> {
    let width = diagnosis.checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let mut group = "";
    for check in &diagnosis.checks {
        if check.group != group {
            group = check.group;
            writeln!(out, "{group}")?;
        }
        let line = format!(
            "  {:<8}  {:<width$}  {}",
            check.state.word(),
            check.name,
            escape_controls(&check.detail)
        );
        writeln!(out, "{}", line.trim_end())?;
        if !check.help.is_empty() {
            writeln!(out, "  {:<8}  {:<width$}  help: {}", "", "", check.help)?;
        }
    }
    let verdict = if diagnosis.can_record {
        "stallscope record can run here"
    } else {
        "stallscope record cannot run here"
    };
    writeln!(out, "{verdict}")
}

pub fn write_json(diagnosis: &Diagnosis, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(crate::render::json::Escaping(&mut *out), diagnosis)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(btf: Availability, capabilities: u64) -> Features {
        Features {
            release: "6.1.0".into(),
            btf,
            tracefs: Availability::No("not mounted".into()),
            capabilities: Some(Capabilities(capabilities)),
            memlock: None,
            sysctls: vec![("kernel/perf_event_paranoid", Some("2".into()))],
            attach: vec![
                (AttachKind::BtfTracepoint, Availability::Yes),
                (AttachKind::Uprobe, Availability::No("Operation not permitted".into())),
                (AttachKind::Kprobe, Availability::No("not in this kernel".into())),
            ],
        }
    }

    fn check<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        checks.iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn every_lack_says_what_to_do() {
        let checks = machine(&features(Availability::No("no such file".into()), 0));
        for name in ["BTF", "tracefs", "capabilities", "uprobes"] {
            let check = check(&checks, name);
            assert!(matches!(check.state, State::Missing | State::Degraded), "{check:?}");
            assert!(!check.help.is_empty(), "{check:?}");
        }
        assert!(check(&checks, "capabilities").detail.contains("CAP_BPF"));
    }

    #[test]
    fn what_is_there_needs_no_help() {
        let checks = machine(&features(Availability::Yes, u64::MAX));
        for name in ["BTF", "capabilities", "BTF raw tracepoints"] {
            assert_eq!((check(&checks, name).state, check(&checks, name).help.as_str()), (State::Ok, ""));
        }
        assert_eq!(check(&checks, "kprobes").state, State::Info);
    }

    #[test]
    fn a_filtered_32_bit_program_is_told() {
        let traits = Traits { seccomp: Seccomp::Filter, is_32_bit: Some(true), ..Traits::default() };
        let checks = trait_checks(&traits);
        assert_eq!(check(&checks, "architecture").state, State::Degraded);
        assert!(check(&checks, "seccomp").detail.contains("filter"));
    }

    #[test]
    fn the_text_has_a_line_for_each_check_and_a_verdict() {
        let diagnosis = Diagnosis {
            schema: SCHEMA,
            can_record: false,
            checks: vec![
                Check::new("machine", "kernel", State::Info, "6.1\u{1b}[31m"),
                Check::new("probes", "load", State::Missing, "no right").help("run it as root"),
            ],
        };
        let mut out = Vec::new();
        write_text(&diagnosis, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains('\u{1b}'));
        assert!(text.contains("missing") && text.contains("help: run it as root"));
        assert!(text.ends_with("stallscope record cannot run here\n"));
    }
}
