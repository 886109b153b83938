//! Bare calls of the C library, so that a test knows exactly which system call is made.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, IntoRawFd as _, RawFd};

pub use stallscope::demo::monotonic_ns;

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// `ok` or the errno's name.
pub fn outcome(errno: i32) -> String {
    if errno == 0 { "ok".to_owned() } else { format!("{:?}", nix::errno::Errno::from_raw(errno)) }
}

pub fn checked(result: i32, what: &str) -> i32 {
    assert!(result >= 0, "{what}: {}", std::io::Error::last_os_error());
    result
}

/// A TCP socket for `peer`'s family; `flags` is `SOCK_NONBLOCK` or 0.
pub fn tcp_socket(peer: SocketAddr, flags: i32) -> RawFd {
    let family = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: a system call on plain numbers.
    checked(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0) }, "socket")
}

/// `connect(2)`: 0 or an errno.
pub fn connect(fd: RawFd, peer: SocketAddr) -> i32 {
    let result = match peer {
        SocketAddr::V4(peer) => {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: peer.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*peer.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: pointer and length describe the local above.
            unsafe { libc::connect(fd, (&raw const address).cast(), size_of_val(&address) as u32) }
        }
        SocketAddr::V6(peer) => {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: peer.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: peer.ip().octets() },
                sin6_scope_id: 0,
            };
            // SAFETY: pointer and length describe the local above.
            unsafe { libc::connect(fd, (&raw const address).cast(), size_of_val(&address) as u32) }
        }
    };
    if result == 0 { 0 } else { errno() }
}

/// A blocking connection that must succeed.
pub fn connected(peer: SocketAddr) -> RawFd {
    let fd = tcp_socket(peer, 0);
    assert_eq!(connect(fd, peer), 0, "connect to {peer}");
    fd
}

/// Two ends of one TCP connection to itself, whose receive buffer of `room` bytes is asked for beyond the limits.
pub fn connected_to_itself(room: i32) -> (RawFd, RawFd) {
    let listener = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds");
    // SAFETY: pointer and length of a local.
    let result = unsafe {
        let value: *const i32 = &raw const room;
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            value.cast(),
            size_of::<i32>() as u32,
        )
    };
    checked(result, "SO_RCVBUFFORCE");
    let sender = connected(listener.local_addr().expect("has an address"));
    (sender, listener.accept().expect("accepts").0.into_raw_fd())
}

/// Bytes that wait in the socket's receive buffer.
pub fn readable_bytes(fd: RawFd) -> usize {
    let mut count: i32 = 0;
    // SAFETY: the pointer is a local's.
    checked(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut count) }, "FIONREAD");
    count as usize
}

/// `SO_ERROR`.
pub fn socket_error(fd: RawFd) -> i32 {
    let mut error: i32 = 0;
    let mut length = size_of::<i32>() as u32;
    // SAFETY: pointers to locals of the sizes that this option has.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut length)
    };
    checked(result, "getsockopt");
    error
}

/// `recv(2)`: bytes, or -errno.
pub fn recv(fd: RawFd, buffer: &mut [u8], flags: i32) -> isize {
    // SAFETY: pointer and length are the buffer's.
    let result = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) };
    if result < 0 { -(errno() as isize) } else { result }
}

/// `send(2)` of everything, in one call on a blocking socket.
pub fn send(fd: RawFd, bytes: &[u8]) -> isize {
    // SAFETY: pointer and length are the slice's.
    let result = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    if result < 0 { -(errno() as isize) } else { result }
}

/// `epoll_wait(2)` on one descriptor; false at the time-out.
pub fn epoll_wait_one(fd: RawFd, events: u32, timeout_ms: i32) -> bool {
    // SAFETY: a system call on plain numbers.
    let epoll = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "epoll_create1");
    let mut event = libc::epoll_event { events, u64: 0 };
    // SAFETY: the event is a local that the kernel copies.
    checked(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, "epoll_ctl");
    // SAFETY: room for the one event that is asked for.
    let count = unsafe { libc::epoll_wait(epoll, &raw mut event, 1, timeout_ms) };
    // SAFETY: closes the descriptor made above.
    unsafe { libc::close(epoll) };
    checked(count, "epoll_wait") == 1
}
