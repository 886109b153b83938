//! Calls that block no longer than the program has said: `SO_SNDTIMEO`, `SO_RCVTIMEO`, `SO_LINGER`.

use std::net::SocketAddr;
use std::os::fd::RawFd;

use super::sys::{self, connected, errno, monotonic_ns, outcome, tcp_socket};
use super::{Arguments, done, go, ready};

fn set<T>(fd: RawFd, option: i32, value: &T) {
    // SAFETY: pointer and length describe the value.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as u32,
        )
    };
    sys::checked(result, "setsockopt");
}

fn limit(fd: RawFd, option: i32, ms: i64) {
    set(fd, option, &libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 });
}

fn close_now(fd: RawFd) {
    // SAFETY: a descriptor of this program that nothing else uses.
    sys::checked(unsafe { libc::close(fd) }, "close");
}

/// `connect-limit PEER TIMES LIMIT_MS`: connects and closes again, one after the other.
pub fn connect(arguments: &Arguments) {
    let peer: SocketAddr = arguments.get(0);
    ready("");
    go();
    let (mut result, mut ns) = (0, 0);
    for _ in 0..arguments.get::<u32>(1) {
        let fd = tcp_socket(peer, 0);
        limit(fd, libc::SO_SNDTIMEO, arguments.get(2));
        let start = monotonic_ns();
        result = sys::connect(fd, peer);
        ns += monotonic_ns() - start;
        close_now(fd);
    }
    done(&format!("result={} ns={ns}", outcome(result)));
}

/// `recv-limit PEER TIMES LIMIT_MS`: waits for a silent peer so many times.
pub fn receive(arguments: &Arguments) {
    let fd = connected(arguments.get(0));
    limit(fd, libc::SO_RCVTIMEO, arguments.get(2));
    ready("");
    go();
    let start = monotonic_ns();
    for _ in 0..arguments.get::<u32>(1) {
        assert_eq!(sys::recv(fd, &mut [0; 8], 0), -(libc::EAGAIN as isize));
    }
    done(&format!("ns={}", monotonic_ns() - start));
}

/// Sends until there is no room.
fn fill(fd: RawFd) {
    let bytes = vec![0u8; 64 << 10];
    loop {
        // SAFETY: pointer and length describe the array.
        let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        if sent < 0 {
            assert_eq!(errno(), libc::EAGAIN, "send");
            return;
        }
    }
}

/// `send-limit PEER TIMES LIMIT_MS`: the peer does not read; what is tried beyond the room waits in vain.
pub fn send(arguments: &Arguments) {
    let fd = connected(arguments.get(0));
    fill(fd);
    limit(fd, libc::SO_SNDTIMEO, arguments.get(2));
    ready("");
    go();
    let start = monotonic_ns();
    for _ in 0..arguments.get::<u32>(1) {
        // More than may become free meanwhile, since the peer's kernel takes some still.
        while sys::send(fd, &vec![0; 64 << 10]) > 0 {}
    }
    done(&format!("ns={}", monotonic_ns() - start));
}

/// `close-linger PEER SECONDS`: closes a connection whose peer does not take what was sent, and lingers so long.
pub fn close(arguments: &Arguments) {
    let fd = connected(arguments.get(0));
    fill(fd);
    set(fd, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: arguments.get(1) });
    ready("");
    go();
    let start = monotonic_ns();
    close_now(fd);
    done(&format!("ns={}", monotonic_ns() - start));
}
