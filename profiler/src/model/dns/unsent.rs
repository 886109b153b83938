//! Questions that never left the machine: the kernel has no way to the server, or a packet filter stands before it.

use nix::errno::Errno;
use profiler_common::Call;

use super::PORT;
use crate::model::socket::{Transport, known_peer, transport};
use crate::trace::record::{Direction, DnsMessage, Ends, Wait};

/// Whether the error says that this machine, and no answer from elsewhere, keeps a message from its server.
pub fn keeps_from_server(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::EPERM
            | libc::EACCES
            | libc::EADDRNOTAVAIL
    )
}

/// `ENETUNREACH`; `E4711` where it has no name.
pub fn errno_name(errno: i32) -> String {
    match Errno::from_raw(errno) {
        Errno::UnknownErrno => format!("E{errno}"),
        errno => format!("{errno:?}"),
    }
}

/// A resolver that cannot even connect its UDP socket asks nothing: its `connect` stands for the question, whose name
/// only the resolver function's argument tells.
pub fn of_connect(wait: &Wait) -> Option<DnsMessage> {
    let socket = wait.sockets.first().filter(|_| wait.call == Call::Connect)?;
    let Ends::Inet { peer, .. } = &socket.ends else { return None };
    let errno = i32::try_from(wait.ret.checked_neg()?).ok()?;
    let to_server = known_peer(*peer).is_some_and(|peer| peer.port() == PORT);
    if !to_server || transport(socket) != Transport::Udp || !keeps_from_server(errno) {
        return None;
    }
    Some(DnsMessage {
        time_ns: wait.end_ns,
        pid: wait.pid,
        tid: wait.tid,
        direction: Direction::Send,
        ret: wait.ret,
        api: wait.api,
        api_start_ns: wait.api_start_ns,
        socket: socket.clone(),
        data: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture::{tcp, udp, wait};
    use crate::trace::record::Socket;

    fn failed(call: Call, socket: Socket, errno: i32) -> Option<DnsMessage> {
        of_connect(&Wait { ret: -i64::from(errno), ..wait(call, 1100, 1200, vec![socket]) })
    }

    #[test]
    fn a_failed_connect_of_a_udp_socket_to_a_name_server_stands_for_a_question() {
        let message = failed(Call::Connect, udp(7, "10.0.0.53:53"), libc::ENETUNREACH).unwrap();
        assert_eq!((message.time_ns, message.ret), (1200, -i64::from(libc::ENETUNREACH)));
        assert_eq!((message.direction, message.data.len()), (Direction::Send, 0));
    }

    #[test]
    fn other_calls_servers_and_errors_stand_for_none() {
        let server = || udp(7, "10.0.0.53:53");
        assert_eq!(failed(Call::Connect, server(), 0), None);
        assert_eq!(failed(Call::Connect, server(), libc::EINTR), None);
        assert_eq!(failed(Call::Sendto, server(), libc::ENETUNREACH), None);
        assert_eq!(failed(Call::Connect, udp(7, "10.0.0.53:54"), libc::ENETUNREACH), None);
        assert_eq!(failed(Call::Connect, tcp(7, "10.0.0.53:53"), libc::ENETUNREACH), None);
        assert_eq!(errno_name(libc::EPERM), "EPERM");
    }
}
