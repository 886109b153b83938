//! What holds for the trace format as a whole: round trips, damage, other versions, foreign files.

#[path = "trace_support/strategies.rs"]
mod strategies;

use std::fs;
use std::io::Cursor;
use std::path::Path;

use bytes::BytesMut;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use stallscope::analysis::report::TraceState;
use stallscope::trace::format::{
    BLOCK_HEADER, BlockHeader, FILE_HEADER, FLAG_ZSTD, Version, encode_file_header,
};
use stallscope::trace::kind::Kind;
use stallscope::trace::record::{Clock, Record};
use stallscope::trace::{TraceError, TraceReader, read_all};

use strategies::{by_kind, end, record, write_trace};

fn read_bytes(bytes: &[u8]) -> Result<(Vec<Record>, TraceState), TraceError> {
    let mut reader = TraceReader::new(Cursor::new(bytes), "memory")?;
    let records = reader.by_ref().collect();
    Ok((records, reader.state()))
}

/// A trace of a few hundred records and several blocks, the same in each run.
fn sample_trace() -> Vec<u8> {
    let mut runner = TestRunner::deterministic();
    let records = vec(record(), 60).new_tree(&mut runner).unwrap().current();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sample.stall");
    write_trace(&path, &records, 20);
    fs::read(path).unwrap()
}

/// A block of the trace, and the number of records in it.
#[derive(Clone, Copy, Debug)]
struct Place {
    from: usize,
    to: usize,
    records: usize,
}

/// The blocks of an undamaged trace.
fn places(trace: &[u8]) -> Vec<Place> {
    let mut places = Vec::new();
    let mut from = FILE_HEADER;
    while from < trace.len() {
        let header = BlockHeader::decode(&trace[from..]).unwrap();
        let to = from + BLOCK_HEADER + header.stored_len as usize;
        places.push(Place { from, to, records: header.records as usize });
        from = to;
    }
    places
}

/// The records of each block of an undamaged trace.
fn records_of(trace: &[u8], place: Place) -> Vec<Record> {
    let alone = [&trace[..FILE_HEADER], &trace[place.from..place.to]].concat();
    let (records, _) = read_bytes(&alone).unwrap();
    assert_eq!(records.len(), place.records);
    records
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_record_comes_back_as_it_was(records in vec(record(), 0..80), per_flush in 1..100_usize) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("round.stall");
        write_trace(&path, &records, per_flush);
        let (read, state) = read_all(&path).unwrap();
        prop_assert!(state.complete, "{:?}", state);
        prop_assert_eq!(state.bytes_unread, 0);
        let mut expected = by_kind(records);
        expected.push(Record::End(end()));
        prop_assert_eq!(by_kind(read), by_kind(expected));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..2000)) {
        let _ = read_bytes(&bytes);
        let behind_header = [&encode_file_header(Version { major: 1, minor: 0 })[..], &bytes].concat();
        let (_, state) = read_bytes(&behind_header).unwrap();
        prop_assert_eq!(state.bytes_unread, bytes.len() as u64);
    }

    #[test]
    fn a_payload_of_any_bytes_is_read_without_a_panic(
        kind in 0..22_u16, records in 0..40_u32, stored in vec(any::<u8>(), 0..300), small in any::<bool>()
    ) {
        // Small numbers get past the lengths and into the columns.
        let stored: Vec<u8> = if small { stored.iter().map(|byte| byte % 4).collect() } else { stored };
        let mut trace = encode_file_header(Version { major: 1, minor: 0 });
        append_block(&mut trace, kind, 0, records, &stored);
        let (_, state) = read_bytes(&trace).unwrap();
        prop_assert!(!state.complete || kind == Kind::End as u16);
    }
}

fn append_block(trace: &mut BytesMut, kind: u16, flags: u16, records: u32, stored: &[u8]) {
    let header = BlockHeader {
        kind,
        flags,
        records,
        unpacked_len: stored.len() as u32,
        stored_len: stored.len() as u32,
        payload_crc: crc32fast::hash(stored),
    };
    header.encode(trace);
    trace.extend_from_slice(stored);
}

#[test]
fn a_trace_cut_anywhere_is_read_up_to_the_cut() {
    let trace = sample_trace();
    let places = places(&trace);
    assert!(places.len() > 20);
    let (whole, _) = read_bytes(&trace).unwrap();
    for cut in FILE_HEADER..trace.len() {
        let before: Vec<Place> = places.iter().copied().filter(|place| place.to <= cut).collect();
        let expected: usize = before.iter().map(|place| place.records).sum();
        let (records, state) = read_bytes(&trace[..cut]).unwrap();
        assert_eq!(records, whole[..expected], "cut at {cut}");
        assert!(!state.complete);
        let end = before.last().map_or(FILE_HEADER, |place| place.to);
        assert_eq!(state.bytes_unread, (cut - end) as u64, "cut at {cut}: {state:?}");
        let killed = state.damage.iter().any(|line| line.contains("did not end in order"));
        assert!(killed, "{state:?}");
        let corrupt = state.damage.iter().any(|line| line.contains("ends inside a block"));
        assert_eq!(corrupt, cut != end, "cut at {cut}: {state:?}");
    }
}

#[test]
fn a_cut_file_header_is_an_error_of_its_own() {
    let trace = sample_trace();
    assert!(matches!(read_bytes(&[]), Err(TraceError::Empty { .. })));
    for cut in 1..FILE_HEADER {
        let error = read_bytes(&trace[..cut]).unwrap_err();
        assert!(matches!(error, TraceError::TruncatedHeader { bytes, .. } if bytes == cut as u64), "{error}");
    }
}

#[test]
fn a_flipped_bit_costs_its_block_alone() {
    let trace = sample_trace();
    let places = places(&trace);
    let blocks: Vec<Vec<Record>> = places.iter().map(|&place| records_of(&trace, place)).collect();
    for at in FILE_HEADER..trace.len() {
        let mut bad = trace.clone();
        bad[at] ^= 1 << (at % 8);
        let (records, state) = read_bytes(&bad).unwrap();
        let hit = places.iter().position(|place| (place.from..place.to).contains(&at)).unwrap();
        let mut expected = blocks.clone();
        expected.remove(hit);
        assert_eq!(records, expected.concat(), "bit in byte {at}");
        assert!(!state.complete);
        assert!(state.damage[0].starts_with(&format!("at byte {}: ", places[hit].from)), "{state:?}");
        assert_eq!(state.bytes_unread, (places[hit].to - places[hit].from) as u64, "{state:?}");
    }
}

#[test]
fn a_flipped_bit_in_the_file_header_costs_no_record() {
    let trace = sample_trace();
    let (whole, _) = read_bytes(&trace).unwrap();
    for bit in 0..FILE_HEADER * 8 {
        let mut bad = trace.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let (records, state) = read_bytes(&bad).unwrap();
        assert_eq!(records, whole, "bit {bit}");
        assert!(!state.complete);
        assert!(state.damage[0].contains("file header"), "{state:?}");
    }
}

#[test]
fn missing_and_foreign_bytes_in_the_middle_are_skipped() {
    let trace = sample_trace();
    let places = places(&trace);
    let blocks: Vec<Vec<Record>> = places.iter().map(|&place| records_of(&trace, place)).collect();
    let (first, second) = (places[3], places[4]);

    // From the middle of one block to the middle of the next: both are lost, the rest is not.
    let (from, to) = (first.from + BLOCK_HEADER + 2, second.from + BLOCK_HEADER + 2);
    let holed = [&trace[..from], &trace[to..]].concat();
    let (records, state) = read_bytes(&holed).unwrap();
    assert_eq!(records, [&blocks[..3], &blocks[5..]].concat().concat());
    assert!(!state.complete);

    // A piece inside of one block, so that the next begins within the length that its header claims.
    let holed = [&trace[..from], &trace[from + 4..]].concat();
    let (records, _) = read_bytes(&holed).unwrap();
    assert_eq!(records, [&blocks[..3], &blocks[4..]].concat().concat());

    let zeros = vec![0; 70_000];
    let padded = [&trace[..first.to], &zeros, &trace[first.to..]].concat();
    let (records, state) = read_bytes(&padded).unwrap();
    assert_eq!(records, blocks.concat());
    assert_eq!(state.bytes_unread, 70_000);
    assert_eq!(state.damage.len(), 1, "{state:?}");
}

#[test]
fn overlapping_claims_of_lengths_are_read_in_linear_time() {
    // Each header is right and claims the rest of the file: 28 bytes apart, 6 MB, so that checking every
    // claim would touch 400 GB.
    let mut trace = encode_file_header(Version { major: 1, minor: 0 });
    for _ in 0..200_000 {
        let header = BlockHeader {
            kind: 2,
            flags: 0,
            records: 1,
            unpacked_len: 4 << 20,
            stored_len: 4 << 20,
            payload_crc: 0,
        };
        header.encode(&mut trace);
    }
    let (records, state) = read_bytes(&trace).unwrap();
    assert_eq!(records, []);
    assert_eq!(state.bytes_unread, (trace.len() - FILE_HEADER) as u64);
    assert!(state.damage.len() < 40);
}

#[test]
fn a_block_that_unpacks_to_more_than_it_says_is_damage() {
    let packed = zstd::bulk::compress(&vec![0; 3 << 20], 1).unwrap();
    for claimed in [0, 100, 4 << 20] {
        let mut trace = encode_file_header(Version { major: 1, minor: 0 });
        let header = BlockHeader {
            kind: 2,
            flags: FLAG_ZSTD,
            records: 1,
            unpacked_len: claimed,
            stored_len: packed.len() as u32,
            payload_crc: crc32fast::hash(&packed),
        };
        header.encode(&mut trace);
        trace.extend_from_slice(&packed);
        let (records, state) = read_bytes(&trace).unwrap();
        assert_eq!(records, []);
        assert!(state.damage[0].contains("cannot be unpacked"), "{state:?}");
    }
}

/// A block of `rows` waits that all name one list of `sockets` times the same socket.
fn waits_that_share_a_list(rows: usize, sockets: usize) -> BytesMut {
    let varint = |value: usize| postcard::to_stdvec(&value).unwrap();
    let mut payload = Vec::new();
    payload.extend([1, 1, 1]); // threads
    payload.extend([1, 0, 0]); // stacks
    payload.extend([1, 0, 0, 0, 0, 0]); // shapes
    payload.extend([1, 7, 0, 1, 1, 2, 0]); // sockets: Other { family: 0 }
    payload.push(1);
    payload.extend(varint(sockets)); // list_lens
    payload.extend(varint(sockets));
    payload.resize(payload.len() + 3 * sockets, 0); // items
    for _ in 0..11 {
        payload.extend(varint(rows));
        payload.resize(payload.len() + rows, 0);
    }
    let mut trace = encode_file_header(Version { major: 1, minor: 0 });
    append_block(&mut trace, Kind::Wait as u16, 0, rows as u32, &payload);
    trace
}

#[test]
fn sockets_that_unfold_without_bound_are_refused() {
    let (records, _) = read_bytes(&waits_that_share_a_list(200, 1000)).unwrap();
    assert_eq!(records.len(), 200);
    assert!(matches!(&records[199], Record::Wait(wait) if wait.sockets.len() == 1000));

    let (records, state) = read_bytes(&waits_that_share_a_list(200_000, 100_000)).unwrap();
    assert_eq!(records, []);
    assert!(state.damage[0].contains("cannot be decoded"), "{state:?}");
}

#[test]
fn unknown_kinds_and_encodings_are_skipped_and_counted() {
    let clock = Record::Clock(Clock { monotonic_ns: 1, unix_ns: 2 });
    let mut trace = encode_file_header(Version { major: 1, minor: 44 });
    append_block(&mut trace, 4000, 0, 5, b"a later layer");
    append_block(&mut trace, Kind::Clock as u16, 0, 1, &[1, 1, 2]);
    append_block(&mut trace, Kind::Clock as u16, 0x8000, 2, b"an encoding to come");
    append_block(&mut trace, Kind::End as u16, 0, 1, &[1, 9, 0]);
    let mut reader = TraceReader::new(Cursor::new(&trace[..]), "memory").unwrap();
    assert_eq!(reader.version(), Version { major: 1, minor: 44 });
    let records: Vec<Record> = reader.by_ref().collect();
    assert_eq!(records[0], clock);
    let told = &records[2];
    assert!(
        matches!(told, Record::Loss(loss) if loss.what == "unknown_record_kind" && loss.count == 7),
        "{told:?}"
    );
    assert_eq!(records.len(), 3);
    assert!(reader.state().complete, "{:?}", reader.state());
}

#[test]
fn bytes_behind_what_is_known_of_a_record_block_are_ignored() {
    let mut trace = encode_file_header(Version { major: 1, minor: 3 });
    append_block(&mut trace, Kind::Clock as u16, 0, 1, &[1, 1, 2, 99, 99]);
    let (records, state) = read_bytes(&trace).unwrap();
    assert_eq!(records, [Record::Clock(Clock { monotonic_ns: 1, unix_ns: 2 })]);
    assert_eq!(state.bytes_unread, 0);
}

#[test]
fn a_longer_file_header_of_a_newer_minor_version_is_read() {
    let mut header = Vec::from(*b"\x8cSTALL\r\n");
    header.extend([1, 0, 5, 0, 32, 0, 0, 0]);
    header.extend([7; 12]);
    let crc = crc32fast::hash(&header);
    header.extend(crc.to_le_bytes());
    let mut trace = BytesMut::from(&header[..]);
    append_block(&mut trace, Kind::Clock as u16, 0, 1, &[1, 1, 2]);
    let (records, state) = read_bytes(&trace).unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(state.bytes_unread, 0);
}

#[test]
fn another_major_version_is_refused_and_named() {
    let newer = encode_file_header(Version { major: 2, minor: 3 });
    let trace = [&newer[..], &sample_trace()[FILE_HEADER..]].concat();
    let error = read_bytes(&trace).unwrap_err();
    assert!(matches!(error, TraceError::NewerVersion { major: 2, minor: 3, .. }));
    assert_eq!(error.to_string(), "memory has trace format 2.3; this stallscope reads up to 1.x");
    assert!(error.help().unwrap().contains("newer"));

    let older = encode_file_header(Version { major: 0, minor: 9 });
    assert!(matches!(read_bytes(&older), Err(TraceError::OlderVersion { major: 0, minor: 9, .. })));
}

#[test]
fn files_that_are_no_traces_are_named_for_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let open = |path: &Path| read_all(path).unwrap_err();

    assert!(matches!(open(folder.path()), TraceError::IsDirectory { .. }));
    assert!(matches!(open(&folder.path().join("missing")), TraceError::Open { .. }));
    assert!(matches!(open(&write("empty", b"")), TraceError::Empty { .. }));
    assert!(matches!(open(&write("magic", b"\x8cSTA")), TraceError::TruncatedHeader { .. }));
    for (bytes, name) in [
        (&b"hi\n"[..], "a text file"),
        (&b"127.0.0.1 localhost\n::1 localhost ip6-localhost\n"[..], "a text file"),
        (
            &b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\x3e\x00\x01\x00"[..],
            "an ELF file",
        ),
        (&b"\x28\xb5\x2f\xfd"[..], "a zstd file (unpack it first)"),
        (&[0; 64][..], "another kind of file"),
    ] {
        let error = open(&write("foreign", bytes));
        assert!(matches!(error, TraceError::NotATrace { looks_like, .. } if looks_like == name), "{error}");
        assert!(error.help().is_some());
    }
}

/// What is behind the header of a second trace is another recording: not one record of it is taken for the first one's.
#[test]
fn a_second_trace_in_the_same_file_is_not_read() {
    let one = sample_trace();
    let (records, whole) = read_bytes(&one).unwrap();
    assert!(whole.complete);
    let (both, state) = read_bytes(&[one.clone(), one.clone()].concat()).unwrap();
    assert_eq!(both, records);
    assert_eq!((state.complete, state.bytes_unread), (false, one.len() as u64));
    let place = format!("at byte {}: another trace begins here", one.len());
    assert!(state.damage.iter().any(|line| line.starts_with(&place)), "{:?}", state.damage);

    // The first was killed in the middle of a block.
    let cut = &one[..one.len() - 7];
    let (both, state) = read_bytes(&[cut, &one].concat()).unwrap();
    assert_eq!(both, read_bytes(cut).unwrap().0);
    assert!(state.damage.iter().any(|line| line.contains("another trace begins here")), "{:?}", state.damage);
}
