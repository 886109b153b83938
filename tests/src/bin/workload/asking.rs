//! Round trips by a program's own clock.

use std::net::SocketAddr;

use stallscope_tests::peer::REPLY;

use super::sys::{connected, monotonic_ns, recv, send};
use super::{Arguments, done, go, ready};

/// `ask PEER TIMES PAUSE_MS`: connects, then asks TIMES times with pauses between. The times of all round trips, from
/// before the request to after the reply, stand in `each`, that of the connect first: what the kernel measures lies
/// within.
pub fn ask(arguments: &Arguments) {
    let peer: SocketAddr = arguments.get(0);
    ready("");
    go();
    let start = monotonic_ns();
    let fd = connected(peer);
    let mut each = vec![(monotonic_ns() - start).to_string()];
    for _ in 0..arguments.get::<u32>(1) {
        std::thread::sleep(std::time::Duration::from_millis(arguments.get(2)));
        let start = monotonic_ns();
        assert_eq!(send(fd, b"?"), 1);
        let mut filled = 0;
        while filled < REPLY {
            let count = recv(fd, &mut [0; REPLY][filled..], 0);
            assert!(count > 0, "recv: {count}");
            filled += count as usize;
        }
        each.push((monotonic_ns() - start).to_string());
    }
    done(&format!("each={}", each.join(",")));
}
