//! Kinds of calls, as sets of bits by `Call` number: one shift answers a question on the hot path.

use profiler_common::Call;

#[derive(Clone, Copy)]
pub struct Class(u32);

const fn class<const N: usize>(calls: [Call; N]) -> Class {
    let mut bits = 0;
    let mut index = 0;
    while index < N {
        bits |= 1 << calls[index] as u32;
        index += 1;
    }
    Class(bits)
}

impl Class {
    #[inline(always)]
    pub fn has(self, call: u32) -> bool {
        self.0 >> (call & 31) & 1 != 0
    }

    const fn and(self, other: Class) -> Class {
        Class(self.0 | other.0)
    }
}

/// Takes something from a descriptor, in the first argument.
pub const RECEIVE: Class = class([
    Call::Recvfrom,
    Call::Recvmsg,
    Call::Recvmmsg,
    Call::Read,
    Call::Readv,
    Call::Accept,
    Call::Accept4,
]);

/// Puts something into the descriptor in the first argument.
pub const SEND: Class =
    class([Call::Sendto, Call::Sendmsg, Call::Sendmmsg, Call::Write, Call::Writev, Call::Sendfile]);

/// Those of the above that files have too.
pub const ANY_FILE: Class =
    class([Call::Read, Call::Write, Call::Readv, Call::Writev, Call::Sendfile, Call::Splice]);

/// Describes what is transferred by `struct msghdr`.
pub const WITH_HEADS: Class = class([Call::Sendmsg, Call::Sendmmsg, Call::Recvmsg, Call::Recvmmsg]);

pub const ACCEPT: Class = class([Call::Accept, Call::Accept4]);

/// The first argument is a descriptor whose socket belongs to the wait.
pub const ON_SOCKET: Class = RECEIVE.and(SEND).and(class([Call::Connect, Call::Splice]));

/// Waits on a set of descriptors.
pub const ON_SET: Class = class([
    Call::Poll,
    Call::Ppoll,
    Call::Select,
    Call::Pselect6,
    Call::EpollWait,
    Call::EpollPwait,
    Call::EpollPwait2,
]);

pub const POLL: Class = class([Call::Poll, Call::Ppoll]);
pub const SELECT: Class = class([Call::Select, Call::Pselect6]);
pub const EPOLL: Class = class([Call::EpollWait, Call::EpollPwait, Call::EpollPwait2]);

/// The first argument is a descriptor.
pub const HAS_FD: Class = ON_SOCKET.and(EPOLL).and(class([Call::Close, Call::IoUringEnter]));
