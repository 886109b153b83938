//! Made-up waits for tests, with the spread of real ones.

use std::net::SocketAddr;

use profiler_common::{Api, Call};

use stallscope::random::Random;
use stallscope::trace::record::{Ends, Sched, Socket, Wait, WaitFlags};

fn below(random: &mut Random, limit: u64) -> u64 {
    random.any() % limit
}

/// Waits of `recv` and `send` of 8 threads on 50 sockets from 40 call sites: about 200 000 a second,
/// 100 µs to 2 ms long, in the order of their ends.
pub fn waits(count: usize) -> Vec<Wait> {
    let mut random = Random(1);
    let mut now = 5_000_000_000_000;
    let stacks: Vec<u64> = (0..40).map(|_| random.any()).collect();
    let kernel_stacks: Vec<u64> = (0..4).map(|_| random.any()).collect();
    (0..count)
        .map(|_| {
            now += below(&mut random, 10_000);
            // Skewed: short ones are frequent.
            let duration = 100_000 + below(&mut random, 1_900_000) * below(&mut random, 1000) / 1000;
            let receive = below(&mut random, 3) > 0;
            let thread = below(&mut random, 8) as u32;
            let peer = below(&mut random, 50) as u16;
            let local: SocketAddr = ([10, 0, 0, 1], 40_000 + peer).into();
            let sleep_ns = now - duration + 1500 + below(&mut random, 500);
            let wake_ns = now - 2000 - below(&mut random, 1500);
            let sizes = [64, 4096, 65536, 1 << 20];
            Wait {
                start_ns: now - duration,
                end_ns: now,
                pid: 4711,
                tid: 4711 + thread,
                call: if receive { Call::Recvfrom } else { Call::Sendto },
                flags: WaitFlags { slept: true, timed: true, ..WaitFlags::default() },
                fd: 20 + i32::from(peer),
                set_size: 0,
                polls: 0,
                ret: sizes[below(&mut random, 4) as usize],
                arg: 0,
                off_cpu_ns: wake_ns - sleep_ns,
                user_stack: stacks[below(&mut random, 40) as usize],
                kernel_stack: kernel_stacks[below(&mut random, 4) as usize],
                api: Api::None,
                api_start_ns: 0,
                sockets: vec![Socket {
                    ino: 90_000 + u64::from(peer),
                    fd: 20 + i32::from(peer),
                    kind: 1,
                    state: 1,
                    ends: Ends::Inet { local, peer: ([10, 0, 1, peer as u8], 29_500).into() },
                    events: 0,
                    revents: 0,
                }],
                sched: Sched { sleep_ns, wake_ns, runq_ns: now - wake_ns - 500, owner: 0 },
            }
        })
        .collect()
}
