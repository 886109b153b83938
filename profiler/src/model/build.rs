//! Makes a [`Model`] of a trace's records in one pass. The records may come in any order, twice, or
//! contradict each other; what makes no sense is dropped and counted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

use profiler_common::{Call, record::WAIT_SOCKS};

use super::block::FoldedBlock;
use super::bounds::Limits;
use super::dns::unsent;
use super::owners::Owners;
use super::packed::{Figures, KindId, PackedWaits, StacksId, WaitKind};
use super::thread::{Interval, StoredThread, ThreadTrack};
use super::wait;
use super::{Model, cuda, python};
use crate::trace::record::{
    CallCount, Clock, CpuSamples, Environment, Handshake, Life, LifeEvent, Process, PythonStack, Record,
    Socket, Thread, ThreadTime, Wait, Window,
};
use crate::trace::{Piece, TraceReader};

/// Loss of records that end before they begin.
pub const INCONSISTENT: &str = "inconsistent_records";
/// Records that were in the trace twice; nothing is missing for them.
pub const DUPLICATE: &str = "duplicate_records";

/// Time of all threads together. A week of ten thousand threads is less; more is damage or a forgery.
const TOTAL_MAX_NS: u64 = i64::MAX as u64;

/// No recorder has as many probe families.
const FAMILIES_MAX: usize = 256;

#[derive(Default)]
struct Builder {
    model: Model,
    threads: Vec<Track>,
    thread_ids: HashMap<(u32, u32), usize>,
    calls: BTreeMap<Call, CallCount>,
    /// Threads by process and id in their own PID namespace.
    ns_tids: HashMap<(u32, u32), u32>,
    python: Vec<PythonStack>,
    seen_environment: HashSet<(String, String, u32)>,
    window: Option<Window>,
    end_ns: Option<u64>,
    /// Earliest and latest time of any record, for a trace without a closed window.
    span: Option<(u64, u64)>,
    inconsistent: u64,
    duplicate: u64,
}

/// What is known of a thread while the records come in.
#[derive(Default)]
struct Track {
    pid: u32,
    tid: u32,
    birth_ns: Option<u64>,
    seen_ns: Option<u64>,
    exit_ns: Option<u64>,
    times: Option<(ThreadTime, ThreadTime)>,
    samples: Option<CpuSamples>,
    waits: PackedWaits,
}

impl Model {
    /// Reads everything that a trace says.
    pub fn from_records(records: impl IntoIterator<Item = Record>) -> Model {
        Model::from_records_within(records, Limits::default())
    }

    /// The same with other limits.
    pub fn from_records_within(records: impl IntoIterator<Item = Record>, limits: Limits) -> Model {
        let mut builder = Builder::default();
        builder.model.bounds.limits = limits;
        builder.model.sockets.limit(limits.sockets);
        for record in records {
            builder.take(record);
        }
        builder.finish()
    }

    /// The same from a trace that is read in parallel; `progress` is told how many of its bytes were read.
    pub fn read<R: Read + Send>(reader: &mut TraceReader<R>, progress: &(dyn Fn(u64) + Sync)) -> Model {
        let mut builder = Builder::default();
        reader.for_each(progress, FoldedBlock::new, |piece| match piece {
            Piece::Record(record) => builder.take(record),
            Piece::Waits(block) => builder.block(&block),
        });
        builder.finish()
    }
}

impl Builder {
    fn take(&mut self, record: Record) {
        match record {
            Record::Host(host) => self.model.host = host,
            Record::Clock(clock) => self.clock(clock),
            Record::Window(window) => self.window(window),
            Record::Environment(environment) => self.environment(environment),
            Record::Coverage(coverage) => {
                let families = self.model.coverage.len();
                match self.model.coverage.iter_mut().find(|known| known.family == coverage.family) {
                    Some(known) => *known = coverage,
                    None if families < FAMILIES_MAX => self.model.coverage.push(coverage),
                    None => self.inconsistent += 1,
                }
            }
            Record::Process(process) => self.process(process),
            Record::Thread(thread) => self.thread(thread),
            Record::Life(life) => self.life(life),
            Record::Wait(wait) => {
                if let Some(message) = unsent::of_connect(&wait) {
                    self.model.add_message(message);
                }
                self.wait(wait);
            }
            Record::Dns(message) => {
                self.saw(message.time_ns);
                self.model.add_message(message);
            }
            Record::Api(call) => {
                self.saw(call.time_ns);
                self.model.add_call(call);
            }
            Record::Handshake(handshake) => self.handshake(handshake),
            Record::Retransmit(retransmit) => {
                self.saw(retransmit.time_ns);
                self.model.retransmits.push(retransmit);
            }
            Record::Socket(sample) => {
                self.saw(sample.time_ns);
                self.model.samples.push(sample);
            }
            Record::Stack(stack) => {
                self.model.stacks.insert(stack.id, stack);
            }
            Record::PythonStack(stack) => self.python.push(stack),
            Record::ThreadTime(time) => self.thread_time(time),
            Record::CpuSamples(samples) => self.cpu_samples(samples),
            Record::CallCount(count) => {
                self.calls.insert(count.call, count);
            }
            Record::Loss(loss) => {
                self.model.losses.insert(loss.what, (loss.count, loss.events));
            }
            Record::RdmaSetup(call) => self.inconsistent += u64::from(!self.model.setups.add(call)),
            Record::RdmaSetupTotals(row) => {
                self.inconsistent += u64::from(!self.model.setups.add_totals(row));
            }
            Record::RdmaCommandTotals(row) => {
                self.inconsistent += u64::from(!self.model.setups.add_commands(row));
            }
            Record::RdmaDeviceEvent(event) => {
                self.inconsistent += u64::from(!self.model.setups.add_event(event));
            }
            Record::PciDevice(device) => self.model.place.add_device(device),
            Record::RdmaPort(port) => self.model.place.add_port(port),
            Record::DeviceUse(one) => self.model.place.add_use(one),
            Record::ThreadPlace(place) => self.model.place.add_thread(place),
            Record::GpuName(name) => self.model.gpu.add_name(&name),
            Record::GpuActivities(batch) => {
                if !self.model.gpu.add(&batch) {
                    self.inconsistent += 1;
                }
            }
            Record::GpuSyncs(batch) => {
                if !self.model.gpu.add_syncs(&batch) {
                    self.inconsistent += 1;
                }
            }
            Record::MarkerFunction(function) => self.model.marker.add_function(function),
            Record::MarkerCalls(calls) => {
                if self.model.marker.add(calls) {
                    self.saw(calls.end_ns);
                } else {
                    self.inconsistent += 1;
                }
            }
            Record::Topology(file) => self.model.topology = Some(file),
            Record::QueuePair(pair) => self.model.rdma.queue_pairs.push(pair),
            Record::RdmaPost(post) => {
                self.saw(post.time_ns);
                self.model.rdma.posts.push(post);
            }
            Record::RdmaCompletion(completion) => {
                self.saw(completion.time_ns);
                self.model.rdma.completions.push(completion);
            }
            Record::RdmaEntry(entry) => {
                self.saw(entry.time_ns);
                self.model.rdma.entries.push(entry);
            }
            Record::RdmaBirth(birth) => self.model.rdma.births.push(birth),
            Record::RdmaPeer(peer) => self.model.rdma.peers.push(peer),
            Record::RdmaAnchor(anchor) => self.model.rdma.anchors.push(anchor),
            Record::RdmaWindow(window) => self.model.rdma.windows.push(window),
            Record::PortCounter(counter) => self.model.rdma.counters.push(counter),
            Record::End(end) => {
                self.saw(end.time_ns);
                self.end_ns = Some(end.time_ns);
            }
        }
    }

    fn saw(&mut self, time_ns: u64) {
        self.span = Some(match self.span {
            Some((first, last)) => (first.min(time_ns), last.max(time_ns)),
            None => (time_ns, time_ns),
        });
    }

    /// The first pair belongs to the window's opening.
    fn clock(&mut self, clock: Clock) {
        self.saw(clock.monotonic_ns);
        self.model.clock.get_or_insert(clock);
    }

    /// A closed window counts above an open one, the later above the earlier.
    fn window(&mut self, window: Window) {
        if window.end_ns != 0 && window.end_ns < window.start_ns {
            self.inconsistent += 1;
            return;
        }
        if window.end_ns != 0 || self.window.is_none_or(|known| known.end_ns == 0) {
            self.window = Some(window);
        }
    }

    fn environment(&mut self, environment: Environment) {
        let key = (environment.what.clone(), environment.value.clone(), environment.pid);
        if self.seen_environment.insert(key) {
            self.model.environment.push(environment);
        }
    }

    fn process(&mut self, process: Process) {
        match self.model.processes.get_mut(&process.pid) {
            Some(known) => {
                let seen_ns = known.seen_ns.min(process.seen_ns);
                let asked_for = known.asked_for || process.asked_for;
                // A birth without particulars came first.
                *known = Process { seen_ns, asked_for, ..process };
            }
            None => {
                self.model.processes.insert(process.pid, process);
            }
        }
    }

    fn thread(&mut self, thread: Thread) {
        if thread.ns_tid != 0 {
            self.ns_tids.insert((thread.pid, thread.ns_tid), thread.tid);
        }
        let track = self.track(thread.pid, thread.tid);
        track.seen_ns = Some(track.seen_ns.map_or(thread.seen_ns, |known| known.min(thread.seen_ns)));
        self.model.thread_names.insert(thread.tid, thread.name);
    }

    fn life(&mut self, life: Life) {
        self.saw(life.time_ns);
        let tid = if life.tid == 0 { life.pid } else { life.tid };
        match life.event {
            LifeEvent::Fork | LifeEvent::Thread => {
                let track = self.track(life.pid, tid);
                track.birth_ns = Some(track.birth_ns.map_or(life.time_ns, |known| known.min(life.time_ns)));
                if life.event == LifeEvent::Fork {
                    self.model.processes.entry(life.pid).or_insert_with(|| Process {
                        pid: life.pid,
                        ppid: life.parent,
                        comm: life.comm.clone(),
                        seen_ns: life.time_ns,
                        ..Process::default()
                    });
                }
                if !life.comm.is_empty() {
                    self.model.thread_names.entry(tid).or_insert(life.comm);
                }
            }
            LifeEvent::Exec => {
                if life.comm.is_empty() {
                    return;
                }
                if let Some(process) = self.model.processes.get_mut(&life.pid) {
                    process.comm.clone_from(&life.comm);
                }
                self.model.thread_names.insert(life.pid, life.comm);
            }
            LifeEvent::Exit => {
                let track = self.track(life.pid, tid);
                track.exit_ns = Some(track.exit_ns.map_or(life.time_ns, |known| known.max(life.time_ns)));
            }
        }
    }

    fn wait(&mut self, mut wait: Wait) {
        if wait.end_ns < wait.start_ns {
            self.inconsistent += 1;
            return;
        }
        self.saw(wait.end_ns);
        let sockets = std::mem::take(&mut wait.sockets);
        let kind = self.kind(&wait, &sockets);
        let stacks = self.model.waits.stacks(wait.user_stack, wait.kernel_stack);
        let thread = self.track_index(wait.pid, wait.tid);
        self.add(&wait::figures(&wait), thread, kind, stacks);
    }

    /// A block of waits: what repeats is looked up once in it.
    fn block(&mut self, block: &FoldedBlock) {
        self.inconsistent += block.inconsistent;
        if let Some((first, last)) = block.ends {
            self.saw(first);
            self.saw(last);
        }
        block.unsent.iter().for_each(|message| self.model.add_message(message.clone()));
        let tables = &mut self.model.waits;
        let stacks: Vec<StacksId> =
            block.stacks.iter().map(|(user, kernel)| tables.stacks(*user, *kernel)).collect();
        let kinds: Vec<KindId> = block.kinds.iter().map(|(wait, sockets)| self.kind(wait, sockets)).collect();
        let mut threads: Vec<Option<usize>> = vec![None; block.threads.len()];
        for row in &block.rows {
            let Some(&(pid, tid)) = block.threads.get(row.thread as usize) else { continue };
            let Some(slot) = threads.get_mut(row.thread as usize) else { continue };
            let thread = *slot.get_or_insert_with(|| self.track_index(pid, tid));
            if let (Some(kind), Some(stacks)) =
                (kinds.get(row.kind as usize), stacks.get(row.stacks as usize))
            {
                self.add(&row.figures, thread, *kind, *stacks);
            }
        }
    }

    /// The kind of a wait on these sockets.
    fn kind(&mut self, wait: &Wait, sockets: &[Socket]) -> KindId {
        let Model { sockets: table, sets, names, waits, .. } = &mut self.model;
        // The probes describe no more; more in a trace is damage.
        let sockets = sockets.get(..4 * WAIT_SOCKS).unwrap_or(sockets);
        let set = wait::fold_set(wait.call, wait.fd, sockets, table, sets, names);
        let Wait { fd, set_size, call, api, flags, .. } = *wait;
        waits.kind(WaitKind { set, fd, set_size, call, api, flags }, sets.get(set))
    }

    /// Keeps a wait; what it waits for, and from where, is told by `kind` and `stacks`.
    fn add(&mut self, figures: &Figures, thread: usize, kind: KindId, stacks: StacksId) {
        if let Some(track) = self.threads.get_mut(thread) {
            track.waits.push(figures, &self.model.waits, kind, stacks);
        }
    }

    fn handshake(&mut self, handshake: Handshake) {
        if handshake.end_ns < handshake.start_ns {
            self.inconsistent += 1;
            return;
        }
        self.saw(handshake.end_ns);
        self.model.add_handshake(handshake);
    }

    fn thread_time(&mut self, time: ThreadTime) {
        self.saw(time.time_ns);
        let track = self.track(time.pid, time.tid);
        track.times = Some(match track.times {
            None => (time, time),
            Some((first, last)) => (
                if time.time_ns < first.time_ns { time } else { first },
                if time.time_ns >= last.time_ns { time } else { last },
            ),
        });
    }

    /// The last one counts; it says no more of a part than of the whole.
    fn cpu_samples(&mut self, samples: CpuSamples) {
        self.saw(samples.time_ns);
        let waiting = samples.waiting.min(samples.samples);
        let sound = CpuSamples {
            looking: samples.looking.min(samples.samples),
            waiting,
            working: samples.working.min(waiting),
            ..samples
        };
        let track = self.track(samples.pid, samples.tid);
        if track.samples.is_none_or(|known| known.time_ns <= sound.time_ns) {
            track.samples = Some(sound);
        }
    }

    fn track(&mut self, pid: u32, tid: u32) -> &mut Track {
        let index = self.track_index(pid, tid);
        &mut self.threads[index]
    }

    fn track_index(&mut self, pid: u32, tid: u32) -> usize {
        let next = self.threads.len();
        let index = *self.thread_ids.entry((pid, tid)).or_insert(next);
        if index == next {
            self.threads.push(Track { pid, tid, ..Track::default() });
        }
        index
    }

    fn finish(mut self) -> Model {
        for wait in cuda::waits(&mut self.model, &self.ns_tids) {
            self.wait(wait);
        }
        let window = self.bounded_window();
        let mut model = self.model;
        model.owners = Owners { ns_tids: self.ns_tids, threads: self.thread_ids.into_keys().collect() };
        model.python = python::merge_all(&mut model.stacks, &self.python);
        model.window = window;
        model.marker.finish();
        model.calls = self.calls.into_values().collect();
        let whole = Interval { start_ns: window.start_ns, end_ns: window.end_ns };
        model.gpu.clip(whole);
        model.gpu.name_all(&mut model.names);
        for track in self.threads {
            model.threads.push(track.finish(whole));
        }
        model.threads.sort_by_key(|thread| (thread.track.pid, thread.track.tid));
        model.finish_bounds();
        let duplicate = &mut self.duplicate;
        sort(&mut model.dns_messages, |message| (message.time_ns, message.pid, message.tid), duplicate);
        sort(&mut model.api_calls, |call| (call.time_ns, call.pid, call.tid), duplicate);
        sort(&mut model.handshakes, |one| (one.start_ns, one.pid, one.tid), duplicate);
        sort(&mut model.retransmits, |one| (one.time_ns, one.pid, 0), duplicate);
        sort(&mut model.samples, |sample| (sample.time_ns, sample.pid, 0), duplicate);
        add_loss(&mut model.losses, INCONSISTENT, self.inconsistent, true);
        add_loss(&mut model.losses, DUPLICATE, self.duplicate, false);
        model
    }

    /// No longer than [`TOTAL_MAX_NS`] for all threads together: what is left of impossible times can be
    /// added up.
    fn bounded_window(&mut self) -> Window {
        let mut window = self.resolved_window();
        let threads = u64::try_from(self.threads.len()).unwrap_or(u64::MAX).max(1);
        let latest_ns = window.start_ns.saturating_add(TOTAL_MAX_NS / threads);
        if window.end_ns > latest_ns {
            window.end_ns = latest_ns;
            self.inconsistent += 1;
        }
        window
    }

    fn resolved_window(&self) -> Window {
        let (first, last) = self.span.unwrap_or_default();
        let mut window = self.window.unwrap_or(Window { start_ns: first, ..Window::default() });
        if window.end_ns == 0 {
            window.end_ns = self.end_ns.unwrap_or(last).max(window.start_ns);
        }
        window
    }
}

/// Sorts, and drops what is there twice.
fn sort<T: PartialEq>(records: &mut Vec<T>, key: impl Fn(&T) -> (u64, u32, u32), duplicate: &mut u64) {
    records.sort_by_key(key);
    let before = records.len();
    records.dedup();
    *duplicate += (before - records.len()) as u64;
}

/// Counts waits that were found to be in the trace twice.
pub fn add_duplicates(model: &mut Model, count: u64) {
    add_loss(&mut model.losses, DUPLICATE, count, false);
}

fn add_loss(losses: &mut BTreeMap<String, (u64, bool)>, what: &str, count: u64, events: bool) {
    if count > 0 {
        let entry = losses.entry(what.to_owned()).or_insert((0, events));
        entry.0 = entry.0.saturating_add(count);
    }
}

mod track;

#[cfg(test)]
mod tests;
