//! Names of processes and threads as frames: bare where they are unique, else with the id.
//!
//! Ids differ from run to run; two recordings compare best where they are left out.

use std::collections::{BTreeSet, HashMap};

use crate::analysis::Analysis;
use crate::analysis::stall::Stall;

/// Labels of the processes and threads that have stalls, the same whatever a view leaves out.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    processes: HashMap<u32, String>,
    threads: HashMap<(u32, u32), String>,
}

impl Labels {
    pub fn new(analysis: &Analysis) -> Labels {
        Labels::of_stalls(analysis, &analysis.stalls)
    }

    /// The same for stalls that are kept apart from the analysis that has the names.
    pub fn of_stalls(analysis: &Analysis, stalls: &[Stall]) -> Labels {
        let tasks: BTreeSet<(u32, u32)> = stalls.iter().map(|stall| (stall.pid, stall.tid)).collect();
        let pids: BTreeSet<u32> = tasks.iter().map(|(pid, _)| *pid).collect();

        let mut of_name: HashMap<&str, u32> = HashMap::new();
        for pid in &pids {
            *of_name.entry(name_of(&analysis.processes, *pid)).or_default() += 1;
        }
        let processes = pids.iter().map(|pid| {
            let name = name_of(&analysis.processes, *pid);
            (*pid, label(name, *pid, of_name.get(name) == Some(&1)))
        });
        let processes = processes.collect();

        let mut of_name: HashMap<(u32, &str), u32> = HashMap::new();
        for (pid, tid) in &tasks {
            *of_name.entry((*pid, name_of(&analysis.threads, *tid))).or_default() += 1;
        }
        let threads = tasks.iter().map(|(pid, tid)| {
            let name = name_of(&analysis.threads, *tid);
            ((*pid, *tid), label(name, *tid, of_name.get(&(*pid, name)) == Some(&1)))
        });
        let threads = threads.collect();
        Labels { processes, threads }
    }

    /// `python3`, or `python3 [4242]` where two processes share the name.
    pub fn process(&self, pid: u32) -> String {
        self.processes.get(&pid).cloned().unwrap_or_else(|| label("", pid, false))
    }

    /// `pt_tcpstore`, or `pt_tcpstore [4250]` where two threads of the process share the name.
    pub fn thread(&self, pid: u32, tid: u32) -> String {
        self.threads.get(&(pid, tid)).cloned().unwrap_or_else(|| label("", tid, false))
    }
}

fn name_of(names: &HashMap<u32, String>, id: u32) -> &str {
    names.get(&id).map_or("", |name| name.trim())
}

fn label(name: &str, id: u32, is_unique: bool) -> String {
    match (name.is_empty(), is_unique) {
        (true, _) => format!("[{id}]"),
        (false, true) => name.to_owned(),
        (false, false) => format!("{name} [{id}]"),
    }
}
