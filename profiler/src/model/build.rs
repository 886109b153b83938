//! Makes a [`Model`] of a trace's records in one pass. The records may come in any order, twice, or
//! contradict each other; what makes no sense is dropped and counted.

use std::collections::{BTreeMap, HashMap, HashSet};

use profiler_common::{Call, record::WAIT_SOCKS};

use super::dns::unsent;
use super::thread::{Interval, ThreadTrack};
use super::wait::{self, WaitSpan};
use super::{Model, python};
use crate::trace::record::{
    CallCount, Clock, CpuSamples, Environment, Handshake, Life, LifeEvent, Process, PythonStack, Record,
    Socket, Thread, ThreadTime, Wait, Window,
};

/// Loss of records that end before they begin.
pub const INCONSISTENT: &str = "inconsistent_records";
/// Records that were in the trace twice; nothing is missing for them.
pub const DUPLICATE: &str = "duplicate_records";

/// Time of all threads together. A week of ten thousand threads is less; more is damage or a forgery.
const TOTAL_MAX_NS: u64 = i64::MAX as u64;

const EBUSY: u32 = libc::EBUSY.cast_unsigned();

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
    waits: Vec<WaitSpan>,
}

impl Model {
    /// Reads everything that a trace says.
    pub fn from_records(records: impl IntoIterator<Item = Record>) -> Model {
        let mut builder = Builder::default();
        for record in records {
            builder.take(record);
        }
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
                self.model.dns_messages.extend(unsent::of_connect(&wait));
                self.wait(wait);
            }
            Record::Dns(message) => {
                self.saw(message.time_ns);
                self.name_peer(&message.socket);
                self.model.dns_messages.push(message);
            }
            Record::Api(call) => {
                self.saw(call.time_ns);
                self.model.api_calls.push(call);
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
        // The probes describe no more; more in a trace is damage.
        wait.sockets.truncate(4 * WAIT_SOCKS);
        let span = wait::fold(&wait, &mut self.model.sockets, &mut self.model.sets, &mut self.model.names);
        self.track(wait.pid, wait.tid).waits.push(span);
    }

    fn handshake(&mut self, handshake: Handshake) {
        if handshake.end_ns < handshake.start_ns {
            self.inconsistent += 1;
            return;
        }
        self.saw(handshake.end_ns);
        self.name_peer(&handshake.socket);
        self.model.handshakes.push(handshake);
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

    /// Sees to it that the socket's peer has a number.
    fn name_peer(&mut self, socket: &Socket) {
        self.model.sockets.intern(socket, &mut self.model.names);
    }

    fn track(&mut self, pid: u32, tid: u32) -> &mut Track {
        let next = self.threads.len();
        let index = *self.thread_ids.entry((pid, tid)).or_insert(next);
        if index == next {
            self.threads.push(Track { pid, tid, ..Track::default() });
        }
        &mut self.threads[index]
    }

    fn finish(mut self) -> Model {
        let window = self.bounded_window();
        self.resolve_owners();
        let mut model = self.model;
        model.python = python::merge_all(&mut model.stacks, &self.python);
        model.window = window;
        model.calls = self.calls.into_values().collect();
        let whole = Interval { start_ns: window.start_ns, end_ns: window.end_ns };
        model.gpu.clip(whole);
        for track in self.threads {
            let (track, duplicates) = track.finish(whole);
            self.duplicate += duplicates;
            model.threads.push(track);
        }
        model.threads.sort_by_key(|track| (track.pid, track.tid));
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

    /// Turns the owners of locks into threads as the host sees them; an id that is no other thread of the same process
    /// was read from something that is no lock.
    fn resolve_owners(&mut self) {
        for track in &mut self.threads {
            let (pid, tid) = (track.pid, track.tid);
            for wait in track.waits.iter_mut().filter(|wait| wait.owner != 0) {
                let as_host = || self.thread_ids.contains_key(&(pid, wait.owner)).then_some(wait.owner);
                let known = self.ns_tids.get(&(pid, wait.owner)).copied().or_else(as_host);
                // musl puts EBUSY where other locks have an id.
                let is_told = wait.owner != EBUSY && known != Some(tid);
                wait.owner = known.filter(|_| is_told).unwrap_or(0);
            }
        }
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

fn add_loss(losses: &mut BTreeMap<String, (u64, bool)>, what: &str, count: u64, events: bool) {
    if count > 0 {
        let entry = losses.entry(what.to_owned()).or_insert((0, events));
        entry.0 = entry.0.saturating_add(count);
    }
}

impl Track {
    /// Sorts the waits and says when the thread was there. The second value counts duplicates.
    fn finish(mut self, window: Interval) -> (ThreadTrack, u64) {
        // Of records of the same call the one that saw its end, then the longer one, comes first and stays.
        self.waits.sort_by_key(|wait| {
            (wait.start_ns, wait.call, wait.fd, wait.flags.in_flight, std::cmp::Reverse(wait.end_ns))
        });
        let before = self.waits.len();
        self.waits.dedup_by(|next, kept| {
            next.start_ns == kept.start_ns
                && next.call == kept.call
                && next.fd == kept.fd
                && next.flags.nonblocking == kept.flags.nonblocking
        });
        let duplicates = (before - self.waits.len()) as u64;
        self.waits.sort_by_key(|wait| (wait.start_ns, std::cmp::Reverse(wait.end_ns)));
        let (presence, born) = self.presence(window);
        let track = ThreadTrack {
            pid: self.pid,
            tid: self.tid,
            presence,
            born,
            times: self.times,
            samples: self.samples,
            waits: self.waits,
        };
        (track, duplicates)
    }

    /// A wait before the known birth, or one that begins after the exit, shows that the id stands for
    /// more than one thread: then the presence is taken to be the whole.
    fn presence(&self, window: Interval) -> (Interval, bool) {
        let first_wait = self.waits.first().map(|wait| wait.start_ns);
        let known = self.birth_ns.or(self.seen_ns).or(self.times.map(|(first, _)| first.time_ns));
        let start_ns = match (known, first_wait) {
            (Some(known), Some(wait)) => known.min(wait),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => window.start_ns,
        };
        let born = self.birth_ns.is_some_and(|birth| birth == start_ns && birth >= window.start_ns);
        let last_start = self.waits.last().map_or(start_ns, |wait| wait.start_ns).max(start_ns);
        let end_ns = self.exit_ns.filter(|exit| *exit >= last_start).unwrap_or(window.end_ns);
        let presence = Interval { start_ns, end_ns }.clip(window);
        let presence = if presence.is_empty() {
            Interval { start_ns: presence.start_ns, end_ns: presence.start_ns }
        } else {
            presence
        };
        (presence, born)
    }
}

#[cfg(test)]
mod tests;
