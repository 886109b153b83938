//! Tells the programs which stacks have been unwound, so that these are not copied again.

use std::collections::HashMap as Table;

use aya::maps::{HashMap, MapData, MapError};
use profiler_common::stack::{NO_SHAPE, SHAPE_SET};
use profiler_common::{Shape, ShapeKey, Shapes};

use crate::symbols::KnownStack;

/// Hashes that are remembered here, as many as in the kernel's table.
const REMEMBERED: usize = 16384;

/// The kernel's tables of known stacks. Whatever does not get into them is copied again.
pub struct KnownStacks {
    shapes: HashMap<MapData, ShapeKey, Shapes>,
    stacks: HashMap<MapData, u64, u64>,
    /// Hashes by process.
    told: Table<u32, Vec<u64>>,
    count: usize,
}

impl std::fmt::Debug for KnownStacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KnownStacks").field("count", &self.count).finish_non_exhaustive()
    }
}

impl KnownStacks {
    pub(super) fn new(
        shapes: HashMap<MapData, ShapeKey, Shapes>,
        stacks: HashMap<MapData, u64, u64>,
    ) -> KnownStacks {
        KnownStacks { shapes, stacks, told: Table::new(), count: 0 }
    }

    /// From now on the programs give this stack the id `id`.
    pub fn tell(&mut self, known: &KnownStack, id: u64) {
        if let Err(error) = self.try_tell(known, id) {
            log::debug!("a stack does not become known: {error}");
        }
    }

    fn try_tell(&mut self, known: &KnownStack, id: u64) -> Result<(), MapError> {
        if self.count >= REMEMBERED {
            self.forget_all();
        }
        // First what the shape leads to.
        self.stacks.insert(known.hash, id, 0)?;
        self.told.entry(known.key.tgid).or_default().push(known.hash);
        self.count += 1;
        let before = match self.shapes.get(&known.key, 0) {
            Ok(shapes) => shapes,
            Err(MapError::KeyNotFound) => [NO_SHAPE; 2],
            Err(error) => return Err(error),
        };
        match with_shape(&before, &known.shape) {
            Some(shapes) => self.shapes.insert(known.key, shapes, 0),
            None => Ok(()),
        }
    }

    /// The process runs another program: none of its stacks is known any longer.
    pub fn forget(&mut self, pid: u32) {
        for hash in self.told.remove(&pid).unwrap_or_default() {
            self.count -= 1;
            // It may have been pushed out by others.
            let _ = self.stacks.remove(&hash);
        }
    }

    fn forget_all(&mut self) {
        for pid in self.told.keys().copied().collect::<Vec<u32>>() {
            self.forget(pid);
        }
    }
}

/// The shapes of a key with one more, the newest first; `None` where it is there already.
fn with_shape(before: &Shapes, shape: &Shape) -> Option<Shapes> {
    let [newest, older] = before;
    if newest == shape || older == shape {
        return None;
    }
    let kept = if newest.flags & SHAPE_SET == 0 { older } else { newest };
    Some([*shape, *kept])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_newest_shapes_of_a_key_are_kept() {
        let shape = |count| Shape { count, flags: SHAPE_SET, ..NO_SHAPE };
        let one = with_shape(&[NO_SHAPE; 2], &shape(1)).unwrap();
        assert_eq!(one, [shape(1), NO_SHAPE]);
        let two = with_shape(&one, &shape(2)).unwrap();
        assert_eq!(two, [shape(2), shape(1)]);
        assert_eq!(with_shape(&two, &shape(1)), None);
        assert_eq!(with_shape(&two, &shape(3)).unwrap(), [shape(3), shape(2)]);
    }
}
