//! A tree of frames in which each name is kept once, however many stacks lead through it.

use super::{FrameKind, ViewFrame, WeightedStack};
use crate::hash::FastMap;

/// Index of a name in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(u32);

/// Index of a frame in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    /// What all stacks begin at; it has no name.
    pub const ROOT: NodeId = NodeId(0);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Stacks with their weights in nanoseconds.
#[derive(Clone, Debug)]
pub struct FrameTree {
    names: Vec<(Box<str>, FrameKind)>,
    name_ids: FastMap<Box<str>, NameId>,
    /// A frame comes behind its parent.
    nodes: Vec<Node>,
    children: FastMap<(NodeId, NameId), NodeId>,
    total_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: NodeId,
    name: NameId,
    /// Of the stacks that end here; `None`: none does.
    own_ns: Option<u64>,
}

impl Default for FrameTree {
    fn default() -> FrameTree {
        FrameTree {
            names: vec![(Box::from(""), FrameKind::Task)],
            name_ids: FastMap::default(),
            nodes: vec![Node { parent: NodeId::ROOT, name: NameId(0), own_ns: None }],
            children: FastMap::default(),
            total_ns: 0,
        }
    }
}

impl FrameTree {
    /// The number of this frame's name. Of names that are equal the last kind counts, whichever comes first.
    pub fn name(&mut self, frame: &ViewFrame) -> NameId {
        if let Some(id) = self.name_ids.get(frame.name.as_str()) {
            if let Some((_, kind)) = self.names.get_mut(id.0 as usize) {
                *kind = frame.kind.max(*kind);
            }
            return *id;
        }
        let id = NameId(self.names.len() as u32);
        self.names.push((frame.name.as_str().into(), frame.kind));
        self.name_ids.insert(frame.name.as_str().into(), id);
        id
    }

    /// The frame of this name below another one.
    pub fn child(&mut self, parent: NodeId, name: NameId) -> NodeId {
        let next = NodeId(self.nodes.len() as u32);
        let id = *self.children.entry((parent, name)).or_insert(next);
        if id == next {
            self.nodes.push(Node { parent, name, own_ns: None });
        }
        id
    }

    /// The frame at the end of these, below another one.
    pub fn descend(&mut self, from: NodeId, frames: &[ViewFrame]) -> NodeId {
        frames.iter().fold(from, |node, frame| {
            let name = self.name(frame);
            self.child(node, name)
        })
    }

    /// Adds to the weight of the stack that ends in this frame.
    pub fn add(&mut self, node: NodeId, weight_ns: u64) {
        self.total_ns = self.total_ns.saturating_add(weight_ns);
        if let Some(node) = self.nodes.get_mut(node.index()) {
            node.own_ns = Some(node.own_ns.unwrap_or(0).saturating_add(weight_ns));
        }
    }

    /// Of all stacks.
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Whether no stack was added.
    pub fn is_empty(&self) -> bool {
        self.nodes.iter().all(|node| node.own_ns.is_none())
    }

    /// The names from the root to a frame.
    pub fn path(&self, node: NodeId) -> Vec<&str> {
        let mut names = Vec::new();
        let mut at = node;
        while let Some(node) = self.nodes.get(at.index()).filter(|_| at != NodeId::ROOT) {
            names.extend(self.names.get(node.name.0 as usize).map(|(name, _)| &**name));
            at = node.parent;
        }
        names.reverse();
        names
    }

    /// `frame;…;leaf nanoseconds` of each stack, in no order.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let ends = self.nodes.iter().zip(0..).filter_map(|(node, id)| Some((NodeId(id), node.own_ns?)));
        ends.map(|(id, weight_ns)| self.line(id, weight_ns))
    }

    fn line(&self, id: NodeId, weight_ns: u64) -> String {
        let mut line = self.path(id).join(";");
        line.push(' ');
        line.push_str(&weight_ns.to_string());
        line
    }

    /// The same where frames that weigh less than `least_ns` have but one frame without a name above them, in place of all
    /// that is there: sorted, the lines are in the order of those that are not cut.
    pub fn cut(&self, least_ns: u64) -> Vec<String> {
        let whole = self.whole();
        let of = |id: NodeId| whole.get(id.index()).copied().unwrap_or(0);
        let is_large = |id: NodeId| id == NodeId::ROOT || of(id) >= least_ns;
        let mut lines = Vec::new();
        for (node, id) in self.nodes.iter().zip(0..) {
            let id = NodeId(id);
            if !is_large(node.parent) {
                continue;
            }
            lines.extend(node.own_ns.map(|weight_ns| self.line(id, weight_ns)));
            let above = of(id).saturating_sub(node.own_ns.unwrap_or(0));
            if !is_large(id) && above > 0 {
                lines.push(format!("{};- {above}", self.path(id).join(";")));
            }
        }
        lines
    }

    /// The weight of each frame with everything above it.
    fn whole(&self) -> Vec<u64> {
        let mut whole: Vec<u64> = self.nodes.iter().map(|node| node.own_ns.unwrap_or(0)).collect();
        for (id, node) in self.nodes.iter().enumerate().skip(1).rev() {
            let weight = whole.get(id).copied().unwrap_or(0);
            if let Some(parent) = whole.get_mut(node.parent.index()) {
                *parent = parent.saturating_add(weight);
            }
        }
        whole
    }

    /// What the frames of this name are.
    pub fn kind(&self, name: &str) -> Option<FrameKind> {
        let id = self.name_ids.get(name)?;
        self.names.get(id.0 as usize).map(|(_, kind)| *kind)
    }

    /// All stacks, in the order of their paths.
    pub fn stacks(&self) -> Vec<WeightedStack> {
        let ends = self.nodes.iter().zip(0..).filter_map(|(node, id)| Some((NodeId(id), node.own_ns?)));
        let frame = |name: &str| {
            let kind = self.kind(name).unwrap_or(FrameKind::Mark);
            ViewFrame { name: name.to_owned(), kind }
        };
        let stack = |(id, weight_ns)| {
            let frames = self.path(id).into_iter().map(frame).collect();
            WeightedStack { frames, weight_ns }
        };
        let mut stacks: Vec<WeightedStack> = ends.map(stack).collect();
        stacks.sort_by_cached_key(WeightedStack::path);
        stacks
    }
}
