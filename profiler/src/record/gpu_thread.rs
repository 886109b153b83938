//! Enters the CUDA processes among the targets with the agent, and takes what their agents tell, on a thread of its
//! own: ptrace wants all calls to come from one thread.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use profiler_common::agent::{Kind, State, Step};

use super::errand::{Answer, Errand};
use super::gpu_agent::Agent;
use super::reasons::Reasons;
use crate::agent::ring::Activity;
use crate::agent::{AgentError, check, forks, load};
use crate::symbols::Symbolizer;
use crate::target::ProcRoot;
use crate::target::process::process_info;
use crate::trace::gpu::{GpuActivities, GpuName};
use crate::trace::gpu_sync::{GpuSync, GpuSyncs};
use crate::trace::record::{Coverage, Environment, FamilyState, Loss, Record};

/// Between two looks at the agents.
const INTERVAL: Duration = Duration::from_millis(50);
/// The same, as long as one of them has just come and told nothing yet.
const SHORT_INTERVAL: Duration = Duration::from_millis(5);
/// For how long it counts as having just come.
const NEW: Duration = Duration::from_secs(3);
/// After its first look a process is looked at again for CUDA, later and later.
const FIRST_LOOK: Duration = Duration::from_millis(500);
const LAST_LOOK: Duration = Duration::from_secs(15);
/// An agent may take this long to leave.
const LEAVING: Duration = Duration::from_secs(3);
/// Processes with an agent at most.
const AGENTS: usize = 64;
/// Names of kernels at most.
const NAMES: usize = 1 << 14;

enum Order {
    Enter(u32),
    Leave(u32),
    /// Let all agents leave, and tell the rest.
    Finish,
}

pub struct GpuThread(Errand<Order, Record>);

impl GpuThread {
    pub fn start(root: ProcRoot) -> io::Result<GpuThread> {
        Errand::start("gpu", |queue, results| Worker::new(root, results).work(queue)).map(GpuThread)
    }

    pub fn enter(&self, pid: u32) {
        self.0.order(Order::Enter(pid));
    }

    pub fn leave(&self, pid: u32) {
        self.0.order(Order::Leave(pid));
    }

    /// What came in since the last call.
    pub fn take(&self) -> impl Iterator<Item = Record> + '_ {
        self.0.take()
    }

    /// Ends the agents' work and waits for it; the last of what they told, and how complete it is.
    pub fn finish(&self) -> Vec<Record> {
        let (mut records, alive) = self.0.carry_out(Order::Finish);
        if !alive {
            records.push(coverage(FamilyState::Off, "the thread that loads the agent came to harm"));
        }
        records
    }
}

pub(super) fn coverage(state: FamilyState, reason: impl Into<String>) -> Record {
    Record::Coverage(Coverage { family: "cuda".into(), state, reason: reason.into() })
}

/// A process without an agent that may come to use CUDA.
struct Candidate {
    pid: u32,
    look: Instant,
    pause: Duration,
}

struct Worker<'a> {
    root: ProcRoot,
    results: &'a Sender<Answer<Record>>,
    symbolizer: Symbolizer,
    candidates: Vec<Candidate>,
    agents: Vec<Agent>,
    /// Ids of names, by name.
    names: HashMap<String, u32>,
    failures: Reasons,
    /// What is as it should be, and worth saying.
    notes: Reasons,
    /// Agents that got as far as recording.
    ran: usize,
    losses: HashMap<&'static str, u64>,
}

impl Worker<'_> {
    fn new(root: ProcRoot, results: &Sender<Answer<Record>>) -> Worker<'_> {
        Worker {
            root,
            results,
            symbolizer: Symbolizer::new(),
            candidates: Vec::new(),
            agents: Vec::new(),
            names: HashMap::new(),
            failures: Reasons::default(),
            notes: Reasons::default(),
            ran: 0,
            losses: HashMap::new(),
        }
    }

    fn work(&mut self, queue: &Receiver<Order>) {
        loop {
            match queue.recv_timeout(self.interval()) {
                Ok(Order::Enter(pid)) => {
                    if !self.candidates.iter().any(|known| known.pid == pid) {
                        self.candidates.push(Candidate { pid, look: Instant::now(), pause: FIRST_LOOK });
                    }
                }
                Ok(Order::Leave(pid)) => self.left(pid),
                Ok(Order::Finish) => {
                    self.finish();
                    if self.results.send(Answer::Done).is_err() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look_for_cuda();
            self.drain_all();
        }
    }

    fn interval(&self) -> Duration {
        let is_new = |agent: &Agent| !agent.has_begun_to_tell && agent.begun.elapsed() < NEW;
        if self.agents.iter().any(is_new) { SHORT_INTERVAL } else { INTERVAL }
    }

    fn look_for_cuda(&mut self) {
        let now = Instant::now();
        let mut waiting = std::mem::take(&mut self.candidates);
        waiting.retain_mut(|candidate| {
            if candidate.look > now || self.agents.len() >= AGENTS {
                return true;
            }
            if check::uses_cuda(&self.root, candidate.pid) {
                let Some(parent) = forks::forked_from(&self.root, candidate.pid) else {
                    self.enter(candidate.pid);
                    return false;
                };
                self.leave_alone(candidate.pid, parent);
            }
            candidate.look = now + candidate.pause;
            candidate.pause = (candidate.pause * 2).min(LAST_LOOK);
            true
        });
        self.candidates = waiting;
    }

    /// A child that cannot use the CUDA that it has; it may come to load its own.
    fn leave_alone(&mut self, pid: u32, parent: u32) {
        log::debug!("process {pid} is a fork of {parent}, whose CUDA it cannot use");
        self.notes.add(format!(
            "forks of process {parent} are left alone: CUDA cannot be used in them unless they load it anew"
        ));
    }

    fn enter(&mut self, pid: u32) {
        let begun = Instant::now();
        match load(&self.root, pid, &mut self.symbolizer) {
            Ok(loaded) => {
                let value = format!("{} us, thread {}", loaded.stopped.as_micros(), loaded.tid);
                log::debug!("agent in process {pid}: stopped for {value}");
                self.tell(Record::Environment(Environment { what: "agent.stopped".into(), value, pid }));
                self.agents.push(Agent::new(pid, loaded, begun));
            }
            Err(AgentError::NoCuda { .. } | AgentError::Gone { .. } | AgentError::Forked { .. }) => {}
            // Whatever failed first, it is because the process ended.
            Err(error) if process_info(&self.root, pid).map_or(true, |info| info.is_zombie()) => {
                log::debug!("process {pid} ended while the agent was loaded: {error}");
            }
            Err(error) => self.fail(&format!("no GPU times of process {pid}: {error}")),
        }
    }

    fn fail(&mut self, reason: &str) {
        log::warn!("{reason}");
        self.failures.add(reason);
    }

    /// The process ended. What its agent wrote is still there.
    fn left(&mut self, pid: u32) {
        self.candidates.retain(|candidate| candidate.pid != pid);
        if let Some(index) = self.agents.iter().position(|agent| agent.pid == pid) {
            let mut agent = self.agents.swap_remove(index);
            self.drain(&mut agent, true);
            self.account(&agent);
        }
        self.symbolizer.forget(pid);
    }

    fn drain_all(&mut self) {
        let mut agents = std::mem::take(&mut self.agents);
        for agent in &mut agents {
            self.drain(agent, false);
        }
        self.agents = agents;
    }

    fn drain(&mut self, agent: &mut Agent, all: bool) {
        if let Err(error) = self.take_in(agent, all) {
            self.fail(&format!("what the agent in process {} wrote cannot be read: {error}", agent.pid));
        }
    }

    fn take_in(&mut self, agent: &mut Agent, all: bool) -> io::Result<()> {
        let state = agent.loaded.ring.state()?;
        if agent.told != state {
            agent.told = state;
            self.state_changed(agent, state)?;
        }
        let mut found = Vec::new();
        let more = 2 + profiler_common::agent::SLOTS / 4096;
        for _ in 0..more {
            if !agent.loaded.ring.take(&mut found, &mut agent.damaged)? {
                break;
            }
        }
        // Read after the activities, and written before them: theirs are among these.
        for (hash, name) in agent.loaded.ring.take_names()? {
            let id = self.name_id(name);
            agent.names.insert(hash, id);
        }
        let now = Instant::now();
        self.tell_syncs(agent.pid, &found);
        if !agent.has_begun_to_tell
            && found.iter().any(|activity| matches!(activity.kind, Kind::Kernel | Kind::Copy))
        {
            agent.has_begun_to_tell = true;
            self.tell(agent.since("agent.first_record_after"));
        }
        for activity in found {
            match activity.kind {
                Kind::Launch => agent.launched(&activity),
                Kind::Kernel | Kind::Copy => agent.came(now, activity),
                Kind::Sync => {}
            }
        }
        self.write(agent, now, all);
        Ok(())
    }

    /// Writes the calls that waited for the GPU.
    fn tell_syncs(&self, pid: u32, found: &[Activity]) {
        let mut batch = GpuSyncs::new(pid);
        let mut last = 0;
        for one in found.iter().filter(|one| one.kind == Kind::Sync) {
            let Activity { tid: ns_tid, detail: function, start_ns, end_ns, .. } = *one;
            batch.push(&GpuSync { pid, ns_tid, function, start_ns, end_ns }, &mut last);
            if batch.is_full() {
                let full = std::mem::replace(&mut batch, GpuSyncs::new(pid));
                self.tell(Record::GpuSyncs(full));
                last = 0;
            }
        }
        if !batch.is_empty() {
            self.tell(Record::GpuSyncs(batch));
        }
    }

    /// Writes the activities whose launches are known, and those that have waited long enough.
    fn write(&self, agent: &mut Agent, now: Instant, all: bool) {
        let mut batch = GpuActivities::new(agent.pid);
        let mut last = 0;
        for row in agent.settled(now, all) {
            batch.push(&row, &mut last);
            if batch.is_full() {
                let full = std::mem::replace(&mut batch, GpuActivities::new(agent.pid));
                self.tell(Record::GpuActivities(full));
                last = 0;
            }
        }
        if !batch.is_empty() {
            self.tell(Record::GpuActivities(batch));
        }
    }

    fn name_id(&mut self, name: String) -> u32 {
        if let Some(id) = self.names.get(&name) {
            return *id;
        }
        if self.names.len() >= NAMES {
            *self.losses.entry("gpu_names").or_default() += 1;
            return 0;
        }
        let id = self.names.len() as u32 + 1;
        self.names.insert(name.clone(), id);
        self.tell(Record::GpuName(GpuName { id, name }));
        id
    }

    fn state_changed(&mut self, agent: &Agent, state: Option<State>) -> io::Result<()> {
        let pid = agent.pid;
        let control = agent.loaded.ring.control()?;
        match state {
            Some(State::Running) => {
                self.ran += 1;
                self.tell(agent.since("agent.running_after"));
                let value = control.cupti_version.to_string();
                self.tell(Record::Environment(Environment { what: "cupti".into(), value, pid }));
                if control.no_launches != 0 {
                    self.failures.add("launches are not seen: this CUPTI cannot tell them apart");
                }
            }
            Some(State::Taken) => self.fail(&format!(
                "no GPU times of process {pid}: another profiler has CUPTI there (CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED); end it and record again"
            )),
            Some(State::Failed) => {
                let (step, result) = (step_name(control.step), control.result);
                self.fail(&format!("no GPU times of process {pid}: {step} failed (CUPTI's result {result})"));
            }
            Some(State::Finalized | State::Disabled) if control.leave == 0 => {
                self.fail(&format!("the agent in process {pid} left early: it had not heard of the recorder for a second"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Lets all agents leave and takes the last of what they wrote.
    fn finish(&mut self) {
        self.candidates.clear();
        for agent in &self.agents {
            // A shrunk file shows when it is read.
            let _ = agent.loaded.ring.ask_to_leave();
        }
        let begun = Instant::now();
        let is_over = |agent: &Agent| {
            let state = agent.loaded.ring.state();
            let gone = process_info(&self.root, agent.pid).is_err();
            gone || state.is_err() || state.is_ok_and(|state| state.is_some_and(State::is_over))
        };
        while begun.elapsed() < LEAVING && !self.agents.iter().all(is_over) {
            std::thread::sleep(Duration::from_millis(10));
        }
        for mut agent in std::mem::take(&mut self.agents) {
            self.drain(&mut agent, true);
            if agent.told.is_none_or(|state| !state.is_over()) {
                self.failures.add(format!("the agent in process {} was slow to leave", agent.pid));
            }
            if agent.told == Some(State::Disabled) {
                self.failures.add(format!(
                    "CUPTI stays loaded in process {}, turned off: it could not be finalised without harm",
                    agent.pid
                ));
            }
            self.account(&agent);
        }
        for (what, count) in std::mem::take(&mut self.losses) {
            self.tell(Record::Loss(Loss {
                what: what.into(),
                count,
                events: !matches!(what, "gpu_names" | "gpu_unfinished"),
            }));
        }
        let state = match (self.ran, self.failures.is_empty()) {
            (0, _) => FamilyState::Off,
            (_, true) => FamilyState::On,
            (_, false) => FamilyState::Partial,
        };
        let notes = self.notes.text();
        let reason = match (self.ran, self.failures.is_empty(), notes.is_empty()) {
            (0, true, true) => "no process that was recorded uses CUDA".to_owned(),
            (_, true, _) => notes,
            (_, false, true) => self.failures.text(),
            (_, false, false) => format!("{}; {notes}", self.failures.text()),
        };
        self.tell(coverage(state, reason));
    }

    fn account(&mut self, agent: &Agent) {
        let Ok(control) = agent.loaded.ring.control() else { return };
        for (what, count) in [
            ("gpu_ring_full", control.dropped),
            ("gpu_cupti_dropped", control.cupti_dropped),
            ("gpu_unfinished", control.unfinished),
            ("gpu_damaged", agent.damaged),
            ("gpu_names", control.names_dropped),
        ] {
            if count > 0 {
                let sum = self.losses.entry(what).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        let value = format!("{} us", control.callback_ns / 1000);
        self.tell(Record::Environment(Environment { what: "agent.callbacks".into(), value, pid: agent.pid }));
    }

    fn tell(&self, record: Record) {
        // Without a receiver the recording is over.
        let _ = self.results.send(Answer::Found(record));
    }
}

fn step_name(step: u32) -> &'static str {
    const NAMES: [(Step, &str); 9] = [
        (Step::Load, "loading libcupti"),
        (Step::Functions, "finding CUPTI's functions"),
        (Step::Version, "CUPTI is older than CUDA 12.0: cuptiGetVersion"),
        (Step::Subscribe, "cuptiSubscribe"),
        (Step::Clock, "cuptiActivityRegisterTimestampCallback"),
        (Step::Buffers, "cuptiActivityRegisterCallbacks"),
        (Step::Kernels, "cuptiActivityEnable (kernels)"),
        (Step::Copies, "cuptiActivityEnable (copies)"),
        (Step::Memory, "memory for buffers"),
    ];
    NAMES.iter().find(|(known, _)| *known as u32 == step).map_or("the agent", |(_, name)| name)
}
