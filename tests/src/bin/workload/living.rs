//! Threads, children, exec and exit around a wait for a peer.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::receiving::stall_outer;
use super::sys::{checked, connected, monotonic_ns, send};
use super::{Arguments, done, go, ready};

/// `threads COUNT PEER`: that many threads, each blocked in `recv` on a connection of its own.
pub fn threads(arguments: &Arguments) {
    let count: usize = arguments.get(0);
    let peer: SocketAddr = arguments.get(1);
    let all_connected = Arc::new(Barrier::new(count + 1));
    for number in 0..count {
        let connections = Arc::clone(&all_connected);
        let body = move || {
            let fd = connected(peer);
            connections.wait();
            stall_outer("blocking", fd);
        };
        std::thread::Builder::new()
            .name(format!("recv{number}"))
            .stack_size(64 * 1024)
            .spawn(body)
            .expect("starts a thread");
    }
    all_connected.wait();
    // All are connected; give the last of them the time to enter recv.
    std::thread::sleep(Duration::from_millis(50));
    ready("");
    go();
    done("");
}

/// `named NAME PEER TIMES`: a thread of that name asks and waits.
pub fn named(arguments: &Arguments) {
    let peer: SocketAddr = arguments.get(1);
    let times: u32 = arguments.get(2);
    let body = move || {
        let fd = connected(peer);
        ready("");
        go();
        for _ in 0..times {
            send(fd, b"?");
            stall_outer("blocking", fd);
        }
    };
    let thread = std::thread::Builder::new().name(arguments.get(0)).spawn(body).expect("starts a thread");
    thread.join().expect("receives");
    done("");
}

/// `fork-recv PEER TIMES`: a child that is born after the word asks and waits.
pub fn fork_then_receive(arguments: &Arguments) {
    let peer: SocketAddr = arguments.get(0);
    let times: u32 = arguments.get(1);
    ready("");
    go();
    // SAFETY: this process has one thread, so the child may go on in Rust.
    let child = checked(unsafe { libc::fork() }, "fork");
    if child == 0 {
        let fd = connected(peer);
        for _ in 0..times {
            send(fd, b"?");
            stall_outer("blocking", fd);
        }
        std::process::exit(0);
    }
    let start = monotonic_ns();
    let mut status = 0;
    // SAFETY: waits for the child made above; the status is a local.
    checked(unsafe { libc::waitpid(child, &raw mut status, 0) }, "waitpid");
    done(&format!("child={child} status={status} ns={}", monotonic_ns() - start));
}

/// `exec-recv PEER TIMES`: becomes another program after the word, which asks and waits.
pub fn exec_then_receive(arguments: &Arguments) {
    let (peer, times): (String, String) = (arguments.get(0), arguments.get(1));
    ready("");
    go();
    let error = Command::new("/proc/self/exe").args(["recv-now", "blocking", &peer, &times]).exec();
    panic!("exec: {error}");
}

/// `exit-early PEER MS`: ends after that time while a thread is blocked in `recv`.
pub fn exit_early(arguments: &Arguments) {
    let fd = connected(arguments.get(0));
    ready("");
    go();
    std::thread::spawn(move || stall_outer("blocking", fd));
    std::thread::sleep(Duration::from_millis(arguments.get(1)));
    std::process::exit(7);
}

/// `zombie`: has a child that ended and that nobody waits for.
pub fn zombie() {
    // SAFETY: this process has one thread; the child leaves at once.
    let child = checked(unsafe { libc::fork() }, "fork");
    if child == 0 {
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: waits for the child's end and leaves it a zombie; the buffer is a local.
    let result = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, child as u32, &raw mut info, libc::WEXITED | libc::WNOWAIT)
    };
    checked(result, "waitid");
    ready(&format!("child={child}"));
    go();
}

/// `demo-owner`: starts the demo and waits to be killed.
pub fn demo_owner() {
    let mut demo = stallscope::demo::Demo::start().expect("starts the demo");
    demo.wait_ready(Duration::from_secs(30)).expect("gets ready");
    ready(&format!("job={}", demo.pid()));
    go();
}
