//! Loads the eBPF programs, attaches them, and turns what they emit into [`event::Event`]s.
//!
//! ```no_run
//! use stallscope::probes::{ProbeOptions, ProbeSet};
//!
//! # fn main() -> Result<(), stallscope::probes::ProbeError> {
//! let mut probes = ProbeSet::load(&ProbeOptions::default())?;
//! probes.add_target(4711, true)?;
//! probes.snapshot()?;
//! // … wait until the descriptor is readable or a few milliseconds have passed, then:
//! probes.drain(10_000, &mut |event| println!("{event:?}"));
//! # let end_ns = 0;
//! probes.finish(end_ns, &mut |event| println!("{event:?}"))?;
//! # Ok(())
//! # }
//! ```

mod calls;
mod clock;
mod coverage;
mod decode;
mod error;
pub mod event;
mod fields;
mod iterate;
mod known_stacks;
mod load;
mod marker;
mod multi_uprobe;
mod raw_bpf;
mod rdma_kernel;
mod restart;
mod socket;
mod tables;
mod verbs;

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, RingBuf};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::programs::{BtfTracePoint, ProgramError, UProbe};
use aya_log::EbpfLogger;
use profiler_common::config::{MARK_COUNT, TARGET_FOLLOW};
use profiler_common::{
    Api, CallTotals, HandshakeRecord, NonblockingKey, NonblockingWait, SampleCounts, SampleKey, Settings,
    Target,
};

pub use calls::CallNumbers;
pub use decode::{DecodeError, decode};
pub use error::ProbeError;
pub(crate) use error::one_line;
pub use known_stacks::KnownStacks;

use crate::trace::rdma_setup::{RdmaCommandTotals, RdmaSetupTotals};
use crate::trace::record::{CallCount, Coverage, CpuSamples, Environment, LifeEvent, Loss};
use event::Event;

use crate::target::verbs::library::Library;
use crate::target::verbs::{Functions, Maker};

/// Rounds of 4096 records that empty the largest buffer of the smallest records.
const MOST_DRAINS: usize = 128;

/// How to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent choices")]
pub struct ProbeOptions {
    /// A wait that is shorter and did not fail is counted and not recorded, nanoseconds.
    pub min_stall_ns: u64,
    /// Two looks at a non-blocking descriptor that are further apart are two waits, nanoseconds.
    pub spin_gap_ns: u64,
    /// Size of the ring buffer; rounded up to a power of two between 64 KiB and 16 MiB.
    pub ring_bytes: u32,
    /// Log what the programs say through the `log` crate, and verifier logs on failure.
    pub verbose: bool,
    /// Watch handshakes and retransmissions, and system calls on sockets.
    pub net: bool,
    /// Watch system calls on sockets, for the messages to name servers among them.
    pub dns: bool,
    /// Watch the kernel's RDMA functions, where the machine has a device.
    pub rdma_kernel: bool,
}

impl Default for ProbeOptions {
    fn default() -> ProbeOptions {
        ProbeOptions {
            min_stall_ns: 100_000,
            spin_gap_ns: 10_000_000,
            ring_bytes: 8 << 20,
            verbose: false,
            net: true,
            dns: true,
            rdma_kernel: false,
        }
    }
}

/// The probes of one recording. Dropping it detaches and unloads everything.
///
/// The descriptor ([`AsFd`], [`AsRawFd`]) is readable, for `poll` and `epoll`, while records wait to be drained;
/// the kernel wakes a sleeper only when a quarter of the ring buffer is filled, so look every few milliseconds.
pub struct ProbeSet {
    ebpf: Ebpf,
    resolver: Option<multi_uprobe::MultiUprobe>,
    events: RingBuf<MapData>,
    targets: HashMap<MapData, u32, Target>,
    marks: Array<MapData, u8>,
    totals: PerCpuArray<MapData, CallTotals>,
    lost: PerCpuArray<MapData, u64>,
    nonblocking: HashMap<MapData, NonblockingKey, NonblockingWait>,
    handshakes: HashMap<MapData, u64, HandshakeRecord>,
    samples: HashMap<MapData, SampleKey, SampleCounts>,
    known_stacks: Option<KnownStacks>,
    logger: Option<EbpfLogger<&'static dyn log::Log>>,
    coverage: coverage::Families,
    settings: Settings,
    /// Threads that ended since the table of non-blocking waits was last looked through.
    ended: HashSet<u32>,
    /// Records that could not be decoded.
    undecodable: u64,
    verbs: verbs::VerbsProbes,
    rdma_kernel: rdma_kernel::RdmaKernel,
}

impl std::fmt::Debug for ProbeSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProbeSet").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl ProbeSet {
    /// Loads the programs and attaches them. They see nothing before the first [`ProbeSet::add_target`].
    ///
    /// It fails only where not even system calls can be watched; anything less is told by
    /// [`ProbeSet::coverage`].
    pub fn load(options: &ProbeOptions) -> Result<ProbeSet, ProbeError> {
        let settings = Settings {
            min_stall_ns: options.min_stall_ns,
            spin_gap_ns: options.spin_gap_ns,
            own_tgid: std::process::id(),
            reserved: 0,
        };
        let load::Loaded { mut ebpf, resolver, failed, missing_members } = load::load(options, &settings)?;
        // Before the maps are taken out, which the programs refer to.
        let rdma_kernel = rdma_kernel::RdmaKernel::attach(&mut ebpf, options);
        let logger = if options.verbose { EbpfLogger::init(&mut ebpf).ok() } else { None };
        Ok(ProbeSet {
            events: take(&mut ebpf, "EVENTS")?,
            targets: take(&mut ebpf, "TARGETS")?,
            marks: take(&mut ebpf, "MARKS")?,
            totals: take(&mut ebpf, "CALL_TOTALS")?,
            lost: take(&mut ebpf, "LOSSES")?,
            nonblocking: take(&mut ebpf, "NONBLOCKING")?,
            handshakes: take(&mut ebpf, "HANDSHAKES")?,
            samples: take(&mut ebpf, "SAMPLES")?,
            known_stacks: Some(KnownStacks::new(
                take(&mut ebpf, "SHAPES")?,
                take(&mut ebpf, "KNOWN_STACKS")?,
            )),
            ebpf,
            resolver,
            logger,
            coverage: coverage::Families::new(failed, missing_members),
            settings,
            ended: HashSet::new(),
            undecodable: 0,
            verbs: verbs::VerbsProbes::default(),
            rdma_kernel,
        })
    }

    /// The tables of known stacks, for whoever unwinds; `None` when they were handed out before.
    pub fn take_known_stacks(&mut self) -> Option<KnownStacks> {
        self.known_stacks.take()
    }

    /// What can be seen, and why not the rest. Families: `net`, `dns`, `tcp`, `sched`, `samples`, `children`, `snapshot`,
    /// `lock`, `io_uring`.
    pub fn coverage(&self) -> Vec<Coverage> {
        let mut rows = self.coverage.rows();
        rows.extend(self.rdma_kernel.coverage());
        rows
    }

    /// Watches the process `pid` (its own id, as the host sees it) with all its threads; with `follow` also the
    /// processes that it forks from now on.
    pub fn add_target(&mut self, pid: u32, follow: bool) -> Result<(), ProbeError> {
        if pid == self.settings.own_tgid {
            return Err(ProbeError::OwnProcess { pid });
        }
        let target = Target { flags: if follow { TARGET_FOLLOW } else { 0 }, open_nonblocking: 0 };
        self.marks
            .set(pid % MARK_COUNT, 1, 0)
            .and_then(|()| self.targets.insert(pid, target, 0))
            .map_err(|error| ProbeError::Target { pid, source: error.into() })
    }

    /// The processes that are watched now: those added, and their children where they are followed. One that ended
    /// is not among them.
    pub fn targets(&self) -> Vec<u32> {
        self.targets.keys().filter_map(Result::ok).collect()
    }

    /// Marks the entries of resolver functions. `path` is opened as this process sees it (for instance
    /// below the process's `map_files` or `root` in procfs); the offsets are into the file. It holds for every process that
    /// maps the file; those that are no targets are left out in the kernel.
    ///
    /// Returns how many entries are probed; it fails when none is.
    pub fn attach_resolver(&mut self, path: &Path, entries: &[(Api, u64)]) -> Result<usize, ProbeError> {
        if let Some(resolver) = &mut self.resolver
            && !entries.is_empty()
        {
            match resolver.attach(path, entries) {
                Ok(()) => {
                    self.coverage.resolver(entries.len());
                    return Ok(entries.len());
                }
                Err(reason) => log::debug!("{}: one link for all: {reason}", path.display()),
            }
        }
        let attached = self.attach_each(path, entries);
        self.coverage.resolver(*attached.as_ref().unwrap_or(&0));
        attached.map_err(|reason| ProbeError::Resolver { path: path.to_owned(), reason })
    }

    /// A link for each entry: for kernels without links that have many, and where one of many entries is refused.
    fn attach_each(&mut self, path: &Path, entries: &[(Api, u64)]) -> Result<usize, String> {
        let program = self.ebpf.program_mut("api_entry").ok_or("api_entry is missing in the eBPF object")?;
        let program: &mut UProbe = program.try_into().map_err(|error| one_line(&error))?;
        match program.load() {
            Ok(()) | Err(ProgramError::AlreadyLoaded) => {}
            Err(error) => return Err(one_line(&error)),
        }
        let mut attached = 0;
        let mut reason = "it has none".to_owned();
        for (api, offset) in entries {
            let point = UProbeAttachPoint {
                location: UProbeAttachLocation::AbsoluteOffset(*offset),
                cookie: Some(*api as u64),
            };
            match program.attach(point, path, UProbeScope::AllProcesses) {
                Ok(_) => attached += 1,
                Err(error) => {
                    reason = format!("{} at {offset:#x}: {}", api.symbol(), one_line(&error));
                    log::debug!("{}: {reason}", path.display());
                }
            }
        }
        if attached == 0 { Err(reason) } else { Ok(attached) }
    }

    /// Looks at the targets' sockets and at what their threads are blocked in now. What was found comes with
    /// [`ProbeSet::drain`] when the call returns, or with [`ProbeSet::finish`], as a wait that began earlier.
    /// Call it once after the targets were added.
    pub fn snapshot(&mut self) -> Result<(), ProbeError> {
        iterate::calibrate_clocks();
        if restart::is_needed(&self.targets()) {
            restart::fill(&mut self.ebpf);
        }
        iterate::run(&mut self.ebpf, "snapshot_files")
            .and_then(|()| iterate::run(&mut self.ebpf, "snapshot_tasks"))
            .map_err(|reason| ProbeError::Snapshot { reason })
    }

    /// Begins to sample which threads are on a processor. Call it when the window opens; what fails is told by
    /// [`ProbeSet::coverage`].
    pub fn begin_samples(&mut self) {
        if let Err(reason) = clock::attach(&mut self.ebpf) {
            log::debug!("{}: {reason}", clock::PROGRAM);
            self.coverage.failed(clock::PROGRAM, reason);
        }
    }

    /// How often each thread was found on a processor up to now.
    pub fn cpu_samples(&self, now_ns: u64) -> Vec<CpuSamples> {
        clock::samples(&self.samples, now_ns)
    }

    /// Hands out at most `max_records` events that wait in the ring buffer; never blocks. Returns the number of
    /// records taken, which is below `max_records` when the buffer is empty.
    ///
    /// A stack comes before the first wait that refers to it. Until [`KnownStacks::tell`] is called for it, waits that
    /// have it again come with copies of their own, under other ids.
    pub fn drain(&mut self, max_records: usize, sink: &mut dyn FnMut(Event)) -> usize {
        let mut taken = 0;
        while taken < max_records {
            let Some(record) = self.events.next() else { break };
            taken += 1;
            match decode(&record) {
                Ok(event) => {
                    if let Event::Life(life) = &event
                        && life.event == LifeEvent::Exit
                    {
                        self.ended.insert(life.tid);
                    }
                    if let Event::RdmaImage(image) = &event {
                        self.verbs.learn(&mut self.ebpf, image, sink);
                        continue;
                    }
                    sink(event);
                }
                Err(error) => {
                    self.undecodable += 1;
                    log::debug!("kernel record: {error}");
                }
            }
        }
        if !self.ended.is_empty() {
            let ended = std::mem::take(&mut self.ended);
            tables::take_nonblocking(
                &mut self.nonblocking,
                &self.settings,
                tables::Which::Ended(&ended),
                sink,
            );
        }
        if let Some(logger) = &mut self.logger {
            logger.flush();
        }
        taken
    }

    /// Ends the recording: hands out what still waits, as spans in flight, and everything left in the ring buffer;
    /// then nothing is watched any longer. `end_ns` is the recording's end, now: taking the probes off takes a while,
    /// and what begins meanwhile is left out.
    pub fn finish(&mut self, end_ns: u64, sink: &mut dyn FnMut(Event)) -> Result<(), ProbeError> {
        let sink = &mut |event: Event| {
            if event.time_ns().is_none_or(|time_ns| time_ns <= end_ns) {
                sink(event);
            }
        };
        clock::detach(&mut self.ebpf);
        let listed = iterate::run(&mut self.ebpf, "finish_tasks");
        tables::await_looks(&self.nonblocking, &self.settings, end_ns);
        self.detach();
        verbs::VerbsProbes::detach(&mut self.ebpf);
        marker::detach(&mut self.ebpf);
        self.rdma_kernel.detach();
        self.rdma_kernel.take_open(&self.ebpf, self.settings.min_stall_ns, end_ns, sink);
        marker::take_counted(&mut self.ebpf, sink);
        tables::take_nonblocking(&mut self.nonblocking, &self.settings, tables::Which::All { end_ns }, sink);
        tables::take_handshakes(&mut self.handshakes, end_ns, sink);
        // What is left is bounded by the buffer's size, were it not for resolver functions that are still called.
        for _ in 0..MOST_DRAINS {
            if self.drain(4096, sink) == 0 {
                break;
            }
        }
        listed.map_err(|reason| ProbeError::Snapshot { reason })
    }

    fn detach(&mut self) {
        for (name, hook, _) in load::PROGRAMS {
            if !matches!(hook, load::Hook::Tracepoint(_)) {
                continue;
            }
            if let Some(program) = self.ebpf.program_mut(name)
                && let Ok(program) = <&mut BtfTracePoint>::try_from(program)
            {
                // Unloading closes the links too. A program that never ran has nothing to unload.
                let _ = program.unload();
            }
        }
    }

    /// Watches what the process posts and polls through these functions; where `now` is false, from the next
    /// [`ProbeSet::resume_verbs`] on.
    pub fn attach_verbs(&mut self, pid: u32, functions: &Functions, now: bool) -> Result<(), String> {
        self.verbs.attach(&mut self.ebpf, pid, functions, now)
    }

    /// Watches requests that the process makes through these functions of the extended interface.
    pub fn attach_verbs_makers(&mut self, pid: u32, makers: &[Maker], now: bool) -> Result<(), String> {
        self.verbs.attach_makers(&mut self.ebpf, pid, makers, now)
    }

    /// Tells of devices and queue pairs that targets set up through this library.
    pub fn attach_verbs_setup(&mut self, library: &Library) -> Result<(), String> {
        verbs::VerbsProbes::attach_setup(&mut self.ebpf, library)
    }

    /// How often verbs of the targets were trapped, as far as no event tells.
    pub fn verbs_traps(&self) -> u64 {
        verbs::VerbsProbes::traps(&self.ebpf)
    }

    /// Posts and polls are not watched until [`ProbeSet::resume_verbs`].
    pub fn pause_verbs(&mut self) {
        self.verbs.pause(&mut self.ebpf);
    }

    /// Watches posts and polls again. Returns the processes for which that failed, and why; they are given up.
    pub fn resume_verbs(&mut self) -> Vec<(u32, String)> {
        self.verbs.resume(&mut self.ebpf)
    }

    /// How many functions of each of the kernel's RDMA modules are watched.
    pub fn rdma_kernel_environment(&self) -> Option<Environment> {
        self.rdma_kernel.environment()
    }

    /// What all calls of the kernel's RDMA functions, and commands to devices, add up to so far.
    pub fn rdma_kernel_totals(&self) -> (Vec<RdmaSetupTotals>, Vec<RdmaCommandTotals>) {
        self.rdma_kernel.totals(&self.ebpf)
    }

    /// Counts the calls of the marker function, which is entered at this offset of the file. `path` is opened as this
    /// process sees it.
    pub fn attach_marker(&mut self, path: &Path, offset: u64) -> Result<(), String> {
        marker::attach(&mut self.ebpf, path, offset)
    }

    /// Calls seen so far, those that made no record among them. Calls that were never seen are left out.
    pub fn call_counts(&self) -> Vec<CallCount> {
        tables::call_counts(&self.totals)
    }

    /// What was lost so far, by kind; kinds of which nothing was lost are left out.
    pub fn losses(&self) -> Vec<Loss> {
        let mut losses = tables::losses(&self.lost);
        if self.undecodable > 0 {
            losses.push(Loss {
                what: "undecodable_record".to_owned(),
                count: self.undecodable,
                events: true,
            });
        }
        losses
    }
}

impl AsFd for ProbeSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl AsRawFd for ProbeSet {
    fn as_raw_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }
}

fn take<T: TryFrom<Map, Error = aya::maps::MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<T, ProbeError> {
    let map = ebpf.take_map(name).ok_or(ProbeError::Missing { name })?;
    T::try_from(map).map_err(|error| ProbeError::Load(error.into()))
}
