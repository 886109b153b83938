//! What the kernel's queues of a connection held when it was looked at last.

use std::collections::BTreeMap;

use crate::model::Model;
use crate::model::socket::known_peer;
use crate::trace::record::Ends;

/// Connections that are kept at most.
const CONNECTIONS: usize = 100_000;

/// The latest look at a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    pub time_ns: u64,
    /// Bytes that the peer has not acknowledged yet.
    pub send_queue: u64,
    /// Bytes that the program has not read yet.
    pub receive_queue: u64,
    /// Time since the last data of the peer; 0 where the kernel does not tell.
    pub last_receive_age_ns: u64,
}

/// By process and peer (`ip:port`).
#[derive(Clone, Debug, Default)]
pub struct SocketQueues {
    states: BTreeMap<(u32, String), QueueState>,
}

impl SocketQueues {
    pub fn new(model: &Model) -> SocketQueues {
        let mut queues = SocketQueues::default();
        for sample in &model.samples {
            let Ends::Inet { peer, .. } = &sample.socket.ends else { continue };
            let Some(peer) = known_peer(*peer) else { continue };
            if queues.states.len() >= CONNECTIONS {
                break;
            }
            let state = QueueState {
                time_ns: sample.time_ns,
                send_queue: u64::from(sample.send_queue),
                receive_queue: u64::from(sample.receive_queue),
                last_receive_age_ns: sample.last_receive_age_ns,
            };
            let known = queues.states.entry((sample.pid, peer.to_string())).or_default();
            if state.time_ns >= known.time_ns {
                *known = state;
            }
        }
        queues
    }

    pub fn get(&self, pid: u32, peer: &str) -> Option<&QueueState> {
        self.states.get(&(pid, peer.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture::{sample_of, tcp};
    use crate::trace::record::SocketSample;

    #[test]
    fn the_latest_look_counts() {
        let look = |time_ns, receive_queue| SocketSample {
            time_ns,
            receive_queue,
            last_receive_age_ns: time_ns,
            ..sample_of(7, "10.0.0.1:4000", tcp(1, "10.0.0.2:80"))
        };
        let model = Model { samples: vec![look(20, 5), look(10, 6)], ..Model::default() };
        let queues = SocketQueues::new(&model);
        let state = queues.get(7, "10.0.0.2:80").unwrap();
        assert_eq!((state.time_ns, state.receive_queue, state.last_receive_age_ns), (20, 5, 20));
        assert_eq!(queues.get(8, "10.0.0.2:80"), None);
    }
}
