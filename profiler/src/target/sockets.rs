//! Looks at the targets' TCP and UDP sockets from time to time (`sock_diag`), in each network namespace
//! that a target is in.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use nix::errno::Errno;

use super::netlink::NetlinkError;
use super::netns;
use super::root::{ProcRoot, ReadError};
use super::route::{self, Route};
use super::sampler::{Counted, Namespace, open_sockets};
pub use super::sampler::{Full, processor_time};
use crate::trace::record::SocketSample;

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

    /// What the user can do about it.
    pub fn help(&self) -> &'static str {
        match self {
            SocketError::Namespace(_) => "entering another network namespace needs root or CAP_SYS_ADMIN",
            SocketError::Netlink {
                source: NetlinkError::Refused(Errno::ENOENT | Errno::EOPNOTSUPP), ..
            } => "load the kernel's modules for it: modprobe -a tcp_diag udp_diag",
            SocketError::Netlink { .. } => {
                "socket samples are left out; `stallscope doctor` checks this again"
            }
        }
    }
}

/// One look at all namespaces.
#[derive(Debug, Default)]
pub struct Look {
    pub samples: Vec<SocketSample>,
    /// What the look took; the caller chooses its rate by this.
    pub cost: Duration,
    /// Sockets that the kernel listed, of any process; 0 where none had to be listed.
    pub listed: usize,
    pub errors: Vec<SocketError>,
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
            known.add(pid);
            return Ok(());
        }
        let opened = if self.root.own_namespace("net").is_ok_and(|own| own == number) {
            open_sockets()
        } else {
            netns::inside(&self.root, pid, open_sockets)?
        };
        let (diag, route) = opened.map_err(|source| SocketError::Netlink { namespace: number, source })?;
        self.namespaces.insert(number, Namespace::new(&self.root, diag, route, pid));
        Ok(())
    }

    /// Lets a process go, and its namespace with the last one in it (an open socket would keep it alive).
    pub fn remove(&mut self, pid: u32) {
        self.namespaces.retain(|_, namespace| {
            namespace.pids.remove(&pid);
            !namespace.pids.is_empty()
        });
    }

    /// Looks at the TCP sockets of all targets. Without a full list, sockets that are known from the last one are
    /// asked for one by one where that is cheaper, and new ones appear with the next list.
    ///
    /// Each sample carries the time at which it was asked for.
    pub fn look(&mut self, at_start: bool, full: Full) -> Look {
        let begin = processor_time();
        let mut look = Look::default();
        let mut counted = Counted::default();
        for (&number, namespace) in &mut self.namespaces {
            if let Err(source) = namespace.look(at_start, full, &mut counted) {
                look.errors.push(SocketError::Netlink { namespace: number, source });
            }
        }
        look.samples = counted.samples;
        look.listed = counted.listed;
        look.cost = processor_time().saturating_sub(begin);
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

    use super::*;
    use crate::trace::record::Ends;

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
        let look = samplers.look(true, Full::Tcp);
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
    fn a_known_socket_is_followed_without_a_new_list_and_a_closed_one_is_dropped() {
        let root = ProcRoot::default();
        let own = root.own_pid();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let local = server.peer_addr().unwrap();
        let mut samplers = SocketSamplers::new(root);
        samplers.add(own).unwrap();
        let queue = |look: &Look| {
            let far = |sample: &&SocketSample| ends(sample).1 == local;
            look.samples.iter().find(far).map(|sample| sample.receive_queue)
        };
        assert_eq!(queue(&samplers.look(true, Full::WithUdp)), Some(0));
        client.write_all(&[0; 500]).unwrap();
        let mut quick = samplers.look(false, Full::WhereCheap);
        while quick.listed > 0 {
            quick = samplers.look(false, Full::WhereCheap);
        }
        assert_eq!(queue(&quick), Some(500));
        drop(server);
        assert_eq!(queue(&samplers.look(false, Full::WhereCheap)), None);
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
        assert!(!has(&samplers.look(false, Full::WhereCheap)));
        let look = samplers.look(false, Full::WithUdp);
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
        assert_eq!(samplers.look(false, Full::WithUdp).listed, 0);
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
