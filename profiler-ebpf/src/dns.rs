//! Messages to and from port 53, copied from the program's own buffers.

use profiler_common::record::{DNS_CAPTURE, Header, RecordKind};
use profiler_common::{Call, DnsRecord, Loss};

use crate::call::Ended;
use crate::call_class::{ACCEPT, ANY_FILE, RECEIVE, SEND, WITH_HEADS};
use crate::mem::{member, unknown, user_bytes, user_bytes_up_to};
use crate::repeat::{DONE, ON, repeat};
use crate::socket::{AF_INET, AF_INET6, describe, is_socket, own_file, set_peer, sock_of};
use crate::thread::{Dest, Message, NO_DEST, NO_MESSAGE, Thread};
use crate::user_memory::{Current, UserMemory};
use crate::{api, emit, maps, offset};

const PORT: u16 = 53;
/// Messages of one `sendmmsg` or `recvmmsg`; resolvers send two.
const MESSAGES: u32 = 4;
/// Pieces of one message; with TCP there are two.
const PIECES: u64 = 4;
/// Descriptors in the poll set of a resolver.
const POLLED: u32 = 4;
const POLLERR: u16 = 8;
const MSG_PEEK: u32 = 2;
const MSG_ERRQUEUE: u32 = 0x2000;

/// A record with twice the room for the message: a copy that begins within the first half ends within the second,
/// which is what the verifier understands.
#[repr(C)]
struct DnsBuffer {
    record: DnsRecord,
    data: [u8; DNS_CAPTURE * 2],
}

/// The head of `struct msghdr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct MessageHead {
    name: u64,
    name_len: u64,
    pieces: u64,
    piece_count: u64,
}

/// Size of `struct mmsghdr`, and where it has the length.
const MMSGHDR: u64 = 64;
const MMSGHDR_LEN: u64 = 56;

/// Looks whether the call that ends carried DNS messages, and records them.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn messages(thread: *mut Thread, tid: u32, ended: *const Ended) -> u32 {
    // SAFETY: callers pass a thread's entry and how its call ended, on their stack.
    let (Some(thread), Some(ended)) = (unsafe { (thread.as_mut(), ended.as_ref()) }) else { return 0 };
    let call = thread.call;
    // Where the message was to go to is in memory that is at hand; what the socket is connected to is far away.
    if call == Call::Sendto as u32 && thread.args[4] != 0 && port_at(thread.args[4]) != PORT {
        return 0;
    }
    let file = own_file(thread.args[0] as u32);
    if file == 0 || (ANY_FILE.has(call) && !is_socket(file)) {
        return 0;
    }
    let port = peer_port(file);
    // A socket that is not connected has the address in the call.
    if port != PORT && (port != 0 || !may_name_server(thread)) {
        return 0;
    }
    record_call(thread, tid, file, ended)
}

/// The port that a socket is connected to, 0: none.
#[inline(always)]
fn peer_port(file: u64) -> u16 {
    u16::from_be(member(sock_of(file), offset!(sock_dport)))
}

/// Whether the call has the address of a name server as an argument, as far as that can be told cheaply.
#[inline(always)]
fn may_name_server(thread: &Thread) -> bool {
    if thread.call == Call::Sendto as u32 || thread.call == Call::Recvfrom as u32 {
        port_at(thread.args[4]) == PORT
    } else {
        WITH_HEADS.has(thread.call)
    }
}

/// The port of an Internet socket address in the program's memory, 0: none.
#[inline(always)]
fn port_at(address: u64) -> u16 {
    if address == 0 {
        return 0;
    }
    let [_, port] = Current.read::<[u16; 2]>(address).unwrap_or([0, 0]);
    u16::from_be(port)
}

/// What the loop over a poll set works on.
#[repr(C)]
struct Errors {
    thread: *mut Thread,
    array: u64,
    count: u64,
    now_ns: u64,
    sp: u64,
    tid: u32,
    reserved: u32,
}

/// glibc's resolver never asks a socket for its error: that `poll` shows one is all that is heard of a refusal. Looks at
/// sets of the size that resolvers use.
#[inline(always)]
pub fn poll_errors(thread: &mut Thread, tid: u32, ended: &Ended) {
    let (array, count) = (thread.args[0], thread.args[1]);
    if ended.ret > 0 && count <= u64::from(POLLED) {
        let mut errors =
            Errors { thread, array, count, now_ns: ended.now_ns, sp: ended.regs.sp, tid, reserved: 0 };
        repeat(POLLED, error_step, &mut errors);
    }
}

#[inline(never)]
unsafe extern "C" fn error_step(index: u32, errors: *mut Errors) -> i64 {
    // SAFETY: `repeat` passes what it was given; the thread's entry is in a map.
    let (errors, thread) = unsafe { (&*errors, &mut *(*errors).thread) };
    if u64::from(index) >= errors.count {
        return DONE;
    }
    // fd, events, revents
    let entry: u64 = Current.read(errors.array + u64::from(index) * 8).unwrap_or(0);
    if (entry >> 48) as u16 & POLLERR == 0 {
        return ON;
    }
    let fd = entry as u32;
    let file = own_file(fd);
    if file == 0 || !is_socket(file) {
        return ON;
    }
    let sock = sock_of(file);
    let error: u32 = member(sock, offset!(sock_err));
    if error == 0 || peer_port(file) != PORT {
        return ON;
    }
    thread.message = Message {
        file,
        fd,
        receive: 1,
        ret: -i64::from(error),
        now_ns: errors.now_ns,
        sp: errors.sp,
        ..NO_MESSAGE
    };
    record_one(thread, errors.tid);
    ON
}

/// `MSG_*` of a receiving call, 0 for others.
#[inline(always)]
fn receive_flags(thread: &Thread) -> u32 {
    if thread.call == Call::Recvfrom as u32 || thread.call == Call::Recvmmsg as u32 {
        thread.args[3] as u32
    } else if thread.call == Call::Recvmsg as u32 {
        thread.args[2] as u32
    } else {
        0
    }
}

/// Whether the call looks for errors only, not for data.
#[inline(always)]
pub fn reads_errors(thread: &Thread) -> bool {
    receive_flags(thread) & MSG_ERRQUEUE != 0
}

#[inline(never)]
fn record_call(thread: &mut Thread, tid: u32, file: u64, ended: &Ended) -> u32 {
    let call = thread.call;
    let flags = receive_flags(thread);
    if flags & (MSG_PEEK | MSG_ERRQUEUE) != 0 {
        return 0;
    }
    if call == Call::Sendmmsg as u32 || call == Call::Recvmmsg as u32 {
        return record_many(thread, tid, file, ended);
    }
    let ret = ended.ret;
    thread.message = NO_MESSAGE;
    thread.message.file = file;
    thread.message.fd = thread.args[0] as u32;
    thread.message.receive = u32::from(RECEIVE.has(call));
    thread.message.base = thread.args[1];
    thread.message.len = if ret >= 0 { ret as u64 } else { thread.args[2] };
    thread.message.ret = ret;
    thread.message.now_ns = ended.now_ns;
    thread.message.sp = ended.regs.sp;
    if call == Call::Sendmsg as u32 || call == Call::Recvmsg as u32 {
        let head: MessageHead = Current.read(thread.args[1]).unwrap_or_default();
        thread.message.base = head.pieces;
        thread.message.pieces = head.piece_count;
        thread.message.name = head.name;
    } else if call == Call::Readv as u32 || call == Call::Writev as u32 {
        thread.message.pieces = thread.args[2];
    } else if call == Call::Sendto as u32 || call == Call::Recvfrom as u32 {
        thread.message.name = thread.args[4];
    }
    record_one(thread, tid)
}

/// What the loop over the messages of one call works on.
#[repr(C)]
struct Many {
    thread: *mut Thread,
    vector: u64,
    ret: i64,
    file: u64,
    now_ns: u64,
    sp: u64,
    tid: u32,
    reserved: u32,
}

#[inline(always)]
fn record_many(thread: &mut Thread, tid: u32, file: u64, ended: &Ended) -> u32 {
    let (ret, now_ns, sp) = (ended.ret, ended.now_ns, ended.regs.sp);
    let vector = thread.args[1];
    let mut many = Many { thread, vector, ret, file, now_ns, sp, tid, reserved: 0 };
    repeat(MESSAGES, many_step, &mut many);
    0
}

#[inline(never)]
unsafe extern "C" fn many_step(index: u32, many: *mut Many) -> i64 {
    // SAFETY: `repeat` passes what it was given; the thread's entry is in a map.
    let (many, thread) = unsafe { (&*many, &mut *(*many).thread) };
    // What could not be sent is told once, with the first message.
    let failed = many.ret < 0;
    if if failed { index > 0 } else { i64::from(index) >= many.ret } {
        return DONE;
    }
    let at = many.vector + u64::from(index) * MMSGHDR;
    let head: MessageHead = Current.read(at).unwrap_or_default();
    let len: u32 = Current.read(at + MMSGHDR_LEN).unwrap_or(0);
    thread.message = Message {
        file: many.file,
        fd: thread.args[0] as u32,
        receive: u32::from(RECEIVE.has(thread.call)),
        base: head.pieces,
        pieces: head.piece_count,
        len: if failed { DNS_CAPTURE as u64 } else { u64::from(len) },
        name: head.name,
        ret: if failed { many.ret } else { i64::from(len) },
        now_ns: many.now_ns,
        sp: many.sp,
    };
    record_one(thread, many.tid);
    ON
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn record_one(thread: *mut Thread, tid: u32) -> u32 {
    // SAFETY: callers pass a thread's entry.
    let Some(thread) = (unsafe { thread.as_mut() }) else { return 0 };
    let receive = thread.message.receive != 0;
    // Before there is a record: one that is discarded takes room, and nearly all messages are not for name servers.
    if peer_port(thread.message.file) != PORT && port_at(thread.message.name) != PORT {
        return 0;
    }
    let Some(mut entry) = maps::EVENTS.reserve::<DnsBuffer>(0) else {
        emit::lost(Loss::DnsRing);
        return 0;
    };
    // SAFETY: every field is written below, the data only as far as `captured` says.
    let buffer = unsafe { &mut *entry.as_mut_ptr() };
    describe(thread.message.file, thread.message.fd, &raw mut buffer.record.sock);
    if buffer.record.sock.peer_port != PORT {
        // The entry's address is `connect`'s, which carries no messages.
        read_address(thread.message.name, &mut thread.dest);
        if thread.dest.port != PORT {
            entry.discard(emit::wake_flags());
            return 0;
        }
        set_peer(&mut buffer.record.sock, &thread.dest);
    }
    // Nothing was received where an error came instead.
    let wanted = if receive && thread.message.ret < 0 { 0 } else { thread.message.len };
    let captured = if thread.message.pieces == 0 {
        flat(&mut buffer.data, thread.message.base, wanted)
    } else {
        gather(&mut buffer.data, &thread.message, wanted)
    };
    let record = &mut buffer.record;
    record.header = Header { kind: RecordKind::Dns as u32, len: size_of::<DnsRecord>() as u32 + captured };
    record.time_ns = thread.message.now_ns;
    record.tgid = thread.tgid;
    record.tid = tid;
    record.ret = thread.message.ret;
    record.api = api::current(thread, thread.message.sp, Current);
    record.api_start_ns = if record.api == 0 { 0 } else { thread.api_start_ns };
    record.direction = u16::from(receive);
    record.captured = captured as u16;
    entry.submit(emit::wake_flags());
    0
}

#[inline(always)]
fn flat(data: &mut [u8; DNS_CAPTURE * 2], from: u64, len: u64) -> u32 {
    let len = if len > DNS_CAPTURE as u64 { DNS_CAPTURE as u64 } else { len };
    if len == 0 || !user_bytes_up_to::<{ DNS_CAPTURE as u64 }>(data.as_mut_ptr(), len, from) {
        return 0;
    }
    len as u32
}

/// Collects the pieces of a message.
#[inline(always)]
fn gather(data: &mut [u8; DNS_CAPTURE * 2], message: &Message, wanted: u64) -> u32 {
    let mut filled = 0_u64;
    let mut index = 0;
    while index < PIECES {
        let room = DNS_CAPTURE as u64;
        if index >= message.pieces || filled >= wanted || filled >= room {
            break;
        }
        let Some([from, piece]) = Current.read::<[u64; 2]>(message.base + index * 16) else { break };
        let rest = wanted - filled;
        let len = if piece > rest { rest } else { piece };
        let len = if len > room { room } else { len };
        if len > 0 {
            let begin = unknown(filled);
            if begin >= room {
                break;
            }
            // SAFETY: begins in the first half of `data` and is no longer than the second.
            let to = unsafe { data.as_mut_ptr().add(begin as usize) };
            if !user_bytes_up_to::<{ DNS_CAPTURE as u64 }>(to, len, from) {
                break;
            }
        }
        filled += len;
        index += 1;
    }
    if filled > DNS_CAPTURE as u64 { DNS_CAPTURE as u32 } else { filled as u32 }
}

/// Reads an Internet socket address from the program's memory into the thread's entry, where it takes nothing of the
/// stack; the port is 0 where there is none.
#[inline(always)]
pub fn read_address(from: u64, dest: &mut Dest) {
    *dest = NO_DEST;
    if from == 0 {
        return;
    }
    let Some([family, port]) = Current.read::<[u16; 2]>(from) else { return };
    let to = &raw mut dest.addr;
    // The peer's half of the address field begins at 16.
    // SAFETY: 4 and 16 bytes at 16 of 40.
    let read = unsafe {
        let to = to.cast::<u8>().add(16);
        match family {
            AF_INET => user_bytes(to, 4, from + 4),
            AF_INET6 => user_bytes(to, 16, from + 8),
            _ => false,
        }
    };
    if read {
        dest.family = family;
        dest.port = u16::from_be(port);
    }
}

/// Whether messages may have gone through this call.
#[inline(always)]
pub fn carries(call: u32) -> bool {
    (RECEIVE.has(call) || SEND.has(call)) && !ACCEPT.has(call) && call != Call::Sendfile as u32
}
