//! Threads that hold locks: a lock names its owner by the id in its own PID namespace.

use std::collections::{HashMap, HashSet};

const EBUSY: u32 = libc::EBUSY.cast_unsigned();

/// What is known of the ids of threads.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    /// Threads by process and id in their own PID namespace.
    pub ns_tids: HashMap<(u32, u32), u32>,
    /// Process and id of all threads.
    pub threads: HashSet<(u32, u32)>,
}

impl Owners {
    /// The thread, as the host sees it, that a lock names for which the thread `tid` waits; 0 where it names none. An id
    /// that is no other thread of the same process was read from something that is no lock.
    pub fn resolve(&self, pid: u32, tid: u32, named: u32) -> u32 {
        if named == 0 {
            return 0;
        }
        let as_host = || self.threads.contains(&(pid, named)).then_some(named);
        let known = self.ns_tids.get(&(pid, named)).copied().or_else(as_host);
        // musl puts EBUSY where other locks have an id.
        let is_told = named != EBUSY && known != Some(tid);
        known.filter(|_| is_told).unwrap_or(0)
    }
}
