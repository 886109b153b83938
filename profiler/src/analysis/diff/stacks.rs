//! The stacks of both sides in units, and what they add up to.
//!
//! A figure of a stack is a whole number of nanoseconds per unit, cut from the running sum over all stacks in order,
//! so that stacks add up to their cause, causes to the total and children to their parent, exactly.

use std::collections::BTreeMap;

use super::document::{StackChange, StackState, delta_ns};
use crate::hash::FastMap;
use crate::model::cause::Cause;
use crate::render::tree::{FrameTree, NodeId};

/// Stacks that are told one by one; the rest are added to one more a cause.
pub const STACKS_MAX: usize = 10_000;
/// The frame of the rest.
const REST: &str = "[other stacks]";

/// The stacks of both sides, by cause.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StackTable {
    /// By the size of the change, the largest first.
    pub rows: Vec<StackChange>,
    /// Sums by cause.
    pub causes: BTreeMap<Cause, (u64, u64)>,
}

/// A whole number of nanoseconds per unit of everything so far.
struct Scale {
    units: f64,
    sum: u128,
    told: u64,
}

impl Scale {
    fn new(units: f64) -> Scale {
        Scale { units, sum: 0, told: 0 }
    }

    /// The part of the next weight.
    fn next(&mut self, weight_ns: u64) -> u64 {
        self.sum += u128::from(weight_ns);
        let upto = if self.units > 0.0 { (self.sum as f64 / self.units).round() as u64 } else { 0 };
        let part = upto.saturating_sub(self.told);
        self.told = self.told.max(upto);
        part
    }
}

/// The stacks of both sides in one tree, so that what they have in common is there once.
#[derive(Clone, Debug, Default)]
pub struct Sides {
    pub tree: FrameTree,
    sums: FastMap<(Cause, NodeId), [Option<u64>; 2]>,
}

/// Of which side a stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Before,
    After,
}

/// Both weights of a stack; `None`: the side does not have it.
type Weights = [Option<u64>; 2];

impl Sides {
    /// Adds to the weight of the stack that ends in `leaf`, a frame of [`Sides::tree`].
    pub fn add(&mut self, side: Side, cause: Cause, leaf: NodeId, weight_ns: u64) {
        let weights = self.sums.entry((cause, leaf)).or_default();
        if let Some(weight) = weights.get_mut(side as usize) {
            *weight = Some(weight.unwrap_or(0).saturating_add(weight_ns));
        }
    }

    fn path(&self, leaf: NodeId) -> Vec<String> {
        self.tree.path(leaf).into_iter().map(str::to_owned).collect()
    }

    /// No more than [`STACKS_MAX`] stacks in order: the heaviest by themselves, the rest as one a cause.
    fn cut(&self) -> BTreeMap<(Cause, Vec<String>), Weights> {
        let mut all: Vec<_> = self.sums.iter().collect();
        if all.len() > STACKS_MAX {
            let weight =
                |weights: &Weights| weights.iter().flatten().fold(0, |sum: u64, w| sum.saturating_add(*w));
            all.sort_unstable_by(|(a, one), (b, two)| {
                let by_path = || (a.0, self.tree.path(a.1)).cmp(&(b.0, self.tree.path(b.1)));
                weight(two).cmp(&weight(one)).then_with(by_path)
            });
        }
        let (kept, rest) = all.split_at_checked(STACKS_MAX).unwrap_or((&all, &[]));
        let mut rows: BTreeMap<(Cause, Vec<String>), Weights> =
            kept.iter().map(|((cause, leaf), weights)| ((*cause, self.path(*leaf)), **weights)).collect();
        for ((cause, _), weights) in rest {
            let row = rows.entry((*cause, vec![REST.to_owned(), format!("[{cause}]")])).or_default();
            for (sum, weight) in row.iter_mut().zip(*weights) {
                if let Some(weight) = weight {
                    *sum = Some(sum.unwrap_or(0).saturating_add(*weight));
                }
            }
        }
        rows
    }
}

/// Puts both sides side by side. `units` are how many of the unit each side has.
pub fn compare(sides: &Sides, units: (f64, f64)) -> StackTable {
    let (mut old, mut new) = (Scale::new(units.0), Scale::new(units.1));
    let mut table = StackTable::default();
    for ((cause, stack), [one, two]) in sides.cut() {
        let before_ns = old.next(one.unwrap_or(0));
        let after_ns = new.next(two.unwrap_or(0));
        let sums = table.causes.entry(cause).or_default();
        sums.0 = sums.0.saturating_add(before_ns);
        sums.1 = sums.1.saturating_add(after_ns);
        let state = match (one, two) {
            (None, _) => StackState::New,
            (_, None) => StackState::Gone,
            _ => StackState::Both,
        };
        let delta_ns = delta_ns(before_ns, after_ns);
        table.rows.push(StackChange { stack, before_ns, after_ns, delta_ns, state });
    }
    table.rows.sort_by(|a, b| {
        (b.delta_ns.unsigned_abs(), b.before_ns, &a.stack).cmp(&(
            a.delta_ns.unsigned_abs(),
            a.before_ns,
            &b.stack,
        ))
    });
    table
}

/// A frame with everything below it. Its figures are inclusive: they are the sums of its children's, and those of
/// a stack that ends in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameChange {
    pub before_ns: u64,
    pub after_ns: u64,
    /// The larger of both sides, stack by stack: how wide it is drawn.
    pub width_ns: u64,
    pub children: BTreeMap<String, FrameChange>,
}

impl FrameChange {
    /// The tree of all stacks. Its root is what they add up to.
    pub fn of(stacks: &[StackChange]) -> FrameChange {
        let mut root = FrameChange::default();
        for row in stacks {
            root.add(row);
            let mut frame = &mut root;
            for name in &row.stack {
                frame = frame.children.entry(name.clone()).or_default();
                frame.add(row);
            }
        }
        root
    }

    fn add(&mut self, row: &StackChange) {
        self.before_ns = self.before_ns.saturating_add(row.before_ns);
        self.after_ns = self.after_ns.saturating_add(row.after_ns);
        self.width_ns = self.width_ns.saturating_add(row.before_ns.max(row.after_ns));
    }

    pub fn delta_ns(&self) -> i64 {
        delta_ns(self.before_ns, self.after_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::render::tree::{FrameKind, ViewFrame};

    type Stacks = BTreeMap<(Cause, Vec<String>), u64>;

    fn compare(before: &Stacks, after: &Stacks, units: (f64, f64)) -> StackTable {
        let mut sides = Sides::default();
        for (side, stacks) in [(Side::Before, before), (Side::After, after)] {
            for ((cause, path), weight_ns) in stacks {
                let frames: Vec<ViewFrame> =
                    path.iter().map(|name| ViewFrame::new(name, FrameKind::User)).collect();
                let leaf = sides.tree.descend(NodeId::ROOT, &frames);
                sides.add(side, *cause, leaf, *weight_ns);
            }
        }
        super::compare(&sides, units)
    }

    fn stacks(rows: &[(Cause, &str, u64)]) -> Stacks {
        let path = |text: &str| text.split(';').map(str::to_owned).collect();
        rows.iter().map(|(cause, text, weight)| ((*cause, path(text)), *weight)).collect()
    }

    #[test]
    fn stacks_of_one_side_are_new_or_gone() {
        let before = stacks(&[(Cause::SockRecv, "p;t;a", 100), (Cause::SockRecv, "p;t;b", 300)]);
        let after = stacks(&[(Cause::SockRecv, "p;t;a", 500), (Cause::TcpConnect, "p;t;c", 40)]);
        let table = compare(&before, &after, (10.0, 20.0));
        let rows: Vec<_> = table
            .rows
            .iter()
            .map(|row| {
                (row.stack.last().unwrap().as_str(), row.before_ns, row.after_ns, row.delta_ns, row.state)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("b", 30, 0, -30, StackState::Gone),
                ("a", 10, 25, 15, StackState::Both),
                ("c", 0, 2, 2, StackState::New),
            ]
        );
        assert_eq!(table.causes[&Cause::SockRecv], (40, 25));
    }

    #[test]
    fn too_many_stacks_are_added_up_by_cause() {
        let many: Stacks = (0..STACKS_MAX as u64 + 50)
            .map(|index| ((Cause::SockRecv, vec!["p".to_owned(), index.to_string()]), 1000 + index))
            .collect();
        let table = compare(&many, &many, (1.0, 1.0));
        assert_eq!(table.rows.len(), STACKS_MAX + 1);
        let rest = table.rows.iter().find(|row| row.stack[0] == REST).unwrap();
        assert_eq!(rest.before_ns, (0..50).map(|index| 1000 + index).sum::<u64>());
    }

    fn any_side() -> impl Strategy<Value = Stacks> {
        let path = proptest::collection::vec("[a-c]", 1..5);
        let cause = (0..3_usize).prop_map(|index| Cause::ALL[index]);
        proptest::collection::btree_map((cause, path), 0..5_000_000_000_u64, 0..20)
    }

    fn check(frame: &FrameChange, ending: &BTreeMap<Vec<String>, (i64, u64)>, path: &[String]) {
        let own = ending.get(path).copied().unwrap_or_default();
        let deltas: i64 = frame.children.values().map(FrameChange::delta_ns).sum();
        assert_eq!(deltas + own.0, frame.delta_ns(), "{path:?}");
        let widths: u64 = frame.children.values().map(|child| child.width_ns).sum();
        assert_eq!(widths + own.1, frame.width_ns, "{path:?}");
        for (name, child) in &frame.children {
            check(child, ending, &[path, std::slice::from_ref(name)].concat());
        }
    }

    proptest! {
        #[test]
        fn deltas_of_children_add_up_to_their_parent_s_and_causes_to_the_total(
            before in any_side(), after in any_side(), units in (1..1000_u32, 1..1000_u32)
        ) {
            let units = (f64::from(units.0) / 7.0, f64::from(units.1) / 7.0);
            let table = compare(&before, &after, units);
            let tree = FrameChange::of(&table.rows);
            let mut ending: BTreeMap<Vec<String>, (i64, u64)> = BTreeMap::new();
            for row in &table.rows {
                let entry = ending.entry(row.stack.clone()).or_default();
                entry.0 += row.delta_ns;
                entry.1 += row.before_ns.max(row.after_ns);
            }
            check(&tree, &ending, &[]);
            let (one, two) = table.causes.values().fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
            prop_assert_eq!((tree.before_ns, tree.after_ns), (one, two));
            let whole = before.values().sum::<u64>() as f64 / units.0;
            prop_assert!((whole - one as f64).abs() <= 1.0, "{} {}", whole, one);
        }

        #[test]
        fn a_side_and_itself_differ_by_nothing(side in any_side(), units in 1..1000_u32) {
            let table = compare(&side, &side, (f64::from(units), f64::from(units)));
            for row in &table.rows {
                prop_assert_eq!((row.delta_ns, row.state), (0, StackState::Both));
            }
        }
    }
}
