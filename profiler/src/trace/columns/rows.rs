//! A block of waits as it is stored: what repeats stands once, and each wait refers to it.

use super::{WaitDecoder, unfold_off_cpu, unpack_flags};
use crate::trace::record::{Socket, Wait};
use profiler_common::{Api, Call};

/// The waits of one block, for readers that make millions of them smaller.
#[derive(Debug)]
pub struct WaitBlock(pub(in crate::trace) Box<WaitDecoder>);

/// What a wait refers to, by index into its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refs {
    pub thread: u32,
    pub stack: u32,
    /// Call, function, flags, size of the set.
    pub shape: u32,
    pub list: u32,
}

impl WaitBlock {
    /// Number of waits.
    pub fn len(&self) -> usize {
        self.0.columns.end.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `(pid, tid)` of the block's threads.
    pub fn threads(&self) -> &[(u32, u32)] {
        &self.0.columns.threads
    }

    /// `(user_stack, kernel_stack)` of the block's stacks.
    pub fn stacks(&self) -> &[(u64, u64)] {
        &self.0.columns.stacks
    }

    /// A list of sockets.
    pub fn sockets(&self, list: u32) -> Vec<Socket> {
        self.0.sockets(list as usize)
    }

    /// Hands over the waits in their order, without their sockets.
    pub fn for_each(mut self, mut take: impl FnMut(&WaitBlock, Refs, Wait)) {
        let first_fds: Vec<i32> = (0..self.0.columns.list_lens.len())
            .map(|list| {
                let item = self.0.items(list).first();
                let entry = item.and_then(|item| self.0.columns.sockets.get(item.socket as usize));
                entry.map_or(0, |entry| entry.fd)
            })
            .collect();
        while let Some((refs, wait)) = self.0.next_bare(&first_fds) {
            take(&self, refs, wait);
        }
    }
}

impl WaitDecoder {
    /// The next wait without its sockets. `first_fds` are the descriptors of the first socket of each list.
    fn next_bare(&mut self, first_fds: &[i32]) -> Option<(Refs, Wait)> {
        let row = self.next;
        let list = *self.columns.list.get(row)?;
        let first_fd = first_fds.get(list as usize).copied().unwrap_or(0);
        let wait = self.bare(row, first_fd)?;
        let columns = &self.columns;
        let refs = Refs {
            thread: *columns.thread.get(row)?,
            stack: *columns.stack.get(row)?,
            shape: *columns.shape.get(row)?,
            list,
        };
        self.next += 1;
        self.last_end = wait.end_ns;
        Some((refs, wait))
    }

    /// The wait in this row, which comes after the one that ended at `last_end`, without its sockets.
    pub(super) fn bare(&self, row: usize, first_fd: i32) -> Option<Wait> {
        let columns = &self.columns;
        let end_ns = self.last_end.wrapping_add(*columns.end.get(row)? as u64);
        let duration = *columns.duration.get(row)?;
        let &(pid, tid) = columns.threads.get(*columns.thread.get(row)? as usize)?;
        let &(user_stack, kernel_stack) = columns.stacks.get(*columns.stack.get(row)? as usize)?;
        let shape = columns.shapes.get(*columns.shape.get(row)? as usize)?;
        let start_ns = end_ns.wrapping_sub(duration);
        Some(Wait {
            start_ns,
            end_ns,
            pid,
            tid,
            call: Call::from_u16(shape.call),
            flags: unpack_flags(shape.flags),
            fd: columns.fd.get(row)?.wrapping_add(first_fd),
            set_size: shape.set_size,
            polls: *columns.polls.get(row)?,
            ret: *columns.ret.get(row)?,
            arg: shape.arg,
            off_cpu_ns: unfold_off_cpu(*columns.off_cpu.get(row)?, duration),
            user_stack,
            kernel_stack,
            api: Api::from_u16(shape.api),
            api_start_ns: *columns.api_start.get(row)?,
            sockets: Vec::new(),
            sched: self.sched.get(row, start_ns, end_ns),
        })
    }
}
