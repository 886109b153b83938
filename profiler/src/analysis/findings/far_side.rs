//! What a peer did meanwhile, where it is in the recording itself.

use serde_json::{Value, json};

use super::Scene;
use super::text::{ip_of, time};
use crate::analysis::far_end::FarEnd;
use crate::analysis::report::ThreadRow;

/// Share of a thread's time, or of the time that it was waited for, from which on something explains it.
const MOST: f64 = 0.5;

/// The thread at the other end.
pub(super) struct FarSide<'a> {
    end: &'a FarEnd,
    row: &'a ThreadRow,
    did: Did<'a>,
    /// It waited for the one that waits for it nearly as long.
    is_mutual: bool,
}

/// What mostly kept it from sending.
enum Did<'a> {
    /// It waits for data itself.
    Waits {
        peer: &'a str,
        ns: u64,
    },
    Idle,
    Runs,
    Runnable,
    /// Nothing that stands out.
    Mixed,
}

/// How to see what a thread does: with its Python functions where the process runs Python.
pub(super) fn dump(scene: &Scene<'_>, pid: u32, tid: u32, why: &str) -> String {
    let kernel = format!("cat /proc/{pid}/task/{tid}/stack");
    if runs_python(scene, pid) {
        format!("py-spy dump --pid {pid}; {kernel}    # {why}")
    } else {
        format!("gdb -p {pid} -batch -ex 'thread apply all bt'; {kernel}    # {why}")
    }
}

/// By the name of a thread, or by the stacks of its stalls.
fn runs_python(scene: &Scene<'_>, pid: u32) -> bool {
    let named = scene.report.threads.iter().any(|row| row.pid == pid && row.name.starts_with("python"));
    named || scene.surroundings.python.contains(&pid)
}

impl<'a> FarSide<'a> {
    /// The other end of what the process `pid` waited `stalled_ns` for.
    pub(super) fn of(scene: &Scene<'a>, pid: u32, end: &'a FarEnd, stalled_ns: u64) -> Option<FarSide<'a>> {
        let us = ip_of(&end.sees);
        let sockets = || scene.report.sockets.iter().filter(|row| row.pid == end.pid);
        // The thread that talks to us, else the first one.
        let talks =
            sockets().filter(|row| us.is_some() && ip_of(&row.peer) == us).max_by_key(|row| row.waits);
        let tid = talks.map_or(end.pid, |row| row.tid);
        let row = scene.report.threads.iter().find(|row| row.pid == end.pid && row.tid == tid)?;
        let waits = sockets()
            .filter(|row| row.tid == tid && row.direction == "recv" && ip_of(&row.peer) != us)
            .max_by_key(|row| row.stalled_ns);
        let most = |ns: u64, of: u64| of > 0 && ns as f64 >= MOST * of as f64;
        let explains = |ns: u64| most(ns, row.wall_ns) && ns >= stalled_ns;
        let did = match waits {
            Some(waits) if most(waits.stalled_ns, stalled_ns) => {
                Did::Waits { peer: &waits.peer, ns: waits.stalled_ns }
            }
            _ if explains(row.runnable_ns) => Did::Runnable,
            _ if explains(row.idle_ns) => Did::Idle,
            _ if explains(row.running_ns) => Did::Runs,
            _ => Did::Mixed,
        };
        let is_us =
            |peer: &str| scene.surroundings.far_ends.get(end.pid, peer).is_some_and(|other| other.pid == pid);
        let back = sockets().filter(|row| row.direction == "recv" && is_us(&row.peer));
        let back_ns = back.map(|row| row.stalled_ns).fold(0, u64::saturating_add);
        Some(FarSide { end, row, did, is_mutual: most(back_ns, stalled_ns) })
    }

    /// Two that exchange data wait for each other in turn, and neither is slow.
    pub(super) fn is_mutual(&self) -> bool {
        self.is_mutual && !self.is_late()
    }

    /// It was free to send.
    pub(super) fn is_late(&self) -> bool {
        matches!(self.did, Did::Idle | Did::Runs | Did::Runnable)
    }

    /// `: that is rank3 (pid 4), idle for 9.9 s of 10.0 s: it sends late`.
    pub(super) fn describe(&self) -> String {
        let wall = time(self.row.wall_ns);
        let did = match &self.did {
            Did::Waits { peer, ns } => format!("it waits itself, {} for data from {peer}", time(*ns)),
            Did::Idle => format!(
                "idle (asleep or waiting for work) for {} of {wall}: it sends late",
                time(self.row.idle_ns)
            ),
            Did::Runs => {
                format!("it computes for {} of {wall}: it sends late", time(self.row.running_ns))
            }
            Did::Runnable => {
                format!("it waits for a CPU for {} of {wall}: it sends late", time(self.row.runnable_ns))
            }
            Did::Mixed => format!(
                "idle {}, running {}, stalled {} of {wall}",
                time(self.row.idle_ns),
                time(self.row.running_ns),
                time(self.row.stalled_ns)
            ),
        };
        format!(". That is {} (pid {}), recorded too: {did}", self.end.comm, self.end.pid)
    }

    pub(super) fn advice(&self, scene: &Scene<'_>) -> String {
        let (pid, comm) = (self.end.pid, &self.end.comm);
        match &self.did {
            Did::Waits { peer, .. } => {
                format!(
                    "Follow the chain: {comm} (pid {pid}) is held up by {peer}, look at the findings about that."
                )
            }
            _ => dump(scene, pid, self.row.tid, &format!("what {comm} does before it sends; several times")),
        }
    }

    pub(super) fn proof(&self) -> Value {
        let mut proof = json!({
            "pid": self.end.pid,
            "tid": self.row.tid,
            "comm": self.end.comm,
            "wall_ns": self.row.wall_ns,
            "idle_ns": self.row.idle_ns,
            "running_ns": self.row.running_ns,
            "runnable_ns": self.row.runnable_ns,
            "stalled_ns": self.row.stalled_ns,
        });
        if let Did::Waits { peer, ns } = &self.did
            && let Some(proof) = proof.as_object_mut()
        {
            proof.insert("waits_for".to_string(), json!(peer));
            proof.insert("waits_for_ns".to_string(), json!(ns));
        }
        proof
    }
}
