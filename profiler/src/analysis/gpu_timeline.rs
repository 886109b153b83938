//! What the GPU did for a process, as one line of time: of what ran at once only what counts most.
//!
//! Computing counts most, since then nobody waits for communication; then NCCL's kernels, copies, and what was launched
//! and had not started. With several devices in one process the line is that of all of them.

use crate::model::gpu::{Gpu, GpuClass, QUEUED, copy_name};
use crate::model::intern::{Interner, NameId};
use crate::model::thread::Interval;
use crate::trace::gpu::{GpuActivity, GpuWhat};

/// What counted at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuState {
    Compute,
    /// With the number of the kernel's short name.
    Nccl(NameId),
    /// With the number of the copy's direction.
    Copy(NameId),
    /// Something was launched and nothing ran.
    Queue(NameId),
}

/// A part of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub span: Interval,
    pub state: GpuState,
}

/// Disjoint, in order; in between nothing was launched or running.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    segments: Vec<Segment>,
}

impl Timeline {
    /// The line of one process.
    pub fn new(gpu: &Gpu, names: &Interner, pid: u32) -> Timeline {
        let start = gpu.activities.partition_point(|one| one.pid < pid);
        let end = gpu.activities.partition_point(|one| one.pid <= pid);
        let activities = gpu.activities.get(start..end).unwrap_or_default();
        let number = |name: &str| names.find(name).unwrap_or_default();
        let queued = GpuState::Queue(number(QUEUED));
        let state = |one: &GpuActivity| match one.what {
            GpuWhat::Copy { kind, .. } => GpuState::Copy(number(copy_name(kind))),
            GpuWhat::Kernel(id) if gpu.class(one) == GpuClass::Nccl => {
                GpuState::Nccl(gpu.name(id).map_or_else(NameId::default, |name| name.label))
            }
            GpuWhat::Kernel(_) => GpuState::Compute,
        };
        let runs = |one: &GpuActivity| Interval { start_ns: one.start_ns, end_ns: one.end_ns };
        let of = |class: GpuClass| activities.iter().filter(move |one| gpu.class(one) == class);
        let mut line = Timeline::default();
        for class in [GpuClass::Compute, GpuClass::Nccl, GpuClass::Copy] {
            line.fill(of(class).map(|one| Segment { span: runs(one), state: state(one) }).collect());
        }
        let waiting = activities.iter().filter_map(|one| {
            let start_ns = one.start_ns.saturating_sub(one.queue_ns?);
            Some(Segment { span: Interval { start_ns, end_ns: one.start_ns }, state: queued })
        });
        line.fill(waiting.collect());
        line
    }

    /// Puts `more` where nothing is yet; of those that overlap the one that began first stays.
    fn fill(&mut self, mut more: Vec<Segment>) {
        more.retain(|one| !one.span.is_empty());
        more.sort_by_key(|one| (one.span.start_ns, one.span.end_ns));
        let mut free = Vec::new();
        let mut taken = self.segments.iter().peekable();
        let mut from_ns = 0;
        for Segment { span, state } in more {
            let mut start_ns = span.start_ns.max(from_ns);
            from_ns = from_ns.max(span.end_ns);
            while start_ns < span.end_ns {
                while taken.next_if(|one| one.span.end_ns <= start_ns).is_some() {}
                let next =
                    taken.peek().map_or(Interval { start_ns: u64::MAX, end_ns: u64::MAX }, |one| one.span);
                let end_ns = span.end_ns.min(next.start_ns);
                if start_ns < end_ns {
                    push(&mut free, Segment { span: Interval { start_ns, end_ns }, state });
                }
                start_ns = end_ns.max(next.end_ns.min(span.end_ns));
            }
        }
        if self.segments.is_empty() {
            self.segments = free;
        } else {
            self.segments.append(&mut free);
            self.segments.sort_by_key(|one| one.span.start_ns);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// What lies within `span`, cut to it.
    pub fn within(&self, span: Interval) -> impl Iterator<Item = Segment> + '_ {
        let first = self.segments.partition_point(|one| one.span.end_ns <= span.start_ns);
        let rest = self.segments.get(first..).unwrap_or_default();
        rest.iter()
            .take_while(move |one| one.span.start_ns < span.end_ns)
            .map(move |one| Segment { span: one.span.clip(span), state: one.state })
    }
}

/// Joins what is one.
fn push(segments: &mut Vec<Segment>, one: Segment) {
    match segments.last_mut() {
        Some(last) if last.state == one.state && last.span.end_ns >= one.span.start_ns => {
            last.span.end_ns = last.span.end_ns.max(one.span.end_ns);
        }
        _ => segments.push(one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture::{Trace, gpu};

    const NCCL: GpuWhat = GpuWhat::Kernel(1);
    const GEMM: GpuWhat = GpuWhat::Kernel(2);
    const COPY: GpuWhat = GpuWhat::Copy { kind: 1, bytes: 64 };

    fn line(activities: &[(u32, GpuWhat, u64, u64, Option<u64>)]) -> Vec<(char, u64, u64)> {
        let mut trace = Trace::new();
        gpu(&mut trace, activities);
        let model = trace.model();
        let line = Timeline::new(&model.gpu, &model.names, 100);
        assert!(Timeline::new(&model.gpu, &model.names, 99).is_empty());
        let letter = |state| match state {
            GpuState::Compute => 'c',
            GpuState::Nccl(_) => 'n',
            GpuState::Copy(_) => 'y',
            GpuState::Queue(_) => 'q',
        };
        let whole = Interval { start_ns: 0, end_ns: u64::MAX };
        line.within(whole).map(|one| (letter(one.state), one.span.start_ns, one.span.end_ns)).collect()
    }

    #[test]
    fn what_counts_more_hides_what_counts_less() {
        let told = line(&[
            (7, GEMM, 1200, 1300, None),
            (7, GEMM, 1350, 1400, Some(300)),
            (8, NCCL, 1100, 1500, Some(60)),
            (9, COPY, 1050, 1600, None),
        ]);
        assert_eq!(
            told,
            [
                ('q', 1040, 1050),
                ('y', 1050, 1100),
                ('n', 1100, 1200),
                ('c', 1200, 1300),
                ('n', 1300, 1350),
                ('c', 1350, 1400),
                ('n', 1400, 1500),
                ('y', 1500, 1600)
            ]
        );
    }

    #[test]
    fn overlapping_ones_of_one_kind_are_counted_once_and_gaps_stay() {
        assert_eq!(
            line(&[(7, GEMM, 1100, 1300, None), (8, GEMM, 1200, 1250, None), (8, GEMM, 1400, 1500, None)]),
            [('c', 1100, 1300), ('c', 1400, 1500)]
        );
        assert_eq!(line(&[(7, NCCL, 1100, 1300, None), (8, NCCL, 1200, 1400, None)]), [('n', 1100, 1400)]);
    }

    #[test]
    fn a_part_is_cut_to_what_is_asked_for() {
        let mut trace = Trace::new();
        gpu(&mut trace, &[(7, GEMM, 1100, 1300, None), (8, NCCL, 1400, 1500, None)]);
        let model = trace.model();
        let line = Timeline::new(&model.gpu, &model.names, 100);
        let spans: Vec<(u64, u64)> = line
            .within(Interval { start_ns: 1250, end_ns: 1450 })
            .map(|one| (one.span.start_ns, one.span.end_ns))
            .collect();
        assert_eq!(spans, [(1250, 1300), (1400, 1450)]);
        assert_eq!(line.within(Interval { start_ns: 1300, end_ns: 1400 }).count(), 0);
    }
}
