//! Records of the kernel's side of RDMA.

use profiler_common::rdma_kernel::SetupOp;
use serde::{Deserialize, Serialize};

/// A call into `ib_uverbs` or the connection manager that lasted at least `--min-stall`, or an answer or a wake-up that took so long.
/// Of a call there is a [`Wait`](super::record::Wait) of the same thread and start too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaSetup {
    pub start_ns: u64,
    pub end_ns: u64,
    /// 0: of no thread.
    pub pid: u32,
    pub tid: u32,
    #[serde(with = "op")]
    pub op: SetupOp,
    /// From the beginning of the first pinning of memory to the end of the last; 0: none.
    pub pin_start_ns: u64,
    pub pin_end_ns: u64,
    pub pin_ns: u64,
    /// In the driver's function, all that it calls included.
    pub driver_ns: u64,
    /// From a command's issue to the device's answer, sum of all.
    pub command_ns: u64,
    /// Part of that before the device had it, as far as that was seen.
    pub queued_ns: u64,
    /// On a processor, as far as the scheduler had counted it, and waiting for one.
    pub running_ns: u64,
    pub runq_ns: u64,
    /// Bytes that were registered.
    pub bytes: u64,
    /// Result, or -errno.
    pub ret: i64,
    pub commands: u32,
    /// Of the command that took longest; 0: none.
    pub opcode: u32,
    /// Number of the queue pair, 0: unknown.
    pub qp: u32,
    pub in_flight: bool,
}

/// What all calls of a kind in one process add up to, those below `--min-stall` among them; repeated while the recording runs, the
/// last one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaSetupTotals {
    /// 0: of no process.
    pub pid: u32,
    #[serde(with = "op")]
    pub op: SetupOp,
    pub calls: u64,
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
    /// Calls without a record of their own, and their time.
    pub below: u64,
    pub below_ns: u64,
    /// Places (`profiler_common::rdma_kernel::histogram_least`) that are not empty, and the calls in them.
    pub histogram: Vec<(u8, u64)>,
}

/// What all commands of an opcode that the targets waited for add up to; the last one counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaCommandTotals {
    /// As the mlx5 device has it; 0: work that is posted to the device's own queue (UMR).
    pub opcode: u32,
    pub commands: u64,
    pub ns: u64,
    pub queued_ns: u64,
}

/// Something that happened to a device or port of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RdmaDeviceEvent {
    pub time_ns: u64,
    /// `enum ib_event_type`; 256: the driver looks after a device that may have failed.
    pub event: u32,
    /// 0: none.
    pub port: u32,
}

mod op {
    use std::borrow::Cow;

    use profiler_common::rdma_kernel::{SETUP_OPS, SetupOp};
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(value: &SetupOp, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { to.serialize_str(value.name()) } else { to.serialize_u8(*value as u8) }
    }

    /// Unknown numbers and names become `Other`: a newer minor version may know more.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SetupOp, D::Error> {
        if from.is_human_readable() {
            let name = Cow::<str>::deserialize(from)?;
            Ok((0..SETUP_OPS).map(SetupOp::from_u8).find(|op| op.name() == name).unwrap_or_default())
        } else {
            u8::deserialize(from).map(SetupOp::from_u8)
        }
    }
}
