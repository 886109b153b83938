//! The second root of the views by cause and by peer: time of queue pairs, which is not time of threads and is never
//! added to it.

use super::{FlameOptions, FrameKind, View, ViewFrame, WeightedStack};
use crate::analysis::Analysis;
use crate::analysis::queues::Queue;

/// `queue pairs; device; QP; peer; cause`, weighted by the queue pair's own time.
pub(super) fn stacks(analysis: &Analysis, options: &FlameOptions) -> Vec<WeightedStack> {
    // A queue pair has no thread, and the rank of one process does not say whose time it is.
    if options.view == View::Stack || options.tid.is_some() || options.rank.is_some() {
        return Vec::new();
    }
    let of = |queue: &Queue| {
        let row = &queue.row;
        let device = if row.device.is_empty() { "[unknown device]" } else { &row.device };
        let peer = row.peer_gid.as_deref().unwrap_or("[unknown peer]");
        let peer = row.rack.as_ref().map_or_else(|| peer.to_owned(), |rack| format!("{peer} (rack {rack})"));
        let head = [
            ViewFrame::new("queue pairs", FrameKind::Mark),
            ViewFrame::new(device, FrameKind::Task),
            ViewFrame::new(&format!("qp {} (pid {})", row.qp, queue.pid), FrameKind::Task),
            ViewFrame::new(&peer, FrameKind::Peer),
        ];
        let wanted = queue.times.iter().filter(|time| options.cause.is_none_or(|cause| cause == time.cause));
        let stacks = wanted.map(|time| {
            let leaf = ViewFrame::new(&format!("[{}]", time.cause), FrameKind::Cause(time.cause));
            WeightedStack { frames: head.iter().cloned().chain([leaf]).collect(), weight_ns: time.ns }
        });
        stacks.collect::<Vec<_>>()
    };
    analysis.queues.queues.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::queues::{QueueRow, QueueTime};
    use crate::model::cause::Cause;
    use crate::render::tree::fold_stalls;

    fn analysis() -> Analysis {
        let mut analysis = Analysis::default();
        let times = [(Cause::RdmaQueue, 30), (Cause::RdmaWire, 70)];
        analysis.queues.queues.push(Queue {
            row: QueueRow { device: "mlx5_0".to_owned(), qp: 417, ..QueueRow::default() },
            pid: 9,
            times: times.into_iter().map(|(cause, ns)| QueueTime { cause, ns }).collect(),
            ..Queue::default()
        });
        analysis
    }

    fn lines(options: &FlameOptions) -> Vec<String> {
        let stacks = fold_stalls(&analysis(), options).unwrap();
        stacks.iter().map(|stack| format!("{} {}", stack.path(), stack.weight_ns)).collect()
    }

    #[test]
    fn queue_pairs_have_a_root_of_their_own_by_cause_and_by_peer() {
        for view in [View::Cause, View::Peer] {
            assert_eq!(
                lines(&FlameOptions { view, ..FlameOptions::default() }),
                [
                    "queue pairs;mlx5_0;qp 417 (pid 9);[unknown peer];[rdma.queue] 30",
                    "queue pairs;mlx5_0;qp 417 (pid 9);[unknown peer];[rdma.wire] 70",
                ]
            );
        }
    }

    #[test]
    fn threads_and_causes_that_were_asked_for_leave_the_rest_out() {
        assert!(lines(&FlameOptions::default()).is_empty(), "the stack view is of threads");
        let options =
            FlameOptions { view: View::Cause, cause: Some(Cause::RdmaQueue), ..FlameOptions::default() };
        assert_eq!(lines(&options).len(), 1);
        let options = FlameOptions { cause: Some(Cause::DnsResolve), ..options };
        assert!(lines(&options).is_empty());
    }
}
