//! Waits, column by column: they are nearly all of a trace, and neighbours in a column resemble each other.
//!
//! Threads, stacks, shapes (what repeats of a call) and lists of sockets stand once per block and are
//! referred to by index.

use std::collections::HashMap;
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::format::BLOCK_TARGET;
use super::record::{Ends, Socket, Wait, WaitFlags};
use super::sched_columns::SchedColumns;

pub mod rows;

/// Memory of the sockets of all waits of a block, when read, that a writer aims to stay below, bytes.
pub(super) const WEIGHT_TARGET: usize = 16 << 20;
/// The same for what a reader accepts: a small block must not unfold without bound.
pub(super) const WEIGHT_MAX: usize = 32 << 20;
/// Bytes of one wait's own columns at most, as varints.
const ROW_BYTES: usize = 120;

/// What repeats from one wait to the next of the same call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Shape {
    call: u16,
    flags: u8,
    set_size: u16,
    arg: i32,
    api: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct SocketEntry {
    ino: u64,
    fd: i32,
    kind: u8,
    state: u8,
    ends: Ends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ListItem {
    socket: u32,
    events: u16,
    revents: u16,
}

/// The payload of a block of waits. The layout is frozen: see `docs/trace-format.md`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct WaitColumns {
    /// `(pid, tid)`.
    threads: Vec<(u32, u32)>,
    /// `(user_stack, kernel_stack)`.
    stacks: Vec<(u64, u64)>,
    shapes: Vec<Shape>,
    sockets: Vec<SocketEntry>,
    /// Items of each list of sockets; the lists stand one after another in `items`.
    list_lens: Vec<u32>,
    items: Vec<ListItem>,
    /// End, as the difference to the end before: records come in the order of their ends.
    end: Vec<i64>,
    duration: Vec<u64>,
    thread: Vec<u32>,
    stack: Vec<u32>,
    shape: Vec<u32>,
    list: Vec<u32>,
    /// Difference to the descriptor of the first socket.
    fd: Vec<i32>,
    ret: Vec<i64>,
    polls: Vec<u32>,
    /// See [`fold_off_cpu`].
    off_cpu: Vec<u64>,
    api_start: Vec<u64>,
}

/// A waking thread was off the CPU for nearly all of its wait, so the rest is kept: 0 for 0,
/// `duration - off_cpu + 1` up to the duration, and the value itself above.
fn fold_off_cpu(off_cpu: u64, duration: u64) -> u64 {
    if off_cpu == 0 || off_cpu > duration { off_cpu } else { duration - off_cpu + 1 }
}

fn unfold_off_cpu(folded: u64, duration: u64) -> u64 {
    // The same mapping: it is its own inverse.
    fold_off_cpu(folded, duration)
}

fn pack_flags(flags: WaitFlags) -> u8 {
    u8::from(flags.began_earlier)
        | u8::from(flags.in_flight) << 1
        | u8::from(flags.nonblocking) << 2
        | u8::from(flags.slept) << 3
        | u8::from(flags.paused) << 4
        | u8::from(flags.set_cut) << 5
        | u8::from(flags.timed) << 6
}

fn unpack_flags(bits: u8) -> WaitFlags {
    WaitFlags {
        began_earlier: bits & 1 != 0,
        in_flight: bits & 2 != 0,
        nonblocking: bits & 4 != 0,
        slept: bits & 8 != 0,
        paused: bits & 16 != 0,
        set_cut: bits & 32 != 0,
        timed: bits & 64 != 0,
    }
}

/// Memory that a socket without a path takes when it is read, rounded up; a part of the format, so the same on
/// every machine.
const SOCKET_WEIGHT: usize = 96;
const _: () = assert!(size_of::<Socket>() <= SOCKET_WEIGHT);

/// Memory that a socket takes when it is read, bytes.
fn weight(ends: &Ends) -> usize {
    SOCKET_WEIGHT + if let Ends::Unix { path } = ends { path.len() } else { 0 }
}

/// Upper limits of what a wait adds to a block.
struct Size {
    encoded: usize,
    weight: usize,
}

impl Size {
    fn of(wait: &Wait) -> Size {
        let mut size = Size { encoded: ROW_BYTES + 60, weight: 0 };
        for socket in &wait.sockets {
            let weight = weight(&socket.ends);
            // Addresses and numbers are shorter encoded than in memory, and an item is at most 11 bytes.
            size.encoded = size.encoded.saturating_add(weight + 16);
            size.weight = size.weight.saturating_add(weight);
        }
        size
    }
}

/// Index of a key, added where it is new.
fn intern<K: Eq + Hash + Clone>(index: &mut HashMap<K, u32>, keys: &mut Vec<K>, key: K) -> u32 {
    let next = keys.len() as u32;
    *index.entry(key).or_insert_with_key(|key| {
        keys.push(key.clone());
        next
    })
}

/// Collects waits until they make a block.
#[derive(Debug, Default)]
pub(super) struct WaitEncoder {
    columns: WaitColumns,
    sched: SchedColumns,
    threads: HashMap<(u32, u32), u32>,
    stacks: HashMap<(u64, u64), u32>,
    shapes: HashMap<Shape, u32>,
    sockets: HashMap<SocketEntry, u32>,
    lists: HashMap<Vec<Socket>, u32>,
    last_end: u64,
    encoded_bound: usize,
    weight: usize,
}

impl WaitEncoder {
    pub(super) fn len(&self) -> usize {
        self.columns.end.len()
    }

    /// Whether a block has to be written before this wait can be added.
    pub(super) fn is_full_for(&self, wait: &Wait) -> bool {
        let size = Size::of(wait);
        self.len() > 0
            && (self.encoded_bound.saturating_add(size.encoded) > BLOCK_TARGET
                || self.weight.saturating_add(size.weight) > WEIGHT_TARGET)
    }

    /// Size of a wait that is too large even for a block of its own.
    pub(super) fn oversize(wait: &Wait) -> Option<usize> {
        let size = Size::of(wait);
        (size.encoded > super::format::BLOCK_MAX || size.weight > WEIGHT_TARGET).then_some(size.encoded)
    }

    pub(super) fn push(&mut self, wait: Wait) {
        self.weight += wait.sockets.iter().map(|socket| weight(&socket.ends)).sum::<usize>();
        let duration = wait.end_ns.wrapping_sub(wait.start_ns);
        let first_fd = wait.sockets.first().map_or(0, |socket| socket.fd);
        let shape = Shape {
            call: wait.call as u16,
            flags: pack_flags(wait.flags),
            set_size: wait.set_size,
            arg: wait.arg,
            api: wait.api as u16,
        };
        self.sched.push(&wait);
        let list = self.intern_list(wait.sockets);
        let columns = &mut self.columns;
        let before = (columns.threads.len(), columns.stacks.len(), columns.shapes.len());
        columns.end.push(wait.end_ns.wrapping_sub(self.last_end) as i64);
        self.last_end = wait.end_ns;
        columns.duration.push(duration);
        columns.thread.push(intern(&mut self.threads, &mut columns.threads, (wait.pid, wait.tid)));
        let stack = (wait.user_stack, wait.kernel_stack);
        columns.stack.push(intern(&mut self.stacks, &mut columns.stacks, stack));
        columns.shape.push(intern(&mut self.shapes, &mut columns.shapes, shape));
        columns.list.push(list);
        columns.fd.push(wait.fd.wrapping_sub(first_fd));
        columns.ret.push(wait.ret);
        columns.polls.push(wait.polls);
        columns.off_cpu.push(fold_off_cpu(wait.off_cpu_ns, duration));
        columns.api_start.push(wait.api_start_ns);
        self.encoded_bound += ROW_BYTES
            + 10 * (columns.threads.len() - before.0)
            + 20 * (columns.stacks.len() - before.1)
            + 15 * (columns.shapes.len() - before.2);
    }

    fn intern_list(&mut self, sockets: Vec<Socket>) -> u32 {
        if let Some(&list) = self.lists.get(sockets.as_slice()) {
            return list;
        }
        for socket in &sockets {
            self.encoded_bound += weight(&socket.ends) + 16;
            let entry = SocketEntry {
                ino: socket.ino,
                fd: socket.fd,
                kind: socket.kind,
                state: socket.state,
                ends: socket.ends.clone(),
            };
            self.columns.items.push(ListItem {
                socket: intern(&mut self.sockets, &mut self.columns.sockets, entry),
                events: socket.events,
                revents: socket.revents,
            });
        }
        let list = self.columns.list_lens.len() as u32;
        self.columns.list_lens.push(sockets.len() as u32);
        self.encoded_bound += 5;
        self.lists.insert(sockets, list);
        list
    }

    /// Appends the payload of a block and starts anew.
    pub(super) fn encode(&mut self, out: &mut Vec<u8>) -> Result<(), postcard::Error> {
        let first = postcard::to_io(&self.columns, &mut *out).map(|_| ());
        let result = first.and_then(|()| self.sched.encode(out));
        self.clear();
        result
    }

    /// Keeps the memory of the columns: the next block is as large.
    fn clear(&mut self) {
        let columns = &mut self.columns;
        columns.threads.clear();
        columns.stacks.clear();
        columns.shapes.clear();
        columns.sockets.clear();
        columns.list_lens.clear();
        columns.items.clear();
        columns.end.clear();
        columns.duration.clear();
        columns.thread.clear();
        columns.stack.clear();
        columns.shape.clear();
        columns.list.clear();
        columns.fd.clear();
        columns.ret.clear();
        columns.polls.clear();
        columns.off_cpu.clear();
        columns.api_start.clear();
        self.sched.clear();
        self.threads.clear();
        self.stacks.clear();
        self.shapes.clear();
        self.sockets.clear();
        self.lists.clear();
        self.last_end = 0;
        self.encoded_bound = 0;
        self.weight = 0;
    }
}

/// Yields the waits of a block, one by one.
#[derive(Debug)]
pub(super) struct WaitDecoder {
    columns: WaitColumns,
    sched: SchedColumns,
    /// Where each list begins in `items`, and one more.
    list_starts: Vec<usize>,
    next: usize,
    last_end: u64,
}

impl WaitDecoder {
    /// `None` where the payload is not what a writer makes: columns of different lengths, indices without
    /// an entry, or lists that unfold beyond [`WEIGHT_MAX`].
    pub(super) fn new(payload: &[u8], records: u32) -> Option<WaitDecoder> {
        let (columns, rest) = postcard::take_from_bytes::<WaitColumns>(payload).ok()?;
        let sched = SchedColumns::decode(rest, records as usize)?;
        let mut list_starts = vec![0];
        let mut start = 0_usize;
        for &len in &columns.list_lens {
            start = start.checked_add(len as usize)?;
            list_starts.push(start);
        }
        let decoder = WaitDecoder { columns, sched, list_starts, next: 0, last_end: 0 };
        (decoder.has_rows(records as usize) && decoder.has_entries() && decoder.is_light()).then_some(decoder)
    }

    fn has_rows(&self, rows: usize) -> bool {
        let columns = &self.columns;
        [
            columns.end.len(),
            columns.duration.len(),
            columns.thread.len(),
            columns.stack.len(),
            columns.shape.len(),
            columns.list.len(),
            columns.fd.len(),
            columns.ret.len(),
            columns.polls.len(),
            columns.off_cpu.len(),
            columns.api_start.len(),
        ]
        .iter()
        .all(|&len| len == rows)
    }

    fn has_entries(&self) -> bool {
        let columns = &self.columns;
        let all_below = |column: &[u32], len: usize| column.iter().all(|&index| (index as usize) < len);
        all_below(&columns.thread, columns.threads.len())
            && all_below(&columns.stack, columns.stacks.len())
            && all_below(&columns.shape, columns.shapes.len())
            && all_below(&columns.list, columns.list_lens.len())
            && columns.items.iter().all(|item| (item.socket as usize) < columns.sockets.len())
            && self.list_starts.last() == Some(&columns.items.len())
    }

    fn is_light(&self) -> bool {
        let socket_weights: Vec<usize> =
            self.columns.sockets.iter().map(|socket| weight(&socket.ends)).collect();
        let list_weights: Vec<usize> = (0..self.columns.list_lens.len())
            .map(|list| {
                let weights =
                    self.items(list).iter().filter_map(|item| socket_weights.get(item.socket as usize));
                weights.fold(0, |sum, &weight| weight.saturating_add(sum))
            })
            .collect();
        let lists = self.columns.list.iter().filter_map(|&list| list_weights.get(list as usize));
        lists.fold(0_usize, |sum, &weight| sum.saturating_add(weight)) <= WEIGHT_MAX
    }

    fn items(&self, list: usize) -> &[ListItem] {
        let range = self.list_starts.get(list).zip(self.list_starts.get(list + 1));
        range.and_then(|(&from, &to)| self.columns.items.get(from..to)).unwrap_or_default()
    }

    fn sockets(&self, list: usize) -> Vec<Socket> {
        let sockets = self.items(list).iter().filter_map(|item| {
            let entry = self.columns.sockets.get(item.socket as usize)?;
            Some(Socket {
                ino: entry.ino,
                fd: entry.fd,
                kind: entry.kind,
                state: entry.state,
                ends: entry.ends.clone(),
                events: item.events,
                revents: item.revents,
            })
        });
        sockets.collect()
    }
}

impl Iterator for WaitDecoder {
    type Item = Wait;

    fn next(&mut self) -> Option<Wait> {
        let row = self.next;
        let sockets = self.sockets(*self.columns.list.get(row)? as usize);
        let first_fd = sockets.first().map_or(0, |socket| socket.fd);
        let wait = Wait { sockets, ..self.bare(row, first_fd)? };
        self.next += 1;
        self.last_end = wait.end_ns;
        Some(wait)
    }
}
