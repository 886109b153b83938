//! Ways to connect.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use super::sys::{connect, epoll_wait_one, monotonic_ns, outcome, socket_error, tcp_socket};
use super::{Arguments, busy_ns, done, done_with, go, ready};

/// `connect PEER [TIMES]`: blocking, one after the other; reports the last outcome and the summed time.
pub fn blocking(arguments: &Arguments) {
    let peer: SocketAddr = arguments.get(0);
    ready("");
    go();
    let (mut result, mut ns) = (0, 0);
    for _ in 0..arguments.get_or(1, 1) {
        let fd = tcp_socket(peer, 0);
        let start = monotonic_ns();
        result = stall_outer_connect(fd, peer);
        ns += monotonic_ns() - start;
    }
    done(&format!("result={} ns={ns}", outcome(result)));
}

#[inline(never)]
fn stall_outer_connect(fd: i32, peer: SocketAddr) -> i32 {
    std::hint::black_box(connect(fd, peer))
}

/// `connect-epoll PEER TIMEOUT_MS`: non-blocking, waits with epoll, reads `SO_ERROR`.
pub fn epoll(arguments: &Arguments) {
    let peer: SocketAddr = arguments.get(0);
    ready("");
    go();
    let fd = tcp_socket(peer, libc::SOCK_NONBLOCK);
    let start = monotonic_ns();
    let begun = connect(fd, peer);
    let result = if begun == libc::EINPROGRESS {
        if epoll_wait_one(fd, libc::EPOLLOUT as u32, arguments.get(1)) {
            outcome(socket_error(fd))
        } else {
            "timeout".to_owned()
        }
    } else {
        outcome(begun)
    };
    let ns = monotonic_ns() - start;
    done(&format!("result={result} ns={ns}"));
}

/// `connect-parallel PEER THREADS`: that many threads connect at the same time.
pub fn parallel(arguments: &Arguments) {
    let peer: SocketAddr = arguments.get(0);
    ready("");
    go();
    let one = move || {
        let fd = tcp_socket(peer, 0);
        let (start, busy) = (monotonic_ns(), busy_ns());
        let result = connect(fd, peer);
        (result, monotonic_ns() - start, busy_ns() - busy)
    };
    let threads: Vec<_> = (0..arguments.get(1)).map(|_| std::thread::spawn(one)).collect();
    let results: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("connects")).collect();
    let ns: u64 = results.iter().map(|(_, ns, _)| ns).sum();
    let busy = results.iter().map(|(_, _, busy)| busy).sum();
    let result = results.last().map_or(0, |(result, ..)| *result);
    done_with(&format!("result={} ns={ns}", outcome(result)), busy);
}

/// `connect-unix PATH TIMES`: connects to a unix socket again and again.
pub fn unix(arguments: &Arguments) {
    let path: String = arguments.get(0);
    ready("");
    go();
    let connected = (0..arguments.get(1)).filter(|_: &u32| UnixStream::connect(&path).is_ok()).count();
    done(&format!("connected={connected}"));
}
