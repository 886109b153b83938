//! Looks at the targets' TCP and UDP sockets from time to time (`sock_diag`), in each network namespace
//! that a target is in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::diag::{self, DiagSocket, LISTEN, Protocol, SYN_SENT};
use super::netlink::{Netlink, NetlinkError};
use super::netns;
use super::owners::{Owner, Owners};
use super::root::{ProcRoot, ReadError, monotonic_ns};
use super::route::{self, Route};
use crate::trace::record::{Ends, Socket, SocketSample};

/// Sockets reported in one look at most.
const SAMPLES: usize = 1 << 16;

/// Why the sockets of a namespace cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error(transparent)]
    Namespace(#[from] ReadError),
    #[error("sockets of network namespace {namespace}: {source}")]
    Netlink { namespace: u64, source: NetlinkError },
}

impl SocketError {
    /// The process ended: nothing to tell the user about.
    pub fn is_gone(&self) -> bool {
        matches!(self, SocketError::Namespace(error) if error.is_gone())
    }
}

/// One look at all namespaces.
#[derive(Debug, Default)]
pub struct Look {
    pub samples: Vec<SocketSample>,
    /// What the look took; the caller chooses its rate by this.
    pub cost: Duration,
    /// Sockets that the kernel listed, of any process: what the cost depends on.
    pub listed: usize,
    pub errors: Vec<SocketError>,
}

/// A namespace, and the targets in it.
#[derive(Debug)]
struct Namespace {
    diag: Netlink,
    route: Netlink,
    pids: BTreeSet<u32>,
    owners: Owners,
}

/// The socket samplers of all targets, one for each network namespace.
#[derive(Debug)]
pub struct SocketSamplers {
    root: ProcRoot,
    namespaces: BTreeMap<u64, Namespace>,
}

impl SocketSamplers {
    pub fn new(root: ProcRoot) -> SocketSamplers {
        SocketSamplers { root, namespaces: BTreeMap::new() }
    }

    /// Takes a process in; to be called again where it may have moved to another namespace.
    ///
    /// # Errors
    ///
    /// When its namespace cannot be entered, or does not offer `sock_diag` sockets.
    pub fn add(&mut self, pid: u32) -> Result<(), SocketError> {
        let number = self.root.namespace(pid, "net")?;
        if self.namespaces.get(&number).is_some_and(|known| known.pids.contains(&pid)) {
            return Ok(());
        }
        self.remove(pid);
        if let Some(known) = self.namespaces.get_mut(&number) {
            known.pids.insert(pid);
            known.owners.expire();
            return Ok(());
        }
        let opened = if self.root.own_namespace("net").is_ok_and(|own| own == number) {
            open_sockets()
        } else {
            netns::inside(&self.root, pid, open_sockets)?
        };
        let (diag, route) = opened.map_err(|source| SocketError::Netlink { namespace: number, source })?;
        let owners = Owners::new(self.root.clone());
        let pids = BTreeSet::from([pid]);
        self.namespaces.insert(number, Namespace { diag, route, pids, owners });
        Ok(())
    }

    /// Lets a process go, and its namespace with the last one in it (an open socket would keep it alive).
    pub fn remove(&mut self, pid: u32) {
        self.namespaces.retain(|_, namespace| {
            namespace.pids.remove(&pid);
            !namespace.pids.is_empty()
        });
    }

    /// Looks at the TCP sockets of all targets; `udp` says whether at the UDP ones too. Samples of one look
    /// carry the time at which the kernel began to list their namespace's sockets.
    pub fn look(&mut self, at_start: bool, udp: bool) -> Look {
        let begin = Instant::now();
        let mut look = Look::default();
        for (&number, namespace) in &mut self.namespaces {
            namespace.look(Protocol::Tcp, at_start, number, &mut look);
            if udp {
                namespace.look(Protocol::Udp, at_start, number, &mut look);
            }
        }
        look.cost = begin.elapsed();
        look
    }

    /// Name of the interface that has this address in the process's network namespace.
    pub fn interface_for(&mut self, pid: u32, local: IpAddr) -> Option<String> {
        route::interface_with(&mut self.namespace_of(pid)?.route, local)
    }

    /// The way that packets to this address would take in the process's network namespace now.
    pub fn route_to(&mut self, pid: u32, peer: IpAddr) -> Option<Route> {
        route::route_to(&mut self.namespace_of(pid)?.route, peer)
    }

    fn namespace_of(&mut self, pid: u32) -> Option<&mut Namespace> {
        self.namespaces.values_mut().find(|namespace| namespace.pids.contains(&pid))
    }
}

fn open_sockets() -> Result<(Netlink, Netlink), NetlinkError> {
    Ok((
        Netlink::open(netlink_sys::protocols::NETLINK_SOCK_DIAG)?,
        Netlink::open(netlink_sys::protocols::NETLINK_ROUTE)?,
    ))
}

impl Namespace {
    fn look(&mut self, protocol: Protocol, at_start: bool, number: u64, look: &mut Look) {
        let time_ns = monotonic_ns();
        let mut sockets = Vec::new();
        let listed = &mut look.listed;
        let result = diag::dump(&mut self.diag, protocol, |socket| {
            *listed += 1;
            if socket.inode != 0 && sockets.len() < SAMPLES * 4 {
                sockets.push(socket);
            }
        });
        if let Err(source) = result {
            look.errors.push(SocketError::Netlink { namespace: number, source });
        }
        self.owners.refresh(&self.pids, sockets.iter().map(|socket| socket.inode));
        for socket in sockets {
            if let Some(owner) = self.owners.of(socket.inode)
                && look.samples.len() < SAMPLES
            {
                look.samples.push(sample(&socket, owner, protocol, time_ns, at_start));
            }
        }
    }
}

fn sample(
    socket: &DiagSocket,
    owner: Owner,
    protocol: Protocol,
    time_ns: u64,
    at_start: bool,
) -> SocketSample {
    let info = socket.info.unwrap_or_default();
    // Before the handshake the kernel shows its initial guesses, and a time since boot.
    let settled = socket.info.is_some() && !matches!(socket.state, SYN_SENT | LISTEN);
    let measured = settled && info.rtt_us > 0;
    let microseconds = |value: u32| if measured { u64::from(value) * 1000 } else { 0 };
    let (receive_queue, send_queue) =
        if socket.state == LISTEN { (0, 0) } else { (socket.receive_queue, socket.send_queue) };
    SocketSample {
        time_ns,
        pid: owner.pid,
        socket: Socket {
            ino: u64::from(socket.inode),
            fd: owner.fd,
            kind: if protocol == Protocol::Tcp { libc::SOCK_STREAM as u8 } else { libc::SOCK_DGRAM as u8 },
            state: socket.state,
            ends: Ends::Inet { local: socket.local, peer: socket.peer },
            events: 0,
            revents: 0,
        },
        rtt_ns: microseconds(info.rtt_us),
        rtt_var_ns: microseconds(info.rttvar_us),
        total_retransmits: info.total_retrans,
        current_retransmits: u32::from(info.retransmits.max(socket.retransmits)),
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        send_queue,
        receive_queue,
        // The kernel counts milliseconds; less than one is not the same as unknown.
        last_receive_age_ns: if settled { (u64::from(info.last_data_recv_ms) * 1_000_000).max(1) } else { 0 },
        at_start,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

    use super::super::diag::TcpInfo;
    use super::*;

    fn diag_socket(state: u8) -> DiagSocket {
        DiagSocket {
            inode: 7,
            state,
            local: "10.0.0.1:1000".parse().unwrap(),
            peer: "10.0.0.2:2000".parse().unwrap(),
            receive_queue: 5,
            send_queue: 6,
            retransmits: 1,
            info: Some(TcpInfo {
                retransmits: 3,
                last_data_recv_ms: 40,
                rtt_us: 150,
                rttvar_us: 20,
                total_retrans: 9,
                bytes_acked: 1,
                bytes_received: 2,
            }),
        }
    }

    #[test]
    fn times_are_given_in_nanoseconds() {
        let sample = sample(&diag_socket(1), Owner { pid: 4, fd: 8 }, Protocol::Tcp, 99, true);
        assert_eq!((sample.rtt_ns, sample.rtt_var_ns), (150_000, 20_000));
        assert_eq!(sample.last_receive_age_ns, 40_000_000);
        assert_eq!((sample.total_retransmits, sample.current_retransmits), (9, 3));
        assert_eq!((sample.receive_queue, sample.send_queue), (5, 6));
        assert_eq!((sample.pid, sample.socket.fd, sample.time_ns, sample.at_start), (4, 8, 99, true));
    }

    #[test]
    fn a_socket_without_a_handshake_has_no_round_trip_time() {
        let sample = sample(&diag_socket(SYN_SENT), Owner { pid: 4, fd: 8 }, Protocol::Tcp, 99, false);
        assert_eq!((sample.rtt_ns, sample.rtt_var_ns, sample.last_receive_age_ns), (0, 0, 0));
        assert_eq!(sample.current_retransmits, 3);
    }

    fn ends(sample: &SocketSample) -> (SocketAddr, SocketAddr) {
        match sample.socket.ends {
            Ends::Inet { local, peer } => (local, peer),
            _ => panic!("{sample:?}"),
        }
    }

    #[test]
    fn finds_its_own_connection_with_what_went_over_it() {
        let root = ProcRoot::default();
        let own = root.own_pid();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[0; 3000]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();

        let mut samplers = SocketSamplers::new(root);
        samplers.add(own).unwrap();
        let look = samplers.look(true, false);
        assert!(look.errors.is_empty(), "{:?}", look.errors);
        assert!(look.listed >= 3 && look.cost > Duration::ZERO);
        let find = |local: SocketAddr, peer: SocketAddr| {
            look.samples.iter().find(|sample| ends(sample) == (local, peer)).unwrap()
        };
        let near = find(client.local_addr().unwrap(), client.peer_addr().unwrap());
        assert!(near.rtt_ns > 0 && near.pid == own && near.at_start);
        assert_eq!(near.socket.state, 1);
        assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&client), near.socket.fd);
        let far = find(server.local_addr().unwrap(), server.peer_addr().unwrap());
        assert_eq!((far.bytes_received, far.receive_queue), (3000, 2000));
    }

    #[test]
    fn udp_sockets_are_listed_on_demand() {
        let root = ProcRoot::default();
        let own = root.own_pid();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.connect((Ipv4Addr::LOCALHOST, 53)).unwrap();
        let local = socket.local_addr().unwrap();
        let mut samplers = SocketSamplers::new(root);
        samplers.add(own).unwrap();
        let has = |look: &Look| look.samples.iter().any(|sample| ends(sample).0 == local);
        assert!(!has(&samplers.look(false, false)));
        let look = samplers.look(false, true);
        let sample = look.samples.iter().find(|sample| ends(sample).0 == local).unwrap();
        assert_eq!(ends(sample).1, "127.0.0.1:53".parse().unwrap());
        assert_eq!((sample.socket.kind, sample.socket.state, sample.rtt_ns), (2, 1, 0));
    }

    #[test]
    fn after_the_last_process_left_nothing_is_looked_at() {
        let root = ProcRoot::default();
        let own = root.own_pid();
        let mut samplers = SocketSamplers::new(root);
        samplers.add(own).unwrap();
        samplers.add(own).unwrap();
        assert_eq!(samplers.namespaces.len(), 1);
        samplers.remove(own);
        assert_eq!(samplers.look(false, true).listed, 0);
        assert!(samplers.add(u32::MAX).unwrap_err().is_gone());
    }

    #[test]
    fn says_which_interface_has_an_address_and_leads_to_one() {
        let root = ProcRoot::default();
        let own = root.own_pid();
        let mut samplers = SocketSamplers::new(root);
        samplers.add(own).unwrap();
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(samplers.interface_for(own, local).as_deref(), Some("lo"));
        assert_eq!(samplers.interface_for(own, IpAddr::from([192, 0, 2, 77])), None);
        let route = samplers.route_to(own, local).unwrap();
        assert_eq!((route.interface.as_str(), route.gateway), ("lo", None));
        assert_eq!(samplers.interface_for(u32::MAX, local), None);
    }
}
