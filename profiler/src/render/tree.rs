//! From stalls to weighted stacks of frames, in one of three views.
//!
//! | view | frames, root first |
//! |---|---|
//! | stack | process; thread; user frames, outermost first; system call; `[cause] peer detail` |
//! | cause | cause; peer; process; thread; resolver function; system call. And GPU; device; stream; kernel |
//! | peer | peer; cause; process; thread; with a topology relation, rack and host come before the peer |
//!
//! Weights are stalled nanoseconds. Waiting for a CPU (`sched.runq`) is not stalled time and is left out
//! unless it is asked for by name. By cause and by peer there is a second root, `queue pairs`, in time of queue pairs.

mod fold;
mod frames;
mod gpu;
mod label;
mod place;
mod queue;
mod stack;

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use crate::analysis::Analysis;
use crate::analysis::stall::Stall;
use crate::model::cause::Cause;
use crate::render::{RenderError, name};

use self::fold::Folder;
pub use self::fold::{StackFolder, Words};
pub use self::frames::{FrameTree, NodeId};
pub use self::label::Labels;

/// What the frames of a flame graph are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    Stack,
    Cause,
    Peer,
}

impl View {
    pub const ALL: [View; 3] = [View::Stack, View::Cause, View::Peer];

    pub const fn name(self) -> &'static str {
        match self {
            View::Stack => "stack",
            View::Cause => "cause",
            View::Peer => "peer",
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for View {
    type Err = String;

    fn from_str(text: &str) -> Result<View, String> {
        View::ALL
            .into_iter()
            .find(|view| view.name() == text)
            .ok_or_else(|| "no such view; one of: stack, cause, peer".to_owned())
    }
}

/// Which stalls to draw, and how.
#[derive(Clone, Debug, Default)]
pub struct FlameOptions {
    pub view: View,
    /// Only stalls of this cause.
    pub cause: Option<Cause>,
    /// Only stalls of this thread.
    pub tid: Option<u32>,
    /// Only stalls of the processes with this rank.
    pub rank: Option<u32>,
    /// What was recorded, for the title; the target's name where it is not given.
    pub title: Option<String>,
    /// Kernel frames below the system call (stack view), with the suffix `_[k]`.
    pub kernel: bool,
}

impl FlameOptions {
    /// Whether some stalls are left out.
    pub fn is_filtered(&self) -> bool {
        self.cause.is_some() || self.tid.is_some() || self.rank.is_some()
    }
}

/// What a frame stands for; it decides the colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrameKind {
    /// A process or a thread.
    Task,
    /// A function of the program or its libraries.
    User,
    /// A system call, or the resolver function around it.
    Call,
    Kernel,
    /// Set by stallscope where there is no function: `[truncated]`, `[no stack]`.
    Mark,
    Peer,
    Cause(Cause),
    /// The leaf of a stall that had not ended when the recording stopped.
    InFlight(Cause),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewFrame {
    /// Fit for a folded line: not empty, no `;`, no control characters.
    pub name: String,
    pub kind: FrameKind,
}

impl ViewFrame {
    pub fn new(text: &str, kind: FrameKind) -> ViewFrame {
        ViewFrame { name: name::frame(text), kind }
    }
}

/// Frames from the root to the leaf, and the nanoseconds stalled in exactly this stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedStack {
    pub frames: Vec<ViewFrame>,
    pub weight_ns: u64,
}

impl WeightedStack {
    /// The frames joined by `;`.
    pub fn path(&self) -> String {
        let names: Vec<&str> = self.frames.iter().map(|frame| frame.name.as_str()).collect();
        names.join(";")
    }
}

/// The stalls that `options` select, merged by equal frames and ordered by them.
///
/// Fails where `options` name a rank or thread that the trace does not have, and where the weights add up
/// to more than 2^63 ns.
pub fn fold_stalls(analysis: &Analysis, options: &FlameOptions) -> Result<Vec<WeightedStack>, RenderError> {
    Ok(fold_tree(analysis, options)?.stacks())
}

/// The same as a tree.
pub fn fold_tree(analysis: &Analysis, options: &FlameOptions) -> Result<FrameTree, RenderError> {
    let pids = select_pids(analysis, options)?;
    check_thread(analysis, options)?;
    let labels = Labels::new(analysis);
    let mut tree = FrameTree::default();
    let mut folder = Folder::new(analysis, options, &labels);
    for (stall, _) in analysis.stall_sums() {
        if is_selected(stall, options, pids.as_ref()) {
            let leaf = folder.leaf_of(&mut tree, stall);
            tree.add(leaf, stall.weight_ns);
        }
    }
    // Time of queue pairs and of GPUs.
    let others = queue::stacks(analysis, options).into_iter();
    for stack in others.chain(gpu::stacks(analysis, options, &labels, pids.as_ref())) {
        let leaf = tree.descend(NodeId::ROOT, &stack.frames);
        tree.add(leaf, stack.weight_ns);
    }
    if tree.total_ns() > i64::MAX as u64 {
        return Err(RenderError::TooLarge);
    }
    Ok(tree)
}

/// Everything of a stall that can show in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Site<'a> {
    pid: u32,
    tid: u32,
    cause: Cause,
    peer: &'a str,
    detail: &'a str,
    in_flight: bool,
    user_stack: u64,
    kernel_stack: u64,
    api: &'a str,
    call: &'a str,
}

impl<'a> Site<'a> {
    fn of(stall: &'a Stall) -> Site<'a> {
        Site {
            pid: stall.pid,
            tid: stall.tid,
            cause: stall.cause,
            peer: &stall.peer,
            detail: &stall.detail,
            in_flight: stall.in_flight,
            user_stack: stall.user_stack,
            kernel_stack: stall.kernel_stack,
            api: stall.api,
            call: stall.call,
        }
    }
}

/// The frames of one stall in the stack view, root first.
pub fn stall_frames(analysis: &Analysis, labels: &Labels, stall: &Stall) -> Vec<ViewFrame> {
    frames_of(analysis, &FlameOptions::default(), labels, &Site::of(stall))
}

fn is_selected(stall: &Stall, options: &FlameOptions, pids: Option<&HashSet<u32>>) -> bool {
    let wanted = match options.cause {
        Some(cause) => stall.cause == cause,
        None => stall.cause != Cause::SchedRunq,
    };
    wanted
        && stall.weight_ns > 0
        && options.tid.is_none_or(|tid| stall.tid == tid)
        && pids.is_none_or(|pids| pids.contains(&stall.pid))
}

/// The processes of the rank that `options` name, nothing where they name none.
fn select_pids(analysis: &Analysis, options: &FlameOptions) -> Result<Option<HashSet<u32>>, RenderError> {
    let Some(rank) = options.rank else { return Ok(None) };
    let ranks = &analysis.report.target.ranks;
    let pids: HashSet<u32> = ranks.iter().filter(|row| row.rank == Some(rank)).map(|row| row.pid).collect();
    if pids.is_empty() {
        let mut known: Vec<u32> = ranks.iter().filter_map(|row| row.rank).collect();
        known.sort_unstable();
        known.dedup();
        let list: Vec<String> = known.iter().take(16).map(u32::to_string).collect();
        let known = match known.len() {
            0 => "no rank is known".to_owned(),
            1..=16 => format!("known: {}", list.join(", ")),
            more => format!("known: {}, .. {} in all", list.join(", "), more),
        };
        return Err(RenderError::UnknownRank { rank, known });
    }
    Ok(Some(pids))
}

fn check_thread(analysis: &Analysis, options: &FlameOptions) -> Result<(), RenderError> {
    let Some(tid) = options.tid else { return Ok(()) };
    let is_known = analysis.threads.contains_key(&tid)
        || analysis.report.threads.iter().any(|row| row.tid == tid)
        || analysis.stall_sums().any(|(stall, _)| stall.tid == tid);
    if is_known { Ok(()) } else { Err(RenderError::UnknownThread { tid }) }
}

fn frames_of(
    analysis: &Analysis,
    options: &FlameOptions,
    labels: &Labels,
    site: &Site<'_>,
) -> Vec<ViewFrame> {
    let process = ViewFrame::new(&labels.process(site.pid), FrameKind::Task);
    let thread = ViewFrame::new(&labels.thread(site.pid, site.tid), FrameKind::Task);
    let cause = ViewFrame::new(site.cause.name(), FrameKind::Cause(site.cause));
    let peer = if site.peer.is_empty() { "[unknown peer]" } else { site.peer };
    let peer = ViewFrame::new(peer, FrameKind::Peer);
    let mut frames = match options.view {
        View::Stack => {
            let mut frames = vec![process, thread];
            stack::push_frames(&mut frames, analysis, site, options.kernel);
            frames
        }
        View::Cause => {
            let mut frames = vec![cause, peer, process, thread];
            for call in [site.api, site.call] {
                if stack::is_call(call) {
                    frames.push(ViewFrame::new(call, FrameKind::Call));
                }
            }
            frames
        }
        View::Peer => {
            let mut frames = place::frames(analysis, site);
            frames.extend([peer, cause, process, thread]);
            frames
        }
    };
    if let Some(last) = frames.last_mut() {
        last.name = name::leaf(std::mem::take(&mut last.name));
    }
    frames
}

#[cfg(test)]
mod tests;
