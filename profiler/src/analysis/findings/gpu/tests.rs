use crate::analysis::Analysis;
use crate::analysis::report::{Finding, Severity};
use crate::model::fixture::{PID, Trace};
use crate::trace::gpu::{GpuActivities, GpuActivity, GpuName, GpuWhat, ROWS};
use crate::trace::record::{Environment, Loss, Process, Record, Thread};

const SECOND: u64 = 1_000_000_000;
const MICRO: u64 = 1000;

fn trace() -> Trace {
    let mut trace = Trace::with_window(0, 4 * SECOND);
    trace.add(Record::GpuName(GpuName {
        id: 1,
        name: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)".into(),
    }));
    trace.add(Record::GpuName(GpuName { id: 2, name: "gemm".into() }));
    trace
}

/// Kernels: start, end, queueing.
fn kernels(trace: &mut Trace, pid: u32, name: u32, kernels: impl Iterator<Item = (u64, u64, u64)>) {
    let mut batch = GpuActivities::new(pid);
    let mut last = 0;
    for (start_ns, end_ns, queue_ns) in kernels {
        let (what, queue_ns) = (GpuWhat::Kernel(name), Some(queue_ns));
        batch.push(&GpuActivity { pid, device: 0, stream: 7, what, start_ns, end_ns, queue_ns }, &mut last);
        if batch.what.len() == ROWS {
            trace.add(Record::GpuActivities(std::mem::replace(&mut batch, GpuActivities::new(pid))));
            last = 0;
        }
    }
    trace.add(Record::GpuActivities(batch));
}

fn found(analysis: &Analysis, id: &str) -> Option<Finding> {
    analysis.report.findings.iter().find(|one| one.id == id).cloned()
}

/// The thread runs for this share of the window.
fn running(trace: &mut Trace, percent: u64) {
    trace.times(0, 0, 0).times(4 * SECOND, 4 * SECOND / 100 * percent, 0);
}

/// 4 us of work every 20 us, launched 8 us before.
fn launches(queue_ns: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    (1..100_000).map(move |at| (at * 20 * MICRO, at * 20 * MICRO + 4 * MICRO, queue_ns))
}

#[test]
fn a_gpu_that_waits_for_a_busy_thread_s_launches_is_launch_bound() {
    let mut trace = trace();
    running(&mut trace, 98);
    kernels(&mut trace, PID, 2, launches(8 * MICRO));
    let analysis = trace.analyse();
    let finding = found(&analysis, "gpu.launch_bound").expect("it is");
    assert_eq!(finding.severity, Severity::Warning);
    assert_eq!(
        (finding.proof["launch_latency_ns"].clone(), finding.proof["kernels"].clone()),
        (8000.into(), 99_999.into())
    );
    assert_eq!(finding.proof["gaps"], 99_998);
    assert!(finding.summary.contains("(80%)"), "{}", finding.summary);
    // The same is not told twice.
    assert_eq!(found(&analysis, "gpu.underused"), None);
}

#[test]
fn launches_are_not_blamed_where_the_thread_rests_kernels_queue_or_gaps_are_long() {
    let analysed = |percent, kernel: &dyn Fn(u64) -> (u64, u64, u64)| {
        let mut trace = trace();
        running(&mut trace, percent);
        kernels(&mut trace, PID, 2, (1..3000).map(kernel));
        found(&trace.analyse(), "gpu.launch_bound")
    };
    let ms = 1000 * MICRO;
    // The thread sleeps between its launches.
    assert_eq!(analysed(30, &|at| (at * ms, at * ms + 900 * MICRO, 8 * MICRO)), None);
    // Gaps of milliseconds are no matter of launching.
    assert_eq!(analysed(98, &|at| (at * ms, at * ms + 100 * MICRO, 8 * MICRO)), None);
    // Kernels wait behind each other, the gaps between them come from elsewhere.
    assert_eq!(analysed(98, &|at| (at * ms, at * ms + 850 * MICRO, at % 7 * 300 * MICRO)), None);
    // Hardly any gaps.
    assert_eq!(analysed(98, &|at| (at * ms, at * ms + 990 * MICRO, 8 * MICRO)), None);
    assert!(analysed(98, &|at| (at * ms, at * ms + 810 * MICRO, 8 * MICRO)).is_none());
    assert!(
        analysed(98, &|at| (at * ms, at * ms + 790 * MICRO + at % 2, 8 * MICRO)).is_none(),
        "gaps above 200 us"
    );
}

#[test]
fn a_gpu_that_rests_most_of_the_time_is_underused_and_one_of_which_records_were_lost_is_not() {
    let ms = 1000 * MICRO;
    let mut trace = trace();
    running(&mut trace, 60);
    kernels(&mut trace, PID, 2, (1..400).map(|at| (at * 10 * ms, at * 10 * ms + ms, 8 * MICRO)));
    let finding = found(&trace.analyse(), "gpu.underused").expect("it is");
    assert_eq!((finding.severity, finding.proof["gaps"].clone()), (Severity::Info, 398.into()));
    assert!(finding.summary.contains("(10%)"), "{}", finding.summary);
    trace.add(Record::Loss(Loss { what: "gpu_ring_full".into(), count: 1, events: true }));
    assert_eq!(found(&trace.analyse(), "gpu.underused"), None);
}

#[test]
fn a_gpu_that_is_used_now_and_then_shared_or_busy_is_not_underused() {
    let ms = 1000 * MICRO;
    let analysed = |pids: &[u32], kernel: &dyn Fn(u64) -> (u64, u64, u64)| {
        let mut trace = trace();
        running(&mut trace, 60);
        for pid in pids {
            kernels(&mut trace, *pid, 2, (1..400).map(kernel));
        }
        found(&trace.analyse(), "gpu.underused")
    };
    assert_eq!(analysed(&[PID], &|at| (at * 10 * ms, at * 10 * ms + 4 * ms, 0)), None);
    // Two bursts.
    assert_eq!(
        analysed(&[PID], &|at| (at * ms + at / 200 * 3000 * ms, at * ms + at / 200 * 3000 * ms + ms / 10, 0)),
        None
    );
    // Another process may have the same device.
    assert_eq!(analysed(&[PID, 200], &|at| (at * 10 * ms, at * 10 * ms + ms, 0)), None);
}

/// Two ranks whose kernels end together; rank 1 begins so much later (later for less than 0: rank 0).
fn ranks(later: impl Fn(u64) -> i64) -> Trace {
    let ms = 1000 * MICRO;
    let mut trace = trace();
    trace.add(Record::Process(Process { pid: 200, comm: "train".into(), ..Process::default() }));
    trace.add(Record::Thread(Thread { pid: 200, tid: 200, name: "train".into(), ..Thread::default() }));
    for (pid, rank) in [(PID, "0"), (200, "1")] {
        for (what, value) in [("RANK", rank), ("WORLD_SIZE", "2")] {
            trace.add(Record::Environment(Environment { what: what.into(), value: value.into(), pid }));
        }
        let start = |at: u64| {
            let later = later(at);
            let own = if pid == PID { -later } else { later };
            at * 20 * ms + own.max(0) as u64
        };
        kernels(&mut trace, pid, 1, (1..199).map(|at| (start(at), at * 20 * ms + 10 * ms, 0)));
    }
    trace
}

#[test]
fn a_rank_whose_kernels_begin_last_is_late() {
    let analysis = ranks(|_| 5_000_000).analyse();
    let finding = found(&analysis, "nccl.late_rank").expect("it is");
    assert_eq!((finding.severity, finding.proof["rank"].clone()), (Severity::Warning, 1.into()));
    assert_eq!(
        (finding.proof["late_pid"].clone(), finding.proof["waiting_ranks"].clone()),
        (200.into(), serde_json::json!([0]))
    );
    assert_eq!(finding.proof["late_ns"], 196 * 5_000_000_u64);
    let of = |pid| analysis.report.collectives.iter().find(move |row| row.pid == pid).unwrap();
    assert_eq!((of(PID).peer_late_ns, of(PID).network_ns), (Some(196 * 5_000_000), Some(196 * 5_000_000)));
    assert_eq!((of(200).peer_late_ns, of(200).network_ns), (Some(0), Some(196 * 5_000_000)));
}

#[test]
fn ranks_that_are_late_by_turns_or_by_little_and_ranks_that_are_not_all_recorded_are_not_blamed() {
    let by_turns = |at: u64| if at.is_multiple_of(2) { 5_000_000 } else { -5_000_000 };
    assert_eq!(found(&ranks(by_turns).analyse(), "nccl.late_rank"), None);
    assert_eq!(found(&ranks(|_| 1_000_000).analyse(), "nccl.late_rank"), None);
    let mut more = ranks(|_| 5_000_000);
    for record in &mut more.0 {
        if let Record::Environment(one) = record
            && one.what == "WORLD_SIZE"
        {
            one.value = "4".into();
        }
    }
    let analysis = more.analyse();
    assert_eq!(found(&analysis, "nccl.late_rank"), None);
    assert_eq!(analysis.report.collectives[0].peer_late_ns, None);
}
