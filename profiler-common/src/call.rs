//! System calls and library calls by a number of our own, the same on every architecture.

/// A watched system call. The kernel's numbers differ between architectures; userspace fills the map
/// `CALLS` (system-call number to `Call`) for the machine it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Call {
    /// Not watched.
    None = 0,
    Connect = 1,
    Sendto = 2,
    Sendmsg = 3,
    Sendmmsg = 4,
    Recvfrom = 5,
    Recvmsg = 6,
    Recvmmsg = 7,
    Read = 8,
    Write = 9,
    Readv = 10,
    Writev = 11,
    Poll = 12,
    Ppoll = 13,
    Select = 14,
    Pselect6 = 15,
    EpollWait = 16,
    EpollPwait = 17,
    EpollPwait2 = 18,
    Accept = 19,
    Accept4 = 20,
    Close = 21,
    Nanosleep = 22,
    ClockNanosleep = 23,
    Futex = 24,
    IoUringEnter = 25,
    Sendfile = 26,
    Splice = 27,
    /// A call into `ib_uverbs` or the connection manager, by whatever system call. Seen by probes of its own, never in `CALLS`.
    Uverbs = 28,
}

/// One more than the largest `Call`.
pub const CALL_COUNT: usize = 29;

/// Entries of the map `CALLS`: system-call numbers that can be watched are below.
pub const CALL_TABLE: u32 = 512;

/// Stands in `CALLS` for `restart_syscall`, by which the kernel goes on with what a signal interrupted.
pub const RESTART_CALL: u16 = u16::MAX;

impl Call {
    /// All calls that are watched, in numeric order.
    pub const ALL: [Call; CALL_COUNT - 1] = [
        Call::Connect,
        Call::Sendto,
        Call::Sendmsg,
        Call::Sendmmsg,
        Call::Recvfrom,
        Call::Recvmsg,
        Call::Recvmmsg,
        Call::Read,
        Call::Write,
        Call::Readv,
        Call::Writev,
        Call::Poll,
        Call::Ppoll,
        Call::Select,
        Call::Pselect6,
        Call::EpollWait,
        Call::EpollPwait,
        Call::EpollPwait2,
        Call::Accept,
        Call::Accept4,
        Call::Close,
        Call::Nanosleep,
        Call::ClockNanosleep,
        Call::Futex,
        Call::IoUringEnter,
        Call::Sendfile,
        Call::Splice,
        Call::Uverbs,
    ];

    /// The call with this number, `Call::None` for an unknown one.
    #[must_use]
    pub fn from_u16(value: u16) -> Call {
        let mut index = 0;
        while index < Call::ALL.len() {
            if Call::ALL[index] as u16 == value {
                return Call::ALL[index];
            }
            index += 1;
        }
        Call::None
    }

    /// The kernel's name of the call.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Call::None => "none",
            Call::Connect => "connect",
            Call::Sendto => "sendto",
            Call::Sendmsg => "sendmsg",
            Call::Sendmmsg => "sendmmsg",
            Call::Recvfrom => "recvfrom",
            Call::Recvmsg => "recvmsg",
            Call::Recvmmsg => "recvmmsg",
            Call::Read => "read",
            Call::Write => "write",
            Call::Readv => "readv",
            Call::Writev => "writev",
            Call::Poll => "poll",
            Call::Ppoll => "ppoll",
            Call::Select => "select",
            Call::Pselect6 => "pselect6",
            Call::EpollWait => "epoll_wait",
            Call::EpollPwait => "epoll_pwait",
            Call::EpollPwait2 => "epoll_pwait2",
            Call::Accept => "accept",
            Call::Accept4 => "accept4",
            Call::Close => "close",
            Call::Nanosleep => "nanosleep",
            Call::ClockNanosleep => "clock_nanosleep",
            Call::Futex => "futex",
            Call::IoUringEnter => "io_uring_enter",
            Call::Sendfile => "sendfile",
            Call::Splice => "splice",
            Call::Uverbs => "uverbs",
        }
    }
}

/// A resolver function of libc whose entry is probed. The number is the uprobe's cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Api {
    /// Outside of every probed function.
    None = 0,
    Getaddrinfo = 1,
    Getnameinfo = 2,
    Gethostbyname = 3,
    Gethostbyname2 = 4,
    GethostbynameR = 5,
    Gethostbyname2R = 6,
    Gethostbyaddr = 7,
    GethostbyaddrR = 8,
    ResQuery = 9,
    ResSearch = 10,
    ResNquery = 11,
    ResNsearch = 12,
    ResSend = 13,
    ResNsend = 14,
}

impl Api {
    pub const ALL: [Api; 14] = [
        Api::Getaddrinfo,
        Api::Getnameinfo,
        Api::Gethostbyname,
        Api::Gethostbyname2,
        Api::GethostbynameR,
        Api::Gethostbyname2R,
        Api::Gethostbyaddr,
        Api::GethostbyaddrR,
        Api::ResQuery,
        Api::ResSearch,
        Api::ResNquery,
        Api::ResNsearch,
        Api::ResSend,
        Api::ResNsend,
    ];

    /// The function with this number, `Api::None` for an unknown one.
    #[must_use]
    pub fn from_u16(value: u16) -> Api {
        let mut index = 0;
        while index < Api::ALL.len() {
            if Api::ALL[index] as u16 == value {
                return Api::ALL[index];
            }
            index += 1;
        }
        Api::None
    }

    /// The exported symbol's name.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Api::None => "",
            Api::Getaddrinfo => "getaddrinfo",
            Api::Getnameinfo => "getnameinfo",
            Api::Gethostbyname => "gethostbyname",
            Api::Gethostbyname2 => "gethostbyname2",
            Api::GethostbynameR => "gethostbyname_r",
            Api::Gethostbyname2R => "gethostbyname2_r",
            Api::Gethostbyaddr => "gethostbyaddr",
            Api::GethostbyaddrR => "gethostbyaddr_r",
            Api::ResQuery => "res_query",
            Api::ResSearch => "res_search",
            Api::ResNquery => "res_nquery",
            Api::ResNsearch => "res_nsearch",
            Api::ResSend => "res_send",
            Api::ResNsend => "res_nsend",
        }
    }

    /// How the function names what it looks up, for the probe that reads the argument.
    #[must_use]
    pub const fn argument(self) -> ApiArgument {
        match self {
            Api::Getaddrinfo
            | Api::Gethostbyname
            | Api::Gethostbyname2
            | Api::GethostbynameR
            | Api::Gethostbyname2R
            | Api::ResQuery
            | Api::ResSearch => ApiArgument::NameFirst,
            Api::ResNquery | Api::ResNsearch => ApiArgument::NameSecond,
            Api::Getnameinfo => ApiArgument::SockaddrFirst,
            Api::Gethostbyaddr | Api::GethostbyaddrR => ApiArgument::AddressFirst,
            Api::None | Api::ResSend | Api::ResNsend => ApiArgument::Nothing,
        }
    }
}

/// Where a resolver function has what it looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiArgument {
    /// First argument: C string.
    NameFirst,
    /// Second argument: C string.
    NameSecond,
    /// First argument: `struct sockaddr *`, second: its length.
    SockaddrFirst,
    /// First argument: raw address, second: its length, third: the family.
    AddressFirst,
    /// A message or nothing that is worth reading.
    Nothing,
}
