//! The kernel's side of RDMA: what its functions are watched for, what is kept of each call, and the records of them.

use crate::record::{Header, WaitRecord};

/// What a watched kernel function is to a call. The number is the lowest byte of a probe's cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Role {
    /// The system call's way in: a call begins and ends with it.
    Outer = 1,
    /// Says what the call is for, see [`SetupOp`].
    Operation = 2,
    /// Pins and maps memory. Argument 0: bytes.
    Pin = 3,
    /// The driver's part of the operation. Argument 0: bytes, where it is about memory.
    Driver = 4,
    /// A command to the device, until it has answered. Argument 0: the command.
    Command = 5,
    /// Hands a command over to the device. Argument 0: its work item.
    CommandWork = 6,
    /// A completion is told to a channel. Argument 0: the channel's queue.
    ChannelEvent = 7,
    /// A thread reads from a channel. Argument 0: the file.
    ChannelRead = 8,
    /// Something happened to a device or port. Argument 0: which port, 1: what.
    AsyncEvent = 9,
    /// A completion interrupt of the device.
    Interrupt = 10,
    /// The connection manager answers. Argument 0: the identifier, 1: the event.
    ManagerEvent = 11,
    /// The driver looks after a device that does not answer any longer.
    Health = 12,
}

impl Role {
    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Role> {
        Some(match value {
            1 => Role::Outer,
            2 => Role::Operation,
            3 => Role::Pin,
            4 => Role::Driver,
            5 => Role::Command,
            6 => Role::CommandWork,
            7 => Role::ChannelEvent,
            8 => Role::ChannelRead,
            9 => Role::AsyncEvent,
            10 => Role::Interrupt,
            11 => Role::ManagerEvent,
            12 => Role::Health,
            _ => return None,
        })
    }
}

/// Cookie of a probe: the function's role, the operation that it stands for, and which arguments are read.
#[must_use]
pub const fn cookie(role: Role, operation: SetupOp, arguments: [u8; 3]) -> u64 {
    role as u64
        | (operation as u64) << 8
        | (arguments[0] as u64) << 16
        | (arguments[1] as u64) << 24
        | (arguments[2] as u64) << 32
}

/// What a call into the kernel is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SetupOp {
    /// A command of another kind.
    #[default]
    Other = 0,
    RegisterMemory = 1,
    RegisterDmabuf = 2,
    Deregister = 3,
    CreateQp = 4,
    /// The state that a modification led to; one without a state is [`SetupOp::Modify`].
    Modify = 5,
    ToInit = 6,
    ToRtr = 7,
    ToRts = 8,
    ToOther = 9,
    DestroyQp = 10,
    CreateCq = 11,
    /// Calls into the connection manager, which returns before the network has answered.
    ResolveAddress = 12,
    ResolveRoute = 13,
    Connect = 14,
    Accept = 15,
    /// From such a call until the answer came.
    AddressAnswer = 16,
    RouteAnswer = 17,
    ConnectAnswer = 18,
    /// From a completion that a channel was told of until a thread that slept for it ran.
    ChannelWake = 19,
    /// From the device's interrupt until the channel was told.
    InterruptToChannel = 20,
}

/// One more than the largest [`SetupOp`].
pub const SETUP_OPS: u8 = 21;

impl SetupOp {
    #[must_use]
    pub const fn from_u8(value: u8) -> SetupOp {
        match value {
            1 => SetupOp::RegisterMemory,
            2 => SetupOp::RegisterDmabuf,
            3 => SetupOp::Deregister,
            4 => SetupOp::CreateQp,
            5 => SetupOp::Modify,
            6 => SetupOp::ToInit,
            7 => SetupOp::ToRtr,
            8 => SetupOp::ToRts,
            9 => SetupOp::ToOther,
            10 => SetupOp::DestroyQp,
            11 => SetupOp::CreateCq,
            12 => SetupOp::ResolveAddress,
            13 => SetupOp::ResolveRoute,
            14 => SetupOp::Connect,
            15 => SetupOp::Accept,
            16 => SetupOp::AddressAnswer,
            17 => SetupOp::RouteAnswer,
            18 => SetupOp::ConnectAnswer,
            19 => SetupOp::ChannelWake,
            20 => SetupOp::InterruptToChannel,
            _ => SetupOp::Other,
        }
    }

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SetupOp::Other => "other",
            SetupOp::RegisterMemory => "register",
            SetupOp::RegisterDmabuf => "register dmabuf",
            SetupOp::Deregister => "deregister",
            SetupOp::CreateQp => "create qp",
            SetupOp::Modify => "modify qp",
            SetupOp::ToInit => "qp to INIT",
            SetupOp::ToRtr => "qp to RTR",
            SetupOp::ToRts => "qp to RTS",
            SetupOp::ToOther => "qp to another state",
            SetupOp::DestroyQp => "destroy qp",
            SetupOp::CreateCq => "create cq",
            SetupOp::ResolveAddress => "resolve address",
            SetupOp::ResolveRoute => "resolve route",
            SetupOp::Connect => "connect",
            SetupOp::Accept => "accept",
            SetupOp::AddressAnswer => "address answer",
            SetupOp::RouteAnswer => "route answer",
            SetupOp::ConnectAnswer => "connection answer",
            SetupOp::ChannelWake => "channel wake-up",
            SetupOp::InterruptToChannel => "interrupt to channel",
        }
    }

    /// Whether it is memory that is made known to a device.
    #[must_use]
    pub const fn is_registration(self) -> bool {
        matches!(self, SetupOp::RegisterMemory | SetupOp::RegisterDmabuf)
    }

    /// Whether a thread is in a system call meanwhile. The others are latencies of something else.
    #[must_use]
    pub const fn is_call(self) -> bool {
        (self as u8) < SetupOp::AddressAnswer as u8
    }
}

/// Byte offsets of members of kernel structures, in the one place of the map `RDMA_OFFSETS`; `NO_OFFSET` where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RdmaOffsets {
    /// `ib_qp_attr.qp_state`
    pub attr_state: u32,
    /// `ib_qp.qp_num`
    pub qp_num: u32,
    /// `ib_uverbs_completion_event_file.ev_queue`
    pub channel_queue: u32,
    /// `mlx5_cmd_work_ent.work`
    pub entry_work: u32,
    /// `mlx5_cmd_work_ent.in`
    pub entry_in: u32,
    /// `mlx5_cmd_work_ent.ts1`: when it was handed over.
    pub entry_ts1: u32,
    /// `mlx5_cmd_msg.first.data`
    pub message_data: u32,
    pub reserved: u32,
}

/// A call that lasted at least `min_stall_ns`, or an answer that took so long. It completes the wait of the same thread and start
/// where it is a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SetupRecord {
    pub header: Header,
    pub start_ns: u64,
    pub end_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    /// From the beginning of the first pinning to the end of the last; 0: none.
    pub pin_start_ns: u64,
    pub pin_end_ns: u64,
    pub pin_ns: u64,
    /// In the driver's function, all that it calls included.
    pub driver_ns: u64,
    /// From a command's issue to its answer, sum of all.
    pub command_ns: u64,
    /// Part of that before the device had it.
    pub queued_ns: u64,
    /// On a processor, as far as the scheduler had counted it.
    pub running_ns: u64,
    /// Waiting for a processor.
    pub runq_ns: u64,
    /// Bytes that were registered.
    pub bytes: u64,
    /// Result of the system call.
    pub ret: i64,
    /// A [`SetupOp`].
    pub op: u32,
    pub commands: u32,
    /// Of the command that took longest; 0: none.
    pub opcode: u32,
    /// Number of the queue pair, 0: unknown.
    pub qp_num: u32,
    /// The call had not ended.
    pub in_flight: u32,
    pub reserved: u32,
}

/// Something that happened to a device or port of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AsyncEventRecord {
    pub header: Header,
    pub time_ns: u64,
    /// `enum ib_event_type`, or [`EVENT_HEALTH`].
    pub event: u32,
    /// Port, 0: none.
    pub port: u32,
}

/// The driver began to look after a device that may have failed.
pub const EVENT_HEALTH: u32 = 256;

/// What is kept of a thread's call while it lasts: value of the map `RDMA_CALLS` (key: thread id).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SetupCall {
    pub record: SetupRecord,
    /// Functions of the roles `Outer` and `Operation` that it is inside of; 0: no call.
    pub depth: u32,
    pub pin_depth: u32,
    pub driver_depth: u32,
    pub command_depth: u32,
    /// Beginnings of what it is inside of.
    pub pin_begin_ns: u64,
    pub driver_begin_ns: u64,
    pub command_begin_ns: u64,
    /// The longest command so far.
    pub command_longest_ns: u64,
    /// Head of the command that is under way.
    pub command_head: [u64; 2],
    pub operation_depth: u32,
    pub command_opcode: u32,
    /// Time of the thread on a processor, and waiting for one, when the call began.
    pub ran_ns: u64,
    pub delayed_ns: u64,
    /// User-mode registers.
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// Room for the record that is made at the end: the programs have little stack.
    pub wait: WaitRecord,
}

/// Places of a histogram: four to each power of two nanoseconds.
pub const HISTOGRAM: usize = 160;

/// Key of the map `RDMA_TOTALS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct TotalsKey {
    pub tgid: u32,
    /// The processor where `tgid` is 0.
    pub tid: u32,
    /// A [`SetupOp`].
    pub op: u32,
    pub reserved: u32,
}

/// Value of the map `RDMA_TOTALS`: all calls, those far below the threshold among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SetupTotals {
    pub calls: u64,
    /// Calls that failed.
    pub failed: u64,
    pub ns: u64,
    pub pin_ns: u64,
    pub driver_ns: u64,
    pub command_ns: u64,
    pub queued_ns: u64,
    pub running_ns: u64,
    pub runq_ns: u64,
    pub commands: u64,
    pub bytes: u64,
    /// Calls below the threshold, and their time.
    pub below: u64,
    pub below_ns: u64,
    /// See [`histogram_place`].
    pub histogram: [u64; HISTOGRAM],
}

/// Key of the map `RDMA_COMMANDS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CommandKey {
    pub tid: u32,
    pub opcode: u32,
}

/// Value of the map `RDMA_COMMANDS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CommandTotals {
    pub commands: u64,
    pub ns: u64,
    pub queued_ns: u64,
}

/// The place of a duration: the power of two and the two bits behind it.
#[must_use]
#[inline]
pub const fn histogram_place(ns: u64) -> u32 {
    if ns < 4 {
        return ns as u32;
    }
    let mut power = 0;
    let mut rest = ns;
    let mut step = 32;
    while step > 0 {
        if rest >> step != 0 {
            rest >>= step;
            power += step;
        }
        step >>= 1;
    }
    let place = (power - 1) << 2 | (ns >> (power - 2) & 3) as u32;
    if place >= HISTOGRAM as u32 { HISTOGRAM as u32 - 1 } else { place }
}

/// The least duration of a place.
#[must_use]
pub const fn histogram_least(place: u32) -> u64 {
    if place < 4 {
        return place as u64;
    }
    let power = (place >> 2) + 1;
    (4 + (place & 3) as u64) << (power - 2)
}

const _: () = assert!(size_of::<RdmaOffsets>() == 32);
const _: () = assert!(size_of::<SetupRecord>() == 136);
const _: () = assert!(size_of::<AsyncEventRecord>() == 24);
const _: () = assert!(size_of::<SetupCall>() == 136 + 16 + 32 + 16 + 8 + 24 + 16 + 152);
const _: () = assert!(size_of::<TotalsKey>() == 16);
const _: () = assert!(size_of::<CommandKey>() == 8);
const _: () = assert!(size_of::<SetupTotals>() == 8 * (13 + HISTOGRAM));
const _: () = assert!(size_of::<CommandTotals>() == 24);

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding (sizes asserted above): every bit pattern is valid.
    unsafe impl aya::Pod for super::RdmaOffsets {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::SetupCall {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::TotalsKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::SetupTotals {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::CommandKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::CommandTotals {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_of_the_histogram_begins_where_the_one_before_ends() {
        for place in 0..HISTOGRAM as u32 - 1 {
            let (least, next) = (histogram_least(place), histogram_least(place + 1));
            assert!(least < next, "{place}");
            assert_eq!((histogram_place(least), histogram_place(next - 1)), (place, place));
        }
        assert_eq!(histogram_place(u64::MAX), HISTOGRAM as u32 - 1);
    }

    #[test]
    fn numbers_of_roles_and_operations_lead_back_to_them() {
        for op in 0..SETUP_OPS {
            assert_eq!(SetupOp::from_u8(op) as u8, op);
        }
        let numbers = (1..=12).map(|number| Role::from_u8(number).map(|role| role as u8));
        assert!(numbers.eq((1..=12).map(Some)));
        assert_eq!((SetupOp::from_u8(SETUP_OPS), Role::from_u8(0)), (SetupOp::Other, None));
    }
}
