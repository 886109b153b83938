//! From kernel records of verbs to events.

use profiler_common::verbs::{IMAGE_WORDS, SETUP_MASK_PEER, SETUP_MASK_STATE, SETUP_MASK_VECTOR, SETUP_QP};

use crate::probes::event::{AddressVector, Event, PairSetup, QueueImage, VerbsSetup};
use crate::probes::fields::Fields;
use crate::trace::rdma::{RdmaCompletion, RdmaEntry, RdmaPost};

pub(in crate::probes) fn post(fields: &mut Fields<'_>) -> Option<Event> {
    let (time_ns, pid, tid, address) = (fields.u64()?, fields.u32()?, fields.u32()?, fields.u64()?);
    let (wr_id, bytes, qp, opcode) = (fields.u64()?, fields.u64()?, fields.u32()?, fields.u32()?);
    let (flags, index, counter) = (fields.u32()?, fields.u32()?, fields.u32()?);
    // The entry is the first one's; those behind it depend on the sizes of those before them.
    let counter = u16::try_from(counter).ok().filter(|_| index == 0);
    let post = RdmaPost { time_ns, pid, tid, qp, wr_id, opcode, flags, bytes, index, counter };
    Some(Event::RdmaPost(post, address))
}

pub(in crate::probes) fn completion(fields: &mut Fields<'_>) -> Option<Event> {
    let (time_ns, pid, tid) = (fields.u64()?, fields.u32()?, fields.u32()?);
    let (qp, bytes, counter) = (fields.u32()?, fields.u32()?, fields.u16()?);
    let (opcode, syndrome, vendor) = (fields.u8()?, fields.u8()?, fields.u8()?);
    let completion = RdmaCompletion { time_ns, pid, tid, qp, bytes, counter, opcode, syndrome, vendor };
    Some(Event::RdmaCompletion(completion))
}

pub(in crate::probes) fn entry(fields: &mut Fields<'_>) -> Option<Event> {
    let (time_ns, pid, tid, wr_id) = (fields.u64()?, fields.u32()?, fields.u32()?, fields.u64()?);
    let (qp, status, opcode) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let (vendor, bytes) = (fields.u32()?, fields.u32()?);
    Some(Event::RdmaEntry(RdmaEntry { time_ns, pid, tid, qp, wr_id, status, opcode, vendor, bytes }))
}

pub(in crate::probes) fn setup(fields: &mut Fields<'_>) -> Option<Event> {
    let (time_ns, pid, tid, address) = (fields.u64()?, fields.u32()?, fields.u32()?, fields.u64()?);
    let (what, mask, number, state) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
    let (peer_qp, vector) = (fields.u32()?, fields.u32()?);
    let mut gid = [0; 16];
    for byte in &mut gid {
        *byte = fields.u8()?;
    }
    let [is_global, gid_index, port, service_level] = vector.to_le_bytes();
    let asked = |bit| mask & bit != 0;
    let vector = AddressVector { gid: (is_global != 0).then_some(gid), gid_index, port, service_level };
    let pair = PairSetup {
        number,
        state: asked(SETUP_MASK_STATE).then_some(state),
        peer_qp: asked(SETUP_MASK_PEER).then_some(peer_qp),
        vector: asked(SETUP_MASK_VECTOR).then_some(vector),
    };
    let pair = (what == SETUP_QP).then_some(pair);
    Some(Event::VerbsSetup(VerbsSetup { time_ns, pid, tid, address, pair }))
}

pub(in crate::probes) fn image(fields: &mut Fields<'_>) -> Option<Event> {
    let (time_ns, qp) = (fields.u64()?, fields.u64()?);
    let (pid, number, provider, posted) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
    let words = (0..IMAGE_WORDS).map(|_| fields.u32()).collect::<Option<Vec<u32>>>()?;
    Some(Event::RdmaImage(Box::new(QueueImage { time_ns, pid, qp, number, provider, posted, words })))
}

#[cfg(test)]
mod tests {
    use profiler_common::record::{Header, RecordKind};
    use profiler_common::verbs::{
        NO_COUNTER, VerbsCompletionRecord, VerbsEntryRecord, VerbsPostRecord, VerbsSetupRecord,
    };

    use crate::probes::decode;
    use crate::probes::event::{AddressVector, Event};

    fn bytes<T: Copy>(value: &T) -> Vec<u8> {
        // SAFETY: a record of integers without padding.
        unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) }.to_vec()
    }

    #[test]
    fn a_post_keeps_its_fields_and_an_unknown_counter_is_none() {
        let len = size_of::<VerbsPostRecord>() as u32;
        let record = VerbsPostRecord {
            header: Header { kind: RecordKind::VerbsPost as u32, len },
            time_ns: 9,
            tgid: 7,
            tid: 8,
            qp: 0x1000,
            wr_id: 5,
            bytes: 4096,
            qp_num: 417,
            opcode: 4,
            flags: 2,
            index: 0,
            counter: 65535,
            provider: 1,
        };
        let Ok(Event::RdmaPost(post, 0x1000)) = decode(&bytes(&record)) else { panic!("no post") };
        assert_eq!((post.time_ns, post.pid, post.tid, post.qp, post.wr_id), (9, 7, 8, 417, 5));
        assert_eq!((post.bytes, post.opcode, post.flags, post.counter), (4096, 4, 2, Some(65535)));
        for other in
            [VerbsPostRecord { counter: NO_COUNTER, ..record }, VerbsPostRecord { index: 1, ..record }]
        {
            let Ok(Event::RdmaPost(post, _)) = decode(&bytes(&other)) else { panic!("no post") };
            assert_eq!(post.counter, None);
        }
        assert!(decode(&bytes(&record)[..60]).is_err());
    }

    #[test]
    fn a_completion_keeps_its_fields() {
        let len = size_of::<VerbsCompletionRecord>() as u32;
        let record = VerbsCompletionRecord {
            header: Header { kind: RecordKind::VerbsCompletion as u32, len },
            time_ns: 3,
            tgid: 1,
            tid: 2,
            qp_num: 417,
            bytes: 64,
            counter: 99,
            opcode: 13,
            syndrome: 0x15,
            vendor: 0x81,
            reserved: [0; 3],
        };
        let Ok(Event::RdmaCompletion(one)) = decode(&bytes(&record)) else { panic!("no completion") };
        assert_eq!((one.time_ns, one.pid, one.tid, one.qp, one.bytes), (3, 1, 2, 417, 64));
        assert_eq!((one.counter, one.opcode, one.syndrome, one.vendor), (99, 13, 0x15, 0x81));
    }

    #[test]
    fn a_completion_as_the_provider_hands_it_out_keeps_its_fields() {
        let record = VerbsEntryRecord {
            header: Header { kind: RecordKind::VerbsEntry as u32, len: size_of::<VerbsEntryRecord>() as u32 },
            time_ns: 3,
            tgid: 1,
            tid: 2,
            wr_id: 77,
            qp_num: 417,
            status: 12,
            opcode: 128,
            vendor: 0x81,
            bytes: 64,
            reserved: 0,
        };
        let Ok(Event::RdmaEntry(one)) = decode(&bytes(&record)) else { panic!("no completion") };
        assert_eq!((one.time_ns, one.pid, one.tid, one.qp, one.wr_id), (3, 1, 2, 417, 77));
        assert_eq!((one.status, one.opcode, one.vendor, one.bytes), (12, 128, 0x81, 64));
        assert!(decode(&bytes(&record)[..40]).is_err());
    }

    #[test]
    fn of_a_set_up_only_what_its_mask_names_is_kept() {
        let record = VerbsSetupRecord {
            header: Header { kind: RecordKind::VerbsSetup as u32, len: size_of::<VerbsSetupRecord>() as u32 },
            time_ns: 3,
            tgid: 1,
            tid: 2,
            address: 0x1000,
            what: 2,
            mask: 1 << 20 | 1 << 7,
            qp_num: 417,
            state: 2,
            peer_qp: 18,
            vector: u32::from_le_bytes([1, 3, 1, 5]),
            peer_gid: [9; 16],
        };
        let setup = |record: &VerbsSetupRecord| match decode(&bytes(record)) {
            Ok(Event::VerbsSetup(setup)) => setup,
            other => panic!("{other:?}"),
        };
        let one = setup(&record);
        let pair = one.pair.unwrap();
        assert_eq!(
            (one.address, one.pid, pair.number, pair.state, pair.peer_qp),
            (0x1000, 1, 417, None, Some(18))
        );
        let vector = AddressVector { gid: Some([9; 16]), gid_index: 3, port: 1, service_level: 5 };
        assert_eq!(pair.vector, Some(vector));
        let local = VerbsSetupRecord { vector: 0, ..record };
        assert_eq!(setup(&local).pair.unwrap().vector.unwrap().gid, None);
        assert_eq!(setup(&VerbsSetupRecord { what: 1, ..record }).pair, None);
    }
}
