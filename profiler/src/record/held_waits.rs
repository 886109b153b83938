//! Waits whose user stack was copied and is not unwound yet. Only then is it known whether the stack is one that the
//! trace has already, under another id.

use std::collections::{HashMap, VecDeque};

use crate::trace::record::Wait;

/// Waits that are held back at most; they take some hundred bytes each.
const HELD: usize = 32768;
/// Ids that are translated; waits on non-blocking descriptors refer to their stack when they end, which can be late.
const TRANSLATED: usize = 65536;

#[derive(Debug, Default)]
pub struct HeldWaits {
    /// By the id of the copy.
    waits: HashMap<u64, Vec<Wait>>,
    held: usize,
    same_as: HashMap<u64, u64>,
    /// Those ids, the oldest first.
    order: VecDeque<u64>,
    dropped_stacks: u64,
}

impl HeldWaits {
    /// The copy `id` will be unwound.
    pub fn expect(&mut self, id: u64) {
        self.waits.entry(id).or_default();
    }

    /// Gives the wait back, its stack translated, where it can be written now.
    pub fn pass(&mut self, mut wait: Wait) -> Option<Wait> {
        if let Some(same_as) = self.same_as.get(&wait.user_stack) {
            wait.user_stack = *same_as;
            return Some(wait);
        }
        let Some(waits) = self.waits.get_mut(&wait.user_stack) else { return Some(wait) };
        if self.held >= HELD {
            self.dropped_stacks += 1;
            wait.user_stack = 0;
            return Some(wait);
        }
        self.held += 1;
        waits.push(wait);
        None
    }

    /// The copy `id` is the stack `same_as`: the waits that were held back for it.
    pub fn resolve(&mut self, id: u64, same_as: u64) -> Vec<Wait> {
        let mut waits = self.waits.remove(&id).unwrap_or_default();
        self.held -= waits.len();
        if id != same_as {
            for wait in &mut waits {
                wait.user_stack = same_as;
            }
            self.translate(id, same_as);
        }
        waits
    }

    fn translate(&mut self, id: u64, same_as: u64) {
        if self.order.len() >= TRANSLATED
            && let Some(oldest) = self.order.pop_front()
        {
            self.same_as.remove(&oldest);
        }
        if self.same_as.insert(id, same_as).is_none() {
            self.order.push_back(id);
        }
    }

    /// All that is still held back: nobody will unwind their stacks.
    pub fn give_up(&mut self) -> Vec<Wait> {
        self.held = 0;
        self.waits.drain().flat_map(|(_, waits)| waits).collect()
    }

    /// Waits that lost their stack because too many were held back.
    pub fn dropped_stacks(&self) -> u64 {
        self.dropped_stacks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture;

    fn wait(start_ns: u64, user_stack: u64) -> Wait {
        Wait { user_stack, ..fixture::wait(profiler_common::Call::Read, start_ns, start_ns + 1, Vec::new()) }
    }

    #[test]
    fn waits_go_on_with_the_stack_that_theirs_turns_out_to_be() {
        let mut held = HeldWaits::default();
        held.expect(5);
        assert_eq!(held.pass(wait(1, 5)), None);
        assert_eq!(held.pass(wait(2, 6)), Some(wait(2, 6)));
        assert_eq!(held.resolve(5, 4), [wait(1, 4)]);
        // One that comes later.
        assert_eq!(held.pass(wait(3, 5)), Some(wait(3, 4)));
    }

    #[test]
    fn a_stack_of_its_own_keeps_its_id() {
        let mut held = HeldWaits::default();
        held.expect(5);
        assert_eq!(held.pass(wait(1, 5)), None);
        assert_eq!(held.resolve(5, 5), [wait(1, 5)]);
        assert_eq!(held.pass(wait(2, 5)), Some(wait(2, 5)));
    }

    #[test]
    fn no_more_than_a_bounded_number_is_held_back() {
        let mut held = HeldWaits::default();
        held.expect(5);
        for start_ns in 0..HELD as u64 {
            assert_eq!(held.pass(wait(start_ns, 5)), None);
        }
        assert_eq!(held.pass(wait(9, 5)), Some(wait(9, 0)));
        assert_eq!((held.dropped_stacks(), held.give_up().len()), (1, HELD));
        for id in 10..10 + 2 * TRANSLATED as u64 {
            assert!(held.resolve(id, 4).is_empty());
        }
        assert_eq!((held.same_as.len(), held.order.len()), (TRANSLATED, TRANSLATED));
    }
}
