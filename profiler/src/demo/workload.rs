//! The demo's processes: a training launcher, four ranks that gather over TCP, and two resolver clients.
//!
//! They are this same binary, started with a hidden role. Work that is not communication is a sleep, so that
//! the demo needs no CPU.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};

use super::error::DemoError;
use super::netns::Namespace;
use super::role::Role;

/// One step of the gather, as far as nobody is late.
const STEP: Duration = Duration::from_millis(40);
/// How much later than the others the late rank sends, each step.
pub const LATENESS: Duration = Duration::from_millis(60);
/// What each rank sends to the root in a step.
const CHUNK: usize = 64 * 1024;
const PORT: u16 = 29500;
/// The rank that sends late.
pub const LATE_RANK: u8 = 3;
pub const RANKS: u8 = 4;

/// Name that is looked up where nobody answers.
pub const DEAD_NAME: &str = "node01.cluster.test";
/// Name that is looked up where the answer takes long.
pub const SLOW_NAME: &str = "storage.cluster.test";

const ROLE_JOB: &str = "job";
const ROLE_RANK: &str = "rank";
const ROLE_LOOKUP: &str = "lookup";

/// What a role prints on standard output when it is at work.
pub(super) const READY: &str = "ready";
/// Roles below the launcher.
pub(super) const ROLES: usize = RANKS as usize + 2;

/// Runs a role of the demo; it returns when the launcher's standard input is closed, or on an error.
pub fn run_workload(role: &str, arguments: &[String]) -> Result<(), DemoError> {
    let at = |index: usize| {
        arguments.get(index).ok_or_else(|| DemoError::Argument { role: role.to_owned(), index })
    };
    match role {
        ROLE_JOB => run_job(arguments),
        ROLE_RANK => {
            let number = parsed(role, 0, at(0)?)?;
            let root: Ipv4Addr = parsed(role, 1, at(1)?)?;
            set_name(&format!("rank{number}"));
            let result = if number == 0 { gather_root(root) } else { gather_rank(number, root) };
            match result {
                Err(source) if !is_hang_up(&source) => {
                    Err(DemoError::Socket { what: "gather", address: root.to_string(), source })
                }
                _ => Ok(()),
            }
        }
        ROLE_LOOKUP => {
            set_name(at(0)?);
            let name = CString::new(at(1)?.as_str())
                .map_err(|_| DemoError::Argument { role: role.to_owned(), index: 1 })?;
            announce();
            loop {
                resolve_peer(&name);
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        _ => Err(DemoError::UnknownRole { name: role.to_owned() }),
    }
}

fn parsed<T: std::str::FromStr>(role: &str, index: usize, text: &str) -> Result<T, DemoError> {
    text.parse().map_err(|_| DemoError::Argument { role: role.to_owned(), index })
}

/// The launcher as the demo starts it: `fds` are namespaces for rank 0 to 3, the dead and the slow lookup.
pub(super) fn job_arguments(root: Ipv4Addr, dead: Ipv4Addr, slow: Ipv4Addr, fds: &[i32]) -> Vec<String> {
    let mut arguments = vec![root.to_string(), dead.to_string(), slow.to_string()];
    arguments.extend(fds.iter().map(ToString::to_string));
    arguments
}

fn run_job(arguments: &[String]) -> Result<(), DemoError> {
    set_name("launcher");
    let malformed = |index| DemoError::Argument { role: ROLE_JOB.to_owned(), index };
    let (addresses, fds) = arguments.split_at_checked(3).ok_or_else(|| malformed(arguments.len()))?;
    let mut namespaces = Vec::new();
    for (index, fd) in fds.iter().enumerate() {
        namespaces.push(inherited_namespace(fd).ok_or_else(|| malformed(index + 3))?);
    }
    let ([root, dead, slow], true) = (addresses, namespaces.len() == ROLES) else {
        return Err(malformed(arguments.len()));
    };
    let mut children = Children::default();
    for (number, namespace) in namespaces.iter().enumerate() {
        let role = Role::new("/proc/self/exe", namespace.clone()).stdin(std::process::Stdio::null());
        let role = match number.checked_sub(RANKS as usize) {
            None => role.args(role_arguments(ROLE_RANK, &[&number.to_string(), root])),
            Some(0) => role
                .resolver(&format!("nameserver {dead}\noptions timeout:1 attempts:2\n"))
                .args(role_arguments(ROLE_LOOKUP, &["lookup-dead", DEAD_NAME])),
            Some(_) => role
                .resolver(&format!("nameserver {slow}\n"))
                .args(role_arguments(ROLE_LOOKUP, &["lookup-slow", SLOW_NAME])),
        };
        children.0.push(role.spawn()?);
    }
    drop(namespaces);
    wait_for_end();
    Ok(())
}

/// The command line of a role, behind the program's name.
pub(super) fn role_arguments<'a>(role: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["demo", "--role", role];
    arguments.extend_from_slice(rest);
    arguments
}

pub(super) fn job_role() -> &'static str {
    ROLE_JOB
}

fn inherited_namespace(fd: &str) -> Option<Namespace> {
    let number: i32 = fd.parse().ok().filter(|&number| number > 2)?;
    // SAFETY: fcntl takes any number; it tells whether the descriptor exists, and marks it close-on-exec.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return None;
    }
    // SAFETY: the descriptor is open and was inherited for this purpose; nothing else here owns it.
    Some(Namespace::from_fd(unsafe { OwnedFd::from_raw_fd(number) }))
}

/// Kills and reaps what was started, on every way out.
#[derive(Default)]
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
        }
        for child in &mut self.0 {
            // Reaped, whatever its status.
            let _ = child.wait();
        }
    }
}

/// Whoever started the demo holds the other end of standard input, so its death ends the demo too.
fn wait_for_end() {
    let mut byte = [0];
    loop {
        match io::stdin().read(&mut byte) {
            Ok(0) => return,
            Err(error) if error.kind() != ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}

fn announce() {
    // An error means that nobody reads any more: the demo is being stopped.
    let _ = writeln!(io::stdout(), "{READY}").and_then(|()| io::stdout().flush());
}

/// Names the process in `ps` and in recordings; the kernel keeps 15 bytes.
fn set_name(name: &str) {
    // Writing the file is prctl(PR_SET_NAME) without its unsafe call; the name is only cosmetic.
    if let Ok(mut file) = File::options().write(true).open("/proc/self/comm") {
        let _ = file.write_all(name.as_bytes());
    }
}

/// Looks `name` up through the C library, as a training framework does.
#[inline(never)]
fn resolve_peer(name: &CString) {
    let mut found: *mut libc::addrinfo = std::ptr::null_mut();
    // SAFETY: the name ends with NUL, the hints may be absent, `found` is a local.
    let code =
        unsafe { libc::getaddrinfo(name.as_ptr(), std::ptr::null(), std::ptr::null(), &raw mut found) };
    if code == 0 {
        // SAFETY: the list came from getaddrinfo and is freed once.
        unsafe { libc::freeaddrinfo(found) };
    }
}

/// The other end is gone: the demo is ending, or the other end has said why it ended.
fn is_hang_up(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn gather_root(address: Ipv4Addr) -> io::Result<()> {
    let listener = TcpListener::bind(SocketAddrV4::new(address, PORT))?;
    let mut streams = Vec::new();
    for _ in 1..RANKS {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut rank = [0];
        stream.read_exact(&mut rank)?;
        streams.push((rank[0], stream));
    }
    streams.sort_by_key(|(rank, _)| *rank);
    announce();
    let mut chunk = vec![0; CHUNK];
    loop {
        gather_step(&mut streams, &mut chunk)?;
    }
}

/// One step of the root: its own work, then a chunk from each rank in turn, then the word to go on.
#[inline(never)]
fn gather_step(streams: &mut [(u8, TcpStream)], chunk: &mut [u8]) -> io::Result<()> {
    std::thread::sleep(STEP);
    for (_, stream) in streams.iter_mut() {
        receive_from_rank(stream, chunk)?;
    }
    for (_, stream) in streams.iter_mut() {
        stream.write_all(&[1])?;
    }
    Ok(())
}

/// In one call, so that a chunk is one wait also where it comes in pieces.
#[inline(never)]
fn receive_from_rank(stream: &mut TcpStream, chunk: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while let Some(rest) = chunk.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match recv(stream.as_raw_fd(), rest, MsgFlags::MSG_WAITALL) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn gather_rank(number: u8, root: Ipv4Addr) -> io::Result<()> {
    let mut stream = connect_to_root(root)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[number])?;
    announce();
    let chunk = vec![number; CHUNK];
    loop {
        std::thread::sleep(if number == LATE_RANK { STEP + LATENESS } else { STEP });
        stream.write_all(&chunk)?;
        wait_for_root(&mut stream)?;
    }
}

#[inline(never)]
fn wait_for_root(stream: &mut TcpStream) -> io::Result<()> {
    stream.read_exact(&mut [0])
}

/// The root may not listen yet.
fn connect_to_root(root: Ipv4Addr) -> io::Result<TcpStream> {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect(SocketAddrV4::new(root, PORT)) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > give_up => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// The program that the demo runs: this very binary.
pub(super) fn own_program() -> &'static OsStr {
    OsStr::new("/proc/self/exe")
}
