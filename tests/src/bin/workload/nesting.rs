//! Epoll sets inside of other sets.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};

use super::sys::{checked, connected, monotonic_ns};
use super::{Arguments, done, go, ready};

fn epoll_set() -> RawFd {
    // SAFETY: a system call on a plain number.
    checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "epoll_create1")
}

fn add(set: RawFd, fd: RawFd) {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: the event is a local.
    checked(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, "epoll_ctl");
}

/// So many sets around `fd`; the outermost one.
fn nest(fd: RawFd, levels: u32) -> RawFd {
    (0..levels).fold(fd, |inner, _| {
        let outer = epoll_set();
        add(outer, inner);
        outer
    })
}

fn wait(how: &str, fd: RawFd, ms: i32) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut time = libc::timeval { tv_sec: 0, tv_usec: i64::from(ms) * 1000 };
    // SAFETY: one event, one entry, or one set and a time, all locals; the descriptor is below 1024.
    let result = unsafe {
        match how {
            "epoll" => libc::epoll_wait(fd, &raw mut event, 1, ms),
            "poll" => libc::poll(&raw mut entry, 1, ms),
            "select" => {
                let mut set: libc::fd_set = std::mem::zeroed();
                libc::FD_SET(fd, &raw mut set);
                libc::select(fd + 1, &raw mut set, std::ptr::null_mut(), std::ptr::null_mut(), &raw mut time)
            }
            other => panic!("no way {other}"),
        }
    };
    checked(result, how);
}

/// `nested-listener PEER HOW`: waits in a loop on a set that holds a connection and, in a set of its own, a listening
/// socket.
pub fn listener(arguments: &Arguments) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds");
    let set = nest(listener.as_raw_fd(), 1);
    let outer = epoll_set();
    add(outer, connected(arguments.get(0)));
    add(outer, set);
    ready("");
    go();
    loop {
        wait(&arguments.get::<String>(1), outer, 300);
    }
}

/// `nested-recv PEER HOW LEVELS MS`: waits once on so many sets around a connection to a silent peer.
pub fn receive(arguments: &Arguments) {
    let fd = nest(connected(arguments.get(0)), arguments.get(2));
    ready("");
    go();
    let start = monotonic_ns();
    wait(&arguments.get::<String>(1), fd, arguments.get(3));
    done(&format!("ns={}", monotonic_ns() - start));
}
