//! What can go wrong in the rig.

use std::io;

/// Failures of the rig, each with what it was about.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error("cannot make a network namespace: {source}{}", privilege_hint(.source))]
    Namespace { source: io::Error },
    #[error(
        "cannot run `ip` (package iproute2), which the demo needs to link its network namespaces: {source}"
    )]
    IpMissing { source: io::Error },
    #[error("`ip` refused {commands:?}: {message}")]
    Ip { commands: String, message: String },
    #[error("cannot write {path}: {source}")]
    Write { path: String, source: io::Error },
    #[error("cannot start {program}: {source}")]
    Spawn { program: String, source: io::Error },
    #[error("{what} at {address}: {source}")]
    Socket { what: &'static str, address: String, source: io::Error },
    #[error("cannot start a thread: {source}")]
    Thread { source: io::Error },
    #[error("the demo's workload did not start: {reason}")]
    NotReady { reason: String },
    #[error("no such role: {name}")]
    UnknownRole { name: String },
    #[error("role {role}: argument {index} is missing or malformed")]
    Argument { role: String, index: usize },
    #[error("the host number {number} is outside 1..=254")]
    HostNumber { number: u8 },
    #[error("cannot make the network device {name} from /dev/net/tun: {source}{}", privilege_hint(.source))]
    Tun { name: String, source: io::Error },
    #[error("the link at {port} of the demo's bridge did not come up")]
    LinkDown { port: String },
}

fn privilege_hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => " (needs root)",
        Some(libc::ENOSPC) => " (user.max_net_namespaces is reached)",
        _ => "",
    }
}
