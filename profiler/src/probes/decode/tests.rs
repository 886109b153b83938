use profiler_common::record::{
    Header, LIFE_EXEC, ThreadTimeRecord, WAIT_BEGAN_EARLIER, WAIT_IN_FLIGHT, WAIT_SLEPT, WAIT_SOCKS,
    WAIT_TIMED,
};
use profiler_common::{
    ApiRecord, Call, DnsRecord, HandshakeRecord, LifeRecord, RetransmitRecord, SockRecord, StackRecord,
    WaitRecord,
};
use proptest::prelude::*;

use super::*;
use crate::probes::event::Registers;
use crate::trace::record::{ApiCall, Direction, Ends, LifeEvent, Retransmit, Sched, WaitFlags};

/// The bytes of a record as the kernel would write them.
fn bytes<T: Copy>(record: &T) -> Vec<u8> {
    let start = std::ptr::from_ref(record).cast::<u8>();
    // SAFETY: wire records are `repr(C)` without padding, see `profiler-common`.
    unsafe { std::slice::from_raw_parts(start, size_of::<T>()) }.to_vec()
}

fn header(kind: RecordKind, len: usize) -> Header {
    Header { kind: kind as u32, len: len as u32 }
}

fn sock() -> SockRecord {
    let mut addr = [0; 40];
    addr[..4].copy_from_slice(&[127, 0, 0, 1]);
    addr[16..20].copy_from_slice(&[127, 0, 0, 53]);
    SockRecord {
        ino: 77,
        fd: 9,
        family: 2,
        sock_type: 2,
        state: 1,
        local_port: 40000,
        peer_port: 53,
        events: 1,
        revents: 8,
        addr,
    }
}

fn wait_record(nsocks: u16) -> WaitRecord {
    WaitRecord {
        header: header(
            RecordKind::Wait,
            size_of::<WaitRecord>() + usize::from(nsocks) * size_of::<SockRecord>(),
        ),
        start_ns: 1000,
        end_ns: 5000,
        tgid: 11,
        tid: 12,
        call: Call::Poll as u16,
        flags: WAIT_SLEPT | WAIT_IN_FLIGHT | WAIT_TIMED,
        nsocks,
        nfds: 3,
        fd: -1,
        polls: 4,
        ret: -11,
        off_cpu_ns: 900,
        user_stack: 21,
        kernel_stack: 22,
        ip: 31,
        sp: 32,
        bp: 33,
        api_start_ns: 500,
        api: Api::Getaddrinfo as u32,
        arg: 5000,
        sleep_ns: 1500,
        wake_ns: 4500,
        runq_ns: 250,
        owner: 13,
        reserved: 0,
    }
}

#[test]
fn a_wait_keeps_every_field() {
    let mut record = bytes(&wait_record(1));
    record.extend(bytes(&sock()));
    let Ok(Event::Wait(wait, regs)) = decode(&record) else { panic!("no wait") };
    let flags = WaitFlags { slept: true, in_flight: true, timed: true, ..WaitFlags::default() };
    assert_eq!((wait.start_ns, wait.end_ns, wait.pid, wait.tid), (1000, 5000, 11, 12));
    assert_eq!((wait.call, wait.flags, wait.fd, wait.set_size), (Call::Poll, flags, -1, 3));
    assert_eq!((wait.polls, wait.ret, wait.arg, wait.off_cpu_ns), (4, -11, 5000, 900));
    assert_eq!((wait.user_stack, wait.kernel_stack), (21, 22));
    assert_eq!(wait.sched, Sched { sleep_ns: 1500, wake_ns: 4500, runq_ns: 250, owner: 13 });
    assert_eq!((wait.api, wait.api_start_ns), (Api::Getaddrinfo, 500));
    assert_eq!(regs, Registers { ip: 31, sp: 32, bp: 33 });
    let [socket] = wait.sockets.as_slice() else { panic!("one socket") };
    assert_eq!((socket.ino, socket.fd, socket.kind, socket.state), (77, 9, 2, 1));
    assert_eq!((socket.events, socket.revents), (1, 8));
    let ends =
        Ends::Inet { local: "127.0.0.1:40000".parse().unwrap(), peer: "127.0.0.53:53".parse().unwrap() };
    assert_eq!(socket.ends, ends);
}

#[test]
fn a_wait_that_says_more_sockets_than_it_has_is_refused() {
    let mut record = bytes(&wait_record(2));
    record.extend(bytes(&sock()));
    assert!(matches!(decode(&record), Err(DecodeError::Length { .. })));
    let mut said = wait_record(17);
    said.header.len = size_of::<WaitRecord>() as u32;
    assert_eq!(decode(&bytes(&said)), Err(DecodeError::Value { what: "number of sockets", value: 17 }));
}

#[test]
fn an_end_before_the_start_gives_an_empty_wait() {
    let mut record = wait_record(0);
    record.end_ns = 10;
    let Ok(Event::Wait(wait, _)) = decode(&bytes(&record)) else { panic!("no wait") };
    assert_eq!((wait.start_ns, wait.end_ns), (1000, 1000));
}

#[test]
fn a_dns_message_ends_where_the_header_says() {
    let record = DnsRecord {
        header: header(RecordKind::Dns, size_of::<DnsRecord>() + 3),
        time_ns: 1,
        tgid: 2,
        tid: 3,
        ret: 600,
        api_start_ns: 0,
        api: 0,
        direction: 1,
        captured: 3,
        sock: sock(),
    };
    let mut record = bytes(&record);
    // The kernel reserves more room than it fills.
    record.extend([1, 2, 3, 99, 99, 99]);
    let Ok(Event::Dns(message)) = decode(&record) else { panic!("no message") };
    assert_eq!(message.data, [1, 2, 3]);
    assert_eq!((message.direction, message.ret), (Direction::Receive, 600));
}

fn api_record(api: Api, argument: &[u8], len: u32) -> Vec<u8> {
    let mut field = [0; 128];
    field[..argument.len()].copy_from_slice(argument);
    let header = header(RecordKind::Api, size_of::<ApiRecord>());
    bytes(&ApiRecord { header, time_ns: 1, tgid: 2, tid: 3, api: api as u32, len, argument: field })
}

fn api_call(record: &[u8]) -> ApiCall {
    let Ok(Event::Api(call)) = decode(record) else { panic!("no call") };
    call
}

#[test]
fn the_argument_of_a_resolver_function_is_a_name_or_an_address() {
    let call = api_call(&api_record(Api::Getaddrinfo, b"node01", 6));
    assert_eq!((call.argument.as_str(), call.address), ("node01", None));
    let mut sockaddr = vec![2, 0, 0, 53, 10, 0, 0, 7];
    sockaddr.extend([0; 8]);
    let call = api_call(&api_record(Api::Getnameinfo, &sockaddr, 16));
    assert_eq!((call.argument.as_str(), call.address), ("10.0.0.7", Some("10.0.0.7".parse().unwrap())));
    let call = api_call(&api_record(Api::Gethostbyaddr, &[10, 0, 0, 8], 4));
    assert_eq!(call.address, Some("10.0.0.8".parse().unwrap()));
    // A family that is no address, and a length beyond the field.
    let call = api_call(&api_record(Api::Getnameinfo, &[1, 0, 0, 53], 4));
    assert_eq!((call.argument.as_str(), call.address), ("", None));
    let call = api_call(&api_record(Api::Gethostbyname, b"x", u32::MAX));
    assert_eq!(call.argument, "x");
}

#[test]
fn a_handshake_keeps_error_and_retransmits() {
    let record = HandshakeRecord {
        header: header(RecordKind::Handshake, size_of::<HandshakeRecord>()),
        start_ns: 5,
        end_ns: 9,
        tgid: 1,
        tid: 2,
        error: 110,
        flags: WAIT_BEGAN_EARLIER,
        reserved: 0,
        syn_retransmits: 6,
        reserved2: 0,
        sock: sock(),
    };
    let Ok(Event::Handshake(handshake)) = decode(&bytes(&record)) else { panic!("no handshake") };
    assert_eq!((handshake.error, handshake.syn_retransmits), (110, 6));
    assert!(handshake.began_earlier && !handshake.in_flight);
}

#[test]
fn a_retransmit_and_a_life_event_are_decoded() {
    let record = RetransmitRecord {
        header: header(RecordKind::Retransmit, size_of::<RetransmitRecord>()),
        time_ns: 5,
        tgid: 1,
        reserved: 0,
        sock: sock(),
    };
    assert!(matches!(decode(&bytes(&record)), Ok(Event::Retransmit(Retransmit { time_ns: 5, pid: 1, .. }))));
    let mut record = LifeRecord {
        header: header(RecordKind::Life, size_of::<LifeRecord>()),
        time_ns: 5,
        event: LIFE_EXEC,
        tgid: 1,
        tid: 2,
        parent_tgid: 3,
        comm: *b"python3\0\0\0\0\0\0\0\0\0",
    };
    let Ok(Event::Life(life)) = decode(&bytes(&record)) else { panic!("no life") };
    assert_eq!((life.event, life.comm.as_str(), life.parent), (LifeEvent::Exec, "python3", 3));
    record.event = 9;
    assert_eq!(decode(&bytes(&record)), Err(DecodeError::Value { what: "life event", value: 9 }));
}

#[test]
fn the_times_of_an_ended_thread_are_decoded() {
    let record = ThreadTimeRecord {
        header: header(RecordKind::ThreadTime, size_of::<ThreadTimeRecord>()),
        time_ns: 5,
        tgid: 1,
        tid: 2,
        running_ns: 70,
        runnable_ns: 30,
    };
    let Ok(Event::ThreadTime(time)) = decode(&bytes(&record)) else { panic!("no time") };
    assert_eq!((time.time_ns, time.pid, time.tid, time.running_ns, time.runnable_ns), (5, 1, 2, 70, 30));
}

#[test]
fn a_stack_is_frames_and_then_memory() {
    let record = StackRecord {
        header: header(RecordKind::Stack, size_of::<StackRecord>() + 2 * 8 + 4),
        id: 5,
        chain: 77,
        tgid: 1,
        tid: 2,
        space: 0,
        frames: 2,
        snippet: 4,
        ip: 6,
        sp: 7,
        bp: 8,
    };
    let mut whole = bytes(&record);
    whole.extend(0x1111_u64.to_ne_bytes());
    whole.extend(0x2222_u64.to_ne_bytes());
    whole.extend([1, 2, 3, 4]);
    let Ok(Event::Stack(stack)) = decode(&whole) else { panic!("no stack") };
    assert_eq!(stack.frames, [0x1111, 0x2222]);
    assert_eq!(stack.snippet, [1, 2, 3, 4]);
    assert_eq!((stack.id, stack.chain, stack.pid, stack.tid), (5, 77, 1, 2));
    assert_eq!(stack.regs, Registers { ip: 6, sp: 7, bp: 8 });
    assert!(!stack.kernel);
    whole.truncate(whole.len() - 1);
    assert!(matches!(decode(&whole), Err(DecodeError::Length { .. })));
}

#[test]
fn unknown_kinds_and_short_records_are_errors() {
    assert_eq!(decode(&[]), Err(DecodeError::Short { len: 0 }));
    let unknown = Header { kind: 99, len: 8 };
    assert_eq!(decode(&bytes(&unknown)), Err(DecodeError::Kind { kind: 99 }));
    let empty = Header { kind: 1, len: 8 };
    assert_eq!(decode(&bytes(&empty)), Err(DecodeError::Short { len: 8 }));
    let less_than_itself = Header { kind: 1, len: 4 };
    assert!(matches!(decode(&bytes(&less_than_itself)), Err(DecodeError::Length { said: 4, .. })));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(kind in 0_u32..10, len in any::<u32>(), body in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut record = kind.to_ne_bytes().to_vec();
        record.extend(len.to_ne_bytes());
        record.extend(&body);
        let _ = decode(&record);
        // The same with a length that fits, so that the body is looked at.
        let fits = record.len() as u32;
        record[4..8].copy_from_slice(&fits.to_ne_bytes());
        if let Ok(Event::Wait(wait, _)) = decode(&record) {
            prop_assert!(wait.end_ns >= wait.start_ns);
            prop_assert!(wait.sockets.len() <= WAIT_SOCKS);
        }
    }
}
