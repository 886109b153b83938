//! The waits of a block, made small on the thread that decoded it: what is left to do in order is looking up what they
//! have in common, once a block, and packing.

use profiler_common::Call;

use super::dns::unsent;
use super::packed::Figures;
use super::wait;
use crate::hash::FastMap;
use crate::trace::WaitBlock;
use crate::trace::record::{DnsMessage, Socket, Wait};

/// A block of waits with what they refer to numbered within the block.
#[derive(Debug, Default)]
pub struct FoldedBlock {
    /// `(pid, tid)`.
    pub threads: Vec<(u32, u32)>,
    /// `(user_stack, kernel_stack)`.
    pub stacks: Vec<(u64, u64)>,
    /// The first wait of each kind, without its sockets, and these.
    pub kinds: Vec<(Wait, Vec<Socket>)>,
    pub rows: Vec<Row>,
    /// Questions to name servers that never left the machine.
    pub unsent: Vec<DnsMessage>,
    /// Waits that end before they begin.
    pub inconsistent: u64,
    /// Earliest and latest end.
    pub ends: Option<(u64, u64)>,
}

/// One wait.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub thread: u32,
    pub stacks: u32,
    pub kind: u32,
    pub figures: Figures,
}

impl FoldedBlock {
    pub fn new(block: WaitBlock) -> FoldedBlock {
        let mut folded = FoldedBlock {
            threads: block.threads().to_vec(),
            stacks: block.stacks().to_vec(),
            rows: Vec::with_capacity(block.len()),
            ..FoldedBlock::default()
        };
        let mut kinds: FastMap<(u32, u32, i32), u32> = FastMap::default();
        block.for_each(|block, refs, wait| {
            if wait.end_ns < wait.start_ns {
                folded.inconsistent += 1;
                return;
            }
            let (first, last) = folded.ends.unwrap_or((wait.end_ns, wait.end_ns));
            folded.ends = Some((first.min(wait.end_ns), last.max(wait.end_ns)));
            if wait.call == Call::Connect && wait.ret < 0 {
                let sockets = block.sockets(refs.list);
                folded.unsent.extend(unsent::of_connect(&Wait { sockets, ..wait.clone() }));
            }
            let figures = wait::figures(&wait);
            let next = folded.kinds.len() as u32;
            let kind = *kinds.entry((refs.shape, refs.list, wait.fd)).or_insert(next);
            if kind == next {
                folded.kinds.push((wait, block.sockets(refs.list)));
            }
            folded.rows.push(Row { thread: refs.thread, stacks: refs.stack, kind, figures });
        });
        folded
    }
}
