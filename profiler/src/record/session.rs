//! One recording from its beginning to its end.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::resource::Resource;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::collector::Collector;
use super::command::{HeldCommand, RunningCommand};
use super::error::RecordError;
use super::families::WaitFamilies;
use super::gpu_thread::GpuThread;
use super::held_back::HeldBack;
use super::host;
use super::marker_watch::MarkerWatch;
use super::options::{GpuTimes, RecordOptions, StopReason, TargetChoice};
use super::progress::{Progress, Totals};
use super::python_thread::PythonThread;
use super::socket_thread::SocketThread;
use super::staged::Staged;
use super::symbol_thread::SymbolThread;
use super::topology;
use crate::probes::{ProbeOptions, ProbeSet};
use crate::target::process::process_info;
use crate::target::select::{select_comm, select_pids, with_descendants};
use crate::target::{ProcRoot, TargetSet};
use crate::trace::error::TraceError;
use crate::trace::record::{End, Record, Window};

/// How often the ring buffer is emptied.
const DRAIN: Duration = Duration::from_millis(10);
/// Two looks at a non-blocking descriptor further apart are two waits.
const SPIN_GAP: Duration = Duration::from_millis(10);
const RING_BYTES: u32 = 8 << 20;
/// Open files without which no recording can begin.
const OPEN_FILES_MIN: u64 = 128;

/// How a recording ended.
#[derive(Debug)]
pub struct Recording {
    pub reason: StopReason,
    pub totals: Totals,
    /// Exit status of the command that was recorded.
    pub command: Option<ExitStatus>,
    /// The command that was recorded and goes on without the recorder.
    pub left_running: Option<u32>,
    /// The trace could not be written to its end.
    pub write_error: Option<TraceError>,
}

/// What is told to the user on standard error while it goes on.
pub trait Narrator {
    /// The window is open.
    fn opened(&mut self, what: &str);
}

/// Records as asked. Blocks until the recording has ended. Signals are held back until the window is open.
pub fn record(
    options: &RecordOptions,
    held_back: HeldBack,
    narrator: &mut dyn Narrator,
) -> Result<Recording, RecordError> {
    may_open_files()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| RecordError::Start { what: "runtime", source })?;
    runtime.block_on(run(options, held_back, narrator))
}

async fn run(
    options: &RecordOptions,
    held_back: HeldBack,
    narrator: &mut dyn Narrator,
) -> Result<Recording, RecordError> {
    let root = ProcRoot::default();
    let (asked_for, held) = choose(&root, options, &held_back)?;
    let marker = options
        .marker
        .as_ref()
        .map(|name| MarkerWatch::find(&root, name, &options.target, &asked_for, options.follow));
    let marker = marker.transpose()?;
    // The file first: nothing of the target is touched when there is nowhere to write to.
    let (writer, staged) = Staged::create(&options.output)?;
    let mut signals = Signals::new()?;
    allow_open_files();
    let mut probes = ProbeSet::load(&ProbeOptions {
        min_stall_ns: nanos(options.min_stall),
        spin_gap_ns: nanos(SPIN_GAP),
        ring_bytes: RING_BYTES,
        verbose: options.verbose,
        net: options.net,
        dns: options.dns,
        rdma_kernel: options.verbs.is_some(),
    })?;
    let targets = TargetSet::new(root.clone(), &asked_for, options.follow);
    let symbols = SymbolThread::start(probes.take_known_stacks())
        .map_err(|source| RecordError::Start { what: "symbol thread", source })?;
    let sockets = SocketThread::start(root.clone())
        .map_err(|source| RecordError::Start { what: "socket thread", source })?;
    let python = PythonThread::start(root.clone())
        .map_err(|source| RecordError::Start { what: "python thread", source })?;
    let gpu = (options.gpu == GpuTimes::Wanted)
        .then(|| GpuThread::start(root.clone()))
        .transpose()
        .map_err(|source| RecordError::Start { what: "gpu thread", source })?;
    let families = WaitFamilies::new(options.net, options.dns);
    let mut collector = Collector::new(writer, targets, root.clone(), symbols, sockets, python, families);
    collector.watch_verbs(options.verbs);
    collector.watch_gpus(gpu);
    collector.watch_marker(marker);
    collector.watch_place(options.verbs.is_some() || options.gpu == GpuTimes::Wanted);
    collector.write(Record::Host(host::host()));
    collector.write(Record::Clock(host::clock()));
    if let Some(chosen) = &options.topology {
        // A command that is held back sees our own files still, as it will later.
        let file = topology::stored(&root, chosen, asked_for.first().copied());
        collector.write(Record::Topology(file));
    }
    if held.is_some() {
        // The command's own libc is not mapped yet; most often it is the one that we run on.
        collector.find_libraries(std::process::id(), &mut probes);
    }
    collector.refresh_targets(&mut probes);
    if collector.targets.is_empty() {
        return Err(RecordError::TargetsGone);
    }
    collector.look_at_sockets(true);
    watch(&mut probes, &root, &asked_for, options.follow)?;
    collector.attach_marker(&mut probes);
    collector.write_rdma_kernel(&probes);
    if let Err(error) = probes.snapshot() {
        log::warn!("{error}");
    }
    let start_ns = host::monotonic_ns();
    let window = Window { start_ns, end_ns: 0, min_stall_ns: nanos(options.min_stall) };
    collector.write(Record::Window(window));
    // At once, as at the end: what the kernel adds to its account before the first look and after the last one is missing.
    collector.write_thread_times();
    probes.begin_samples();
    collector.begin_looks();
    collector.refresh_targets(&mut probes);
    collector.write_thread_times();
    collector.flush();
    drop(held_back);
    narrator.opened(&describe(&root, &collector.targets, options));
    if held.is_some() && signals.came().await {
        // Told to end before the command's first instruction: it never runs.
        staged.commit();
        return Ok(finish(options, probes, collector, window, StopReason::Signal, None));
    }
    // A command that cannot be started leaves an older recording alone.
    let mut command = release(held, options)?;
    staged.commit();
    let progress = Progress::new(options.duration);
    let reason =
        watch_until(options, &mut probes, &mut collector, signals, command.as_mut(), &progress).await;
    progress.finish();
    Ok(finish(options, probes, collector, window, reason, command))
}

/// The processes to watch, and the command among them where one is started.
fn choose(
    root: &ProcRoot,
    options: &RecordOptions,
    held_back: &HeldBack,
) -> Result<(Vec<u32>, Option<HeldCommand>), RecordError> {
    Ok(match &options.target {
        TargetChoice::Pids(pids) => (select_pids(root, pids)?, None),
        TargetChoice::Comm(pattern) => (select_comm(root, pattern)?, None),
        TargetChoice::Command(program, arguments) => {
            let held = HeldCommand::start(program, arguments, held_back.before())
                .map_err(|source| RecordError::Command { program: program.clone(), source })?;
            (vec![held.pid()], Some(held))
        }
    })
}

/// Hands the targets to the probes. A child that was forked between the look at the process tree and its
/// parent's entry is found by the second look.
fn watch(probes: &mut ProbeSet, root: &ProcRoot, asked_for: &[u32], follow: bool) -> Result<(), RecordError> {
    let own = std::process::id();
    for _ in 0..if follow { 2 } else { 1 } {
        let pids = if follow { with_descendants(root, asked_for) } else { asked_for.to_vec() };
        for pid in pids {
            // stallscope can be a child of what it watches (a shell); it never watches itself.
            if pid != own {
                probes.add_target(pid, follow)?;
            }
        }
    }
    Ok(())
}

fn release(
    held: Option<HeldCommand>,
    options: &RecordOptions,
) -> Result<Option<RunningCommand>, RecordError> {
    let TargetChoice::Command(program, _) = &options.target else { return Ok(None) };
    held.map(HeldCommand::release)
        .transpose()
        .map_err(|source| RecordError::Command { program: program.clone(), source })
}

fn describe(root: &ProcRoot, targets: &TargetSet, options: &RecordOptions) -> String {
    let pids: Vec<u32> = targets.pids().collect();
    let threads = targets.threads().count();
    let first = pids.first().copied().unwrap_or(0);
    let name = match &options.target {
        // Still held before its exec, so it has our own name.
        TargetChoice::Command(program, _) => {
            Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned()
        }
        _ => process_info(root, first).map(|info| info.comm).unwrap_or_default(),
    };
    let name = crate::render::name::escape_controls(&name);
    let processes = match pids.len() {
        1 => format!("process {first} ({name})"),
        count => format!("{count} processes, {first} ({name}) first"),
    };
    let duration = match options.duration {
        Some(duration) => format!("for {}", humantime::format_duration(duration)),
        None => "until it ends or Ctrl-C".to_owned(),
    };
    format!("{processes}, {threads} threads, {duration}, into {}", options.output.display())
}

/// Maps, programs and links are open files, about 70 for a usual process.
fn may_open_files() -> Result<(), RecordError> {
    match nix::sys::resource::getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard < OPEN_FILES_MIN => Err(RecordError::OpenFiles { limit: hard }),
        _ => Ok(()),
    }
}

/// The soft limit goes up as far as it may; a command that was started keeps its own.
fn allow_open_files() {
    let Ok((soft, hard)) = nix::sys::resource::getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if let Err(error) = nix::sys::resource::setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
        && soft < OPEN_FILES_MIN
    {
        log::warn!("only {soft} files can be open at once: {error}");
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Signals, RecordError> {
        let open =
            |kind| signal(kind).map_err(|source| RecordError::Start { what: "signal handler", source });
        Ok(Signals { interrupt: open(SignalKind::interrupt())?, terminate: open(SignalKind::terminate())? })
    }

    /// Whether one has come already. The moment lets the runtime hear of it.
    async fn came(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => true,
            _ = self.terminate.recv() => true,
            () = tokio::time::sleep(Duration::from_millis(1)) => false,
        }
    }
}

async fn watch_until(
    options: &RecordOptions,
    probes: &mut ProbeSet,
    collector: &mut Collector,
    mut signals: Signals,
    mut command: Option<&mut RunningCommand>,
    progress: &Progress,
) -> StopReason {
    let end = end_of(Instant::now(), options.duration);
    let every = |period| {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    };
    let (mut drain, mut tenth, mut second) =
        (every(DRAIN), every(Duration::from_millis(100)), every(Duration::from_secs(1)));
    let mut tenths = 0u32;
    loop {
        tokio::select! {
            biased;
            _ = signals.interrupt.recv() => return StopReason::Signal,
            _ = signals.terminate.recv() => return StopReason::Signal,
            () = sleep_until(end) => return StopReason::Duration,
            _ = tenth.tick() => {
                collector.housekeeping(probes);
                tenths += 1;
                if tenths.is_multiple_of(3) {
                    collector.refresh_targets(probes);
                    collector.flush();
                    progress.update(&collector.totals);
                }
                if let Some(command) = command.as_deref_mut() && matches!(command.try_wait(), Ok(Some(_))) {
                    return StopReason::CommandExited;
                }
                if collector.targets.is_empty() {
                    return StopReason::TargetsExited;
                }
                if collector.write_error.is_some() {
                    return StopReason::WriteFailed;
                }
            }
            _ = second.tick() => {
                collector.write_counts(probes);
                collector.write_thread_times();
                collector.refresh_verbs(probes);
                collector.look_at_place();
                collector.write_samples(probes);
            }
            _ = drain.tick() => collector.drain(probes),
        }
    }
}

/// A wait without a limit, or with one beyond the clock, is one of a century: the timer's type has no infinity.
fn end_of(start: Instant, duration: Option<Duration>) -> Instant {
    let century = Duration::from_hours(100 * 365 * 24);
    start + duration.unwrap_or(century).min(century)
}

fn finish(
    options: &RecordOptions,
    mut probes: ProbeSet,
    mut collector: Collector,
    window: Window,
    reason: StopReason,
    command: Option<RunningCommand>,
) -> Recording {
    collector.look_at_python();
    let end_ns = host::monotonic_ns();
    collector.write_thread_times();
    let failed = collector.finish_probes(&mut probes, end_ns);
    if let Some(error) = failed {
        log::warn!("{error}");
    }
    collector.finish_verbs(end_ns);
    collector.finish_place(end_ns);
    collector.write_samples(&probes);
    collector.housekeeping(&mut probes);
    collector.look_at_sockets(false);
    collector.finish_gpus(options);
    collector.write(Record::Window(Window { end_ns, ..window }));
    collector.write(Record::Clock(host::clock()));
    collector.write_counts(&probes);
    collector.write_coverage(&probes, &options.unavailable);
    // The target is free of the probes before its stacks are read.
    drop(probes);
    let (writer, mut write_error, mut totals) = collector.finish_stacks();
    totals.lost += writer.records_lost();
    let ended = writer.finish(End { time_ns: end_ns, reason: reason.name().to_owned() });
    if write_error.is_none() {
        write_error = ended.err();
    }
    let (command, left_running) = match command {
        Some(mut command) if reason == StopReason::CommandExited => (command.wait().ok(), None),
        Some(mut command) => match command.try_wait() {
            Ok(Some(status)) => (Some(status), None),
            _ => (None, Some(command.pid())),
        },
        None => (None, None),
    };
    Recording { reason, totals, command, left_running, write_error }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_beyond_the_clock_is_one_of_a_century() {
        let now = Instant::now();
        assert_eq!(end_of(now, Some(Duration::from_secs(5))), now + Duration::from_secs(5));
        assert_eq!(end_of(now, Some(Duration::MAX)), end_of(now, None));
    }

    #[test]
    fn a_signal_that_came_before_the_window_is_heard() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut signals = Signals::new().unwrap();
            assert!(!signals.came().await);
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM).unwrap();
            assert!(signals.came().await);
        });
    }
}
