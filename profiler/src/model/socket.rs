//! Sockets and poll sets, each kept once however often they are waited for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::intern::{Interner, NameId};
use crate::hash::FastMap;
use crate::trace::record::{Ends, Socket};

/// `TCP_*`, as the kernel numbers them.
pub mod state {
    pub const ESTABLISHED: u8 = 1;
    pub const SYN_SENT: u8 = 2;
    pub const FIN_WAIT1: u8 = 4;
    pub const CLOSE: u8 = 7;
    pub const LAST_ACK: u8 = 9;
    pub const LISTEN: u8 = 10;
    pub const CLOSING: u8 = 11;
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

/// In the place of the peers that are too many to be told apart.
pub const MORE_PEERS: &str = "(more peers)";

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

/// All sockets of a trace, as far as there is room.
#[derive(Clone, Debug)]
pub struct SocketTable {
    infos: Vec<SocketInfo>,
    ids: FastMap<SocketKey, SocketId>,
    limit: usize,
    left_out: u64,
}

impl Default for SocketTable {
    fn default() -> SocketTable {
        let limit = super::bounds::Limits::default().sockets;
        SocketTable { infos: Vec::new(), ids: FastMap::default(), limit, left_out: 0 }
    }
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
        if self.infos.len() < self.limit {
            return self.add(key, describe(socket, names));
        }
        self.left_out += 1;
        self.intern_rest(socket, names)
    }

    /// A socket for which there is no room: one for all with this peer, and in the end one for all of a kind.
    fn intern_rest(&mut self, socket: &Socket, names: &mut Interner) -> SocketId {
        let rest = without_itself(socket);
        let key = SocketKey { ino: 0, kind: rest.kind, ends: rest.ends.clone() };
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        if self.infos.len() < self.limit.saturating_mul(2) {
            return self.add(key, describe(&rest, names));
        }
        let rest = without_peer(&rest);
        let key = SocketKey { ino: 0, kind: rest.kind, ends: rest.ends.clone() };
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let info = describe(&rest, &mut Interner::default());
        let name = if info.peer.is_some() { names.intern(MORE_PEERS) } else { NameId::default() };
        self.add(key, SocketInfo { name, ..info })
    }

    fn add(&mut self, key: SocketKey, info: SocketInfo) -> SocketId {
        let id = SocketId(u32::try_from(self.infos.len()).unwrap_or(u32::MAX));
        if id.0 < u32::MAX {
            self.infos.push(info);
            self.ids.insert(key, id);
        }
        id
    }

    /// Keeps no more sockets than this apart, and no more peers of others.
    pub fn limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// How often there was no room.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    pub fn get(&self, id: SocketId) -> Option<&SocketInfo> {
        self.infos.get(id.0 as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = &SocketInfo> {
        self.infos.iter()
    }
}

/// Only what it is connected to.
fn without_itself(socket: &Socket) -> Socket {
    let ends = match &socket.ends {
        Ends::Inet { local, peer } => {
            Ends::Inet { local: SocketAddr::new(unspecified(local), 0), peer: plain_address(*peer) }
        }
        other => other.clone(),
    };
    // Kinds beyond these two are waited for in the same way.
    let kind = if matches!(socket.kind, SOCK_STREAM | SOCK_DGRAM) { socket.kind } else { 0 };
    Socket { ino: 0, fd: -1, kind, ends, ..socket.clone() }
}

/// Only what decides what a wait on it is for.
fn without_peer(socket: &Socket) -> Socket {
    let ends = match &socket.ends {
        Ends::Inet { local, peer } => {
            // A listening or unconnected socket stays one, and a resolver's too.
            let port = match peer.port() {
                0 => 0,
                DNS_PORT => DNS_PORT,
                _ => 1,
            };
            Ends::Inet { local: *local, peer: SocketAddr::new(unspecified(peer), port) }
        }
        Ends::Unix { path } => {
            let known = RESOLVER_PATHS.iter().find(|known| path.starts_with(*known));
            Ends::Unix { path: known.map_or_else(String::new, |known| (*known).to_owned()) }
        }
        Ends::Other { family } => Ends::Other { family: u16::from(*family != 0) },
    };
    Socket { ends, ..socket.clone() }
}

fn unspecified(like: &SocketAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
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
