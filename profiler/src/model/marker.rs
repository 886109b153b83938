//! Calls of the marker function.

use std::collections::HashMap;

use crate::trace::marker::{MarkerCalls, MarkerFunction};

/// Calls that are kept one by one; of those beyond, neighbours of a thread are put together.
const CALLS_MAX: usize = 1 << 20;
/// Files that have the function.
const FUNCTIONS_MAX: usize = 256;

/// What a trace says of its marker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Markers {
    pub functions: Vec<MarkerFunction>,
    /// By time; one entry is one call or several of one thread.
    pub calls: Vec<MarkerCalls>,
    /// Where the last entry of each thread is, once there is no room for more.
    last: HashMap<(u32, u32), usize>,
}

impl Markers {
    pub fn add_function(&mut self, function: MarkerFunction) {
        if self.functions.len() < FUNCTIONS_MAX {
            self.functions.push(function);
        }
    }

    /// Whether the record makes sense.
    pub fn add(&mut self, calls: MarkerCalls) -> bool {
        if calls.end_ns < calls.start_ns || calls.calls == 0 {
            return false;
        }
        if self.calls.len() < CALLS_MAX {
            self.calls.push(calls);
            return true;
        }
        if self.last.is_empty() {
            self.last = self.calls.iter().enumerate().map(|(at, one)| ((one.pid, one.tid), at)).collect();
        }
        let place = self.last.get(&(calls.pid, calls.tid)).and_then(|at| self.calls.get_mut(*at));
        match place {
            Some(last) => {
                last.start_ns = last.start_ns.min(calls.start_ns);
                last.end_ns = last.end_ns.max(calls.end_ns);
                last.calls = last.calls.saturating_add(calls.calls);
                true
            }
            None => false,
        }
    }

    pub(super) fn finish(&mut self) {
        self.last = HashMap::new();
        self.calls.sort_by_key(|one| (one.start_ns, one.pid, one.tid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_beyond_the_room_are_added_to_the_last_of_their_thread() {
        let call = |tid, at, calls| MarkerCalls { start_ns: at, end_ns: at, pid: 1, tid, calls };
        let mut markers = Markers::default();
        assert!((0..CALLS_MAX as u64).all(|at| markers.add(call(1, at, 1))));
        assert!(markers.add(call(1, CALLS_MAX as u64 + 5, 3)));
        assert!(!markers.add(call(2, 0, 1)), "a thread without a place");
        assert!(!markers.add(MarkerCalls { start_ns: 2, end_ns: 1, calls: 1, ..MarkerCalls::default() }));
        markers.finish();
        let last = markers.calls.last().unwrap();
        assert_eq!((markers.calls.len(), last.calls, last.end_ns), (CALLS_MAX, 4, CALLS_MAX as u64 + 5));
    }
}
