//! The waits of a thread, packed into some sixteen bytes each, and unpacked in portions that can be analysed one after
//! the other.
//!
//! They are kept as they come, in the order of their ends. A portion ends where nothing is awaited, so that no wait of
//! one reaches into another, and is sorted by start when it is unpacked.

use std::cmp::Reverse;
use std::ops::Range;

use profiler_common::{Api, Call};

use super::asleep::Asleep;
use super::wait::{Awaited, SetId, WaitSpan};
use crate::hash::FastMap;
use crate::model::socket::state;
use crate::trace::record::WaitFlags;

/// Waits that are packed together: a portion is a number of such chunks.
const CHUNK: u32 = 256;

/// Waits of a portion at least, where there are as many and the thread does not wait all the time: how many are
/// unpacked at once. No figure depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortionLen(pub u32);

impl Default for PortionLen {
    fn default() -> PortionLen {
        PortionLen(1 << 15)
    }
}

/// What the waits at one call site have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitKind {
    pub set: SetId,
    pub fd: i32,
    pub set_size: u16,
    pub call: Call,
    pub api: Api,
    pub flags: WaitFlags,
}

/// What a wait has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    pub start_ns: u64,
    pub end_ns: u64,
    pub api_start_ns: u64,
    pub polls: u32,
    /// Result, or -errno, cut to 32 bits.
    pub ret: i32,
    pub arg: i32,
    pub asleep: Asleep,
    /// As in the trace.
    pub owner: u32,
}

/// Index of a kind of waits: of call, function, flags and descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindId(u32);

/// Index of a pair of user and kernel stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StacksId(u32);

/// What packed waits refer to.
#[derive(Clone, Debug, Default)]
pub struct WaitTables {
    kinds: Vec<WaitKind>,
    kind_ids: FastMap<WaitKind, u32>,
    /// By kind: whether such a wait can be about a connection attempt.
    connects: Vec<bool>,
    /// By kind: whether the descriptor is a non-blocking one.
    spins: Vec<bool>,
    stacks: Vec<(u64, u64)>,
    stack_ids: FastMap<(u64, u64), u32>,
}

impl WaitTables {
    /// The number of this kind, whose set of descriptors is `set`.
    pub fn kind(&mut self, kind: WaitKind, set: &[Awaited]) -> KindId {
        let next = self.kinds.len() as u32;
        let id = *self.kind_ids.entry(kind).or_insert(next);
        if id == next {
            self.kinds.push(kind);
            let awaited = set.iter().any(|awaited| awaited.state == state::SYN_SENT);
            self.connects.push(awaited || kind.call == Call::Connect);
            self.spins.push(kind.flags.nonblocking);
        }
        KindId(id)
    }

    pub fn stacks(&mut self, user_stack: u64, kernel_stack: u64) -> StacksId {
        let next = self.stacks.len() as u32;
        let id = *self.stack_ids.entry((user_stack, kernel_stack)).or_insert(next);
        if id == next {
            self.stacks.push((user_stack, kernel_stack));
        }
        StacksId(id)
    }
}

/// Waits of one thread.
#[derive(Clone, Debug, Default)]
pub struct PackedWaits {
    chunks: Vec<Chunk>,
    /// The bytes of the last chunk while it is being filled.
    open: Vec<u8>,
    last_start: u64,
    /// Earliest and latest start.
    starts: Option<(u64, u64)>,
    /// Whether there are waits on non-blocking descriptors.
    spins: bool,
}

#[derive(Clone, Debug)]
struct Chunk {
    /// Empty of the one that is being filled.
    bytes: Box<[u8]>,
    len: u32,
    earliest_ns: u64,
    latest_ns: u64,
    connects: bool,
}

/// A part of a thread's waits that no other wait reaches into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    chunks: Range<usize>,
    /// Waits before it.
    pub first: u32,
    /// Whether some may be about connection attempts.
    pub connects: bool,
}

const HAS_POLLS: u8 = 1;
const HAS_API_START: u8 = 2;
const HAS_ARG: u8 = 4;
const HAS_RET: u8 = 8;
const HAS_SLEEP: u8 = 16;
const NEVER_SLEPT: u8 = 32;
const HAS_OWNER: u8 = 64;

impl PackedWaits {
    /// Adds a wait of this kind with these stacks.
    pub fn push(&mut self, wait: &Figures, tables: &WaitTables, kind: KindId, stacks: StacksId) {
        if self.chunks.last().is_none_or(|chunk| chunk.len >= CHUNK) {
            self.close();
            self.last_start = 0;
            let (earliest_ns, latest_ns) = (u64::MAX, 0);
            self.chunks.push(Chunk {
                bytes: Box::default(),
                len: 0,
                earliest_ns,
                latest_ns,
                connects: false,
            });
        }
        let (sleep, never) = wait.asleep.raw();
        let bit = |is: bool, bit: u8| if is { bit } else { 0 };
        let head = bit(wait.polls != 0, HAS_POLLS)
            | bit(wait.api_start_ns != 0, HAS_API_START)
            | bit(wait.arg != 0, HAS_ARG)
            | bit(wait.ret != 0, HAS_RET)
            | bit(sleep != [0; 3], HAS_SLEEP)
            | bit(never, NEVER_SLEPT)
            | bit(wait.owner != 0, HAS_OWNER);
        let out = &mut self.open;
        out.push(head);
        put(out, zigzag(wait.start_ns.wrapping_sub(self.last_start) as i64));
        put(out, wait.end_ns.wrapping_sub(wait.start_ns));
        put(out, u64::from(kind.0));
        put(out, u64::from(stacks.0));
        for (has, value) in [
            (HAS_RET, zigzag(i64::from(wait.ret))),
            (HAS_ARG, zigzag(i64::from(wait.arg))),
            (HAS_POLLS, u64::from(wait.polls)),
            (HAS_API_START, wait.start_ns.wrapping_sub(wait.api_start_ns)),
            (HAS_OWNER, u64::from(wait.owner)),
            (HAS_SLEEP, u64::from(sleep[0])),
            (HAS_SLEEP, u64::from(sleep[1])),
            (HAS_SLEEP, u64::from(sleep[2])),
        ] {
            if head & has != 0 {
                put(out, value);
            }
        }
        self.last_start = wait.start_ns;
        self.spins |= tables.spins.get(kind.0 as usize).copied().unwrap_or(false);
        let (first, last) = self.starts.unwrap_or((wait.start_ns, wait.start_ns));
        self.starts = Some((first.min(wait.start_ns), last.max(wait.start_ns)));
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.len += 1;
            chunk.earliest_ns = chunk.earliest_ns.min(wait.start_ns);
            chunk.latest_ns = chunk.latest_ns.max(wait.end_ns);
            chunk.connects |= tables.connects.get(kind.0 as usize).copied().unwrap_or(true);
        }
    }

    /// Gives the bytes of the last chunk their final place. The next wait begins another one.
    pub fn close(&mut self) {
        if let Some(chunk) = self.chunks.last_mut().filter(|_| !self.open.is_empty()) {
            chunk.bytes = self.open.as_slice().into();
            self.open.clear();
        }
    }

    /// No more waits will come.
    pub fn finish(&mut self) {
        self.close();
        self.open = Vec::new();
    }

    /// The earliest and the latest start.
    pub fn starts(&self) -> Option<(u64, u64)> {
        self.starts
    }

    pub fn has_spins(&self) -> bool {
        self.spins
    }

    /// All of them in order, that many a portion.
    pub fn portions(&self, least: PortionLen) -> Vec<Portion> {
        // The earliest start of what comes from there on.
        let mut earliest = vec![u64::MAX; self.chunks.len() + 1];
        for (at, chunk) in self.chunks.iter().enumerate().rev() {
            let later = earliest.get(at + 1).copied().unwrap_or(u64::MAX);
            if let Some(slot) = earliest.get_mut(at) {
                *slot = later.min(chunk.earliest_ns);
            }
        }
        let mut portions = Vec::new();
        let (mut begin, mut first, mut len, mut latest_ns, mut connects) = (0, 0_u32, 0_u32, 0, false);
        for (end, chunk) in (1..).zip(&self.chunks) {
            len = len.saturating_add(chunk.len);
            latest_ns = chunk.latest_ns.max(latest_ns);
            connects |= chunk.connects;
            let is_last = end == self.chunks.len();
            let is_free = earliest.get(end).is_some_and(|next| *next > latest_ns);
            if is_last || (len >= least.0 && is_free) {
                portions.push(Portion { chunks: begin..end, first, connects });
                first = first.saturating_add(len);
                (begin, len, connects) = (end, 0, false);
            }
        }
        portions
    }

    /// The waits of a portion by start, of those with the same start the longer first; and how many were left out
    /// because they are there twice.
    pub fn unpack(&self, portion: &Portion, tables: &WaitTables) -> (Vec<WaitSpan>, u64) {
        let chunks = self.chunks.get(portion.chunks.clone()).unwrap_or_default();
        let mut waits = Vec::with_capacity(chunks.iter().map(|chunk| chunk.len as usize).sum());
        for chunk in chunks {
            chunk.unpack(tables, &mut waits);
        }
        let duplicates =
            if waits.is_sorted_by(|a, b| a.start_ns < b.start_ns) { 0 } else { sort(&mut waits) };
        (waits, duplicates)
    }
}

/// The second value counts duplicates.
fn sort(waits: &mut Vec<WaitSpan>) -> u64 {
    // Of records of the same call the one that saw its end, then the longer one, comes first and stays.
    waits.sort_by_key(|wait| (wait.start_ns, wait.call, wait.fd, wait.flags.in_flight, Reverse(wait.end_ns)));
    let before = waits.len();
    waits.dedup_by(|next, kept| {
        next.start_ns == kept.start_ns
            && next.call == kept.call
            && next.fd == kept.fd
            && next.flags.nonblocking == kept.flags.nonblocking
    });
    let duplicates = (before - waits.len()) as u64;
    waits.sort_by_key(|wait| (wait.start_ns, Reverse(wait.end_ns)));
    duplicates
}

impl Chunk {
    fn unpack(&self, tables: &WaitTables, waits: &mut Vec<WaitSpan>) {
        let mut bytes = &self.bytes[..];
        let mut last_start = 0_u64;
        while let Some((&head, rest)) = bytes.split_first() {
            bytes = rest;
            let start_ns = last_start.wrapping_add(unzigzag(get(&mut bytes)) as u64);
            let end_ns = start_ns.wrapping_add(get(&mut bytes));
            last_start = start_ns;
            let kind = tables.kinds.get(get(&mut bytes) as usize);
            let stacks = tables.stacks.get(get(&mut bytes) as usize);
            let mut optional = |has: u8| if head & has != 0 { get(&mut bytes) } else { 0 };
            let ret = unzigzag(optional(HAS_RET)) as i32;
            let arg = unzigzag(optional(HAS_ARG)) as i32;
            let polls = optional(HAS_POLLS) as u32;
            let before = optional(HAS_API_START);
            let owner = optional(HAS_OWNER) as u32;
            let sleep = [(); 3].map(|()| optional(HAS_SLEEP) as u32);
            let api_start_ns = if head & HAS_API_START == 0 { 0 } else { start_ns.wrapping_sub(before) };
            let (Some(kind), Some(&(user_stack, kernel_stack))) = (kind, stacks) else { continue };
            waits.push(WaitSpan {
                start_ns,
                end_ns,
                api_start_ns,
                user_stack,
                kernel_stack,
                set: kind.set,
                fd: kind.fd,
                polls,
                ret,
                arg,
                set_size: kind.set_size,
                call: kind.call,
                api: kind.api,
                flags: kind.flags,
                asleep: Asleep::from_raw(sleep, head & NEVER_SLEPT != 0),
                owner,
            });
        }
    }
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends a number, seven bits a byte.
fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The number at the beginning, and moves behind it.
fn get(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    let mut shift = 0;
    while let Some((&byte, rest)) = bytes.split_first() {
        *bytes = rest;
        value |= u64::from(byte & 0x7f).wrapping_shl(shift);
        if byte < 0x80 {
            break;
        }
        shift += 7;
    }
    value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(start_ns: u64, end_ns: u64) -> WaitSpan {
        WaitSpan {
            start_ns,
            end_ns,
            api_start_ns: 0,
            user_stack: 0,
            kernel_stack: 0,
            set: SetId(0),
            fd: 3,
            polls: 0,
            ret: 0,
            arg: 0,
            set_size: 0,
            call: Call::Read,
            api: Api::None,
            flags: WaitFlags::default(),
            asleep: Asleep::default(),
            owner: 0,
        }
    }

    fn packed(waits: &[WaitSpan]) -> (PackedWaits, WaitTables) {
        let (mut packed, mut tables) = (PackedWaits::default(), WaitTables::default());
        for wait in waits {
            let WaitSpan { set, fd, set_size, call, api, flags, .. } = *wait;
            let kind = tables.kind(WaitKind { set, fd, set_size, call, api, flags }, &[]);
            let stacks = tables.stacks(wait.user_stack, wait.kernel_stack);
            let WaitSpan { start_ns, end_ns, api_start_ns, polls, ret, arg, asleep, owner, .. } = *wait;
            let figures = Figures { start_ns, end_ns, api_start_ns, polls, ret, arg, asleep, owner };
            packed.push(&figures, &tables, kind, stacks);
        }
        packed.finish();
        (packed, tables)
    }

    #[test]
    fn portions_end_where_nothing_is_awaited() {
        let mut waits: Vec<WaitSpan> = (1..80_000).map(|at| span(at * 100, at * 100 + 90)).collect();
        let firsts = |waits: &[WaitSpan]| -> Vec<u32> {
            packed(waits).0.portions(PortionLen::default()).iter().map(|portion| portion.first).collect()
        };
        assert_eq!(firsts(&waits), [0, 32_768, 65_536]);
        // Begins in the first portion and comes later, as it ends later.
        waits.insert(33_000, span(32_000 * 100, 33_000 * 100));
        assert_eq!(firsts(&waits), [0, 33_024, 65_792]);
        waits.push(span(0, 9_000_000));
        assert_eq!(firsts(&waits), [0]);
        assert!(firsts(&[]).is_empty());
    }

    fn any_wait() -> impl Strategy<Value = WaitSpan> {
        let times = (0..3_u64, 0..2000_u64, 0..60_u64).prop_map(|(far, start, len)| {
            let start = [start, start + 1000, u64::MAX - start - 60][far as usize];
            (start, start + len)
        });
        let numbers =
            (any::<u32>(), any::<i32>(), any::<i32>(), any::<u64>(), 0..3_u64, 0..3_i32, any::<[u32; 4]>());
        (times, numbers, 0..3_u16, any::<bool>()).prop_map(
            |((start, end), (polls, ret, arg, api_start_ns, stack, fd, [owner, sleep @ ..]), call, flag)| {
                WaitSpan {
                    owner: if flag { owner } else { 0 },
                    asleep: Asleep::from_raw(if fd == 1 { [0; 3] } else { sleep }, flag),
                    polls,
                    ret,
                    arg,
                    api_start_ns,
                    user_stack: stack.wrapping_mul(u64::MAX / 2),
                    fd,
                    call: Call::from_u16(call),
                    flags: WaitFlags { in_flight: flag, nonblocking: fd == 0, ..WaitFlags::default() },
                    ..span(start, end)
                }
            },
        )
    }

    proptest! {
        #[test]
        fn the_portions_together_are_all_waits_sorted_each_once(
            waits in proptest::collection::vec(any_wait(), 0..600), repeats in 1..30_usize,
            least in 0..2000_u32
        ) {
            // The same again, later: enough of them for several portions.
            let mut all = Vec::new();
            for at in 0..repeats as u64 {
                all.extend(waits.iter().map(|wait| WaitSpan {
                    start_ns: wait.start_ns.wrapping_add(at << 40),
                    end_ns: wait.end_ns.wrapping_add(at << 40),
                    ..wait.clone()
                }));
            }
            all.retain(|wait| wait.start_ns <= wait.end_ns);
            let (packed, tables) = packed(&all);
            let (mut unpacked, mut left_out) = (Vec::new(), 0);
            for portion in packed.portions(PortionLen(least)) {
                prop_assert!(portion.first as usize >= unpacked.len());
                let (waits, duplicates) = packed.unpack(&portion, &tables);
                unpacked.extend(waits);
                left_out += duplicates;
            }
            let duplicates = sort(&mut all);
            prop_assert_eq!(&unpacked, &all);
            prop_assert_eq!(left_out, duplicates);
            prop_assert_eq!(packed.has_spins(), all.iter().any(|wait| wait.flags.nonblocking));
            let starts = all.first().map(|first| (first.start_ns, all.last().unwrap().start_ns));
            prop_assert_eq!(packed.starts(), starts);
        }
    }
}
