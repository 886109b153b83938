//! Waits for work, which are no stalls.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::sys::{checked, connected};
use super::{Arguments, go, ready};

/// `accept`: the first thread accepts in a loop until the test ends the process.
pub fn accept() {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds");
    ready(&format!("port={}", listener.local_addr().expect("has an address").port()));
    go();
    loop {
        drop(listener.accept());
    }
}

/// `poll-listener PEER`: polls a listening socket together with a silent peer's, in a loop.
pub fn poll_with_listener(arguments: &Arguments) {
    let peer = connected(arguments.get(0));
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds");
    ready("");
    go();
    loop {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut set = [entry(listener.as_raw_fd()), entry(peer)];
        // SAFETY: two entries, a local.
        checked(unsafe { libc::poll(set.as_mut_ptr(), 2, 300) }, "poll");
    }
}

/// `poll-sparse PEER`: polls an array of 70 places in a loop: most are not used, one holds a silent peer's connection
/// and the last one a listening socket, as NCCL's proxy does.
pub fn poll_sparse(arguments: &Arguments) {
    let peer = connected(arguments.get(0));
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds");
    let mut set = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 70];
    set[3].fd = peer;
    set[69].fd = listener.as_raw_fd();
    ready("");
    go();
    loop {
        // SAFETY: a local of that many entries.
        checked(unsafe { libc::poll(set.as_mut_ptr(), 70, 300) }, "poll");
    }
}

/// `epoll-crowd PEER CONNECTIONS`: waits in a loop for a silent peer's connections and for a listening socket.
pub fn epoll_crowd(arguments: &Arguments) {
    // SAFETY: a system call on plain numbers.
    let epoll = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "epoll_create1");
    let add = |fd| {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the event is a local that the kernel copies.
        checked(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, "epoll_ctl");
    };
    for _ in 0..arguments.get(1) {
        add(connected(arguments.get(0)));
    }
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds");
    add(listener.as_raw_fd());
    ready("");
    go();
    loop {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for the one event that is asked for.
        checked(unsafe { libc::epoll_wait(epoll, &raw mut event, 1, 300) }, "epoll_wait");
    }
}

/// `sleep MS`: sleeps in a loop.
pub fn sleep(arguments: &Arguments) {
    let time = Duration::from_millis(arguments.get(0));
    ready("");
    go();
    loop {
        std::thread::sleep(time);
    }
}

/// `pool THREADS`: threads that wait for work on a condition variable.
pub fn pool(arguments: &Arguments) {
    let work = Arc::new((Mutex::new(false), Condvar::new()));
    for _ in 0..arguments.get(0) {
        let work = Arc::clone(&work);
        std::thread::spawn(move || {
            let (lock, signal) = &*work;
            drop(signal.wait_while(lock.lock().expect("locks"), |come| !*come));
        });
    }
    ready("");
    go();
}
