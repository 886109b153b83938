//! Sockets and poll sets, each kept once however often they are waited for.

use std::net::SocketAddr;

use super::intern::{Interner, NameId};
use crate::hash::FastMap;
use crate::trace::record::{Ends, Socket};

/// `TCP_*`, as the kernel numbers them.
pub mod state {
    pub const ESTABLISHED: u8 = 1;
    pub const SYN_SENT: u8 = 2;
    pub const CLOSE: u8 = 7;
    pub const LISTEN: u8 = 10;
}

const SOCK_STREAM: u8 = 1;
const SOCK_DGRAM: u8 = 2;
const DNS_PORT: u16 = 53;

/// Ways out to a resolver over a unix socket. Only the first 40 bytes of a path are kept, so these are
/// beginnings.
const RESOLVER_PATHS: [&str; 5] = [
    "/var/run/nscd/socket",
    "/run/nscd/socket",
    "/run/systemd/resolve/",
    "/run/avahi-daemon/socket",
    "/var/run/avahi-daemon/socket",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    Tcp,
    Udp,
    Unix,
    /// Raw sockets, netlink, and descriptors that are no sockets.
    Other,
}

impl Transport {
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Unix => "unix",
            Transport::Other => "other",
        }
    }
}

/// What kind of descriptor it is, as far as waiting on it is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketClass {
    /// Pipe, eventfd, timerfd, file.
    NotASocket,
    Inet,
    Unix,
    /// nscd, systemd-resolved or avahi.
    UnixResolver,
    /// Netlink and others.
    OtherFamily,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u32);

/// A socket with the ends that it had when it was seen. A socket that is bound or connected on the way is
/// several entries with the same `ino`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketInfo {
    /// 0: unknown.
    pub ino: u64,
    pub class: SocketClass,
    pub transport: Transport,
    /// Port and address, `None` for other families. IPv4 mapped into IPv6 is given as IPv4.
    pub local: Option<SocketAddr>,
    /// `None` also for an unconnected socket.
    pub peer: Option<SocketAddr>,
    /// `ip:port`, `[ip]:port`, a path; empty where unknown.
    pub name: NameId,
}

impl SocketInfo {
    /// Whether this is a socket to a DNS server's port.
    pub fn is_dns_port(&self) -> bool {
        self.peer.is_some_and(|peer| peer.port() == DNS_PORT)
    }
}

/// The address with IPv4 as IPv4 and without scope and flow, which are no part of a peer's name.
pub fn plain_address(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The known end of a connection: an address with a port.
pub fn known_peer(address: SocketAddr) -> Option<SocketAddr> {
    (address.port() != 0).then(|| plain_address(address))
}

pub fn transport(socket: &Socket) -> Transport {
    match (&socket.ends, socket.kind) {
        (Ends::Inet { .. }, SOCK_STREAM) => Transport::Tcp,
        (Ends::Inet { .. }, SOCK_DGRAM) => Transport::Udp,
        (Ends::Unix { .. }, _) => Transport::Unix,
        _ => Transport::Other,
    }
}

/// Whether a unix socket with this path leads to a resolver.
pub fn is_resolver_path(path: &str) -> bool {
    RESOLVER_PATHS.iter().any(|known| path.starts_with(known))
}

/// All sockets of a trace.
#[derive(Clone, Debug, Default)]
pub struct SocketTable {
    infos: Vec<SocketInfo>,
    ids: FastMap<SocketKey, SocketId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SocketKey {
    ino: u64,
    kind: u8,
    ends: Ends,
}

impl SocketTable {
    pub fn intern(&mut self, socket: &Socket, names: &mut Interner) -> SocketId {
        let key = SocketKey { ino: socket.ino, kind: socket.kind, ends: socket.ends.clone() };
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let id = SocketId(u32::try_from(self.infos.len()).unwrap_or(u32::MAX));
        if id.0 < u32::MAX {
            self.infos.push(describe(socket, names));
            self.ids.insert(key, id);
        }
        id
    }

    pub fn get(&self, id: SocketId) -> Option<&SocketInfo> {
        self.infos.get(id.0 as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = &SocketInfo> {
        self.infos.iter()
    }
}

fn describe(socket: &Socket, names: &mut Interner) -> SocketInfo {
    let transport = transport(socket);
    let mut info = SocketInfo {
        ino: socket.ino,
        class: SocketClass::OtherFamily,
        transport,
        local: None,
        peer: None,
        name: NameId::default(),
    };
    match &socket.ends {
        Ends::Inet { local, peer } => {
            info.class = SocketClass::Inet;
            info.local = Some(plain_address(*local));
            info.peer = known_peer(*peer);
            if let Some(peer) = info.peer {
                info.name = names.intern(&peer.to_string());
            }
        }
        Ends::Unix { path } => {
            let resolver = is_resolver_path(path);
            info.class = if resolver { SocketClass::UnixResolver } else { SocketClass::Unix };
            info.name = names.intern(path);
        }
        Ends::Other { family: 0 } => info.class = SocketClass::NotASocket,
        Ends::Other { .. } => {}
    }
    info
}
