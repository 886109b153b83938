//! Pure functions over the model: correlation, the stall tree, findings.

use std::collections::{BTreeSet, HashMap};

use self::context::Context;
use self::report::{Report, SCHEMA, TraceState};
use crate::model::Model;
use crate::model::build::add_duplicates;
use crate::model::packed::PackedWaits;
use crate::model::topology::Topology;
use crate::trace::record::Record;

pub mod classify;
pub mod connects;
pub mod context;
pub mod cuda_wait;
pub mod diff;
pub mod distribution;
pub mod dns;
pub mod dns_rest;
pub mod dns_wait;
pub mod far_end;
pub mod findings;
pub mod fold;
pub mod gpu;
pub mod gpu_kernels;
pub mod gpu_ranks;
pub mod gpu_timeline;
pub mod hops;
pub mod late;
mod on_cpu;
pub mod partition;
pub mod places;
pub mod queues;
pub mod rdma_setup;
pub mod report;
pub mod sections;
pub mod socket_queues;
pub mod sockets;
pub mod stall;
pub mod stalls;
pub mod sums;
pub mod thread_rows;

/// Loss of a topology that the trace has and that cannot be read.
const UNREADABLE_TOPOLOGY: &str = "unreadable_topology";

/// What the analysis needs besides the trace.
#[derive(Clone, Debug, Default)]
pub struct AnalysisOptions {
    /// Counts above the one in the trace. Without any, racks and relations beyond the same host are unknown.
    pub topology: Option<Topology>,
    pub thresholds: findings::Thresholds,
    /// Adds up stalls that no view by stacks tells apart, so that [`Analysis::merged`] has them in place of
    /// [`Analysis::stalls`]: a recording has few kinds of stalls and millions of them.
    pub merge_stalls: bool,
    /// Leaves the tables of causes, stalls and sockets empty: a view by stacks does not show them.
    pub only_stacks: bool,
}

/// Is told how much of the waits was analysed, and of how much.
pub type OnProgress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Everything that a view needs.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    pub report: report::Report,
    /// Exclusive stalled intervals of all threads, ordered by thread and start.
    pub stalls: Vec<stall::Stall>,
    /// The same added up, where that was asked for: the longest of each kind, with the weight of all of them, and how
    /// many they are. Ordered by thread and start of the longest.
    pub merged: Vec<(stall::Stall, u64)>,
    /// Stacks by id, for `stalls`.
    pub stacks: HashMap<u64, crate::trace::record::Stack>,
    /// Process names by pid.
    pub processes: HashMap<u32, String>,
    /// Thread names by tid.
    pub threads: HashMap<u32, String>,
    /// Queue pairs and where their time went.
    pub queues: queues::Queues,
    /// What ran on GPUs.
    pub gpu: crate::model::gpu::Gpu,
    /// Where the peers are.
    pub places: places::Places,
}

impl Analysis {
    /// All stalls, one by one or added up, and how many each stands for.
    pub fn stall_sums(&self) -> impl Iterator<Item = (&stall::Stall, u64)> {
        self.stalls
            .iter()
            .map(|stall| (stall, 1))
            .chain(self.merged.iter().map(|(stall, count)| (stall, *count)))
    }
}

/// Analyses a trace. `state` is what the reader said of the file.
pub fn analyse(
    records: impl Iterator<Item = Record>,
    state: TraceState,
    options: &AnalysisOptions,
) -> Analysis {
    analyse_model(Model::from_records(records), state, options)
}

/// Analyses what a trace says.
pub fn analyse_model(model: Model, state: TraceState, options: &AnalysisOptions) -> Analysis {
    analyse_with(model, state, options, &|_, _| ())
}

/// The same, and tells how far it is.
pub fn analyse_with(
    mut model: Model,
    state: TraceState,
    options: &AnalysisOptions,
    progress: OnProgress<'_>,
) -> Analysis {
    let topology = options.topology.clone().or_else(|| stored_topology(&mut model));
    let places = places::Places::new(&model, topology);
    let connects = connects::Connects::new(&model);
    let far_ends = far_end::FarEnds::new(&model);
    let mut late = late::Collector::new(&far_ends, model.whole());
    // Stalls are set beside counters that moved meanwhile: that needs each with its times.
    let merge_stalls = options.merge_stalls && !findings::needs_stalls(&model.rdma.counters);
    let pass = sums::Pass {
        model: &model,
        context: &Context::new(&model),
        connects: &connects,
        each: !merge_stalls,
        tables: !options.only_stacks,
    };
    let mut sums = pass.sum_up(&mut late, progress);
    // What they were packed into is not needed any more.
    model.threads.iter_mut().for_each(|thread| thread.waits = PackedWaits::default());
    add_duplicates(&mut model, sums.duplicates);

    let mut dns = dns::rows(&model.dns_messages, &model.api_calls, &sums.dns_waits, model.dns_window());
    // A hundred thousand names take hundreds of megabytes; what they were made of is not needed any more.
    sums.dns_waits = Vec::new();
    (model.dns_messages, model.api_calls) = (Vec::new(), Vec::new());

    let queues = queues::Queues::new(&model, &places);
    let threads = thread_rows::thread_rows(&model, &sums.partitions);
    let ranks = sections::target(&model).ranks;
    let gpu_ranks = gpu_ranks::compare(&model.gpu, &ranks, model.whole());
    let mut report = Report {
        schema: SCHEMA.to_owned(),
        trace: state,
        host: sections::host(&model),
        target: sections::target(&model),
        environment: sections::environment(&model),
        coverage: sections::coverage(&model),
        totals: thread_rows::totals(&threads),
        causes: thread_rows::cause_rows(std::mem::take(&mut sums.causes), &threads),
        stalls: std::mem::take(&mut sums.rows),
        threads,
        dns: std::mem::take(&mut sums.dns_rest).beside(&dns.rows),
        connects: connects.rows(&model, &sums.connects),
        sockets: std::mem::take(&mut sums.sockets),
        hops: hops::hop_rows(&model, &places),
        queues: queues.rows(),
        counters: queues::counters::rows(&model.rdma.counters),
        rdma_setup: rdma_setup::section(&model.setups),
        clock: sections::clock(),
        collectives: gpu::collective_rows(&model, &gpu_ranks),
        gpus: gpu::gpu_rows(&model),
        cuda_waits: cuda_wait::rows(&model, &sums.partitions),
        ..Report::default()
    };
    report.causes.extend(queues.causes());
    report.coverage.unmatched_completions = queues.unmatched;
    report.causes.extend(gpu::cause_rows(&model));
    report.coverage.probes.extend(places.gaps(&report.hops));
    report.hops.extend(queues.hops());
    let mut analysis = Analysis::default();
    let stalls = sums.take_stalls(&model, std::mem::take(&mut dns.labels));
    if merge_stalls {
        analysis.merged = stalls.collect();
    } else {
        analysis.stalls = stalls.map(|(stall, _)| stall).collect();
    }
    report.coverage.python = sections::python(&model, analysis.stall_sums());

    let late = late.finish();
    let surroundings = findings::Surroundings {
        environment: &model.environment,
        far_ends: &far_ends,
        late: &late,
        python: &python_processes(&model, &analysis),
        socket_queues: &socket_queues::SocketQueues::new(&model),
        places: &places,
        queues: &queues.queues,
        place: &model.place,
        counters: &model.rdma.counters,
        stalls: &analysis.stalls,
        window_start_ns: model.window.start_ns,
        gpu: &model.gpu,
        gpu_ranks: &gpu_ranks,
    };
    report.findings = findings::find(&report, &dns, surroundings, &options.thresholds);
    fold::fold(&mut report, model.bounds.limits.rows);

    Analysis {
        report,
        processes: model.processes.iter().map(|(pid, process)| (*pid, process.comm.clone())).collect(),
        stacks: model.stacks,
        gpu: model.gpu,
        threads: model.thread_names,
        queues,
        places,
        ..analysis
    }
}

/// Processes with stacks that lead through the interpreter.
fn python_processes(model: &Model, analysis: &Analysis) -> BTreeSet<u32> {
    let runs = |stack: &u64| model.python.with.contains(stack) || model.python.without.contains(stack);
    let stalls = analysis.stall_sums().map(|(stall, _)| stall);
    stalls.filter(|stall| runs(&stall.user_stack)).map(|stall| stall.pid).collect()
}

/// The topology in the trace. One that cannot be read is damage, and counted as such.
fn stored_topology(model: &mut Model) -> Option<Topology> {
    let file = model.topology.take()?;
    let topology = Topology::parse(&file.text).ok();
    if topology.is_none() {
        model.losses.insert(UNREADABLE_TOPOLOGY.to_owned(), (1, false));
    }
    topology
}
