//! What the machine allows, found by trying. "No" and "cannot tell" are different answers.

use std::fmt;
use std::fs;
use std::io;

use super::btf::{Btf, Kind, VMLINUX};
use super::probe_load as load;

/// Where tracefs is looked for, in this order.
pub const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// An answer, with what the kernel said where it is not yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    Yes,
    /// The reason, one line.
    No(String),
    /// It could not be tried, and why.
    Unknown(String),
}

impl Availability {
    pub fn is_yes(&self) -> bool {
        *self == Availability::Yes
    }

    fn from_try(result: io::Result<()>) -> Availability {
        match result {
            Ok(()) => Availability::Yes,
            Err(error) => Availability::No(error.to_string()),
        }
    }
}

/// A capability that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    NetAdmin,
    SysPtrace,
    SysAdmin,
    SysResource,
    Perfmon,
    Bpf,
}

impl Capability {
    pub const ALL: [Capability; 6] = [
        Capability::Bpf,
        Capability::Perfmon,
        Capability::SysAdmin,
        Capability::SysPtrace,
        Capability::NetAdmin,
        Capability::SysResource,
    ];

    /// Number of the bit in `CapEff`.
    pub const fn bit(self) -> u32 {
        match self {
            Capability::NetAdmin => 12,
            Capability::SysPtrace => 19,
            Capability::SysAdmin => 21,
            Capability::SysResource => 24,
            Capability::Perfmon => 38,
            Capability::Bpf => 39,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::SysPtrace => "CAP_SYS_PTRACE",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::SysResource => "CAP_SYS_RESOURCE",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
        }
    }
}

/// The effective capabilities of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Of this process; `None` where `/proc/self/status` cannot be read.
    pub fn own() -> Option<Capabilities> {
        Capabilities::from_status(&fs::read_to_string("/proc/self/status").ok()?)
    }

    /// From the text of a `/proc/PID/status`.
    pub fn from_status(status: &str) -> Option<Capabilities> {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok().map(Capabilities)
    }

    pub fn has(self, capability: Capability) -> bool {
        self.0 >> capability.bit() & 1 == 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachKind {
    BtfTracepoint,
    RawTracepoint,
    Tracepoint,
    Uprobe,
    Iterator,
    RingBuffer,
    Kprobe,
    Fentry,
}

impl AttachKind {
    pub const ALL: [AttachKind; 8] = [
        AttachKind::BtfTracepoint,
        AttachKind::RawTracepoint,
        AttachKind::Tracepoint,
        AttachKind::Uprobe,
        AttachKind::Iterator,
        AttachKind::RingBuffer,
        AttachKind::Kprobe,
        AttachKind::Fentry,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            AttachKind::BtfTracepoint => "BTF raw tracepoints",
            AttachKind::RawTracepoint => "raw tracepoints",
            AttachKind::Tracepoint => "tracepoints",
            AttachKind::Uprobe => "uprobes",
            AttachKind::Iterator => "task iterators",
            AttachKind::RingBuffer => "ring buffers",
            AttachKind::Kprobe => "kprobes",
            AttachKind::Fentry => "fentry",
        }
    }

    /// Whether `record` cannot do without it.
    pub const fn is_needed(self) -> bool {
        matches!(self, AttachKind::BtfTracepoint | AttachKind::RingBuffer)
    }
}

impl fmt::Display for AttachKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was found; filled by [`inspect`].
#[derive(Clone, Debug)]
pub struct Features {
    /// `uname -r`, empty where unknown.
    pub release: String,
    pub btf: Availability,
    /// Needed for tracepoints only.
    pub tracefs: Availability,
    /// `None`: unknown.
    pub capabilities: Option<Capabilities>,
    /// `RLIMIT_MEMLOCK` in bytes, `None` for unlimited. Counts on kernels before 5.11 only.
    pub memlock: Option<u64>,
    /// `kernel.unprivileged_bpf_disabled`, `kernel.perf_event_paranoid`, `kernel.yama.ptrace_scope`; the value is
    /// missing where the file is.
    pub sysctls: Vec<(&'static str, Option<String>)>,
    /// In the order of [`AttachKind::ALL`].
    pub attach: Vec<(AttachKind, Availability)>,
}

/// Looks at the machine and loads one small program for each attach kind. Nothing stays loaded.
pub fn inspect() -> Features {
    let btf = Btf::from_kernel();
    let attach = AttachKind::ALL.iter().map(|kind| (*kind, attach_kind(*kind, btf.as_ref().ok()))).collect();
    Features {
        release: release(),
        btf: match &btf {
            Ok(_) => Availability::Yes,
            Err(error) => Availability::No(with_source(error)),
        },
        tracefs: tracefs(),
        capabilities: Capabilities::own(),
        memlock: memlock(),
        sysctls: [
            "kernel/unprivileged_bpf_disabled",
            "kernel/perf_event_paranoid",
            "kernel/yama/ptrace_scope",
        ]
        .map(|name| {
            let value = fs::read_to_string(format!("/proc/sys/{name}")).ok();
            (name, value.map(|text| text.trim().to_owned()))
        })
        .to_vec(),
        attach,
    }
}

/// Release of the running kernel, as `uname -r` prints it; empty where unknown.
pub fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Whether tracefs is mounted where tools look for it.
pub fn tracefs() -> Availability {
    if TRACEFS.iter().any(|path| fs::metadata(format!("{path}/events")).is_ok()) {
        return Availability::Yes;
    }
    Availability::No(format!("not mounted: mount -t tracefs tracefs {}", TRACEFS[0]))
}

fn attach_kind(kind: AttachKind, btf: Option<&Btf>) -> Availability {
    let typed = |attach, class, name| {
        let Some(btf) = btf else { return Availability::Unknown(format!("no {VMLINUX}")) };
        match btf.id(class, name) {
            Some(id) => Availability::from_try(load::load_program(load::PROG_TRACING, attach, id)),
            None => Availability::No(format!("the kernel's BTF has no {name}")),
        }
    };
    match kind {
        AttachKind::BtfTracepoint => typed(load::ATTACH_RAW_TP, Kind::Typedef, "btf_trace_sys_enter"),
        AttachKind::Iterator => typed(load::ATTACH_ITER, Kind::Func, "bpf_iter_task"),
        AttachKind::Fentry => typed(load::ATTACH_FENTRY, Kind::Func, "vfs_read"),
        AttachKind::RawTracepoint => {
            Availability::from_try(load::load_program(load::PROG_RAW_TRACEPOINT, 0, 0))
        }
        AttachKind::Tracepoint => match tracefs() {
            Availability::Yes => Availability::from_try(load::load_program(load::PROG_TRACEPOINT, 0, 0)),
            missing => missing,
        },
        AttachKind::RingBuffer => Availability::from_try(load::create_ring_buffer(page_size())),
        AttachKind::Uprobe | AttachKind::Kprobe => {
            let pmu = if kind == AttachKind::Uprobe { "uprobe" } else { "kprobe" };
            let tried = load::load_program(load::PROG_KPROBE, 0, 0).and_then(|()| load::open_perf_probe(pmu));
            match tried {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Availability::No("not built into this kernel".to_owned())
                }
                tried => Availability::from_try(tried),
            }
        }
    }
}

fn page_size() -> u32 {
    // SAFETY: sysconf has no preconditions.
    u32::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn with_source(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_effective_capabilities_from_a_status_file() {
        let status = "Name:\tcat\nCapPrm:\t0000000000000000\nCapEff:\t000000c000200000\nSeccomp:\t0\n";
        let capabilities = Capabilities::from_status(status).unwrap();
        assert!(capabilities.has(Capability::Bpf));
        assert!(capabilities.has(Capability::Perfmon));
        assert!(capabilities.has(Capability::SysAdmin));
        assert!(!capabilities.has(Capability::SysPtrace));
        assert!(!capabilities.has(Capability::NetAdmin));
    }

    #[test]
    fn a_status_file_without_the_line_is_unknown() {
        assert_eq!(Capabilities::from_status("Name:\tcat\n"), None);
        assert_eq!(Capabilities::from_status("CapEff:\tnonsense\n"), None);
    }

    #[test]
    fn inspecting_answers_for_every_attach_kind() {
        let features = inspect();
        let kinds: Vec<AttachKind> = features.attach.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, AttachKind::ALL);
        assert!(!features.release.is_empty());
    }
}
