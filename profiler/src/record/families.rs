//! Which waits belong to the probe families that were asked for (`--probes`). System calls on sockets serve two of
//! them, so what is not wanted is told apart by what was waited for.

use std::collections::HashSet;

use profiler_common::{Api, Call};

use crate::model::socket::{is_resolver_path, known_peer};
use crate::trace::record::{DnsMessage, Ends, Socket, Wait};

/// Port of name servers.
const DNS_PORT: u16 = 53;
/// Sockets without a peer that are remembered because messages to a name server passed them. When more come, the
/// oldest are not known any longer: resolvers use a socket for one lookup.
const ASKED_SOCKETS: usize = 1 << 16;

/// The families whose waits are told apart here.
#[derive(Debug)]
pub(super) struct WaitFamilies {
    net: bool,
    dns: bool,
    /// Sockets without a peer that name servers were asked on (`sendto` on a socket that was never connected).
    asked: HashSet<u64>,
}

impl WaitFamilies {
    pub(super) fn new(net: bool, dns: bool) -> WaitFamilies {
        WaitFamilies { net, dns, asked: HashSet::new() }
    }

    pub(super) fn net(&self) -> bool {
        self.net
    }

    pub(super) fn dns(&self) -> bool {
        self.dns
    }

    /// Remembers where a name server was asked.
    pub(super) fn asked(&mut self, message: &DnsMessage) {
        if self.net == self.dns || message.socket.ino == 0 || has_peer(&message.socket) {
            return;
        }
        if self.asked.len() >= ASKED_SOCKETS {
            self.asked.clear();
        }
        self.asked.insert(message.socket.ino);
    }

    /// Whether the wait is one of a family that was asked for. One on several sockets, some of them a resolver's, is
    /// of both families and kept whole: its time is shared among all of them.
    pub(super) fn wants(&self, wait: &Wait) -> bool {
        if is_of_threads(wait.call) || (self.net && self.dns) {
            return true;
        }
        let inside = wait.api != Api::None;
        if self.dns {
            return inside || wait.sockets.iter().any(|socket| self.is_resolver(socket, wait));
        }
        let only_dns =
            !wait.sockets.is_empty() && wait.sockets.iter().all(|socket| self.is_resolver(socket, wait));
        self.net && !inside && !only_dns
    }

    fn is_resolver(&self, socket: &Socket, wait: &Wait) -> bool {
        match &socket.ends {
            Ends::Inet { peer, .. } => match known_peer(*peer) {
                Some(peer) => peer.port() == DNS_PORT,
                // Whom it asked before the recording is not known: only the stack may tell, later.
                None => {
                    self.asked.contains(&socket.ino)
                        || (self.dns && wait.flags.began_earlier && is_udp(socket))
                }
            },
            Ends::Unix { path } => is_resolver_path(path),
            Ends::Other { .. } => false,
        }
    }
}

fn has_peer(socket: &Socket) -> bool {
    matches!(&socket.ends, Ends::Inet { peer, .. } if known_peer(*peer).is_some())
}

fn is_udp(socket: &Socket) -> bool {
    i32::from(socket.kind) == libc::SOCK_DGRAM
}

/// Waits on other threads and on the clock: they are of no socket family.
fn is_of_threads(call: Call) -> bool {
    matches!(call, Call::Futex | Call::Nanosleep | Call::ClockNanosleep)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture::{readable, tcp, udp, unix, wait};
    use crate::trace::record::{Direction, WaitFlags};

    fn poll(sockets: Vec<Socket>) -> Wait {
        wait(Call::Poll, 1000, 1500, sockets.into_iter().map(readable).collect())
    }

    fn wants(families: &WaitFamilies, wait: &Wait) -> bool {
        families.wants(wait)
    }

    #[test]
    fn without_net_only_waits_on_resolvers_are_kept() {
        let families = WaitFamilies::new(false, true);
        for server in [udp(1, "10.0.0.53:53"), tcp(2, "10.0.0.53:53"), unix("/run/nscd/socket")] {
            assert!(wants(&families, &poll(vec![server])));
        }
        for other in [tcp(1, "10.0.0.1:80"), udp(2, "10.0.0.1:123"), udp(3, "0.0.0.0:0"), unix("/run/x")] {
            assert!(!wants(&families, &poll(vec![other])));
        }
        assert!(!wants(&families, &poll(Vec::new())));
        // Netlink inside of `getaddrinfo`.
        assert!(wants(&families, &Wait { api: Api::Getaddrinfo, ..poll(Vec::new()) }));
    }

    #[test]
    fn without_dns_waits_on_resolvers_are_left_out() {
        let families = WaitFamilies::new(true, false);
        assert!(!wants(&families, &poll(vec![udp(1, "10.0.0.53:53"), udp(2, "10.0.0.54:53")])));
        assert!(!wants(&families, &poll(vec![unix("/run/systemd/resolve/io.systemd.Resolve")])));
        assert!(wants(&families, &poll(vec![tcp(1, "10.0.0.1:80")])));
        assert!(wants(&families, &poll(Vec::new())));
    }

    #[test]
    fn a_wait_on_sockets_of_both_families_is_kept_by_either() {
        let both = poll(vec![udp(1, "10.0.0.53:53"), tcp(2, "10.0.0.1:80")]);
        assert!(wants(&WaitFamilies::new(true, false), &both));
        assert!(wants(&WaitFamilies::new(false, true), &both));
        assert!(!wants(&WaitFamilies::new(false, false), &both));
    }

    #[test]
    fn waits_of_threads_are_of_neither_family() {
        let families = WaitFamilies::new(false, false);
        for call in [Call::Futex, Call::Nanosleep, Call::ClockNanosleep] {
            assert!(wants(&families, &wait(call, 1000, 1500, Vec::new())));
        }
        assert!(!wants(&families, &poll(vec![tcp(1, "10.0.0.1:80")])));
    }

    #[test]
    fn a_socket_without_a_peer_is_known_by_the_messages_that_passed_it() {
        let message = DnsMessage {
            time_ns: 900,
            pid: 100,
            tid: 100,
            direction: Direction::Send,
            ret: 20,
            api: Api::None,
            api_start_ns: 0,
            socket: udp(7, "0.0.0.0:0"),
            data: Vec::new(),
        };
        let unconnected = poll(vec![udp(7, "0.0.0.0:0")]);
        for (net, dns) in [(true, false), (false, true)] {
            let mut families = WaitFamilies::new(net, dns);
            assert_eq!(wants(&families, &unconnected), net);
            families.asked(&message);
            assert_eq!(wants(&families, &unconnected), dns);
            assert_eq!(families.asked.len(), 1);
        }
        let earlier =
            Wait { flags: WaitFlags { began_earlier: true, ..WaitFlags::default() }, ..unconnected };
        assert!(wants(&WaitFamilies::new(false, true), &earlier));
    }

    #[test]
    fn the_sockets_that_are_remembered_are_bounded() {
        let mut families = WaitFamilies::new(false, true);
        for ino in 1..=2 * ASKED_SOCKETS as u64 {
            families.asked(&DnsMessage {
                time_ns: 900,
                pid: 100,
                tid: 100,
                direction: Direction::Send,
                ret: 20,
                api: Api::None,
                api_start_ns: 0,
                socket: udp(ino, "0.0.0.0:0"),
                data: Vec::new(),
            });
        }
        assert!(families.asked.len() <= ASKED_SOCKETS);
    }
}
