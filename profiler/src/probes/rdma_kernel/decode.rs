//! Records of calls and of devices' events.

use profiler_common::rdma_kernel::SetupOp;

use crate::probes::event::Event;
use crate::probes::fields::Fields;
use crate::trace::rdma_setup::{RdmaDeviceEvent, RdmaSetup};

pub(super) fn op_of(number: u32) -> SetupOp {
    u8::try_from(number).map_or(SetupOp::Other, SetupOp::from_u8)
}

pub(in crate::probes) fn setup(fields: &mut Fields<'_>) -> Option<Event> {
    let (start_ns, end_ns) = (fields.u64()?, fields.u64()?);
    let (pid, tid) = (fields.u32()?, fields.u32()?);
    let (pin_start_ns, pin_end_ns, pin_ns) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (driver_ns, command_ns, queued_ns) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (running_ns, runq_ns) = (fields.u64()?, fields.u64()?);
    let (bytes, ret) = (fields.u64()?, fields.i64()?);
    let (op, commands, opcode, qp) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
    let in_flight = fields.u32()? != 0;
    Some(Event::Setup(RdmaSetup {
        start_ns,
        end_ns,
        pid,
        tid,
        op: op_of(op),
        pin_start_ns,
        pin_end_ns,
        pin_ns,
        driver_ns,
        command_ns,
        queued_ns,
        running_ns,
        runq_ns,
        bytes,
        ret,
        commands,
        opcode,
        qp,
        in_flight,
    }))
}

pub(in crate::probes) fn device_event(fields: &mut Fields<'_>) -> Option<Event> {
    let (time_ns, event, port) = (fields.u64()?, fields.u32()?, fields.u32()?);
    Some(Event::DeviceEvent(RdmaDeviceEvent { time_ns, event, port }))
}

#[cfg(test)]
mod tests {
    use profiler_common::rdma_kernel::{AsyncEventRecord, SetupRecord};
    use profiler_common::record::{Header, RecordKind};

    use super::*;
    use crate::probes::decode as decode_record;

    fn bytes<T>(record: &T) -> &[u8] {
        // SAFETY: a record of integers without padding.
        unsafe { std::slice::from_raw_parts((&raw const *record).cast::<u8>(), size_of::<T>()) }
    }

    #[test]
    fn a_call_keeps_its_fields_and_short_records_are_refused() {
        let header = Header { kind: RecordKind::Setup as u32, len: size_of::<SetupRecord>() as u32 };
        let record = SetupRecord {
            header,
            start_ns: 1,
            end_ns: 2,
            tgid: 3,
            tid: 4,
            pin_start_ns: 5,
            pin_end_ns: 6,
            pin_ns: 7,
            driver_ns: 8,
            command_ns: 9,
            queued_ns: 10,
            running_ns: 16,
            runq_ns: 17,
            bytes: 11,
            ret: -12,
            op: SetupOp::ToRtr as u32,
            commands: 13,
            opcode: 14,
            qp_num: 15,
            in_flight: 0,
            reserved: 0,
        };
        let Ok(Event::Setup(setup)) = decode_record(bytes(&record)) else { panic!("no call") };
        assert_eq!((setup.start_ns, setup.end_ns, setup.pid, setup.tid), (1, 2, 3, 4));
        assert_eq!((setup.pin_start_ns, setup.pin_end_ns, setup.pin_ns), (5, 6, 7));
        assert_eq!((setup.driver_ns, setup.command_ns, setup.queued_ns), (8, 9, 10));
        assert_eq!((setup.bytes, setup.ret, setup.op), (11, -12, SetupOp::ToRtr));
        assert_eq!((setup.commands, setup.opcode, setup.qp, setup.in_flight), (13, 14, 15, false));
        assert_eq!((setup.running_ns, setup.runq_ns), (16, 17));
        assert!(decode_record(&bytes(&record)[..100]).is_err());
    }

    #[test]
    fn an_event_of_a_device_keeps_its_fields() {
        let header =
            Header { kind: RecordKind::AsyncEvent as u32, len: size_of::<AsyncEventRecord>() as u32 };
        let record = AsyncEventRecord { header, time_ns: 7, event: 10, port: 1 };
        let event = RdmaDeviceEvent { time_ns: 7, event: 10, port: 1 };
        assert_eq!(decode_record(bytes(&record)), Ok(Event::DeviceEvent(event)));
    }
}
