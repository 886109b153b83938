//! Lookups through the C library.

use std::ffi::CString;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::sys::monotonic_ns;
use super::{Arguments, done, go, ready};

/// `getaddrinfo NAME TIMES INTERVAL_MS [inet|unspec]`: `code` is the last result, `ns` the summed time.
pub fn forward(arguments: &Arguments) {
    let name = CString::new(arguments.get::<String>(0)).expect("no NUL");
    let times: u64 = arguments.get(1);
    let interval = Duration::from_millis(arguments.get(2));
    let family =
        if arguments.get_or(3, "unspec".to_owned()) == "inet" { libc::AF_INET } else { libc::AF_UNSPEC };
    ready("");
    go();
    let (mut code, mut ns) = (0, 0);
    for _ in 0..times {
        let start = monotonic_ns();
        code = lookup_outer(&name, family);
        ns += monotonic_ns() - start;
        std::thread::sleep(interval);
    }
    done(&format!("code={} ns={ns} times={times}", code_name(code)));
}

/// The function that tests look for in stacks.
#[inline(never)]
fn lookup_outer(name: &CString, family: i32) -> i32 {
    let mut found = std::ptr::null_mut();
    // SAFETY: all zero is "no hints"; the two fields set are plain numbers.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = family;
    hints.ai_socktype = libc::SOCK_STREAM;
    // SAFETY: the name ends with NUL; hints and result are locals.
    let code =
        unsafe { libc::getaddrinfo(name.as_ptr(), std::ptr::null(), &raw const hints, &raw mut found) };
    if code == 0 {
        // SAFETY: the list came from getaddrinfo and is freed once.
        unsafe { libc::freeaddrinfo(found) };
    }
    std::hint::black_box(code)
}

/// `nscd NAME DELAY_MS`: one lookup with a name cache daemon that hangs up on each request after that time.
/// The daemon is a thread of this process; its socket is in a mount namespace of our own.
pub fn name_cache(arguments: &Arguments) {
    let name = CString::new(arguments.get::<String>(0)).expect("no NUL");
    let delay = Duration::from_millis(arguments.get(1));
    unshare(CloneFlags::CLONE_NEWNS).expect("makes a mount namespace");
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("makes it private");
    mount(Some("none"), "/run", Some("tmpfs"), MsFlags::empty(), none).expect("mounts /run");
    std::fs::create_dir("/run/nscd").expect("makes the folder");
    let listener = UnixListener::bind("/run/nscd/socket").expect("listens");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::sleep(delay);
            drop(stream);
        }
    });
    ready("");
    go();
    let start = monotonic_ns();
    let code = lookup_outer(&name, libc::AF_INET);
    done(&format!("code={} ns={}", code_name(code), monotonic_ns() - start));
}

/// `getnameinfo IP TIMES`: reverse lookups that insist on a name.
pub fn reverse(arguments: &Arguments) {
    let ip: Ipv4Addr = arguments.get(0);
    let times: u64 = arguments.get(1);
    ready("");
    go();
    let (mut code, mut ns) = (0, 0);
    for _ in 0..times {
        let start = monotonic_ns();
        code = reverse_outer(ip);
        ns += monotonic_ns() - start;
    }
    done(&format!("code={} ns={ns} times={times}", code_name(code)));
}

#[inline(never)]
fn reverse_outer(ip: Ipv4Addr) -> i32 {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
        sin_zero: [0; 8],
    };
    let mut host = [0; 256];
    // SAFETY: address and host are locals of the lengths given; no service is asked for.
    let code = unsafe {
        libc::getnameinfo(
            (&raw const address).cast(),
            size_of_val(&address) as u32,
            host.as_mut_ptr(),
            host.len() as u32,
            std::ptr::null_mut(),
            0,
            libc::NI_NAMEREQD,
        )
    };
    std::hint::black_box(host);
    code
}

fn code_name(code: i32) -> String {
    match code {
        0 => "ok".to_owned(),
        libc::EAI_AGAIN => "EAI_AGAIN".to_owned(),
        libc::EAI_NONAME => "EAI_NONAME".to_owned(),
        libc::EAI_FAIL => "EAI_FAIL".to_owned(),
        libc::EAI_NODATA => "EAI_NODATA".to_owned(),
        libc::EAI_SYSTEM => "EAI_SYSTEM".to_owned(),
        other => other.to_string(),
    }
}
