//! Contexts and queue pairs in the memory of a live process.
//!
//! `ibv_post_send` and `ibv_poll_cq` are calls through the context's table of functions, and what they lead to is
//! neither exported nor named. So every aligned word of the heap that points into a provider's code is taken for
//! `ops.post_send` of a context, and believed only when everything around fits. All of it is the target's memory:
//! nothing is followed without a check, lists are not followed at all, and what is found is bounded.

use std::collections::BTreeSet;

use super::layout::{
    CONTEXT_CMD_FD, CONTEXT_DEVICE, CONTEXT_LEN, CONTEXT_POLL_CQ, CONTEXT_POST_RECV, CONTEXT_POST_SEND,
    DEVICE_FILE, DEVICE_HEAD, DEVICE_NAME, MAKERS, MakerRole, QP_EX_LEN, QP_LEN, QP_NUMBER, QP_PD,
    QP_RECV_CQ, QP_SEND_CQ, QP_STATE, QP_STATE_MAX, QP_TYPE, QP_TYPES, QP_WR_START, name_at, u32_at, u64_at,
};
use super::memory::{Memory, is_searched};
use crate::target::maps::Mapping;

/// Resident memory looked through, at most.
const SEARCHED_MAX: u64 = 16 << 30;
/// Contexts and queue pairs kept, at most.
const CONTEXTS_MAX: usize = 64;
const QUEUE_PAIRS_MAX: usize = 65536;
/// Different functions that make requests, at most.
const MAKERS_MAX: usize = 512;
/// Words that look like something and are looked at closer, at most.
const CANDIDATES_MAX: usize = 1 << 18;

/// An open device of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub address: u64,
    /// `mlx5_0`.
    pub device: String,
    pub post_send: u64,
    pub poll_cq: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePair {
    pub address: u64,
    pub number: u32,
    /// `enum ibv_qp_state`, as the library last knew it.
    pub state: u32,
    /// `enum ibv_qp_type`.
    pub kind: u32,
    pub device: String,
    /// It can be posted to through `ibv_wr_*`, which goes other ways.
    pub extended: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub contexts: Vec<Context>,
    pub queue_pairs: Vec<QueuePair>,
    /// Functions by which requests are made through the extended interface, and their addresses.
    pub makers: BTreeSet<(MakerRole, u64)>,
    /// Bytes that were resident and looked through.
    pub searched: u64,
    /// A limit was met: there can be more.
    pub cut: bool,
}

/// What `/proc` says of the process.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    pub maps: &'a [Mapping],
    /// Descriptors of device files, with the files' names (`uverbs0`).
    pub devices: &'a [(i32, String)],
}

/// Whether a library of this name drives adapters.
pub fn is_provider(name: &str) -> bool {
    const NAMES: [&str; 10] =
        ["mlx5", "mlx4", "efa", "hns", "mana", "bnxt_re", "irdma", "erdma", "rxe", "siw"];
    let Some(stem) = name.strip_prefix("lib") else { return false };
    if !stem.contains(".so") {
        return false;
    }
    let end = stem.find(['-', '.']).unwrap_or(stem.len());
    stem.get(..end).is_some_and(|driver| NAMES.contains(&driver)) || stem.contains("-rdmav")
}

/// Looks through the resident memory, twice where there is a context.
pub fn scan(memory: &dyn Memory, surroundings: Surroundings<'_>) -> Found {
    let mut found = Found::default();
    let providers: Vec<(u64, u64)> = surroundings
        .maps
        .iter()
        .filter(|mapping| mapping.perms.execute && is_provider(mapping.file_name()))
        .map(|mapping| (mapping.start, mapping.end))
        .collect();
    if providers.is_empty() || surroundings.devices.is_empty() {
        return found;
    }
    let mut search = Search { memory, surroundings, candidates: 0, cut: false };
    found.searched = search.words(&providers, &mut |search, address| {
        if let Some(context) = address.checked_sub(CONTEXT_POST_SEND as u64).and_then(|at| search.context(at))
        {
            found.contexts.push(context);
        }
        found.contexts.len() < CONTEXTS_MAX
    });
    if !found.contexts.is_empty() {
        let contexts = found.contexts.clone();
        let wanted: Vec<(u64, u64)> =
            contexts.iter().map(|context| (context.address, context.address.saturating_add(1))).collect();
        let mut seen = BTreeSet::new();
        search.words(&wanted, &mut |search, address| {
            if let Some(queue_pair) = search.queue_pair(address, &contexts)
                && seen.insert(queue_pair.address)
            {
                if queue_pair.extended && found.makers.len() < MAKERS_MAX {
                    found.makers.extend(search.makers(address));
                }
                found.queue_pairs.push(queue_pair);
            }
            found.queue_pairs.len() < QUEUE_PAIRS_MAX
        });
    }
    found.cut = search.cut;
    found
}

/// The queue pair at this address, where everything fits.
pub fn queue_pair_at(
    memory: &dyn Memory,
    surroundings: Surroundings<'_>,
    contexts: &[Context],
    address: u64,
) -> Option<QueuePair> {
    Search { memory, surroundings, candidates: 0, cut: false }.queue_pair(address, contexts)
}

/// The context at this address, where everything fits.
pub fn context_at(memory: &dyn Memory, surroundings: Surroundings<'_>, address: u64) -> Option<Context> {
    Search { memory, surroundings, candidates: 0, cut: false }.context(address)
}

/// The functions by which requests are made for the queue pair at this address, which has the extended interface.
pub fn makers_at(memory: &dyn Memory, surroundings: Surroundings<'_>, address: u64) -> Vec<(MakerRole, u64)> {
    Search { memory, surroundings, candidates: 0, cut: false }.makers(address)
}

struct Search<'a> {
    memory: &'a dyn Memory,
    surroundings: Surroundings<'a>,
    candidates: usize,
    cut: bool,
}

impl<'a> Search<'a> {
    /// Hands out the addresses of words that are in one of `ranges`; returns how many bytes were looked at.
    fn words(&mut self, ranges: &[(u64, u64)], take: &mut dyn FnMut(&mut Search<'a>, u64) -> bool) -> u64 {
        let low = ranges.iter().map(|range| range.0).min().unwrap_or(u64::MAX);
        let high = ranges.iter().map(|range| range.1).max().unwrap_or(0);
        let span = high.saturating_sub(low);
        let memory = self.memory;
        let mut searched = 0;
        let mut buffer = Vec::new();
        let mut going = true;
        self.candidates = 0;
        for mapping in self.surroundings.maps.iter().filter(|mapping| is_searched(mapping)) {
            if !going {
                break;
            }
            memory.resident(mapping.start, mapping.end, &mut |from, to| {
                let len = to.saturating_sub(from);
                if searched + len > SEARCHED_MAX {
                    (self.cut, going) = (true, false);
                    return false;
                }
                searched += len;
                buffer.resize(usize::try_from(len).unwrap_or(0), 0);
                if !memory.read(from, &mut buffer) {
                    return true;
                }
                for (index, word) in buffer.as_chunks::<8>().0.iter().enumerate() {
                    let word = u64::from_le_bytes(*word);
                    if word.wrapping_sub(low) >= span
                        || !ranges.iter().any(|range| (range.0..range.1).contains(&word))
                    {
                        continue;
                    }
                    self.candidates += 1;
                    if self.candidates > CANDIDATES_MAX || !take(self, from + 8 * index as u64) {
                        (self.cut, going) = (true, false);
                        return false;
                    }
                }
                true
            });
        }
        searched
    }

    fn is_code(&self, address: u64) -> bool {
        self.surroundings.maps.iter().any(|mapping| mapping.perms.execute && mapping.contains(address))
    }

    /// A context at this address, where everything fits.
    fn context(&self, address: u64) -> Option<Context> {
        let mut bytes = [0; CONTEXT_LEN];
        if !self.memory.read(address, &mut bytes) {
            return None;
        }
        let post_send = u64_at(&bytes, CONTEXT_POST_SEND)?;
        let poll_cq = u64_at(&bytes, CONTEXT_POLL_CQ)?;
        let post_recv = u64_at(&bytes, CONTEXT_POST_RECV)?;
        let cmd_fd = u32_at(&bytes, CONTEXT_CMD_FD)?.cast_signed();
        let (_, file) = self.surroundings.devices.iter().find(|(fd, _)| *fd == cmd_fd)?;
        if ![post_send, poll_cq, post_recv].iter().all(|function| self.is_code(*function)) {
            return None;
        }
        let mut device = [0; DEVICE_HEAD];
        if !self.memory.read(u64_at(&bytes, CONTEXT_DEVICE)?, &mut device) {
            return None;
        }
        if name_at(&device, DEVICE_FILE)? != file {
            return None;
        }
        let name = name_at(&device, DEVICE_NAME)?.to_owned();
        Some(Context { address, device: name, post_send, poll_cq })
    }

    /// A queue pair at this address, which has the address of a context.
    fn queue_pair(&self, address: u64, contexts: &[Context]) -> Option<QueuePair> {
        let mut bytes = [0; QP_EX_LEN];
        let (head, _) = bytes.split_at_mut(QP_LEN);
        if !self.memory.read(address, head) {
            return None;
        }
        let owner = u64_at(&bytes, 0)?;
        let context = contexts.iter().find(|context| context.address == owner)?;
        let (number, state, kind) =
            (u32_at(&bytes, QP_NUMBER)?, u32_at(&bytes, QP_STATE)?, u32_at(&bytes, QP_TYPE)?);
        let fits = (1..1 << 24).contains(&number) && state <= QP_STATE_MAX && QP_TYPES.contains(&kind);
        let belongs = |at| u64_at(&bytes, at).is_some_and(|object| self.word(object) == Some(owner));
        if !fits || ![QP_PD, QP_SEND_CQ, QP_RECV_CQ].into_iter().all(belongs) {
            return None;
        }
        // An old provider's queue pair may end before the extension.
        let whole = self.memory.read(address, &mut bytes);
        let extended = whole && u64_at(&bytes, QP_WR_START).is_some_and(|function| self.is_code(function));
        Some(QueuePair { address, number, state, kind, device: context.device.clone(), extended })
    }

    fn makers(&self, address: u64) -> Vec<(MakerRole, u64)> {
        let mut bytes = [0; QP_EX_LEN];
        if !self.memory.read(address, &mut bytes) {
            return Vec::new();
        }
        let function = |(at, role)| u64_at(&bytes, at).map(|address| (role, address));
        MAKERS.into_iter().filter_map(function).filter(|(_, address)| self.is_code(*address)).collect()
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests;
