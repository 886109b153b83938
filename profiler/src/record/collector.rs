//! Takes what the probes and the helper threads found, and writes it to the trace.

mod coverage;
mod gpu;
mod marker;
mod place;
mod rdma_kernel;
mod verbs;

use profiler_common::Call;

use super::families::WaitFamilies;
use super::gpu_thread::GpuThread;
use super::held_waits::HeldWaits;
use super::host::monotonic_ns;
use super::marker_watch::MarkerWatch;
use super::place::PlaceWatch;
use super::progress::Totals;
use super::python_looks::PythonLooks;
use super::python_thread::PythonThread;
use super::python_watch::Told;
use super::reasons::Reasons;
use super::ring_watch::RingWatch;
use super::socket_thread::{Found, SocketThread};
use super::symbol_thread::{Named, SymbolThread};
use super::verbs_watch::VerbsWatch;
use crate::probes::event::{Event, Registers};
use crate::probes::{ProbeError, ProbeSet};
use crate::symbols::Symbolizer;
use crate::target::place::SysRoot;
use crate::target::process::thread_time;
use crate::target::resolver::ResolverLibrary;
use crate::target::{ProcRoot, ResolverLibraries, TargetSet, environment, set::Change};
use crate::trace::error::TraceError;
use crate::trace::record::{Ends, Environment, LifeEvent, Record, Socket, Wait};
use crate::trace::writer::TraceWriter;

/// Processes whose environment is kept; the rest differ in their rank at most.
const ENVIRONMENTS: usize = 256;
/// Threads whose CPU times are read in one round.
const THREAD_TIMES: usize = 4096;
/// After a process came in or ran another program its libraries are looked for at these ages, nanoseconds:
/// the loader maps them after the exec.
const LIBRARY_LOOKS: [u64; 3] = [30_000_000, 300_000_000, 2_000_000_000];

/// The looks at Python stacks.
struct Python {
    thread: PythonThread,
    looks: PythonLooks,
    /// Processes with an interpreter that is read.
    processes: usize,
    failures: Reasons,
}

pub struct Collector {
    pub writer: TraceWriter,
    pub targets: TargetSet,
    pub totals: Totals,
    /// The first error of the trace file; nothing is written after it.
    pub write_error: Option<TraceError>,
    root: ProcRoot,
    symbols: SymbolThread,
    sockets: SocketThread,
    python: Python,
    gpu: Option<GpuThread>,
    resolvers: ResolverLibraries,
    /// Held open: the probes sit on these files.
    libraries: Vec<ResolverLibrary>,
    failed_libraries: Reasons,
    /// When to look for libraries again: time and process.
    due: Vec<(u64, u32)>,
    socket_failure: Option<String>,
    environments: usize,
    families: WaitFamilies,
    held: HeldWaits,
    verbs: VerbsWatch,
    marker: Option<MarkerWatch>,
    place: PlaceWatch,
    rings: RingWatch,
    /// Waits in flight, kept until their stacks are read.
    pending: Vec<(Wait, Registers)>,
    finishing: bool,
}

impl Collector {
    pub fn new(
        writer: TraceWriter,
        targets: TargetSet,
        root: ProcRoot,
        symbols: SymbolThread,
        sockets: SocketThread,
        python: PythonThread,
        families: WaitFamilies,
    ) -> Collector {
        Collector {
            writer,
            targets,
            totals: Totals::default(),
            write_error: None,
            resolvers: ResolverLibraries::new(root.clone()),
            verbs: VerbsWatch::new(root.clone(), None),
            place: PlaceWatch::new(root.clone(), SysRoot::default(), false),
            rings: RingWatch::new(root.clone()),
            root,
            symbols,
            sockets,
            python: Python {
                thread: python,
                looks: PythonLooks::default(),
                processes: 0,
                failures: Reasons::default(),
            },
            gpu: None,
            libraries: Vec::new(),
            failed_libraries: Reasons::default(),
            due: Vec::new(),
            socket_failure: None,
            environments: 0,
            families,
            held: HeldWaits::default(),
            marker: None,
            pending: Vec::new(),
            finishing: false,
        }
    }

    pub fn write(&mut self, record: Record) {
        if self.write_error.is_some() {
            return;
        }
        match self.writer.write(record) {
            Ok(()) => {}
            // That one record is counted by the writer; the trace goes on.
            Err(error @ (TraceError::RecordTooLarge { .. } | TraceError::Encode { .. })) => {
                log::warn!("{error}");
            }
            Err(error) => self.write_error = Some(error),
        }
    }

    /// Writes a wait, with its Python functions where they were seen.
    fn write_wait(&mut self, mut wait: Wait) {
        if let Some(stack) = self.python.looks.attach(&mut wait) {
            self.write(Record::PythonStack(stack));
        }
        self.write(Record::Wait(wait));
    }

    pub fn flush(&mut self) {
        if self.write_error.is_none()
            && let Err(error) = self.writer.flush()
        {
            self.write_error = Some(error);
        }
    }

    /// Takes all that waits in the ring buffer, at most a bounded number of records at a time so that timers
    /// and signals are seen too.
    pub fn drain(&mut self, probes: &mut ProbeSet) {
        self.take_looks();
        let mut changes = Vec::new();
        for _ in 0..64 {
            let taken = probes.drain(4096, &mut |event| self.event(event, &mut changes));
            for change in changes.drain(..) {
                self.changed(change, probes);
            }
            if taken < 4096 {
                break;
            }
        }
        self.check_verbs(monotonic_ns(), probes);
    }

    /// Ends the probes' work at `end_ns`, now: what still waits is kept with its registers.
    pub fn finish_probes(&mut self, probes: &mut ProbeSet, end_ns: u64) -> Option<ProbeError> {
        self.finishing = true;
        let mut changes = Vec::new();
        let error = probes.finish(end_ns, &mut |event| self.event(event, &mut changes)).err();
        for change in changes {
            for record in change.records {
                self.write(record);
            }
        }
        error
    }

    fn event(&mut self, event: Event, changes: &mut Vec<Change>) {
        match event {
            Event::Wait(wait, _) if !self.families.wants(&wait) => {}
            Event::Wait(wait, registers) => {
                self.totals.events += 1;
                self.note_worst(&wait);
                if wait.flags.in_flight && wait.user_stack == 0 && self.finishing {
                    self.pending.push((wait, registers));
                } else if let Some(wait) = self.held.pass(wait) {
                    self.write_wait(wait);
                }
            }
            Event::Dns(message) => {
                self.families.asked(&message);
                if self.families.dns() {
                    self.totals.events += 1;
                    self.write(Record::Dns(message));
                }
            }
            Event::Api(call) => self.write(Record::Api(call)),
            Event::Handshake(handshake) => {
                self.totals.events += 1;
                self.write(Record::Handshake(handshake));
            }
            Event::Retransmit(retransmit) => {
                self.totals.events += 1;
                self.write(Record::Retransmit(retransmit));
            }
            Event::ThreadTime(time) => self.write(Record::ThreadTime(time)),
            Event::Life(life) => {
                if life.event == LifeEvent::Exec {
                    self.symbols.exec(life.pid);
                }
                changes.push(self.targets.apply(&life));
                self.write(Record::Life(life));
            }
            Event::RdmaPost(..)
            | Event::RdmaCompletion(_)
            | Event::RdmaEntry(_)
            | Event::VerbsSetup(_)
            | Event::RdmaAnchor(_)
            | Event::RdmaImage(_) => {
                self.verbs_event(&event);
            }
            Event::Marker(calls) => self.marker_called(calls),
            Event::Setup(setup) => self.write(Record::RdmaSetup(setup)),
            Event::DeviceEvent(event) => self.write(Record::RdmaDeviceEvent(event)),
            Event::Stack(raw) => {
                let (id, kernel) = (raw.id, raw.kernel);
                if self.symbols.name(raw) && !kernel {
                    self.held.expect(id);
                }
            }
        }
    }

    fn note_worst(&mut self, wait: &Wait) {
        let lasted = wait.end_ns.saturating_sub(wait.start_ns);
        if self.totals.worst.as_ref().is_some_and(|(worst, _)| lasted <= *worst) || is_idle(wait) {
            return;
        }
        let peer = wait.sockets.iter().find_map(|socket| match &socket.ends {
            Ends::Inet { peer, .. } if peer.port() != 0 => Some(peer.to_string()),
            _ => None,
        });
        if let Some(peer) = peer {
            self.totals.worst = Some((lasted, format!("{} {peer}", wait.call.name())));
        }
    }

    /// Brings in what a change of the target set asks for.
    pub fn changed(&mut self, change: Change, probes: &mut ProbeSet) {
        for record in change.records {
            self.write(record);
        }
        let now = monotonic_ns();
        for pid in change.entered {
            self.symbols.enter(pid);
            self.enter_sockets(pid);
            self.python.thread.enter(pid);
            self.enter_gpu(pid);
            self.find_libraries(pid, probes);
            self.find_verbs(pid, probes);
            if self.environments < ENVIRONMENTS {
                self.environments += 1;
                for row in environment::environment(&self.root, pid) {
                    self.write(Record::Environment(row));
                }
            }
            self.due.extend(LIBRARY_LOOKS.map(|age| (now + age, pid)));
        }
        for pid in change.executed {
            self.enter_sockets(pid);
            self.python.thread.enter(pid);
            self.enter_gpu(pid);
            self.due.extend(LIBRARY_LOOKS.map(|age| (now + age, pid)));
        }
        for pid in change.left {
            self.sockets.leave(pid);
            self.python.thread.leave(pid);
            self.leave_verbs(pid);
            self.leave_gpu(pid);
            self.due.retain(|(_, waiting)| *waiting != pid);
        }
    }

    fn enter_sockets(&self, pid: u32) {
        if self.families.net() {
            self.sockets.enter(pid);
        }
    }

    /// Probes the resolver functions of libraries that were not seen before.
    pub fn find_libraries(&mut self, pid: u32, probes: &mut ProbeSet) {
        if !self.families.dns() {
            return;
        }
        let scan = match self.resolvers.scan(pid) {
            Ok(scan) => scan,
            Err(error) if error.is_gone() => return,
            Err(error) => return self.failed_libraries.add(error),
        };
        scan.errors.iter().for_each(|error| self.failed_libraries.add(error));
        for library in scan.new {
            if let Err(error) = probes.attach_resolver(&library.open_path, &library.functions) {
                self.failed_libraries.add(format_args!("{}: {error}", library.path_in_target));
            }
            self.libraries.push(library);
        }
    }

    /// What comes in without the ring buffer, and what is to be looked at from time to time.
    pub fn housekeeping(&mut self, probes: &mut ProbeSet) {
        self.take_side_results();
        let now = monotonic_ns();
        self.rings.look(&self.targets, now);
        let (due, later): (Vec<_>, Vec<_>) = self.due.drain(..).partition(|(time, _)| *time <= now);
        self.due = later;
        for (_, pid) in due {
            self.find_libraries(pid, probes);
            self.find_verbs(pid, probes);
            self.find_marker(pid, probes);
        }
        self.find_marker_again(probes);
    }

    /// The window is open: looks at Python stacks begin.
    pub fn begin_looks(&self) {
        self.python.thread.begin();
    }

    /// A last look at the Python stacks of what still waits; before the recording's end is taken.
    pub fn look_at_python(&mut self) {
        let (told, alive) = self.python.thread.look();
        self.take_told(told);
        if !alive {
            self.python.failures.add("the thread that reads Python stacks came to harm");
        }
    }

    fn take_looks(&mut self) {
        let told: Vec<Told> = self.python.thread.take().collect();
        self.take_told(told);
    }

    fn take_told(&mut self, told: Vec<Told>) {
        for told in told {
            match told {
                Told::Look(look) => self.python.looks.add(look),
                Told::Python { pid, version: (major, minor) } => {
                    self.python.processes += 1;
                    let what = "python".to_owned();
                    self.write(Record::Environment(Environment {
                        what,
                        value: format!("{major}.{minor}"),
                        pid,
                    }));
                }
                Told::Failed(error) => self.python.failures.add(error),
            }
        }
    }

    fn take_side_results(&mut self) {
        let named: Vec<Named> = self.symbols.take().collect();
        self.take_named(named);
        let found: Vec<Found> = self.sockets.take().collect();
        self.take_found(found);
        self.take_gpu();
    }

    fn take_named(&mut self, named: Vec<Named>) {
        for named in named {
            match named {
                Named::Stack(stack) => self.write(Record::Stack(stack)),
                Named::Same { id, same_as } => {
                    for wait in self.held.resolve(id, same_as) {
                        self.write_wait(wait);
                    }
                }
            }
        }
    }

    fn take_found(&mut self, found: Vec<Found>) {
        for found in found {
            match found {
                Found::Sample(sample) => self.write(Record::Socket(sample)),
                Found::Interface(row) => self.write(Record::Environment(row)),
                Found::Failed(reason) => self.socket_failure = Some(reason),
            }
        }
    }

    /// Compares the set of targets with `/proc`.
    pub fn refresh_targets(&mut self, probes: &mut ProbeSet) {
        let change = self.targets.refresh(monotonic_ns());
        self.changed(change, probes);
    }

    pub fn look_at_sockets(&mut self, at_start: bool) {
        let found = self.sockets.look(at_start);
        self.take_found(found);
    }

    pub fn write_thread_times(&mut self) {
        let threads: Vec<(u32, u32)> = self.targets.threads().take(THREAD_TIMES).collect();
        for (pid, tid) in threads {
            if let Ok(time) = thread_time(&self.root, pid, tid) {
                self.write(Record::ThreadTime(time));
            }
        }
    }

    /// How often each thread was found on a processor so far.
    pub fn write_samples(&mut self, probes: &ProbeSet) {
        for samples in probes.cpu_samples(monotonic_ns()) {
            self.write(Record::CpuSamples(samples));
        }
    }

    /// Reads the stacks of the threads that still wait, and writes everything that was kept back. The trace
    /// then lacks only its end.
    pub fn finish_stacks(mut self) -> (TraceWriter, Option<TraceError>, Totals) {
        self.take_side_results();
        let pending = std::mem::take(&mut self.pending);
        let (rest, symbolizer) = self.symbols.finish();
        self.take_named(rest);
        for wait in self.held.give_up() {
            self.write_wait(wait);
        }
        let mut symbolizer = symbolizer.unwrap_or_default();
        for (wait, registers) in pending {
            self.finish_wait(wait, registers, &mut symbolizer);
        }
        if let Some(row) = coverage::of_symbols(&symbolizer) {
            self.write(Record::Coverage(row));
        }
        (self.writer, self.write_error, self.totals)
    }

    fn finish_wait(&mut self, mut wait: Wait, registers: Registers, symbolizer: &mut Symbolizer) {
        if let Some(stack) = symbolizer.live_stack(wait.pid, wait.tid, registers) {
            wait.user_stack = stack.id;
            self.write(Record::Stack(stack));
        }
        self.write_wait(wait);
    }
}

/// Waits that are no stalls, for the progress line only; the analysis has the exact rules.
fn is_idle(wait: &Wait) -> bool {
    let listens = |socket: &Socket| socket.state == 10;
    matches!(wait.call, Call::Accept | Call::Accept4 | Call::Nanosleep | Call::ClockNanosleep | Call::Futex)
        || wait.sockets.iter().any(listens)
}
