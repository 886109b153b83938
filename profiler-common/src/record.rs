//! Records of the ring buffer `EVENTS`. Each begins with a [`Header`].

/// First eight bytes of every record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// A [`RecordKind`].
    pub kind: u32,
    /// Length of the whole record in bytes, this header included.
    pub len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RecordKind {
    /// [`WaitRecord`] followed by `nsocks` [`SockRecord`]s.
    Wait = 1,
    /// [`DnsRecord`] followed by `captured` bytes of the message.
    Dns = 2,
    /// [`ApiRecord`].
    Api = 3,
    /// [`HandshakeRecord`].
    Handshake = 4,
    /// [`RetransmitRecord`].
    Retransmit = 5,
    /// [`LifeRecord`].
    Life = 6,
    /// [`StackRecord`], followed by `frames` program counters (`u64`) and `snippet` bytes of the stack.
    Stack = 7,
    /// [`ThreadTimeRecord`].
    ThreadTime = 8,
    /// [`VerbsPostRecord`](crate::verbs::VerbsPostRecord).
    VerbsPost = 48,
    /// [`VerbsCompletionRecord`](crate::verbs::VerbsCompletionRecord).
    VerbsCompletion = 49,
    /// [`VerbsImageRecord`](crate::verbs::VerbsImageRecord).
    VerbsImage = 50,
    /// [`VerbsEntryRecord`](crate::verbs::VerbsEntryRecord).
    VerbsEntry = 51,
    /// [`VerbsSetupRecord`](crate::verbs::VerbsSetupRecord).
    VerbsSetup = 52,
    /// [`MarkerRecord`](crate::marker::MarkerRecord).
    Marker = 60,
    /// [`SetupRecord`](crate::rdma_kernel::SetupRecord).
    Setup = 64,
    /// [`AsyncEventRecord`](crate::rdma_kernel::AsyncEventRecord).
    AsyncEvent = 65,
}

impl RecordKind {
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<RecordKind> {
        Some(match value {
            1 => RecordKind::Wait,
            2 => RecordKind::Dns,
            3 => RecordKind::Api,
            4 => RecordKind::Handshake,
            5 => RecordKind::Retransmit,
            6 => RecordKind::Life,
            7 => RecordKind::Stack,
            8 => RecordKind::ThreadTime,
            48 => RecordKind::VerbsPost,
            49 => RecordKind::VerbsCompletion,
            50 => RecordKind::VerbsImage,
            51 => RecordKind::VerbsEntry,
            52 => RecordKind::VerbsSetup,
            60 => RecordKind::Marker,
            64 => RecordKind::Setup,
            65 => RecordKind::AsyncEvent,
            _ => return None,
        })
    }
}

/// A socket as the kernel sees it at the moment of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SockRecord {
    /// Inode number, unique among open sockets of the machine; what `/proc/PID/fd` and `sock_diag` show. 0: none.
    pub ino: u64,
    pub fd: i32,
    /// `AF_*`; 0 where the descriptor is no socket (pipe, eventfd, file).
    pub family: u16,
    /// `SOCK_STREAM`, `SOCK_DGRAM` ….
    pub sock_type: u8,
    /// `TCP_ESTABLISHED` (1), `TCP_SYN_SENT` (2) … `TCP_LISTEN` (10); UDP: 1 connected, 7 not.
    pub state: u8,
    /// Host byte order.
    pub local_port: u16,
    /// Host byte order.
    pub peer_port: u16,
    /// Events asked for in a poll set (`POLLIN` …), 0 elsewhere.
    pub events: u16,
    /// Events returned, 0 where none or unknown.
    pub revents: u16,
    /// `AF_INET`: bytes 0..4 local, 16..20 peer. `AF_INET6`: 0..16 local, 16..32 peer, network order.
    /// `AF_UNIX`: the peer's path (first 40 bytes, zero-filled; an abstract name begins with a zero byte).
    pub addr: [u8; 40],
}

/// A call, or a wait on a non-blocking descriptor, or a thread that is still blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct WaitRecord {
    pub header: Header,
    pub start_ns: u64,
    /// Return of the call; the time of the look for one that is in flight.
    pub end_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    /// A `Call`.
    pub call: u16,
    /// `WAIT_*`.
    pub flags: u16,
    /// Number of [`SockRecord`]s that follow.
    pub nsocks: u16,
    /// Descriptors in the poll set, also those not looked at (saturating). Where sockets take all the
    /// places for descriptions, those that are no sockets are not counted.
    pub nfds: u16,
    /// First argument where it is a descriptor, else -1.
    pub fd: i32,
    /// Looks that found nothing, folded into this wait.
    pub polls: u32,
    /// Result as the kernel returned it (negative: -errno). 0 in flight.
    pub ret: i64,
    /// Time asleep inside: from each `sched_switch` away to the wake-up, without the wait for a processor after it.
    /// 0 where unknown.
    pub off_cpu_ns: u64,
    /// Id of the user stack, 0: none. The stack itself comes in a [`StackRecord`].
    pub user_stack: u64,
    /// Hash of the kernel stack at the longest sleep, 0: none.
    pub kernel_stack: u64,
    /// Registers of the thread in user mode: program counter, stack pointer, frame pointer.
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// Start of the resolver call that the thread is in, as in its [`ApiRecord`]; 0: none.
    pub api_start_ns: u64,
    /// An `Api`.
    pub api: u32,
    /// Second and third raw argument where they tell something: time-out in milliseconds of `poll` and
    /// `epoll_wait` (-1: none), operation of `futex`.
    pub arg: i32,
    /// Beginning of the first sleep inside; 0: it did not sleep, or `WAIT_TIMED` is not set.
    pub sleep_ns: u64,
    /// The wake-up that ended the last one. What follows is the wait for a processor and work.
    pub wake_ns: u64,
    /// Time inside in which the thread waited for a processor.
    pub runq_ns: u64,
    /// Thread that held the lock of a `futex` call when this one went to sleep, by its id in its own PID namespace;
    /// 0: the word does not tell.
    pub owner: u32,
    pub reserved: u32,
}

/// The thread entered the call before the recording; `start_ns` is the best lower bound of its age.
pub const WAIT_BEGAN_EARLIER: u16 = 1;
/// Not ended: written when the recording stops.
pub const WAIT_IN_FLIGHT: u16 = 2;
/// Folded looks at a non-blocking descriptor (`EAGAIN` … progress).
pub const WAIT_NONBLOCKING: u16 = 4;
/// The thread slept inside.
pub const WAIT_SLEPT: u16 = 8;
/// A segment of a non-blocking wait that ended without progress, because the thread turned to something else.
pub const WAIT_PAUSED: u16 = 16;
/// Not all descriptors of the set were looked at, and none of those that were is a listening socket.
pub const WAIT_SET_CUT: u16 = 32;

/// The scheduler's probes ran: `sleep_ns`, `wake_ns` and `runq_ns` say where the thread slept, and that it did not
/// where they are 0.
pub const WAIT_TIMED: u16 = 64;

/// Set in `WaitRecord::arg` of `futex`: the word had the value by which locks without an owner's id are contended.
pub const FUTEX_CONTENDED: i32 = 1 << 16;

/// A DNS message that was sent or received, or the error in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DnsRecord {
    pub header: Header,
    /// Return of the call.
    pub time_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    /// Bytes of the whole message as the call returned them, or -errno.
    pub ret: i64,
    pub api_start_ns: u64,
    pub api: u32,
    /// 0 sent, 1 received.
    pub direction: u16,
    /// Bytes that follow.
    pub captured: u16,
    pub sock: SockRecord,
}

/// Captured bytes of a DNS message at most.
pub const DNS_CAPTURE: usize = 512;

/// Entry of a resolver function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ApiRecord {
    pub header: Header,
    pub time_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    /// An `Api`.
    pub api: u32,
    /// Bytes of `argument` that are valid.
    pub len: u32,
    /// The name (no terminator), or the raw `sockaddr`, or the raw address; see `Api::argument`.
    pub argument: [u8; 128],
}

/// End of a TCP handshake, successful or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct HandshakeRecord {
    pub header: Header,
    pub start_ns: u64,
    pub end_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    /// `sk_err` at the end: 0 and state established: success; 0 and state closed: given up by the program.
    pub error: i32,
    /// `WAIT_BEGAN_EARLIER`, `WAIT_IN_FLIGHT`.
    pub flags: u16,
    pub reserved: u16,
    pub syn_retransmits: u32,
    pub reserved2: u32,
    pub sock: SockRecord,
}

/// One retransmitted TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RetransmitRecord {
    pub header: Header,
    pub time_ns: u64,
    pub tgid: u32,
    pub reserved: u32,
    pub sock: SockRecord,
}

/// Birth, change of program and end of processes and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LifeRecord {
    pub header: Header,
    pub time_ns: u64,
    /// `LIFE_*`.
    pub event: u32,
    pub tgid: u32,
    pub tid: u32,
    /// Fork: the process that forked.
    pub parent_tgid: u32,
    pub comm: [u8; 16],
}

pub const LIFE_FORK: u32 = 1;
pub const LIFE_THREAD: u32 = 2;
pub const LIFE_EXEC: u32 = 3;
/// One thread ended.
pub const LIFE_EXIT: u32 = 4;

/// What a thread had of the processors when it ended, by the kernel's own account, since its birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ThreadTimeRecord {
    pub header: Header,
    pub time_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    pub running_ns: u64,
    /// Waiting for one.
    pub runnable_ns: u64,
}

/// A stack that was not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct StackRecord {
    pub header: Header,
    /// What waits refer to it by: the hash of a kernel stack, a number of its own for each copy of a user stack.
    pub id: u64,
    /// User: hash of the frame records that the frame pointer leads to.
    pub chain: u64,
    pub tgid: u32,
    pub tid: u32,
    /// 0 user, 1 kernel.
    pub space: u16,
    /// Program counters that follow, innermost first.
    pub frames: u16,
    /// Bytes of stack memory that follow them, from `sp` upward.
    pub snippet: u32,
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
}

/// Frames of one stack at most.
pub const STACK_FRAMES: usize = 127;
/// Bytes of stack memory copied at most. With the rest of the buffer it must fit into 32 KiB, the most that the kernel
/// keeps for each processor in one map entry.
pub const STACK_SNIPPET: usize = 24 << 10;
/// Sockets described for one wait at most.
pub const WAIT_SOCKS: usize = 16;

const _: () = assert!(size_of::<Header>() == 8);
const _: () = assert!(size_of::<SockRecord>() == 64);
const _: () = assert!(size_of::<WaitRecord>() == 152);
const _: () = assert!(size_of::<DnsRecord>() == 112);
const _: () = assert!(size_of::<ApiRecord>() == 160);
const _: () = assert!(size_of::<HandshakeRecord>() == 112);
const _: () = assert!(size_of::<RetransmitRecord>() == 88);
const _: () = assert!(size_of::<LifeRecord>() == 48);
const _: () = assert!(size_of::<StackRecord>() == 64);
const _: () = assert!(size_of::<ThreadTimeRecord>() == 40);

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding (sizes asserted above): every bit pattern is valid. It is the
    // value of the map `HANDSHAKES`.
    unsafe impl aya::Pod for super::HandshakeRecord {}
}
