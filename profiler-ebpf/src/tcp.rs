//! TCP handshakes from SYN to outcome, and retransmitted segments. These run in interrupts too, where the current task
//! means nothing: sockets are known by address.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use profiler_common::config::NO_OFFSET;
use profiler_common::record::{Header, RecordKind};
use profiler_common::{Call, HandshakeRecord, Loss, RetransmitRecord, SockRecord};

use crate::maps::{HANDSHAKES, OWNED, TARGETS};
use crate::mem::member;
use crate::socket::{AF_INET, AF_INET6, SOCK_STREAM, TCP_SYN_SENT, describe_sock};
use crate::thread::{self, NO_SOCK};
use crate::{emit, offset};

/// Whose socket it is. The ports tell when the memory has become another socket.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Owner {
    pub tgid: u32,
    pub local_port: u16,
    pub peer_port: u16,
}

/// Remembers that the socket at `sock` is a target's, if it is one of TCP.
#[inline(always)]
pub fn own(sock: u64, record: &SockRecord, tgid: u32) {
    let internet = record.family == AF_INET || record.family == AF_INET6;
    if sock == 0 || !internet || record.sock_type != SOCK_STREAM {
        return;
    }
    let owner = Owner { tgid, local_port: record.local_port, peer_port: record.peer_port };
    // SAFETY: a copy of an entry that may change meanwhile: at worst it is written again.
    if unsafe { OWNED.get(sock) } == Some(&owner) {
        return;
    }
    // The oldest entries make room; an update that finds the map busy is made up for by the socket's next call.
    let _ = OWNED.insert(sock, owner, 0);
}

#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn handshake_state(ctx: BtfTracePointContext) -> i32 {
    let sock: u64 = ctx.arg(0);
    let old: i32 = ctx.arg(1);
    let new: i32 = ctx.arg(2);
    if new == i32::from(TCP_SYN_SENT) {
        begin(sock);
    } else if old == i32::from(TCP_SYN_SENT) {
        end(sock, new as u8);
    }
    0
}

/// `connect` of the current thread, after it has filled in the address.
#[inline(always)]
fn begin(sock: u64) {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if TARGETS.get_ptr(tgid).is_none() {
        return;
    }
    // SAFETY: no preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let mut record = new_record(sock, tgid, id as u32, now_ns);
    record.sock.state = TCP_SYN_SENT;
    if let Some(thread) = thread::find(id as u32)
        && thread.call == Call::Connect as u32
    {
        record.sock.fd = thread.args[0] as i32;
    }
    own(sock, &record.sock, tgid);
    if HANDSHAKES.insert(sock, &record, 0).is_err() {
        emit::lost(Loss::HandshakeTable);
    }
}

#[inline(always)]
pub fn new_record(sock: u64, tgid: u32, tid: u32, start_ns: u64) -> HandshakeRecord {
    let mut record = HandshakeRecord {
        header: Header { kind: RecordKind::Handshake as u32, len: size_of::<HandshakeRecord>() as u32 },
        start_ns,
        end_ns: 0,
        tgid,
        tid,
        error: 0,
        flags: 0,
        reserved: 0,
        syn_retransmits: 0,
        reserved2: 0,
        sock: NO_SOCK,
    };
    record.sock.ino = inode_of(sock);
    describe_sock(sock, &mut record.sock);
    record
}

/// Inode number of the file of a socket, 0 where it has none (any more).
#[inline(always)]
fn inode_of(sock: u64) -> u64 {
    let socket: u64 = member(sock, offset!(sock_socket));
    let file: u64 = member(socket, offset!(socket_file));
    let inode: u64 = member(file, offset!(file_inode));
    member(inode, offset!(inode_ino))
}

#[inline(always)]
fn end(sock: u64, state: u8) {
    let Some(open) = HANDSHAKES.get_ptr(sock) else { return };
    // SAFETY: a copy; only this event ends the entry.
    let mut record = unsafe { *open };
    let _ = HANDSHAKES.remove(sock);
    // SAFETY: no preconditions.
    record.end_ns = unsafe { bpf_ktime_get_ns() };
    record.error = member(sock, offset!(sock_err));
    record.syn_retransmits = member::<u32>(sock, offset!(tcp_total_retrans));
    let mut now = NO_SOCK;
    describe_sock(sock, &mut now);
    // The local end was chosen after the handshake began; the peer may be gone already.
    record.sock.local_port = now.local_port;
    let mut index = 0;
    while index < 16 {
        record.sock.addr[index] = now.addr[index];
        index += 1;
    }
    record.sock.state = state;
    if record.sock.ino == 0 {
        record.sock.ino = inode_of(sock);
    }
    own(sock, &record.sock, record.tgid);
    emit::record(&record, Loss::OtherRing);
}

/// Whether the segment goes out again because the peer does not read, not because one was lost: all of its window is
/// filled, so that the end of the queue is probed for a late acknowledgement, or the window is closed.
#[inline(always)]
fn probes_window(sock: u64) -> bool {
    /// `ICSK_TIME_LOSS_PROBE`
    const LOSS_PROBE: u8 = 5;
    if offset!(tcp_snd_wnd) == NO_OFFSET || offset!(icsk_pending) == NO_OFFSET {
        return false;
    }
    let window: u32 = member(sock, offset!(tcp_snd_wnd));
    let unacknowledged =
        member::<u32>(sock, offset!(tcp_snd_nxt)).wrapping_sub(member(sock, offset!(tcp_snd_una)));
    window == 0 || (unacknowledged >= window && member::<u8>(sock, offset!(icsk_pending)) == LOSS_PROBE)
}

#[btf_tracepoint(function = "tcp_retransmit_skb")]
pub fn retransmit_skb(ctx: BtfTracePointContext) -> i32 {
    let sock: u64 = ctx.arg(0);
    // SAFETY: a copy of an entry that may change meanwhile; the ports are compared below.
    let Some(owner) = (unsafe { OWNED.get(sock) }).copied() else { return 0 };
    let mut record = RetransmitRecord {
        header: Header { kind: RecordKind::Retransmit as u32, len: size_of::<RetransmitRecord>() as u32 },
        // SAFETY: no preconditions.
        time_ns: unsafe { bpf_ktime_get_ns() },
        tgid: owner.tgid,
        reserved: 0,
        sock: NO_SOCK,
    };
    describe_sock(sock, &mut record.sock);
    // While the handshake begins the socket has no port yet.
    let same_local = owner.local_port == 0 || owner.local_port == record.sock.local_port;
    if !same_local || owner.peer_port != record.sock.peer_port {
        // Another processor may have done so.
        let _ = OWNED.remove(sock);
        return 0;
    }
    if record.sock.state == TCP_SYN_SENT {
        if let Some(open) = HANDSHAKES.get_ptr_mut(sock) {
            // SAFETY: a counter of the entry; the socket's lock is held.
            unsafe { (*open).syn_retransmits = (*open).syn_retransmits.saturating_add(1) };
        }
    } else if probes_window(sock) {
        return 0;
    }
    record.sock.ino = inode_of(sock);
    emit::record(&record, Loss::OtherRing);
    0
}
