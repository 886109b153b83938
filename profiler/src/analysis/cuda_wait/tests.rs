use super::*;
use crate::analysis::Analysis;
use crate::analysis::report::Domain;
use crate::model::fixture::{Trace, gpu, slept, stack, syncs, tcp, wait};
use crate::render::folded::write_folded;
use crate::render::tree::FlameOptions;
use crate::trace::gpu::GpuWhat;
use crate::trace::record::{Wait, WaitFlags};

const NCCL: GpuWhat = GpuWhat::Kernel(1);
const GEMM: GpuWhat = GpuWhat::Kernel(2);
const COPY: GpuWhat = GpuWhat::Copy { kind: 1, bytes: 64 };
/// Places in `SYNCS`.
const STREAM_SYNC: u16 = 1;
const DRIVER_STREAM_SYNC: u16 = 11;
const IN_SYNC: [&str; 4] =
    ["poll@libc.so.6", "@libcuda.so.1", "cudaStreamSynchronize@libcudart.so.13", "item"];

/// Compute 1100..1200, NCCL 1150..1400, a copy 1400..1450, a launch at 1480 that starts at 1500, compute to 1600.
fn busy(trace: &mut Trace) {
    gpu(
        trace,
        &[
            (7, GEMM, 1100, 1200, None),
            (8, NCCL, 1150, 1400, None),
            (9, COPY, 1400, 1450, None),
            (7, GEMM, 1500, 1600, Some(20)),
        ],
    );
}

fn stalls(analysis: &Analysis) -> Vec<(Cause, u64, u64)> {
    let rows = analysis.report.causes.iter().filter(|row| row.domain == Domain::Thread);
    let rows = rows.filter(|row| row.cause != Cause::SchedRunq);
    rows.map(|row| (row.cause, row.count, row.stalled_ns)).collect()
}

/// Checks what must hold of all threads.
fn sound(analysis: &Analysis) {
    let report = &analysis.report;
    let mut stalled_ns = 0;
    for row in &report.threads {
        let parts = [row.running_ns, row.runnable_ns, row.stalled_ns, row.idle_ns, row.other_ns];
        assert_eq!(parts.iter().sum::<u64>(), row.wall_ns, "{row:?}");
        stalled_ns += row.stalled_ns;
    }
    assert_eq!(report.totals.stalled_ns, stalled_ns);
    assert_eq!(stalls(analysis).iter().map(|(.., ns)| ns).sum::<u64>(), stalled_ns);
    assert_eq!(analysis.stalls.iter().map(|stall| stall.weight_ns).sum::<u64>(), stalled_ns);
    for row in &report.cuda_waits {
        let parts = row.compute_ns + row.nccl_ns + row.copy_ns + row.queue_ns + row.unknown_ns;
        assert_eq!((parts, row.spin_ns <= row.waited_ns), (row.waited_ns, true), "{row:?}");
    }
}

fn folded(analysis: &Analysis) -> String {
    let mut out = Vec::new();
    write_folded(analysis, &FlameOptions::default(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn sleep_in_sync(start_ns: u64, end_ns: u64) -> Wait {
    let asleep = slept(start_ns, end_ns, wait(Call::Poll, start_ns, end_ns, Vec::new()));
    Wait { user_stack: 1, ..asleep }
}

#[test]
fn a_sleep_below_a_synchronisation_is_what_ran_on_the_gpu_in_proportion() {
    let mut trace = Trace::new();
    busy(&mut trace);
    stack(&mut trace, 1, &IN_SYNC);
    trace.wait(sleep_in_sync(1050, 1700));
    let analysis = trace.analyse();
    sound(&analysis);
    assert_eq!(
        stalls(&analysis),
        [(Cause::NcclKernel, 1, 200), (Cause::GpuCopy, 1, 50), (Cause::GpuQueue, 1, 20)]
    );
    let row = &analysis.report.cuda_waits[0];
    assert_eq!((row.function.as_str(), row.count, row.waited_ns), ("cudaStreamSynchronize", 1, 650));
    assert_eq!((row.compute_ns, row.unknown_ns, row.spin_ns), (200, 50 + 30 + 100, 0));
    // A sleep is idle as before where the GPU did nothing, and no longer where it computed.
    assert_eq!(analysis.report.totals.idle_ns, 180);
    let folded = folded(&analysis);
    for leaf in [
        "item;cudaStreamSynchronize;libcuda.so.1+0x0;poll;[nccl.kernel] AllReduce Sum f32 RING_LL 200\n",
        ";[gpu.copy] host to device 50\n",
        ";[gpu.queue] launched, not started 20\n",
    ] {
        assert!(folded.contains(leaf), "{folded}");
    }
}

#[test]
fn a_call_that_spins_is_a_wait_and_its_time_is_taken_out_of_the_running_time() {
    let mut trace = Trace::new();
    busy(&mut trace);
    // The driver's call within the runtime's is part of that.
    syncs(&mut trace, &[(STREAM_SYNC, 1050, 1700), (DRIVER_STREAM_SYNC, 1060, 1690)]);
    trace.times(1000, 0, 0).times(2000, 1000, 0);
    let analysis = trace.analyse();
    sound(&analysis);
    assert_eq!(
        stalls(&analysis),
        [(Cause::NcclKernel, 1, 200), (Cause::GpuCopy, 1, 50), (Cause::GpuQueue, 1, 20)]
    );
    let thread = &analysis.report.threads[0];
    assert_eq!((thread.stalled_ns, thread.running_ns, thread.idle_ns), (270, 730, 0));
    let row = &analysis.report.cuda_waits[0];
    assert_eq!((row.count, row.waited_ns, row.spin_ns, row.unknown_ns), (1, 650, 650, 180));
    let folded = folded(&analysis);
    assert!(
        folded.contains(";[no stack];cudaStreamSynchronize;[nccl.kernel] AllReduce Sum f32 RING_LL 200\n"),
        "{folded}"
    );
}

#[test]
fn a_spinning_thread_waits_only_while_it_has_a_processor() {
    let mut trace = Trace::new();
    gpu(&mut trace, &[(8, NCCL, 1000, 2000, None)]);
    syncs(&mut trace, &[(STREAM_SYNC, 1000, 2000)]);
    trace.times(1000, 0, 0).times(2000, 750, 250);
    let analysis = trace.analyse();
    sound(&analysis);
    let thread = &analysis.report.threads[0];
    assert_eq!((thread.stalled_ns, thread.runnable_ns, thread.running_ns), (750, 250, 0));
}

#[test]
fn a_recorded_call_that_sleeps_is_counted_once_with_the_stack_of_the_sleep() {
    let mut trace = Trace::new();
    gpu(&mut trace, &[(8, NCCL, 1100, 1900, None)]);
    syncs(&mut trace, &[(STREAM_SYNC, 1050, 1950)]);
    // One sleep has a stack that says it, of the other one the stack is not known.
    trace.wait(sleep_in_sync(1100, 1500));
    trace.wait(Wait { user_stack: 0, ..sleep_in_sync(1550, 1940) });
    stack(&mut trace, 1, &IN_SYNC);
    let analysis = trace.analyse();
    sound(&analysis);
    assert_eq!(stalls(&analysis), [(Cause::NcclKernel, 2, 800)]);
    let row = &analysis.report.cuda_waits[0];
    assert_eq!((row.count, row.waited_ns, row.spin_ns), (1, 900, 50 + 50 + 10));
}

#[test]
fn what_is_no_wait_for_the_gpu_stays_what_it_was() {
    let mut trace = Trace::new();
    gpu(&mut trace, &[(8, NCCL, 1000, 2000, None)]);
    let own_thread = ["poll@libc.so.6", "@libcuda.so.1", "@libcuda.so.1", "@libc.so.6"];
    stack(&mut trace, 2, &own_thread);
    stack(
        &mut trace,
        3,
        &["pthread_rwlock_wrlock@libc.so.6", "@libcuda.so.1", "cuStreamSynchronize@libcuda.so.1"],
    );
    stack(&mut trace, 4, &["recv@libc.so.6", "progress"]);
    for (stack, call, start_ns, sockets) in [
        (2, Call::Poll, 1100, Vec::new()),
        (3, Call::Futex, 1300, Vec::new()),
        (4, Call::Recvfrom, 1500, vec![tcp(1, "10.0.0.9:80")]),
    ] {
        trace.wait(Wait { user_stack: stack, ..wait(call, start_ns, start_ns + 100, sockets) });
    }
    let analysis = trace.analyse();
    sound(&analysis);
    assert_eq!(stalls(&analysis), [(Cause::SockRecv, 1, 100)]);
    assert!(analysis.report.cuda_waits.is_empty());
}

#[test]
fn a_socket_within_a_recorded_call_is_waited_for_as_such() {
    let mut trace = Trace::new();
    gpu(&mut trace, &[(8, NCCL, 1000, 2000, None)]);
    syncs(&mut trace, &[(STREAM_SYNC, 1000, 1500)]);
    trace.wait(wait(Call::Recvfrom, 1100, 1200, vec![tcp(1, "10.0.0.9:80")]));
    let analysis = trace.analyse();
    sound(&analysis);
    assert_eq!(stalls(&analysis), [(Cause::NcclKernel, 1, 400), (Cause::SockRecv, 1, 100)]);
}

#[test]
fn without_gpu_times_and_in_another_process_nothing_is_blamed() {
    let mut trace = Trace::new();
    syncs(&mut trace, &[(STREAM_SYNC, 1000, 1500)]);
    stack(&mut trace, 1, &IN_SYNC);
    trace.wait(sleep_in_sync(1600, 1700));
    let analysis = trace.analyse();
    sound(&analysis);
    assert_eq!((stalls(&analysis), analysis.report.cuda_waits.len()), (Vec::new(), 0));
    gpu(&mut trace, &[(8, NCCL, 1000, 2000, None)]);
    for record in &mut trace.0 {
        if let crate::trace::record::Record::GpuActivities(batch) = record {
            batch.pid = 101;
        }
    }
    let analysis = trace.analyse();
    sound(&analysis);
    assert_eq!(stalls(&analysis), []);
    assert_eq!(analysis.report.cuda_waits[0].unknown_ns, 600);
}

#[test]
fn a_thread_that_looks_at_sockets_too_is_divided_once() {
    let mut trace = Trace::new();
    gpu(&mut trace, &[(8, NCCL, 1000, 2000, None)]);
    syncs(&mut trace, &[(STREAM_SYNC, 1200, 1500)]);
    let looks = wait(Call::Recvfrom, 1000, 2000, vec![tcp(1, "10.0.0.9:80")]);
    trace.wait(Wait { flags: WaitFlags { nonblocking: true, ..looks.flags }, ..looks });
    trace.times(1000, 0, 0).times(2000, 1000, 0);
    let analysis = trace.analyse();
    sound(&analysis);
    assert_eq!(stalls(&analysis), [(Cause::SockRecv, 1, 700), (Cause::NcclKernel, 1, 300)]);
}
