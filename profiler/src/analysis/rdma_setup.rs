//! The section `rdma_setup`: what the kernel and the device did to set RDMA up, and how long that took.

use profiler_common::rdma_kernel::{SetupOp, histogram_least};
use serde::{Deserialize, Serialize};

use super::report::Distribution;
use crate::model::setup::Setups;
use crate::trace::rdma_setup::{RdmaDeviceEvent, RdmaSetup, RdmaSetupTotals};

/// Everything of it. Absent where the kernel's functions saw no call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RdmaSetupSection {
    /// By process and operation, most time first.
    pub operations: Vec<OperationRow>,
    /// By opcode, most time first.
    pub commands: Vec<CommandRow>,
    /// By time.
    pub events: Vec<EventRow>,
    /// Registrations that took longest.
    pub slowest: Vec<RegistrationRow>,
}

/// All calls of one kind in one process. Evidence: measured in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationRow {
    /// `register`, `qp to RTR` …
    pub op: String,
    /// 0: of no process.
    pub pid: u32,
    /// False of latencies: from a question to the network until its answer, from an event until a thread ran.
    pub call: bool,
    pub calls: u64,
    pub failed: u64,
    pub in_flight: u64,
    /// From entry to return of the system call, sum of all.
    pub total_ns: u64,
    /// Bytes that were registered.
    pub bytes: u64,
    /// Part of the total in which memory was pinned and mapped.
    pub pin_ns: u64,
    /// Part in the driver's function, what it calls included.
    pub driver_ns: u64,
    /// Part in which a command was on its way to the device and back.
    pub command_ns: u64,
    /// Part of that before the device had the command; 0 where that was not seen.
    pub queued_ns: u64,
    /// Part in which the thread ran, as far as the scheduler had counted it; on its pages, most often.
    pub running_ns: u64,
    /// Part in which it waited for a processor.
    pub runq_ns: u64,
    pub commands: u64,
    /// Shares of the total.
    pub pin_share: f64,
    pub command_share: f64,
    pub duration: Distribution,
    /// The distribution is of all calls one by one. Else it comes from a histogram whose places are 19 to 25 % wide.
    pub exact: bool,
}

/// Commands of one opcode that threads of the targets waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRow {
    pub opcode: u32,
    /// `CREATE_MKEY` …, the number where it has no name here.
    pub name: String,
    pub commands: u64,
    pub total_ns: u64,
    pub queued_ns: u64,
}

/// Something that happened to a device or port of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    pub time_ns: u64,
    /// `PORT_ERR` …
    pub event: String,
    pub port: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrationRow {
    pub pid: u32,
    pub tid: u32,
    pub bytes: u64,
    pub total_ns: u64,
    pub pin_ns: u64,
    pub command_ns: u64,
    pub in_flight: bool,
}

/// Rows of `slowest`.
const SLOWEST: usize = 20;

/// The section; `None` without anything in it.
pub fn section(setups: &Setups) -> Option<RdmaSetupSection> {
    let mut operations: Vec<OperationRow> = setups.totals().map(|totals| operation(totals, setups)).collect();
    add_open(&mut operations, setups);
    operations
        .sort_by(|one, other| (other.total_ns, one.pid, &one.op).cmp(&(one.total_ns, other.pid, &other.op)));
    let mut commands: Vec<CommandRow> = setups
        .commands()
        .map(|totals| CommandRow {
            opcode: totals.opcode,
            name: command_name(totals.opcode),
            commands: totals.commands,
            total_ns: totals.ns,
            queued_ns: totals.queued_ns,
        })
        .collect();
    commands.sort_by(|one, other| (other.total_ns, one.opcode).cmp(&(one.total_ns, other.opcode)));
    let events: Vec<EventRow> = setups.events().into_iter().map(event).collect();
    let section = RdmaSetupSection { operations, commands, events, slowest: slowest(setups) };
    let empty = section.operations.is_empty() && section.commands.is_empty() && section.events.is_empty();
    (!empty).then_some(section)
}

fn operation(totals: &RdmaSetupTotals, setups: &Setups) -> OperationRow {
    let own = |call: &&RdmaSetup| call.pid == totals.pid && call.op == totals.op && !call.in_flight;
    let lasted: Vec<u64> =
        setups.calls().iter().filter(own).map(|call| call.end_ns - call.start_ns).collect();
    let exact = totals.below == 0 && lasted.len() as u64 == totals.calls;
    let duration = if exact { Distribution::of(lasted) } else { of_histogram(&totals.histogram, totals.ns) };
    OperationRow {
        op: totals.op.name().to_owned(),
        pid: totals.pid,
        call: totals.op.is_call(),
        calls: totals.calls,
        failed: totals.failed,
        in_flight: 0,
        total_ns: totals.ns,
        bytes: totals.bytes,
        pin_ns: totals.pin_ns,
        driver_ns: totals.driver_ns,
        command_ns: totals.command_ns,
        queued_ns: totals.queued_ns,
        running_ns: totals.running_ns,
        runq_ns: totals.runq_ns,
        commands: totals.commands,
        pin_share: share(totals.pin_ns, totals.ns),
        command_share: share(totals.command_ns, totals.ns),
        duration,
        exact,
    }
}

/// Calls that had not ended are in no totals.
fn add_open(rows: &mut Vec<OperationRow>, setups: &Setups) {
    for call in setups.calls().iter().filter(|call| call.in_flight) {
        let name = call.op.name();
        let known = rows.iter().position(|row| row.pid == call.pid && row.op == name);
        let at = known.unwrap_or(rows.len());
        if known.is_none() {
            let op = name.to_owned();
            rows.push(OperationRow { op, pid: call.pid, call: true, ..OperationRow::default() });
        }
        let Some(row) = rows.get_mut(at) else { continue };
        row.in_flight += 1;
        row.total_ns = row.total_ns.saturating_add(call.end_ns - call.start_ns);
        row.pin_ns = row.pin_ns.saturating_add(call.pin_ns);
        row.driver_ns = row.driver_ns.saturating_add(call.driver_ns);
        row.command_ns = row.command_ns.saturating_add(call.command_ns);
        row.bytes = row.bytes.saturating_add(call.bytes);
        row.pin_share = share(row.pin_ns, row.total_ns);
        row.command_share = share(row.command_ns, row.total_ns);
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
}

/// What a histogram tells: quantiles and moments by the middles of its places, the sum as it was measured.
fn of_histogram(places: &[(u8, u64)], sum_ns: u64) -> Distribution {
    let ends = |place: u8| {
        let place = u32::from(place);
        (histogram_least(place), histogram_least(place + 1).saturating_sub(1))
    };
    let middle = |place: u8| {
        let (least, most) = ends(place);
        least + (most - least) / 2
    };
    let mut places: Vec<(u8, u64)> =
        places.iter().copied().filter(|(place, count)| *place < 160 && *count > 0).collect();
    places.sort_unstable();
    let (Some((first, _)), Some((last, _))) = (places.first(), places.last()) else {
        return Distribution::default();
    };
    let count = places.iter().map(|(_, count)| *count).fold(0, u64::saturating_add);
    let rank = |percent: u64| {
        let wanted = (u128::from(count) * u128::from(percent)).div_ceil(100);
        let mut seen: u128 = 0;
        let place = places.iter().find(|(_, count)| {
            seen += u128::from(*count);
            seen >= wanted
        });
        place.map_or(0, |(place, _)| middle(*place))
    };
    let mean = sum_ns as f64 / count as f64;
    let squares = places.iter().map(|(place, count)| *count as f64 * (middle(*place) as f64 - mean).powi(2));
    Distribution {
        count,
        min_ns: ends(*first).0,
        p50_ns: rank(50),
        p90_ns: rank(90),
        p99_ns: rank(99),
        max_ns: ends(*last).1,
        sum_ns,
        stddev_ns: (squares.sum::<f64>() / count as f64).sqrt().round() as u64,
    }
}

fn slowest(setups: &Setups) -> Vec<RegistrationRow> {
    let mut rows: Vec<&RdmaSetup> = setups.calls().iter().filter(|call| call.op.is_registration()).collect();
    rows.sort_by_key(|call| (std::cmp::Reverse(call.end_ns - call.start_ns), call.start_ns, call.tid));
    let row = |call: &RdmaSetup| RegistrationRow {
        pid: call.pid,
        tid: call.tid,
        bytes: call.bytes,
        total_ns: call.end_ns - call.start_ns,
        pin_ns: call.pin_ns,
        command_ns: call.command_ns,
        in_flight: call.in_flight,
    };
    rows.into_iter().take(SLOWEST).map(row).collect()
}

/// `MLX5_CMD_OP_*` without its beginning, of those that set-up comes by.
fn command_name(opcode: u32) -> String {
    let name = match opcode {
        0x000 => "UMR",
        0x100 => "QUERY_HCA_CAP",
        0x107 => "QUERY_PAGES",
        0x108 => "MANAGE_PAGES",
        0x200 => "CREATE_MKEY",
        0x201 => "QUERY_MKEY",
        0x202 => "DESTROY_MKEY",
        0x204 => "PAGE_FAULT_RESUME",
        0x301 => "CREATE_EQ",
        0x302 => "DESTROY_EQ",
        0x400 => "CREATE_CQ",
        0x401 => "DESTROY_CQ",
        0x402 => "QUERY_CQ",
        0x403 => "MODIFY_CQ",
        0x500 => "CREATE_QP",
        0x501 => "DESTROY_QP",
        0x502 => "RST2INIT_QP",
        0x503 => "INIT2RTR_QP",
        0x504 => "RTR2RTS_QP",
        0x505 => "RTS2RTS_QP",
        0x507 => "2ERR_QP",
        0x50a => "2RST_QP",
        0x50b => "QUERY_QP",
        0x50e => "INIT2INIT_QP",
        0x700 => "CREATE_SRQ",
        0x701 => "DESTROY_SRQ",
        0x800 => "ALLOC_PD",
        0x801 => "DEALLOC_PD",
        0x802 => "ALLOC_UAR",
        0x803 => "DEALLOC_UAR",
        0xa00 => "CREATE_GENERAL_OBJECT",
        0xa03 => "DESTROY_GENERAL_OBJECT",
        other => return format!("{other:#05x}"),
    };
    name.to_owned()
}

/// `IB_EVENT_*` without its beginning.
fn event(event: RdmaDeviceEvent) -> EventRow {
    let name = match event.event {
        8 => "DEVICE_FATAL",
        9 => "PORT_ACTIVE",
        10 => "PORT_ERR",
        11 => "LID_CHANGE",
        12 => "PKEY_CHANGE",
        13 => "SM_CHANGE",
        18 => "GID_CHANGE",
        256 => "HEALTH",
        other => &format!("{other}"),
    };
    EventRow { time_ns: event.time_ns, event: name.to_owned(), port: event.port }
}

/// What a registration or another call is called behind its cause: `register 1.0 GiB`, with the pinning's share where it pinned.
/// Sizes are rounded down to a power of two, so that equal calls stay one frame.
pub fn label(op: SetupOp, bytes: u64, pin_percent: Option<u8>) -> String {
    let mut text = op.name().to_owned();
    if bytes > 0 {
        text.push(' ');
        text.push_str(&crate::render::unit::bytes(bytes));
    }
    if let Some(percent) = pin_percent {
        text.push_str(&format!(", pin {percent} %"));
    }
    text
}

#[cfg(test)]
mod tests;
