//! Pure functions over the model: correlation, the stall tree, findings.

use std::collections::HashMap;

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
pub mod diff;
pub mod distribution;
pub mod dns;
pub mod dns_wait;
pub mod far_end;
pub mod findings;
pub mod hops;
pub mod partition;
pub mod places;
pub mod report;
pub mod sections;
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
    let mut sums = sums::sum_up(&model, &Context::new(&model), &connects, !options.merge_stalls, progress);
    // What they were packed into is not needed any more.
    model.threads.iter_mut().for_each(|thread| thread.waits = PackedWaits::default());
    add_duplicates(&mut model, sums.duplicates);

    let mut dns = dns::rows(&model.dns_messages, &model.api_calls, &sums.dns_waits, model.window);
    // A hundred thousand names take hundreds of megabytes; what they were made of is not needed any more.
    sums.dns_waits = Vec::new();
    (model.dns_messages, model.api_calls) = (Vec::new(), Vec::new());

    let threads = thread_rows::thread_rows(&model, &sums.partitions);
    let mut report = Report {
        schema: SCHEMA.to_owned(),
        trace: state,
        host: sections::host(&model),
        target: sections::target(&model),
        environment: sections::environment(&model),
        coverage: sections::coverage(&model),
        totals: thread_rows::totals(&threads),
        causes: thread_rows::cause_rows(std::mem::take(&mut sums.causes), &threads),
        threads,
        dns: dns.rows.clone(),
        connects: connects.rows(&model, &sums.connects),
        sockets: std::mem::take(&mut sums.sockets),
        hops: hops::hop_rows(&model, &places),
        clock: sections::clock(),
        ..Report::default()
    };
    report.coverage.probes.extend(places.gaps(&report.hops));
    let mut analysis = Analysis::default();
    let stalls = sums.take_stalls(&model, std::mem::take(&mut dns.labels));
    if options.merge_stalls {
        analysis.merged = stalls.collect();
    } else {
        analysis.stalls = stalls.map(|(stall, _)| stall).collect();
    }
    report.coverage.python = sections::python(&model, analysis.stall_sums());

    let far_ends = far_end::FarEnds::new(&model);
    let surroundings =
        findings::Surroundings { environment: &model.environment, far_ends: &far_ends, places: &places };
    report.findings = findings::find(&report, &dns, surroundings, &options.thresholds);

    Analysis {
        report,
        processes: model.processes.iter().map(|(pid, process)| (*pid, process.comm.clone())).collect(),
        stacks: model.stacks,
        threads: model.thread_names,
        places,
        ..analysis
    }
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
