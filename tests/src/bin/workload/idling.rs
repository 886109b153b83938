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
