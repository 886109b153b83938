//! A wait as the model keeps it: no heap of its own, so that ten million of them fit in memory.

use profiler_common::{Api, Call};

use super::asleep::Asleep;
use super::intern::Interner;
use super::packed::Figures;
use super::socket::{SocketId, SocketTable};
use super::thread::Interval;
use crate::hash::FastMap;
use crate::trace::record::{Socket, Wait, WaitFlags};

/// What a wait on a descriptor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    Read,
    Write,
}

/// One descriptor of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Awaited {
    pub socket: SocketId,
    /// `TCP_*` when the record was made.
    pub state: u8,
    pub interest: Interest,
}

/// Index of a set of descriptors, the same for every wait on the same set. 0 is the empty set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SetId(pub u32);

/// [`Wait`] with its sockets by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitSpan {
    pub start_ns: u64,
    pub end_ns: u64,
    pub api_start_ns: u64,
    pub user_stack: u64,
    pub kernel_stack: u64,
    pub set: SetId,
    pub fd: i32,
    pub polls: u32,
    /// Result, or -errno, cut to 32 bits.
    pub ret: i32,
    pub arg: i32,
    /// Descriptors in the poll set, also those that `set` lacks.
    pub set_size: u16,
    pub call: Call,
    pub api: Api,
    pub flags: WaitFlags,
    /// Where in it the thread slept.
    pub asleep: Asleep,
    /// The thread that held the lock: as in the trace at first, as the host sees it in the finished model. 0: unknown.
    pub owner: u32,
}

impl WaitSpan {
    /// The part in which the thread waited: from its first sleep to the last wake-up, or all of it where that was not
    /// seen.
    pub fn asleep(&self) -> Interval {
        self.asleep.within(self.start_ns, self.end_ns)
    }

    /// Nanoseconds of `part` in which the thread waited. Where in [`WaitSpan::asleep`] it woke up in between is not
    /// known, so that is spread evenly; the parts of a wait add up to the whole.
    pub fn waited_ns(&self, part: Interval) -> u64 {
        self.asleep.share(self.asleep(), part)
    }
}

/// All sets of descriptors that were waited for.
#[derive(Clone, Debug)]
pub struct SetTable {
    sets: Vec<Box<[Awaited]>>,
    ids: FastMap<Box<[Awaited]>, SetId>,
}

impl Default for SetTable {
    fn default() -> SetTable {
        let empty: Box<[Awaited]> = Box::default();
        SetTable { sets: vec![empty.clone()], ids: FastMap::from_iter([(empty, SetId(0))]) }
    }
}

impl SetTable {
    /// The number of this set.
    pub fn intern(&mut self, set: &[Awaited]) -> SetId {
        if let Some(id) = self.ids.get(set) {
            return *id;
        }
        let Ok(next) = u32::try_from(self.sets.len()) else { return SetId(0) };
        self.sets.push(set.into());
        self.ids.insert(set.into(), SetId(next));
        SetId(next)
    }

    pub fn get(&self, id: SetId) -> &[Awaited] {
        self.sets.get(id.0 as usize).map_or(&[], |set| set)
    }
}

const POLL_READ: u16 = 0x1 | 0x2 | 0x40 | 0x80 | 0x2000;
const POLL_WRITE: u16 = 0x4 | 0x100 | 0x200;

/// Whether the call takes a set of descriptors.
pub fn is_poll(call: Call) -> bool {
    matches!(
        call,
        Call::Poll
            | Call::Ppoll
            | Call::Select
            | Call::Pselect6
            | Call::EpollWait
            | Call::EpollPwait
            | Call::EpollPwait2
            | Call::IoUringEnter
    )
}

fn is_epoll(call: Call) -> bool {
    matches!(call, Call::EpollWait | Call::EpollPwait | Call::EpollPwait2)
}

/// What `call` on `socket` waits for. A set that asks for neither reading nor writing waits for the peer
/// to hang up, which is reading.
fn interest(call: Call, call_fd: i32, socket: &Socket) -> Interest {
    let writes = match call {
        Call::Connect
        | Call::Sendto
        | Call::Sendmsg
        | Call::Sendmmsg
        | Call::Write
        | Call::Writev
        | Call::Close
        | Call::Sendfile => true,
        // The first descriptor is the source.
        Call::Splice => socket.fd != call_fd,
        call if is_poll(call) => socket.events & POLL_WRITE != 0 && socket.events & POLL_READ == 0,
        _ => false,
    };
    if writes { Interest::Write } else { Interest::Read }
}

/// The set of descriptors that a call on `sockets` waits for.
pub fn fold_set(
    call: Call,
    fd: i32,
    wait_sockets: &[Socket],
    sockets: &mut SocketTable,
    sets: &mut SetTable,
    names: &mut Interner,
) -> SetId {
    // The kernel adds errors and hang-ups to what an item asks for, so one that asks for nothing is disarmed
    // (`EPOLLONESHOT`); nothing anywhere means that the events are not known.
    let armed = is_epoll(call) && wait_sockets.iter().any(|socket| socket.events != 0);
    let set: Vec<Awaited> = wait_sockets
        .iter()
        .filter(|socket| !armed || socket.events != 0)
        .map(|socket| Awaited {
            socket: sockets.intern(socket, names),
            state: socket.state,
            interest: interest(call, fd, socket),
        })
        .collect();
    sets.intern(&set)
}

/// What each wait has of its own.
pub fn figures(wait: &Wait) -> Figures {
    let ret = i32::try_from(wait.ret).unwrap_or(if wait.ret < 0 { i32::MIN } else { i32::MAX });
    Figures {
        start_ns: wait.start_ns,
        end_ns: wait.end_ns,
        api_start_ns: wait.api_start_ns,
        polls: wait.polls,
        ret,
        arg: wait.arg,
        asleep: Asleep::of(wait),
        owner: wait.sched.owner,
    }
}
