//! Loads the eBPF object and attaches what this kernel lets us attach.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use aya::maps::{Array, MapData};
use aya::programs::{BtfTracePoint, Iter, PerfEvent, ProgramError, UProbe};
use aya::{Btf, Ebpf, EbpfLoader, VerifierLogLevel};
use profiler_common::{Offsets, Settings};

use super::error::{ProbeError, one_line};
use super::multi_uprobe::MultiUprobe;
use super::{ProbeOptions, calls, clock};
use crate::kernel;

/// The programs as `cargo xtask build` made them; empty where the crate was built without.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/stallscope.o"));

/// Inode number of the first PID namespace, the same on every machine.
const INIT_PID_NAMESPACE: u64 = 0xefff_fffc;

/// What a program needs to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// BTF raw tracepoint of this name.
    Tracepoint(&'static str),
    /// Loaded now, attached for each library.
    Uprobe,
    /// Loaded now, run for each snapshot, over this kind of object.
    Iterator(&'static str),
    /// Loaded now, attached to a clock of each processor when the window opens.
    Clock,
}

/// Programs, what they hang on, and the coverage family that lacks something without them.
pub(super) const PROGRAMS: &[(&str, Hook, &str)] = &[
    ("life_fork", Hook::Tracepoint("sched_process_fork"), "children"),
    ("life_exec", Hook::Tracepoint("sched_process_exec"), "children"),
    ("life_exit", Hook::Tracepoint("sched_process_exit"), "children"),
    ("sleep_switch", Hook::Tracepoint("sched_switch"), "sched"),
    ("sleep_wakeup", Hook::Tracepoint("sched_wakeup"), "sched"),
    ("handshake_state", Hook::Tracepoint("inet_sock_set_state"), "tcp"),
    ("retransmit_skb", Hook::Tracepoint("tcp_retransmit_skb"), "tcp"),
    ("call_exit", Hook::Tracepoint("sys_exit"), "net"),
    ("call_enter", Hook::Tracepoint("sys_enter"), "net"),
    ("api_entry", Hook::Uprobe, "dns"),
    ("snapshot_files", Hook::Iterator("task_file"), "snapshot"),
    ("snapshot_tasks", Hook::Iterator("task"), "snapshot"),
    ("finish_tasks", Hook::Iterator("task"), "snapshot"),
    (clock::PROGRAM, Hook::Clock, "samples"),
];

/// What came of loading.
pub(super) struct Loaded {
    pub(super) ebpf: Ebpf,
    /// The program on resolver functions, where the kernel has links with many entries.
    pub(super) resolver: Option<MultiUprobe>,
    /// Programs that do not run, and why.
    pub(super) failed: HashMap<&'static str, String>,
    /// Members that this kernel's types lack.
    pub(super) missing_members: Vec<String>,
}

pub(super) fn load(options: &ProbeOptions, settings: &Settings) -> Result<Loaded, ProbeError> {
    if OBJECT.is_empty() {
        return Err(ProbeError::NoPrograms);
    }
    if fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() != INIT_PID_NAMESPACE) {
        return Err(ProbeError::PidNamespace);
    }
    raise_memlock();
    let offsets = {
        let types = kernel::btf::Btf::from_kernel().map_err(ProbeError::KernelTypes)?;
        kernel::offsets::find(&types)
    };
    let btf = Btf::from_sys_fs().map_err(|error| ProbeError::Load(error.into()))?;
    let mut ebpf = open(options, settings, &offsets, &btf)?;
    fill_calls(&mut ebpf, options)?;
    let resolver = MultiUprobe::load(OBJECT, "api_entry", &ebpf)
        .inspect_err(|reason| log::debug!("resolver functions get a link each: {reason}"))
        .ok();
    let mut failed = HashMap::new();
    for (name, hook, family) in PROGRAMS {
        if *hook == Hook::Uprobe && resolver.is_some() {
            continue;
        }
        if *family == "tcp" && !options.net {
            failed.insert(*name, "not asked for".to_owned());
            continue;
        }
        if let Err(reason) = start(&mut ebpf, name, *hook, &btf) {
            log::debug!("{name} does not run: {reason}");
            failed.insert(*name, reason);
        } else if *name == "sleep_switch" {
            // Before the system calls' programs run, which rely on it.
            say_that_sleeps_are_seen(&mut ebpf)?;
        }
    }
    for name in ["call_enter", "call_exit"] {
        if let Some(reason) = failed.get(name) {
            return Err(ProbeError::NothingRuns { reason: reason.clone() });
        }
    }
    Ok(Loaded { ebpf, resolver, failed, missing_members: kernel::offsets::missing(&offsets) })
}

fn open(
    options: &ProbeOptions,
    settings: &Settings,
    offsets: &Offsets,
    btf: &Btf,
) -> Result<Ebpf, ProbeError> {
    let log_level: u8 = if options.verbose { aya_log::Level::Debug as u8 } else { 0 };
    // Asked for only after a refusal. Without any level the kernel refuses to be asked, and that error would hide the first
    // one; the way to the refusal is long, and written only where somebody reads it.
    let verifier = if options.verbose {
        VerifierLogLevel::DEBUG | VerifierLogLevel::STATS
    } else {
        VerifierLogLevel::STATS
    };
    EbpfLoader::new()
        .btf(Some(btf))
        .override_global("SETTINGS", settings, true)
        .override_global("OFFSETS", offsets, true)
        .override_global(aya_log::LEVEL, &log_level, false)
        .map_max_entries("EVENTS", ring_bytes(options.ring_bytes))
        .verifier_log_level(verifier)
        .load(OBJECT)
        .map_err(|error| ProbeError::Load(error.into()))
}

/// A size that the kernel takes: a power of two between 64 KiB and 16 MiB.
pub(super) fn ring_bytes(wanted: u32) -> u32 {
    wanted.clamp(64 << 10, 16 << 20).checked_next_power_of_two().unwrap_or(16 << 20)
}

/// Without a family that is about sockets the kernel passes their calls over as it does all others.
fn fill_calls(ebpf: &mut Ebpf, options: &ProbeOptions) -> Result<(), ProbeError> {
    let map = ebpf.map_mut("CALLS").ok_or(ProbeError::Missing { name: "CALLS" })?;
    let mut table: Array<&mut MapData, u16> = map.try_into().map_err(load_error)?;
    let sockets = options.net || options.dns;
    for (number, call) in
        calls::numbers().into_iter().filter(|(_, call)| sockets || !calls::is_of_sockets(*call))
    {
        table.set(number, call, 0).map_err(load_error)?;
    }
    Ok(())
}

fn say_that_sleeps_are_seen(ebpf: &mut Ebpf) -> Result<(), ProbeError> {
    let map = ebpf.map_mut("SCHED_SEEN").ok_or(ProbeError::Missing { name: "SCHED_SEEN" })?;
    let mut seen: Array<&mut MapData, u32> = map.try_into().map_err(load_error)?;
    seen.set(0, 1, 0).map_err(load_error)
}

fn load_error(error: aya::maps::MapError) -> ProbeError {
    ProbeError::Load(error.into())
}

fn start(ebpf: &mut Ebpf, name: &'static str, hook: Hook, btf: &Btf) -> Result<(), String> {
    let program = ebpf.program_mut(name).ok_or("missing in the eBPF object")?;
    let mut run = || -> Result<(), ProgramError> {
        match hook {
            Hook::Tracepoint(point) => {
                let program: &mut BtfTracePoint = program.try_into()?;
                program.load(point, btf)?;
                program.attach().map(drop)
            }
            Hook::Uprobe => {
                let program: &mut UProbe = program.try_into()?;
                program.load()
            }
            Hook::Clock => {
                let program: &mut PerfEvent = program.try_into()?;
                program.load()
            }
            Hook::Iterator(over) => {
                let program: &mut Iter = program.try_into()?;
                program.load(over, btf)
            }
        }
    };
    run().map_err(|error| {
        log::debug!("{name}: {error:?}");
        one_line(&error)
    })
}

/// Kernels before 5.11 count maps against this limit. Where it cannot be raised, loading tells.
fn raise_memlock() {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is a valid rlimit.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } != 0 {
        log::debug!("RLIMIT_MEMLOCK stays as it is: {}", std::io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_sizes_are_powers_of_two_within_bounds() {
        assert_eq!(ring_bytes(0), 64 << 10);
        assert_eq!(ring_bytes(8 << 20), 8 << 20);
        assert_eq!(ring_bytes((8 << 20) + 1), 16 << 20);
        assert_eq!(ring_bytes(u32::MAX), 16 << 20);
    }

    #[test]
    fn the_kernel_keeps_the_programs_names_whole() {
        assert!(PROGRAMS.iter().all(|(name, ..)| name.len() <= 15));
    }

    #[test]
    fn the_first_pid_namespace_has_its_fixed_number() {
        assert_eq!(INIT_PID_NAMESPACE, 4_026_531_836);
    }
}
