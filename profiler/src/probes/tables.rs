//! Reads the tables that the programs keep in the kernel: counters, and what has not ended.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, MapData, PerCpuArray};
use profiler_common::record::{
    HandshakeRecord, WAIT_BEGAN_EARLIER, WAIT_IN_FLIGHT, WAIT_NONBLOCKING, WAIT_PAUSED,
};
use profiler_common::{Api, Call, CallTotals, NonblockingKey, NonblockingWait, Settings};

use super::decode::wait_flags;
use super::event::{Event, Registers};
use super::fields::Fields;
use super::socket::decode_socket;
use crate::target::ProcRoot;
use crate::target::process::thread_state;
use crate::trace::record::{CallCount, Handshake, Loss, Sched, Socket, Wait};

pub(super) fn call_counts(totals: &PerCpuArray<MapData, CallTotals>) -> Vec<CallCount> {
    let count = |call: Call| {
        let values = totals.get(&(call as u32), 0).ok()?;
        let mut sum = CallCount { call, seen: 0, below: 0, below_ns: 0 };
        for value in values.iter() {
            sum.seen = sum.seen.saturating_add(value.seen);
            sum.below = sum.below.saturating_add(value.below);
            sum.below_ns = sum.below_ns.saturating_add(value.below_ns);
        }
        (sum.seen > 0).then_some(sum)
    };
    Call::ALL.into_iter().filter_map(count).collect()
}

pub(super) fn losses(lost: &PerCpuArray<MapData, u64>) -> Vec<Loss> {
    let count = |kind: profiler_common::Loss| {
        let count =
            lost.get(&(kind as u32), 0).ok()?.iter().fold(0_u64, |sum, value| sum.saturating_add(*value));
        (count > 0).then(|| Loss { what: kind.name().to_owned(), count, events: kind.is_event() })
    };
    profiler_common::Loss::ALL.into_iter().filter_map(count).collect()
}

/// Threads that are given time for another look, at most.
const AWAITED: usize = 256;
/// How long, all together.
const PATIENCE: Duration = Duration::from_millis(100);

/// Gives threads that are ready to run, and have not looked for longer than a spinning thread leaves between its looks,
/// the time to look once more: only that tells whether they lack a processor or have turned to something else. The
/// programs must still be attached.
pub(super) fn await_looks(
    table: &HashMap<MapData, NonblockingKey, NonblockingWait>,
    settings: &Settings,
    end_ns: u64,
) {
    let root = ProcRoot::default();
    let is_stale = |key: &NonblockingKey| {
        table.get(key, 0).is_ok_and(|value| end_ns.saturating_sub(value.last_ns) > settings.spin_gap_ns)
    };
    let is_ready = |key: &NonblockingKey| {
        table
            .get(key, 0)
            .is_ok_and(|value| thread_state(&root, value.tgid, key.tid).is_ok_and(|state| state == 'R'))
    };
    let mut awaited: Vec<NonblockingKey> = table
        .keys()
        .filter_map(Result::ok)
        .filter(|key| is_stale(key) && is_ready(key))
        .take(AWAITED)
        .collect();
    let begin = Instant::now();
    while !awaited.is_empty() && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
        awaited.retain(is_stale);
    }
}

/// Waits on non-blocking descriptors that are to be taken.
#[derive(Clone, Copy)]
pub(super) enum Which<'a> {
    /// Those of threads that have ended.
    Ended(&'a HashSet<u32>),
    /// All; those whose thread still looks last to the end.
    All { end_ns: u64 },
}

/// Takes waits on non-blocking descriptors out of the kernel's table.
pub(super) fn take_nonblocking(
    table: &mut HashMap<MapData, NonblockingKey, NonblockingWait>,
    settings: &Settings,
    which: Which<'_>,
    sink: &mut dyn FnMut(Event),
) {
    let keys: Vec<NonblockingKey> = table
        .keys()
        .filter_map(Result::ok)
        .filter(|key| match which {
            Which::Ended(threads) => threads.contains(&key.tid),
            Which::All { .. } => true,
        })
        .collect();
    for key in keys {
        let Ok(value) = table.get(&key, 0) else { continue };
        // Gone already where the thread itself was faster: then it made the record.
        if table.remove(&key).is_err() {
            continue;
        }
        if let Some(wait) = nonblocking_wait(&key, &value, settings, which) {
            sink(Event::Wait(wait, Registers { ip: value.ip, sp: value.sp, bp: value.bp }));
        }
    }
}

/// The wait that a table entry stands for; `None` where it is too short to be recorded.
fn nonblocking_wait(
    key: &NonblockingKey,
    value: &NonblockingWait,
    settings: &Settings,
    which: Which<'_>,
) -> Option<Wait> {
    let lasts_to_ns = match which {
        Which::All { end_ns } if end_ns.saturating_sub(value.last_ns) <= settings.spin_gap_ns => Some(end_ns),
        _ => None,
    };
    let end_ns = lasts_to_ns.unwrap_or(value.last_ns);
    if end_ns.saturating_sub(value.start_ns) < settings.min_stall_ns {
        return None;
    }
    let bits = WAIT_NONBLOCKING | if lasts_to_ns.is_some() { WAIT_IN_FLIGHT } else { WAIT_PAUSED };
    Some(Wait {
        start_ns: value.start_ns,
        end_ns,
        pid: value.tgid,
        tid: key.tid,
        call: u16::try_from(value.call).map_or(Call::None, Call::from_u16),
        flags: wait_flags(bits),
        fd: key.fd,
        set_size: 1,
        polls: value.polls,
        ret: 0,
        arg: 0,
        off_cpu_ns: 0,
        user_stack: value.user_stack,
        kernel_stack: 0,
        api: u16::try_from(value.api).map_or(Api::None, Api::from_u16),
        api_start_ns: value.api_start_ns,
        sockets: socket(&value.sock).into_iter().collect(),
        sched: Sched {
            runq_ns: value.run_delay_ns.saturating_sub(value.start_run_delay_ns),
            ..Sched::default()
        },
    })
}

/// Takes the handshakes that lasted at `now_ns` out of the kernel's table.
pub(super) fn take_handshakes(
    table: &mut HashMap<MapData, u64, HandshakeRecord>,
    now_ns: u64,
    sink: &mut dyn FnMut(Event),
) {
    let keys: Vec<u64> = table.keys().filter_map(Result::ok).collect();
    for key in keys {
        let Ok(value) = table.get(&key, 0) else { continue };
        if table.remove(&key).is_ok()
            && let Some(socket) = socket(&value.sock)
        {
            sink(Event::Handshake(Handshake {
                start_ns: value.start_ns,
                end_ns: now_ns.max(value.start_ns),
                pid: value.tgid,
                tid: value.tid,
                error: 0,
                began_earlier: value.flags & WAIT_BEGAN_EARLIER != 0,
                in_flight: true,
                syn_retransmits: value.syn_retransmits,
                socket,
            }));
        }
    }
}

fn socket(record: &profiler_common::SockRecord) -> Option<Socket> {
    let mut bytes = Vec::with_capacity(size_of::<profiler_common::SockRecord>());
    bytes.extend(record.ino.to_ne_bytes());
    bytes.extend(record.fd.to_ne_bytes());
    bytes.extend(record.family.to_ne_bytes());
    bytes.extend([record.sock_type, record.state]);
    for field in [record.local_port, record.peer_port, record.events, record.revents] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes.extend(record.addr);
    decode_socket(&mut Fields::new(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { min_stall_ns: 100, spin_gap_ns: 1_000, own_tgid: 0, reserved: 0 };
    const KEY: NonblockingKey = NonblockingKey { tid: 7, fd: 3, direction: 1, reserved: 0 };

    fn looked(start_ns: u64, last_ns: u64) -> NonblockingWait {
        let sock = profiler_common::SockRecord {
            ino: 1,
            fd: 3,
            family: 2,
            sock_type: 1,
            state: 1,
            local_port: 1,
            peer_port: 2,
            events: 0,
            revents: 0,
            addr: [0; 40],
        };
        NonblockingWait {
            start_ns,
            last_ns,
            run_delay_ns: 40,
            start_run_delay_ns: 10,
            tgid: 6,
            polls: 9,
            call: Call::Recvfrom as u32,
            api: 0,
            api_start_ns: 0,
            user_stack: 4,
            ip: 0,
            sp: 0,
            bp: 0,
            sock,
        }
    }

    #[test]
    fn a_thread_that_still_looks_waits_until_now() {
        let wait =
            nonblocking_wait(&KEY, &looked(1_000, 5_000), &SETTINGS, Which::All { end_ns: 5_900 }).unwrap();
        assert_eq!((wait.start_ns, wait.end_ns, wait.polls), (1_000, 5_900, 9));
        assert!(wait.flags.nonblocking && wait.flags.in_flight && !wait.flags.paused);
        assert_eq!((wait.call, wait.sockets.len(), wait.sched.runq_ns), (Call::Recvfrom, 1, 30));
    }

    #[test]
    fn one_that_turned_to_something_else_waited_until_its_last_look() {
        let wait =
            nonblocking_wait(&KEY, &looked(1_000, 5_000), &SETTINGS, Which::All { end_ns: 6_001 }).unwrap();
        assert_eq!(wait.end_ns, 5_000);
        assert!(wait.flags.paused && !wait.flags.in_flight);
    }

    #[test]
    fn one_that_ended_is_not_in_flight_however_lately_it_looked() {
        let wait =
            nonblocking_wait(&KEY, &looked(1_000, 5_000), &SETTINGS, Which::Ended(&HashSet::from([7])))
                .unwrap();
        assert!(wait.flags.paused && !wait.flags.in_flight);
    }

    #[test]
    fn short_waits_make_no_event() {
        assert_eq!(
            nonblocking_wait(&KEY, &looked(1_000, 1_050), &SETTINGS, Which::All { end_ns: 1_050 }),
            None
        );
    }
}
