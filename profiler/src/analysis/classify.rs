//! What one wait is: a stall on one or several peers, idle time, or another wait.
//!
//! - Idle: `accept`; a poll set that holds a listening socket, only descriptors that are no sockets, or
//!   nothing; sleeping; `futex` with a bit set, which is what condition variables use, unless the word looks like a
//!   contended lock. But a program that looks at a non-blocking socket by turns and sleeps in between waits for the
//!   peer all the time.
//! - `lock`: the interpreter lock of CPython, as the stack shows it; and `futex` on a word that names the thread of the
//!   same process that holds it: glibc's mutexes, and those that inherit priority. A word of another kind (Rust, Go,
//!   locks inside of libc) does not tell who holds it, nor for certain that it is a lock: such a wait is an other wait,
//!   or idle where the stack names a condition variable.
//! - `dns.resolve`: any wait on a socket to port 53, on nscd's, systemd-resolved's or avahi's socket, or on an
//!   unconnected UDP socket over which a query was sent or inside a resolver function; there on any unix socket too.
//! - `tcp.connect`: `connect`, and any other wait on a TCP socket while its handshake is under way. A `connect` that slept and
//!   came back without an outcome waited for as long as the program had said by `SO_SNDTIMEO`; one that did not sleep
//!   was not meant to wait.
//! - `sock.recv`, `sock.send`: a wait on a connected peer; a `close` that waits for the peer to take what was sent
//!   (`SO_LINGER`) sends. As long as segments are lost again and again it is
//!   `tcp.retransmit`; one retransmission alone repaired its loss, and what comes after it is an ordinary wait.
//! - `rdma.setup`: a call into `ib_uverbs` or the connection manager; `dma.map` while it pins memory for the device.
//! - `other`: an internet socket without a known peer.
//! - Other waits, no stalls: unix sockets, netlink, pipes, other `futex` operations.
//!
//! All peers of one wait share it equally, also where only one of them became ready: the thread waited for
//! any. A set that mixes peers with pipes and unix sockets is shared among the peers. Of a large set not every socket is
//! described: the others are taken to be like those that are, and their part of the wait has no peer.
//!
//! A set that the probes could not look at to its end, where they saw no listening socket, is another wait: what they
//! saw is not what it waits for, and the rest may listen. Places of an array of `pollfd` with a negative descriptor,
//! and everything behind a listening socket, are not missing.

use profiler_common::record::{FUTEX_CONTENDED, WAIT_SOCKS};
use profiler_common::{Api, Call};

use super::context::Context;
use super::dns_wait::api_of;
use crate::model::cause::Cause;
use crate::model::intern::NameId;
use crate::model::socket::{SocketClass, SocketId, SocketInfo, Transport, state};
use crate::model::thread::Interval;
use crate::model::wait::{Awaited, Interest, WaitSpan, is_poll};

/// What a wait as a whole is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Neither stall nor idle.
    Other,
    Idle,
    /// Waits for nothing but time: idle, unless it is the nap between two looks at a non-blocking descriptor.
    Sleep,
    /// Waits for the slots that were filled in, at least one.
    Stall,
}

/// A share of a wait: as many equal parts of it as it has sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub socket: SocketId,
    pub peer: NameId,
    pub interest: Interest,
    /// Before this time the share is `tcp.connect`.
    pub connected_ns: u64,
    /// In this time it is `tcp.retransmit`.
    pub retransmit: Interval,
    /// In this time it is `dma.map`.
    pub mapped: Interval,
    /// In the rest.
    pub base: Cause,
    /// Sockets that it stands for.
    pub parts: u32,
}

/// Lies behind every time.
const NEVER: Interval = Interval { start_ns: u64::MAX, end_ns: u64::MAX };

impl Slot {
    fn new(awaited: Awaited, peer: NameId, base: Cause) -> Slot {
        Slot {
            socket: awaited.socket,
            peer,
            interest: awaited.interest,
            connected_ns: 0,
            retransmit: NEVER,
            mapped: NEVER,
            base,
            parts: 1,
        }
    }

    /// A wait on no socket.
    pub(super) fn of_none(base: Cause) -> Slot {
        let nothing = Awaited { socket: SocketId(u32::MAX), state: 0, interest: Interest::Read };
        Slot::new(nothing, NameId::default(), base)
    }

    pub fn cause_at(&self, time_ns: u64) -> Cause {
        if time_ns < self.connected_ns {
            Cause::TcpConnect
        } else if (self.retransmit.start_ns..self.retransmit.end_ns).contains(&time_ns) {
            Cause::TcpRetransmit
        } else if (self.mapped.start_ns..self.mapped.end_ns).contains(&time_ns) {
            Cause::DmaMap
        } else {
            self.base
        }
    }
}

const FUTEX_COMMAND: i32 = 0x7f;
const FUTEX_WAIT_BITSET: i32 = 9;

/// Says what `wait` is and fills `slots` if it is a stall.
pub fn classify(context: &Context, wait: &WaitSpan, slots: &mut Vec<Slot>) -> Verdict {
    slots.clear();
    match wait.call {
        Call::Accept | Call::Accept4 => Verdict::Idle,
        Call::Nanosleep | Call::ClockNanosleep => Verdict::Sleep,
        Call::Futex => classify_futex(context, wait, slots),
        Call::Uverbs => classify_setup(context, wait, slots),
        Call::None => Verdict::Other,
        Call::Connect if is_still_under_way(wait) => Verdict::Other,
        call if is_poll(call) => classify_poll(context, wait, slots),
        _ => classify_call(context, wait, slots),
    }
}

/// A `connect` that returned at once without an outcome did not wait for one.
pub fn is_still_under_way(wait: &WaitSpan) -> bool {
    let error = wait.ret.saturating_neg();
    let none_yet = [libc::EINPROGRESS, libc::EALREADY, libc::EAGAIN, libc::EISCONN];
    none_yet.contains(&error) && !has_timed_out(wait)
}

/// Whether `connect` waited for as long as the program had said by `SO_SNDTIMEO`: the error is that of a socket that does
/// not block, but on such a one the thread would not have slept.
pub fn has_timed_out(wait: &WaitSpan) -> bool {
    let error = wait.ret.saturating_neg();
    wait.call == Call::Connect && wait.flags.slept && [libc::EINPROGRESS, libc::EALREADY].contains(&error)
}

/// A call that sets RDMA up: pinning and mapping of memory for the device, and the rest.
fn classify_setup(context: &Context, wait: &WaitSpan, slots: &mut Vec<Slot>) -> Verdict {
    let mut slot = Slot::of_none(Cause::RdmaSetup);
    if let Some(call) = context.model.setups.of_wait(wait.start_ns, wait.end_ns)
        && call.pin_ns > 0
    {
        // Several pinnings of one call lie side by side: the time between them is not theirs.
        let end_ns = call.pin_end_ns.min(call.pin_start_ns.saturating_add(call.pin_ns));
        slot.mapped = Interval { start_ns: call.pin_start_ns, end_ns };
    }
    slots.push(slot);
    Verdict::Stall
}

/// Innermost frames that are looked through for a condition variable.
const CONDITION_FRAMES: usize = 8;

fn classify_futex(context: &Context, wait: &WaitSpan, slots: &mut Vec<Slot>) -> Verdict {
    if wait.owner != 0 || context.model.python.gil.contains(&wait.user_stack) {
        slots.push(Slot::of_none(Cause::Lock));
        return Verdict::Stall;
    }
    let contended = wait.arg & FUTEX_CONTENDED != 0;
    if wait.arg & FUTEX_COMMAND != FUTEX_WAIT_BITSET || (contended && !is_on_condition(context, wait)) {
        return Verdict::Other;
    }
    Verdict::Idle
}

/// Whether the stack says that a condition variable is what is waited for.
fn is_on_condition(context: &Context, wait: &WaitSpan) -> bool {
    let names = |name: &str| {
        ["pthread_cond_", "Condvar", "condition_variable"].iter().any(|part| name.contains(part))
    };
    let stack = context.model.stacks.get(&wait.user_stack);
    stack.is_some_and(|stack| stack.frames.iter().take(CONDITION_FRAMES).any(|frame| names(&frame.function)))
}

fn classify_poll(context: &Context, wait: &WaitSpan, slots: &mut Vec<Slot>) -> Verdict {
    let set = context.model.sets.get(wait.set);
    let class = |awaited: &Awaited| context.model.sockets.get(awaited.socket).map(|info| info.class);
    let listens = |awaited: &Awaited| {
        awaited.state == state::LISTEN
            && matches!(class(awaited), Some(SocketClass::Inet | SocketClass::Unix))
    };
    if set.iter().any(listens) {
        return Verdict::Idle;
    }
    if wait.flags.set_cut {
        return Verdict::Other;
    }
    if fill(context, wait, set, slots) {
        add_rest(wait, set, slots);
        return Verdict::Stall;
    }
    let work = |awaited: &Awaited| class(awaited) == Some(SocketClass::NotASocket);
    if wait.call == Call::IoUringEnter {
        Verdict::Other
    } else if set.is_empty() {
        // A set that could not be looked at is no timer.
        if wait.set_size == 0 { Verdict::Sleep } else { Verdict::Other }
    } else if set.iter().all(work) {
        // Of a large set the probes keep the sockets, so what they leave out are no sockets either.
        Verdict::Idle
    } else {
        Verdict::Other
    }
}

fn classify_call(context: &Context, wait: &WaitSpan, slots: &mut Vec<Slot>) -> Verdict {
    let set = context.model.sets.get(wait.set);
    if fill(context, wait, set, slots) { Verdict::Stall } else { Verdict::Other }
}

/// A slot for the sockets of a large set that are not described.
fn add_rest(wait: &WaitSpan, set: &[Awaited], slots: &mut Vec<Slot>) {
    let more = usize::from(wait.set_size).saturating_sub(set.len());
    let Some(first) = slots.first().copied().filter(|_| more > 0 && set.len() >= WAIT_SOCKS) else { return };
    let parts = u32::try_from(more * slots.len() / set.len()).unwrap_or(0);
    if parts > 0 {
        let awaited = Awaited { socket: first.socket, state: 0, interest: first.interest };
        slots.push(Slot { parts, ..Slot::new(awaited, NameId::default(), first.base) });
    }
}

/// A slot for each peer of the set. Sockets without a known peer count only where there is no other.
fn fill(context: &Context, wait: &WaitSpan, set: &[Awaited], slots: &mut Vec<Slot>) -> bool {
    let mut has_peer = false;
    for awaited in set {
        let Some(info) = context.model.sockets.get(awaited.socket) else { continue };
        let Some(slot) = slot_of(context, wait, *awaited, info) else { continue };
        let known = slot.base != Cause::Other;
        if known && !has_peer {
            slots.clear();
            has_peer = true;
        }
        if known || !has_peer {
            slots.push(slot);
        }
    }
    !slots.is_empty()
}

/// What waiting on this descriptor is; `None` where it is no stall.
fn slot_of(context: &Context, wait: &WaitSpan, awaited: Awaited, info: &SocketInfo) -> Option<Slot> {
    match info.class {
        // Nobody listens there, which is how most machines are set up.
        SocketClass::UnixResolver if wait.call == Call::Connect && wait.ret < 0 => None,
        // After such a connect; nobody answers a close either.
        SocketClass::UnixResolver if wait.call == Call::Close => None,
        SocketClass::UnixResolver => Some(Slot::new(awaited, info.name, Cause::DnsResolve)),
        // D-Bus, sssd and others: whom a resolver function waits for is a name service.
        SocketClass::Unix if is_asked_for_a_name(context, wait) => {
            Some(Slot::new(awaited, info.name, Cause::DnsResolve))
        }
        SocketClass::Inet => match info.transport {
            Transport::Tcp => tcp_slot(context, wait, awaited, info),
            Transport::Udp => udp_slot(context, wait, awaited, info),
            Transport::Unix | Transport::Other => None,
        },
        SocketClass::NotASocket | SocketClass::Unix | SocketClass::OtherFamily => None,
    }
}

/// Whether a resolver function waits, for more than that its connection is refused or closed.
fn is_asked_for_a_name(context: &Context, wait: &WaitSpan) -> bool {
    let fails = wait.call == Call::Connect && wait.ret < 0;
    !fails && wait.call != Call::Close && api_of(context.model, wait) != Api::None
}

fn tcp_slot(context: &Context, wait: &WaitSpan, awaited: Awaited, info: &SocketInfo) -> Option<Slot> {
    let connecting =
        context.connecting(awaited.socket, wait.start_ns, wait.end_ns.max(wait.start_ns.saturating_add(1)));
    let peer = match connecting {
        Some(connecting) if info.peer.is_none() => connecting.peer,
        _ => info.name,
    };
    if wait.call == Call::Close && (info.peer.is_none() || !sends_the_rest(awaited)) {
        return None;
    }
    if info.is_dns_port() {
        return Some(Slot::new(awaited, info.name, Cause::DnsResolve));
    }
    if wait.call == Call::Connect {
        return Some(Slot::new(awaited, peer, Cause::TcpConnect));
    }
    let base = match awaited.interest {
        _ if peer == NameId::default() => Cause::Other,
        Interest::Read => Cause::SockRecv,
        Interest::Write => Cause::SockSend,
    };
    let mut slot = Slot::new(awaited, peer, base);
    // A socket becomes writable with the end of its handshake, so a poll for that has no other part; the
    // rest of any other wait is for what comes after.
    let until_writable = awaited.interest == Interest::Write && is_poll(wait.call);
    match connecting {
        Some(_) if until_writable => slot.base = Cause::TcpConnect,
        Some(connecting) => slot.connected_ns = connecting.end_ns,
        None if awaited.state == state::SYN_SENT => slot.base = Cause::TcpConnect,
        None => {}
    }
    if slot.base != Cause::TcpConnect {
        let from = wait.start_ns.max(slot.connected_ns);
        if let Some(loss) = context.loss(awaited.socket, from, wait.end_ns) {
            slot.retransmit = loss;
        }
    }
    Some(slot)
}

/// Whether a socket that is being closed has sent or is to send its end, and the peer has not confirmed that: what `close`
/// waits for.
fn sends_the_rest(awaited: Awaited) -> bool {
    matches!(awaited.state, state::FIN_WAIT1 | state::CLOSING | state::LAST_ACK)
}

fn udp_slot(context: &Context, wait: &WaitSpan, awaited: Awaited, info: &SocketInfo) -> Option<Slot> {
    if wait.call == Call::Connect || wait.call == Call::Close {
        // Neither waits for anyone.
        return None;
    }
    if info.is_dns_port() {
        return Some(Slot::new(awaited, info.name, Cause::DnsResolve));
    }
    if info.peer.is_none() {
        let server = context.asked_server(info.ino, wait.start_ns, wait.end_ns);
        if server.is_some() || wait.api != profiler_common::Api::None {
            return Some(Slot::new(awaited, server.unwrap_or_default(), Cause::DnsResolve));
        }
        return Some(Slot::new(awaited, NameId::default(), Cause::Other));
    }
    let base = if awaited.interest == Interest::Write { Cause::SockSend } else { Cause::SockRecv };
    Some(Slot::new(awaited, info.name, base))
}

#[cfg(test)]
mod tests;
