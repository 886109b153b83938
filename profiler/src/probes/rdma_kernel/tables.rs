//! Reads the tables that the programs keep: totals, and calls that have not ended.

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::maps::HashMap;
use profiler_common::rdma_kernel::{
    CommandKey, CommandTotals, SetupCall, SetupOp, SetupRecord, SetupTotals, TotalsKey,
};
use profiler_common::{Api, Call};

use super::decode::op_of;
use crate::probes::event::{Event, Registers};
use crate::trace::rdma_setup::{RdmaCommandTotals, RdmaSetup, RdmaSetupTotals};
use crate::trace::record::{Sched, Wait, WaitFlags};

pub(super) fn totals(ebpf: &Ebpf) -> Vec<RdmaSetupTotals> {
    let table =
        ebpf.map("RDMA_TOTALS").and_then(|map| HashMap::<_, TotalsKey, SetupTotals>::try_from(map).ok());
    let Some(table) = table else { return Vec::new() };
    let mut sums = BTreeMap::new();
    for (key, value) in table.iter().filter_map(Result::ok) {
        add(sums.entry((key.tgid, key.op)).or_default(), &value);
    }
    let told = |((pid, op), (mut sum, places)): ((u32, u32), (RdmaSetupTotals, BTreeMap<u8, u64>))| {
        (sum.pid, sum.op) = (pid, op_of(op));
        sum.histogram = places.into_iter().collect();
        sum
    };
    sums.into_iter().map(told).collect()
}

fn add((sum, places): &mut (RdmaSetupTotals, BTreeMap<u8, u64>), value: &SetupTotals) {
    for (to, from) in [
        (&mut sum.calls, value.calls),
        (&mut sum.failed, value.failed),
        (&mut sum.ns, value.ns),
        (&mut sum.pin_ns, value.pin_ns),
        (&mut sum.driver_ns, value.driver_ns),
        (&mut sum.command_ns, value.command_ns),
        (&mut sum.queued_ns, value.queued_ns),
        (&mut sum.running_ns, value.running_ns),
        (&mut sum.runq_ns, value.runq_ns),
        (&mut sum.commands, value.commands),
        (&mut sum.bytes, value.bytes),
        (&mut sum.below, value.below),
        (&mut sum.below_ns, value.below_ns),
    ] {
        *to = to.saturating_add(from);
    }
    for (place, count) in (0..).zip(value.histogram).filter(|(_, count)| *count > 0) {
        let sum = places.entry(place).or_default();
        *sum = sum.saturating_add(count);
    }
}

pub(super) fn commands(ebpf: &Ebpf) -> Vec<RdmaCommandTotals> {
    let table =
        ebpf.map("RDMA_COMMANDS").and_then(|map| HashMap::<_, CommandKey, CommandTotals>::try_from(map).ok());
    let Some(table) = table else { return Vec::new() };
    let mut sums: BTreeMap<u32, RdmaCommandTotals> = BTreeMap::new();
    for (key, value) in table.iter().filter_map(Result::ok) {
        let sum = sums.entry(key.opcode).or_default();
        sum.opcode = key.opcode;
        sum.commands = sum.commands.saturating_add(value.commands);
        sum.ns = sum.ns.saturating_add(value.ns);
        sum.queued_ns = sum.queued_ns.saturating_add(value.queued_ns);
    }
    sums.into_values().collect()
}

/// Calls that have not ended and last for at least `min_ns`.
pub(super) fn take_open(ebpf: &Ebpf, min_ns: u64, end_ns: u64, sink: &mut dyn FnMut(Event)) {
    let table = ebpf.map("RDMA_CALLS").and_then(|map| HashMap::<_, u32, SetupCall>::try_from(map).ok());
    let Some(table) = table else { return };
    for (_, call) in table.iter().filter_map(Result::ok) {
        let lasted_ns = end_ns.saturating_sub(call.record.start_ns);
        if call.depth > 0 && lasted_ns >= min_ns && call.record.start_ns < end_ns {
            let (wait, registers, setup) = open(&call, end_ns);
            sink(Event::Wait(wait, registers));
            sink(Event::Setup(setup));
        }
    }
}

fn open(call: &SetupCall, end_ns: u64) -> (Wait, Registers, RdmaSetup) {
    let SetupRecord { start_ns, tgid, tid, .. } = call.record;
    let mut setup = RdmaSetup {
        start_ns,
        end_ns,
        pid: tgid,
        tid,
        op: SetupOp::from_u8(u8::try_from(call.record.op).unwrap_or(0)),
        pin_start_ns: call.record.pin_start_ns,
        pin_end_ns: call.record.pin_end_ns,
        pin_ns: call.record.pin_ns,
        driver_ns: call.record.driver_ns,
        command_ns: call.record.command_ns,
        queued_ns: call.record.queued_ns,
        running_ns: 0,
        runq_ns: 0,
        bytes: call.record.bytes,
        ret: 0,
        commands: call.record.commands,
        opcode: call.record.opcode,
        qp: call.record.qp_num,
        in_flight: true,
    };
    // What it is inside of now lasts to the end.
    if call.pin_depth > 0 && call.pin_begin_ns > 0 {
        setup.pin_end_ns = end_ns;
        setup.pin_ns = setup.pin_ns.saturating_add(end_ns.saturating_sub(call.pin_begin_ns));
    }
    if call.driver_depth > 0 && call.driver_begin_ns > 0 {
        setup.driver_ns = setup.driver_ns.saturating_add(end_ns.saturating_sub(call.driver_begin_ns));
    }
    if call.command_depth > 0 && call.command_begin_ns > 0 {
        setup.command_ns = setup.command_ns.saturating_add(end_ns.saturating_sub(call.command_begin_ns));
    }
    let wait = Wait {
        start_ns,
        end_ns,
        pid: tgid,
        tid,
        call: Call::Uverbs,
        flags: WaitFlags { in_flight: true, ..WaitFlags::default() },
        fd: -1,
        set_size: 0,
        polls: 0,
        ret: 0,
        arg: 0,
        off_cpu_ns: 0,
        user_stack: 0,
        kernel_stack: 0,
        api: Api::None,
        api_start_ns: 0,
        sockets: Vec::new(),
        sched: Sched::default(),
    };
    (wait, Registers { ip: call.ip, sp: call.sp, bp: call.bp }, setup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_under_way_lasts_to_the_end_with_what_it_is_in() {
        // SAFETY: integers only.
        let nothing: SetupCall = unsafe { std::mem::zeroed() };
        let record = SetupRecord {
            start_ns: 1_000,
            tgid: 7,
            tid: 8,
            op: SetupOp::RegisterMemory as u32,
            pin_start_ns: 1_100,
            pin_ns: 0,
            ..SetupRecord::default()
        };
        let call = SetupCall { record, depth: 2, pin_depth: 1, pin_begin_ns: 1_100, ip: 5, ..nothing };
        let (wait, registers, setup) = open(&call, 9_000);
        assert_eq!((wait.start_ns, wait.end_ns, wait.pid, wait.tid), (1_000, 9_000, 7, 8));
        assert!(wait.flags.in_flight && setup.in_flight);
        assert_eq!((setup.pin_ns, setup.pin_end_ns, setup.op), (7_900, 9_000, SetupOp::RegisterMemory));
        assert_eq!(registers.ip, 5);
    }

    #[test]
    fn totals_of_threads_add_up() {
        let mut value = SetupTotals {
            calls: 2,
            failed: 1,
            ns: 10,
            pin_ns: 4,
            driver_ns: 3,
            command_ns: 2,
            queued_ns: 1,
            running_ns: 6,
            runq_ns: 7,
            commands: 5,
            bytes: 4096,
            below: 2,
            below_ns: 10,
            histogram: [0; profiler_common::rdma_kernel::HISTOGRAM],
        };
        value.histogram[5] = 2;
        let mut sum = Default::default();
        add(&mut sum, &value);
        value.histogram[159] = 1;
        add(&mut sum, &value);
        assert_eq!((sum.0.calls, sum.0.failed, sum.0.bytes, sum.0.below_ns), (4, 2, 8192, 20));
        assert_eq!(sum.1.into_iter().collect::<Vec<_>>(), [(5, 4), (159, 1)]);
    }
}
