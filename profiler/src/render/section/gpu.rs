//! What ran on GPUs. Times are GPU time, another domain than that of threads.

use crate::analysis::report::{CollectiveRow, Report};
use crate::model::gpu::NcclKernel;
use crate::render::name::{self, escape_controls};
use crate::render::table::{Column, Table};
use crate::render::unit::{bytes, count, duration, plural, share};

/// Rows of the table.
const MOST: usize = 20;

/// NCCL's kernels by name; the longest in sum first.
pub(super) fn kernel_table(report: &Report) -> Table {
    let columns = vec![
        Column::figure("pid"),
        Column::figure("GPU"),
        Column::name("kernel"),
        Column::figure("count"),
        Column::figure("time"),
        Column::figure("p50"),
        Column::figure("p99"),
        Column::figure("exposed"),
        Column::figure("hidden"),
        Column::figure("queue p50"),
    ];
    let mut table = Table::of("NCCL kernels", columns, &report.collectives, MOST, |row| {
        let queue = &row.launch_queue;
        vec![
            row.pid.to_string(),
            row.device.to_string(),
            kernel(row),
            count(row.count),
            duration(row.kernel.sum_ns),
            duration(row.kernel.p50_ns),
            duration(row.kernel.p99_ns),
            duration(row.exposed_ns),
            duration(row.hidden_ns),
            if queue.count > 0 { duration(queue.p50_ns) } else { "not seen".to_owned() },
        ]
    });
    table.remark =
        Some("time on the GPU; exposed: no compute kernel of the process beside it; queue: launch to start");
    table
}

/// Kernels and copies by name, those of all processes with most time.
pub(super) fn name_table(report: &Report) -> Table {
    let columns = vec![
        Column::figure("pid"),
        Column::figure("GPU"),
        Column::name("class"),
        Column::name("kernel or copy"),
        Column::figure("count"),
        Column::figure("time"),
        Column::figure("p50"),
        Column::figure("p99"),
        Column::figure("queue p50"),
    ];
    let mut rows: Vec<_> =
        report.gpus.iter().flat_map(|gpu| gpu.by_name.iter().map(move |row| (gpu, row))).collect();
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.sum_ns));
    let mut table = Table::of("On the GPU", columns, &rows, MOST, |(gpu, row)| {
        vec![
            gpu.pid.to_string(),
            gpu.device.to_string(),
            row.class.clone(),
            name::frame(&row.name),
            count(row.count),
            duration(row.sum_ns),
            duration(row.duration.p50_ns),
            duration(row.duration.p99_ns),
            if row.launch_queue.count > 0 {
                duration(row.launch_queue.p50_ns)
            } else {
                "not seen".to_owned()
            },
        ]
    });
    table.remark = Some("time on the GPU; computing is no stall");
    table
}

/// Threads that waited for a GPU, most time first.
pub(super) fn wait_table(report: &Report, thread: impl Fn(u32) -> String) -> Table {
    let columns = vec![
        Column::name("thread"),
        Column::name("function"),
        Column::figure("calls"),
        Column::figure("waited"),
        Column::figure("compute"),
        Column::figure("NCCL"),
        Column::figure("copies"),
        Column::figure("queue"),
        Column::figure("idle GPU"),
        Column::figure("spinning"),
    ];
    let mut table = Table::of("Waits for the GPU", columns, &report.cuda_waits, MOST, |row| {
        vec![
            thread(row.tid),
            row.function.clone(),
            count(row.count),
            duration(row.waited_ns),
            duration(row.compute_ns),
            duration(row.nccl_ns),
            duration(row.copy_ns),
            duration(row.queue_ns),
            duration(row.unknown_ns),
            duration(row.spin_ns),
        ]
    });
    table.remark = Some(
        "what ran on the GPU meanwhile; NCCL, copies and queue are stalled time of the thread, the rest is not",
    );
    table
}

/// `AllReduce Sum f32 RING_LL`.
fn kernel(row: &CollectiveRow) -> String {
    let words = NcclKernel {
        op: row.op.clone(),
        reduction: row.reduction.clone(),
        data_type: row.data_type.clone(),
        algorithm: row.algorithm.clone(),
        protocol: row.protocol.clone(),
    };
    escape_controls(&words.label())
}

/// One line for each process and device.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let whole = report.target.duration_ns;
    let rows = report.gpus.iter().map(|row| {
        let gaps = &row.gaps;
        format!(
            "device {} of process {}: busy {} of {} ({}): compute {}, NCCL {} ({} exposed), copies {} ({}); {}; {}, in all {}, p50 {}, longest {}",
            row.device,
            row.pid,
            duration(row.busy_ns),
            duration(whole),
            share(row.busy_ns, whole),
            duration(row.compute_ns),
            duration(row.nccl_ns),
            duration(row.nccl_exposed_ns),
            duration(row.copy_ns),
            bytes(row.copied_bytes),
            plural(row.kernels, "kernel"),
            plural(gaps.count, "gap"),
            duration(gaps.sum_ns),
            duration(gaps.p50_ns),
            duration(gaps.max_ns),
        )
    });
    rows.collect()
}

/// The NCCL kernel with most time, for `record`'s summary.
pub(in crate::render) fn worst_kernel(report: &Report) -> Option<String> {
    let row = report.collectives.first()?;
    let exposed = share(row.exposed_ns, row.exposed_ns.saturating_add(row.hidden_ns));
    Some(format!(
        "GPU {}: {} of {} in {}, {}x, p50 {}, {exposed} with no compute beside it",
        row.device,
        duration(row.kernel.sum_ns),
        duration(report.target.duration_ns),
        kernel(row),
        count(row.count),
        duration(row.kernel.p50_ns),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::report::{Distribution, GpuRow};

    fn report() -> Report {
        let kernel = Distribution::of(vec![4_000_000, 6_000_000]);
        let row = CollectiveRow {
            op: "AllReduce".into(),
            data_type: Some("f32".into()),
            algorithm: Some("RING".into()),
            protocol: Some("LL".into()),
            count: 2,
            kernel,
            exposed_ns: 7_000_000,
            hidden_ns: 3_000_000,
            pid: 7,
            ..CollectiveRow::default()
        };
        let gpu =
            GpuRow { pid: 7, kernels: 3, busy_ns: 11_000_000, nccl_ns: 10_000_000, ..GpuRow::default() };
        let mut report = Report { collectives: vec![row], gpus: vec![gpu], ..Report::default() };
        report.target.duration_ns = 22_000_000;
        report
    }

    #[test]
    fn a_kernel_says_what_is_exposed_and_that_its_launches_were_not_seen() {
        let table = kernel_table(&report());
        let row = &table.rows[0];
        assert_eq!(row[2], "AllReduce f32 RING_LL");
        assert_eq!((row[7].as_str(), row[8].as_str()), ("7.00 ms", "3.00 ms"));
        assert_eq!(row[9], "not seen");
    }

    #[test]
    fn a_gpu_has_a_line_and_the_worst_kernel_another() {
        let report = report();
        assert!(lines(&report)[0].starts_with("device 0 of process 7: busy 11.0 ms of 22.0 ms (50.0%)"));
        let worst = worst_kernel(&report).unwrap();
        assert!(worst.contains("10.0 ms of 22.0 ms in AllReduce f32 RING_LL, 2x"), "{worst}");
        assert_eq!(worst_kernel(&Report::default()), None);
    }
}
