//! Names of processes and threads as frames: bare where they are unique, else with the id.
//!
//! Ids differ from run to run: two recordings compare without them.

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
        let tasks: BTreeSet<(u32, u32)> =
            analysis.stall_sums().map(|(stall, _)| (stall.pid, stall.tid)).collect();
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

    /// Names alone, which another run has too, for stalls that are kept apart from the analysis that has the names.
    pub fn without_ids(analysis: &Analysis, stalls: &[Stall]) -> Labels {
        let tasks: BTreeSet<(u32, u32)> = stalls.iter().map(|stall| (stall.pid, stall.tid)).collect();
        let name = |names, id, nameless: &str| match name_of(names, id) {
            "" => nameless.to_owned(),
            name => name.to_owned(),
        };
        let process = |(pid, _): &(u32, u32)| (*pid, name(&analysis.processes, *pid, "[process]"));
        let thread = |task: &(u32, u32)| (*task, name(&analysis.threads, task.1, "[thread]"));
        Labels { processes: tasks.iter().map(process).collect(), threads: tasks.iter().map(thread).collect() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cause::Cause;

    fn stall(pid: u32, tid: u32) -> Stall {
        Stall {
            pid,
            tid,
            cause: Cause::SockRecv,
            peer: String::new(),
            detail: String::new(),
            start_ns: 0,
            end_ns: 1,
            weight_ns: 1,
            in_flight: false,
            began_earlier: false,
            user_stack: 0,
            kernel_stack: 0,
            api: "",
            call: "recv",
        }
    }

    #[test]
    fn without_ids_tasks_of_equal_names_are_one_and_brackets_in_a_name_stay() {
        let analysis = Analysis {
            processes: HashMap::from([(7, "python3".to_owned()), (8, "python3".to_owned())]),
            threads: HashMap::from([(71, "gather [3]".to_owned()), (81, " ".to_owned())]),
            ..Analysis::default()
        };
        let labels = Labels::without_ids(&analysis, &[stall(7, 71), stall(8, 81), stall(9, 91)]);
        assert_eq!([7, 8, 9].map(|pid| labels.process(pid)), ["python3", "python3", "[process]"]);
        let threads = [(7, 71), (8, 81), (9, 91)].map(|(pid, tid)| labels.thread(pid, tid));
        assert_eq!(threads, ["gather [3]", "[thread]", "[thread]"]);
    }
}
