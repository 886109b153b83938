//! Puts stalls into a tree of frames. A recording has millions of stalls at few places: what they have in common is put
//! into words once.

use super::frames::{FrameTree, NameId, NodeId};
use super::{FlameOptions, FrameKind, Labels, Site, View, ViewFrame, frames_of, stack};
use crate::analysis::Analysis;
use crate::analysis::stall::Stall;
use crate::hash::FastMap;
use crate::model::cause::Cause;
use crate::render::name;

/// Names that another recording has too.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    /// The frames with other names. Process and thread come together, those of a stack too, and the leaf alone.
    pub frames: &'a dyn Fn(&[ViewFrame]) -> Vec<String>,
    pub peer: &'a dyn Fn(&str) -> String,
}

/// User and kernel stack, resolver function, system call.
type Calls = (u64, u64, &'static str, &'static str);
/// Process where it matters, cause, peer, detail, whether it is in flight.
type Leaf<'a> = (u32, Cause, &'a str, &'a str, bool);

/// Puts the stalls of one recording into a tree, by stack.
pub struct StackFolder<'a> {
    analysis: &'a Analysis,
    labels: &'a Labels,
    /// Whether frames of the kernel are wanted.
    kernel: bool,
    words: Option<Words<'a>>,
    tasks: FastMap<(u32, u32), NodeId>,
    calls: FastMap<Calls, u32>,
    call_names: Vec<Box<[NameId]>>,
    stacks: FastMap<(NodeId, u32), NodeId>,
    leaves: FastMap<Leaf<'a>, NameId>,
}

impl<'a> StackFolder<'a> {
    pub fn new(
        analysis: &'a Analysis,
        labels: &'a Labels,
        kernel: bool,
        words: Option<Words<'a>>,
    ) -> StackFolder<'a> {
        StackFolder {
            analysis,
            labels,
            kernel,
            words,
            tasks: FastMap::default(),
            calls: FastMap::default(),
            call_names: Vec::new(),
            stacks: FastMap::default(),
            leaves: FastMap::default(),
        }
    }

    /// The frame that the stall's stack ends in.
    pub fn leaf_of(&mut self, tree: &mut FrameTree, stall: &'a Stall) -> NodeId {
        let task = self.task(tree, stall);
        let calls = self.calls(tree, stall);
        let names = self.call_names.get(calls as usize).map_or(&[][..], |names| names);
        let stack = *self
            .stacks
            .entry((task, calls))
            .or_insert_with(|| names.iter().fold(task, |node, name| tree.child(node, *name)));
        let leaf = self.leaf(tree, stall);
        tree.child(stack, leaf)
    }

    fn task(&mut self, tree: &mut FrameTree, stall: &Stall) -> NodeId {
        let (pid, tid) = (stall.pid, stall.tid);
        if let Some(known) = self.tasks.get(&(pid, tid)) {
            return *known;
        }
        let names = [self.labels.process(pid), self.labels.thread(pid, tid)];
        let frames = self.worded(names.map(|name| ViewFrame::new(&name, FrameKind::Task)).into());
        let node = tree.descend(NodeId::ROOT, &frames);
        self.tasks.insert((pid, tid), node);
        node
    }

    /// The index of the stall's functions and calls.
    fn calls(&mut self, tree: &mut FrameTree, stall: &Stall) -> u32 {
        let kernel_stack = if self.kernel { stall.kernel_stack } else { 0 };
        let key = (stall.user_stack, kernel_stack, stall.api, stall.call);
        if let Some(known) = self.calls.get(&key) {
            return *known;
        }
        let mut frames = Vec::new();
        stack::push_calls(&mut frames, self.analysis, &Site::of(stall), self.kernel);
        let names = self.worded(frames).iter().map(|frame| tree.name(frame)).collect();
        let index = self.call_names.len() as u32;
        self.call_names.push(names);
        self.calls.insert(key, index);
        index
    }

    fn leaf(&mut self, tree: &mut FrameTree, stall: &'a Stall) -> NameId {
        // Without racks a peer is in the same place for every process.
        let pid = if self.analysis.places.has_racks() { stall.pid } else { 0 };
        let key = (pid, stall.cause, stall.peer.as_str(), stall.detail.as_str(), stall.in_flight);
        if let Some(known) = self.leaves.get(&key) {
            return *known;
        }
        let peer = self.words.map(|words| (words.peer)(&stall.peer));
        let site = Site { peer: peer.as_deref().unwrap_or(&stall.peer), ..Site::of(stall) };
        let mut frame = stack::leaf(self.analysis, &site);
        frame.name = name::leaf(frame.name);
        let frames = self.worded(vec![frame]);
        let id = tree.name(frames.first().unwrap_or(&ViewFrame::new("", FrameKind::Mark)));
        self.leaves.insert(key, id);
        id
    }

    fn worded(&self, frames: Vec<ViewFrame>) -> Vec<ViewFrame> {
        let Some(words) = self.words else { return frames };
        let names = (words.frames)(&frames).into_iter();
        names.zip(frames).map(|(name, frame)| ViewFrame { name, kind: frame.kind }).collect()
    }
}

/// Puts stalls into a tree in any of the views.
pub(super) enum Folder<'a> {
    Stack(Box<StackFolder<'a>>),
    /// By what the frames are made of.
    Sites {
        analysis: &'a Analysis,
        options: &'a FlameOptions,
        labels: &'a Labels,
        nodes: FastMap<Site<'a>, NodeId>,
    },
}

impl<'a> Folder<'a> {
    pub(super) fn new(analysis: &'a Analysis, options: &'a FlameOptions, labels: &'a Labels) -> Folder<'a> {
        match options.view {
            View::Stack => Folder::Stack(Box::new(StackFolder::new(analysis, labels, options.kernel, None))),
            View::Cause | View::Peer => {
                Folder::Sites { analysis, options, labels, nodes: FastMap::default() }
            }
        }
    }

    pub(super) fn leaf_of(&mut self, tree: &mut FrameTree, stall: &'a Stall) -> NodeId {
        match self {
            Folder::Stack(folder) => folder.leaf_of(tree, stall),
            Folder::Sites { analysis, options, labels, nodes } => {
                // What these views do not show tells nothing apart.
                let all = Site::of(stall);
                let site = Site { detail: "", in_flight: false, user_stack: 0, kernel_stack: 0, ..all };
                *nodes.entry(site).or_insert_with_key(|site| {
                    tree.descend(NodeId::ROOT, &frames_of(analysis, options, labels, site))
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
