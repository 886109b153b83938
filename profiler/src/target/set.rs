//! The processes and threads that are watched now, kept up to date by what the kernel reports and by
//! looking again, with the records that each change adds to the trace.

use std::collections::{BTreeMap, BTreeSet};

use super::process::{live_since, process_record, thread, thread_state, threads};
use super::root::ProcRoot;
use super::select::with_descendants;
use crate::trace::record::{Life, LifeEvent, Process, Record, Thread};

/// Processes and threads of one process kept at most.
const MEMBERS: usize = 1 << 18;

#[derive(Debug, Default)]
struct Member {
    /// Clock ticks since boot; 0 where the process ended before it could be looked at.
    start_ticks: u64,
    threads: BTreeSet<u32>,
}

/// What a change brought.
#[derive(Debug, Default, PartialEq)]
pub struct Change {
    /// `Process` and `Thread` records that the trace does not have yet.
    pub records: Vec<Record>,
    /// Processes that came in: their libraries, environment and sockets are to be looked at.
    pub entered: Vec<u32>,
    /// Processes that run another program now: the same.
    pub executed: Vec<u32>,
    /// Processes whose last thread ended.
    pub left: Vec<u32>,
}

/// The set of targets.
#[derive(Debug)]
pub struct TargetSet {
    root: ProcRoot,
    follow: bool,
    asked_for: BTreeSet<u32>,
    /// Before the first look. Later on, an id that was asked for and is not in the set is another process's.
    untouched: bool,
    members: BTreeMap<u32, Member>,
}

impl TargetSet {
    /// A set that is empty until [`TargetSet::refresh`]; `follow` says whether children belong to it.
    pub fn new(root: ProcRoot, asked_for: &[u32], follow: bool) -> TargetSet {
        TargetSet {
            root,
            follow,
            asked_for: asked_for.iter().copied().collect(),
            untouched: true,
            members: BTreeMap::new(),
        }
    }

    pub fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.keys().copied()
    }

    /// Process and thread ids of all known threads.
    pub fn threads(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.members.iter().flat_map(|(pid, member)| member.threads.iter().map(move |tid| (*pid, *tid)))
    }

    pub fn contains(&self, pid: u32) -> bool {
        self.members.contains_key(&pid)
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Compares the set with `/proc`: finds what came in or left without being reported. `now_ns` is the
    /// time that new records carry as the first sight of their process or thread.
    pub fn refresh(&mut self, now_ns: u64) -> Change {
        let mut change = Change::default();
        let mut roots: Vec<u32> = self.members.keys().copied().collect();
        if std::mem::take(&mut self.untouched) {
            roots.extend(&self.asked_for);
        }
        let current = if self.follow { with_descendants(&self.root, &roots) } else { roots };
        for pid in current {
            let known = self.members.get(&pid).map(|member| member.start_ticks);
            match (live_since(&self.root, pid), known) {
                (Some(_), None) => self.enter(pid, now_ns, &mut change),
                (Some(ticks), Some(known)) if known == ticks => {
                    self.refresh_threads(pid, now_ns, &mut change);
                }
                _ => self.leave(pid, &mut change),
            }
        }
        change
    }

    /// Takes in one event of the kernel.
    pub fn apply(&mut self, life: &Life) -> Change {
        let mut change = Change::default();
        match life.event {
            LifeEvent::Fork if self.follow && self.contains(life.parent) && !self.contains(life.pid) => {
                self.enter(life.pid, life.time_ns, &mut change);
                if !self.contains(life.pid) {
                    self.enter_unseen(life, &mut change);
                }
            }
            LifeEvent::Thread => self.enter_thread(life, &mut change),
            LifeEvent::Exec if self.contains(life.pid) => self.execute(life, &mut change),
            LifeEvent::Exit => self.exit(life, &mut change),
            LifeEvent::Fork | LifeEvent::Exec => {}
        }
        change
    }

    fn enter(&mut self, pid: u32, seen_ns: u64, change: &mut Change) {
        let asked_for = self.asked_for.contains(&pid);
        let Ok(record) = process_record(&self.root, pid, seen_ns, asked_for) else { return };
        if self.members.len() >= MEMBERS {
            return;
        }
        let start_ticks = live_since(&self.root, pid).unwrap_or(0);
        self.members.insert(pid, Member { start_ticks, threads: BTreeSet::new() });
        change.records.push(Record::Process(record));
        change.entered.push(pid);
        self.refresh_threads(pid, seen_ns, change);
    }

    /// A child that had ended before it could be looked at: what the kernel reported is all there is.
    fn enter_unseen(&mut self, life: &Life, change: &mut Change) {
        let process = Process {
            pid: life.pid,
            ppid: life.parent,
            ns_pid: life.pid,
            comm: life.comm.clone(),
            seen_ns: life.time_ns,
            ..Process::default()
        };
        let leader = unseen_thread(life.pid, life.pid, life);
        if self.members.len() < MEMBERS {
            self.members.insert(life.pid, Member { start_ticks: 0, threads: BTreeSet::from([life.pid]) });
            change.records.extend([Record::Process(process), Record::Thread(leader)]);
        }
    }

    fn enter_thread(&mut self, life: &Life, change: &mut Change) {
        let Some(member) = self.members.get_mut(&life.pid) else { return };
        if member.threads.len() < MEMBERS && member.threads.insert(life.tid) {
            let record = thread(&self.root, life.pid, life.tid, life.time_ns)
                .unwrap_or_else(|_| unseen_thread(life.pid, life.tid, life));
            change.records.push(Record::Thread(record));
        }
    }

    fn execute(&mut self, life: &Life, change: &mut Change) {
        let asked_for = self.asked_for.contains(&life.pid);
        if let Ok(record) = process_record(&self.root, life.pid, life.time_ns, asked_for) {
            change.records.push(Record::Process(record));
        }
        change.executed.push(life.pid);
        // The thread that executed is the only one left, has the process's id and a new name.
        if let Some(member) = self.members.get_mut(&life.pid) {
            member.threads = BTreeSet::from([life.pid]);
        }
        let record = thread(&self.root, life.pid, life.pid, life.time_ns)
            .unwrap_or_else(|_| unseen_thread(life.pid, life.pid, life));
        change.records.push(Record::Thread(record));
    }

    fn exit(&mut self, life: &Life, change: &mut Change) {
        let Some(member) = self.members.get_mut(&life.pid) else { return };
        member.threads.remove(&life.tid);
        if !member.threads.is_empty() {
            return;
        }
        // A report of a thread's birth may have been lost.
        let others = self.root.tids(life.pid).unwrap_or_default().into_iter().filter(|tid| *tid != life.tid);
        let is_live = |tid: &u32| {
            thread_state(&self.root, life.pid, *tid).is_ok_and(|state| !matches!(state, 'Z' | 'X'))
        };
        let unreported: BTreeSet<u32> = others.filter(is_live).collect();
        if unreported.is_empty() {
            self.leave(life.pid, change);
            return;
        }
        let records =
            unreported.iter().filter_map(|tid| thread(&self.root, life.pid, *tid, life.time_ns).ok());
        change.records.extend(records.map(Record::Thread));
        member.threads = unreported;
    }

    fn leave(&mut self, pid: u32, change: &mut Change) {
        if self.members.remove(&pid).is_some() {
            change.left.push(pid);
        }
    }

    fn refresh_threads(&mut self, pid: u32, seen_ns: u64, change: &mut Change) {
        let Some(member) = self.members.get_mut(&pid) else { return };
        let Ok(tids) = self.root.tids(pid) else { return };
        let before = std::mem::replace(&mut member.threads, tids.iter().copied().take(MEMBERS).collect());
        let new: Vec<u32> = member.threads.difference(&before).copied().collect();
        // After the first look there are few new ones.
        let records = if before.is_empty() {
            threads(&self.root, pid, seen_ns).unwrap_or_default()
        } else {
            new.into_iter().filter_map(|tid| thread(&self.root, pid, tid, seen_ns).ok()).collect()
        };
        change.records.extend(records.into_iter().map(Record::Thread));
    }
}

fn unseen_thread(pid: u32, tid: u32, life: &Life) -> Thread {
    Thread { pid, tid, ns_tid: tid, name: life.comm.clone(), seen_ns: life.time_ns }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn fake(directory: &Path, pid: u32, ppid: u32, start: u64, tids: &[u32]) {
        let process = directory.join(pid.to_string());
        let _ = std::fs::remove_dir_all(&process);
        let stat = format!("{pid} (job) S {ppid}{} {start}{}", " 0".repeat(17), " 0".repeat(30));
        for tid in tids {
            let task = process.join(format!("task/{tid}"));
            std::fs::create_dir_all(&task).unwrap();
            std::fs::write(task.join("comm"), format!("t{tid}\n")).unwrap();
            std::fs::write(task.join("stat"), &stat).unwrap();
            std::fs::write(task.join("status"), format!("NSpid:\t{tid}\t{}\n", tid - 90)).unwrap();
        }
        std::fs::write(process.join("stat"), &stat).unwrap();
        std::fs::write(process.join("status"), format!("Tgid:\t{pid}\n")).unwrap();
    }

    fn life(event: LifeEvent, pid: u32, tid: u32, parent: u32) -> Life {
        Life { time_ns: 50, event, pid, tid, parent, comm: "seen".into() }
    }

    /// The ids of process and thread records.
    fn ids(change: &Change) -> (Vec<u32>, Vec<u32>) {
        let (mut pids, mut tids) = (Vec::new(), Vec::new());
        for record in &change.records {
            match record {
                Record::Process(process) => pids.push(process.pid),
                Record::Thread(thread) => tids.push(thread.tid),
                other => panic!("{other:?}"),
            }
        }
        (pids, tids)
    }

    fn set(follow: bool) -> (tempfile::TempDir, TargetSet) {
        let directory = tempfile::tempdir().unwrap();
        fake(directory.path(), 100, 1, 7, &[100, 101]);
        fake(directory.path(), 110, 100, 8, &[110]);
        let set = TargetSet::new(ProcRoot::new(directory.path()), &[100], follow);
        (directory, set)
    }

    #[test]
    fn the_first_look_brings_processes_children_and_threads_and_the_second_nothing() {
        let (_directory, mut set) = set(true);
        let change = set.refresh(5);
        assert_eq!(ids(&change), (vec![100, 110], vec![100, 101, 110]));
        assert_eq!(change.entered, [100, 110]);
        assert!(
            matches!(&change.records[0], Record::Process(first) if first.asked_for && first.seen_ns == 5)
        );
        assert!(matches!(&change.records[2], Record::Thread(thread) if thread.ns_tid == 11));
        assert_eq!(set.refresh(6), Change::default());
        assert_eq!(set.threads().collect::<Vec<_>>(), [(100, 100), (100, 101), (110, 110)]);
    }

    #[test]
    fn children_are_left_out_on_demand() {
        let (_directory, mut set) = set(false);
        assert_eq!(set.refresh(5).entered, [100]);
        assert_eq!(set.apply(&life(LifeEvent::Fork, 110, 110, 100)), Change::default());
    }

    #[test]
    fn a_child_is_recorded_even_when_it_ended_at_once() {
        let (directory, mut set) = set(true);
        set.refresh(5);
        fake(directory.path(), 120, 100, 9, &[120]);
        assert_eq!(ids(&set.apply(&life(LifeEvent::Fork, 120, 120, 100))), (vec![120], vec![120]));
        let change = set.apply(&life(LifeEvent::Fork, 121, 121, 100));
        assert!(
            matches!(&change.records[0], Record::Process(child) if child.comm == "seen" && child.ppid == 100)
        );
        assert!(change.entered.is_empty());
        assert_eq!(set.apply(&life(LifeEvent::Exit, 121, 121, 0)).left, [121]);
        assert_eq!(set.apply(&life(LifeEvent::Fork, 122, 122, 999)), Change::default());
    }

    #[test]
    fn a_process_leaves_with_its_last_thread_not_with_its_first() {
        let (directory, mut set) = set(false);
        set.refresh(5);
        assert!(set.apply(&life(LifeEvent::Exit, 100, 100, 0)).left.is_empty());
        std::fs::remove_dir_all(directory.path().join("100/task/100")).unwrap();
        assert_eq!(set.apply(&life(LifeEvent::Exit, 100, 101, 0)).left, [100]);
        assert!(set.is_empty());
    }

    #[test]
    fn a_thread_whose_birth_was_not_reported_keeps_its_process_in() {
        let (directory, mut set) = set(false);
        set.refresh(5);
        fake(directory.path(), 100, 1, 7, &[100, 101, 102]);
        set.apply(&life(LifeEvent::Exit, 100, 100, 0));
        std::fs::remove_dir_all(directory.path().join("100/task/100")).unwrap();
        let change = set.apply(&life(LifeEvent::Exit, 100, 101, 0));
        assert_eq!((ids(&change), change.left), ((vec![], vec![102]), vec![]));
    }

    #[test]
    fn a_thread_is_recorded_once_also_when_it_is_gone_already() {
        let (_directory, mut set) = set(false);
        set.refresh(5);
        let change = set.apply(&life(LifeEvent::Thread, 100, 102, 0));
        assert!(matches!(&change.records[0], Record::Thread(thread) if thread.name == "seen"));
        assert_eq!(set.apply(&life(LifeEvent::Thread, 100, 102, 0)), Change::default());
        assert_eq!(set.apply(&life(LifeEvent::Thread, 900, 901, 0)), Change::default());
    }

    #[test]
    fn after_an_exec_there_is_one_thread_and_the_process_is_described_anew() {
        let (_directory, mut set) = set(false);
        set.refresh(5);
        let change = set.apply(&life(LifeEvent::Exec, 100, 100, 0));
        assert_eq!(ids(&change), (vec![100], vec![100]));
        assert_eq!(change.executed, [100]);
        assert_eq!(set.threads().collect::<Vec<_>>(), [(100, 100)]);
    }

    #[test]
    fn another_process_under_a_known_id_is_no_target() {
        let (directory, mut set) = set(false);
        set.refresh(5);
        fake(directory.path(), 100, 1, 70, &[100]);
        assert_eq!(set.refresh(6).left, [100]);
        assert_eq!(set.refresh(7), Change::default());
        assert!(!set.contains(100));
    }

    #[test]
    fn a_zombie_has_left() {
        let (directory, mut set) = set(false);
        set.refresh(5);
        for file in ["stat", "task/100/stat", "task/101/stat"] {
            let path = directory.path().join("100").join(file);
            let text = std::fs::read_to_string(&path).unwrap().replace(") S ", ") Z ");
            std::fs::write(path, text).unwrap();
        }
        assert_eq!(set.refresh(6).left, [100]);
    }

    #[test]
    fn what_ended_or_began_without_a_report_is_found_by_looking() {
        let (directory, mut set) = set(true);
        set.refresh(5);
        std::fs::remove_dir_all(directory.path().join("110")).unwrap();
        fake(directory.path(), 100, 1, 7, &[100, 103]);
        let change = set.refresh(6);
        assert_eq!(ids(&change), (vec![], vec![103]));
        assert_eq!(change.left, [110]);
    }
}
