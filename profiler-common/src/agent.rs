//! What the recorder and the agent inside a target share: one anonymous file that the agent maps and the recorder reads
//! and writes as a file, so that a target that shrinks or scribbles on it cannot harm the recorder.
//!
//! From its beginning: the [`Control`] page, [`NAMES`] bytes of names, [`SLOTS`] slots. All of it is hostile to the
//! recorder: the target can write it.

use core::mem::{offset_of, size_of};

/// Marks the file, and with [`VERSION`] the layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"stallgpu");
pub const VERSION: u32 = 1;

/// Bytes of the control page.
pub const CONTROL: usize = 4096;
/// Bytes for names.
pub const NAMES: usize = 1 << 20;
/// Activities that wait for the recorder at most; a power of two.
pub const SLOTS: usize = 1 << 16;
/// Bytes of the whole file.
pub const SIZE: usize = CONTROL + NAMES + SLOTS * size_of::<Slot>();
/// Longest name that is kept, bytes.
pub const NAME_LEN: usize = 1024;
/// Longest path of a library, bytes, with the 0 at its end.
pub const PATH_LEN: usize = 1024;

/// The agent goes quiet when the recorder's time is older than this, nanoseconds.
pub const SILENCE_NS: u64 = 1_000_000_000;

/// The first page. Who writes a field stands beside it; each is read and written as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Control {
    /// Recorder, before the agent starts.
    pub magic: u64,
    /// Recorder, before the agent starts.
    pub version: u32,
    /// Recorder: not 0 asks the agent to leave.
    pub leave: u32,
    /// Recorder: its `CLOCK_MONOTONIC`, again and again.
    pub alive_ns: u64,
    /// Recorder: slots taken so far.
    pub tail: u64,
    /// Agent: slots handed out so far.
    pub head: u64,
    /// Agent: bytes of names handed out so far.
    pub names: u64,
    /// Agent: activities that found no slot.
    pub dropped: u64,
    /// Agent: activities that CUPTI itself dropped.
    pub cupti_dropped: u64,
    /// Agent: names that found no room.
    pub names_dropped: u64,
    /// Agent: activities that had not ended when it left.
    pub unfinished: u64,
    /// Agent: nanoseconds spent in CUPTI's buffer callbacks.
    pub callback_ns: u64,
    /// Agent: a [`State`].
    pub state: u32,
    /// Agent: a [`Step`], the one that failed where `state` says so.
    pub step: u32,
    /// Agent: what CUPTI answered to it.
    pub result: u32,
    /// Agent: `cuptiGetVersion`.
    pub cupti_version: u32,
    /// Agent: its thread.
    pub tid: u32,
    /// Agent: not 0 where launches are not seen, so that queueing is unknown.
    pub no_launches: u32,
}

/// What the agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Not there yet.
    None = 0,
    Starting = 1,
    Running = 2,
    /// Left, and CUPTI was finalised.
    Finalized = 3,
    /// Left; CUPTI stays loaded with everything turned off.
    Disabled = 4,
    /// Another client has CUPTI.
    Taken = 5,
    /// `step` and `result` say what.
    Failed = 6,
}

impl State {
    pub const fn from_u32(number: u32) -> Option<State> {
        Some(match number {
            0 => State::None,
            1 => State::Starting,
            2 => State::Running,
            3 => State::Finalized,
            4 => State::Disabled,
            5 => State::Taken,
            6 => State::Failed,
            _ => return None,
        })
    }

    /// The agent does nothing any more.
    pub const fn is_over(self) -> bool {
        !matches!(self, State::None | State::Starting | State::Running)
    }
}

/// What the agent did last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    None = 0,
    /// `dlopen` of CUPTI.
    Load = 1,
    /// Its functions.
    Functions = 2,
    /// `cuptiGetVersion`: below CUDA 12.0.
    Version = 3,
    Subscribe = 4,
    Clock = 5,
    Buffers = 6,
    Kernels = 7,
    Copies = 8,
    /// Memory for buffers.
    Memory = 9,
}

/// One activity, as CUPTI tells it and as the recorder takes it out of its [`Slot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    pub kind: Kind,
    /// Kind of a copy, as CUPTI numbers it.
    pub detail: u16,
    /// Hash of the name, 0: none.
    pub name: u64,
    /// `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    pub end_ns: u64,
    pub bytes: u64,
    pub device: u32,
    pub stream: u32,
    /// Connects a launch with what it launched.
    pub correlation: u32,
    /// Thread of a launch or a wait, by its id in its own PID namespace.
    pub tid: u32,
}

/// Where an [`Activity`] lies in the shared file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Slot {
    /// Number of this slot's turn, the low half of `head` after it was handed out: written last.
    pub turn: u32,
    /// A [`Kind`].
    pub kind: u16,
    /// Kind of a copy, as CUPTI numbers it.
    pub detail: u16,
    /// Hash of the name, 0: none.
    pub name: u64,
    /// `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    pub end_ns: u64,
    pub bytes: u64,
    pub device: u32,
    pub stream: u32,
    /// Connects a launch with what it launched.
    pub correlation: u32,
    /// Thread of a launch.
    pub tid: u32,
    pub reserved: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    Kernel = 1,
    Copy = 2,
    Launch = 3,
    /// A call that waits for the GPU; `detail` is its place in [`SYNCS`](crate::cuda::SYNCS).
    Sync = 4,
}

/// Stands before each name; names begin at multiples of 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NameHead {
    pub hash: u64,
    /// Bytes that follow, without a 0.
    pub len: u32,
    /// 1 once the name is complete: written last.
    pub complete: u32,
}

/// What the recorder hands to the agent's entry, `stallscope_start(*mut Start)`, and what that answers. It lies on the
/// stack of the thread that makes the call, below what that thread uses, and is gone when the thread goes on.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Start {
    pub version: u32,
    /// A [`Phase`]; both sides write it in turn.
    pub phase: u32,
    /// Functions of the target's libc.
    pub dlopen: u64,
    pub dlsym: u64,
    pub pthread_create: u64,
    pub pthread_detach: u64,
    pub clock_gettime: u64,
    pub errno_location: u64,
    /// A descriptor to close, -1: none.
    pub image: i32,
    /// Agent: descriptor of the shared file, -1: none.
    pub ring: i32,
    /// Agent: a `START_*`.
    pub result: i64,
    /// What the entry leaves in `stallscope_left` when the thread takes its own way; never 0.
    pub token: u64,
    /// CUPTI's path in the target, ends with 0.
    pub path: [u8; PATH_LEN],
}

/// How far the entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    Begun = 0,
    /// Agent: `ring` is there to be opened.
    Offered = 1,
    /// Recorder: it was.
    Opened = 2,
    /// Agent: all is done, and the thread waits to be put back.
    Done = 3,
}

/// The entry waits this long for the recorder, then for being put back; after that the thread takes its own way.
pub const HOLD_NS: u64 = 200_000_000;

/// The agent's thread runs.
pub const START_OK: i64 = 0x2000_0000;
/// The agent works for another recorder.
pub const START_BUSY: i64 = START_OK + 1;
/// Of another version.
pub const START_VERSION: i64 = START_OK + 2;
/// The shared file could not be made or mapped.
pub const START_MAP: i64 = START_OK + 3;
/// No thread could be made.
pub const START_THREAD: i64 = START_OK + 4;
/// In a child of a process in which the agent was at work: CUDA cannot be used in it.
pub const START_FORKED: i64 = START_OK + 5;

/// Hash of a name; never 0.
pub const fn name_hash(name: &[u8]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut rest = name;
    while let Some((&byte, tail)) = rest.split_first() {
        hash = (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3);
        rest = tail;
    }
    if hash == 0 { 1 } else { hash }
}

const _: () = {
    assert!(size_of::<Control>() == 112);
    assert!(size_of::<Slot>() == 64);
    assert!(size_of::<NameHead>() == 16);
    assert!(size_of::<Start>() == 80 + PATH_LEN);
    assert!(offset_of!(Control, head) == 32);
    assert!(SLOTS.is_power_of_two());
    assert!(SIZE <= 8 << 20);
};
