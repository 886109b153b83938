//! The kernel's side of RDMA: `ib_uverbs`, `ib_core`, the connection manager and the drivers.

mod attach;
pub(super) mod decode;
mod functions;
mod tables;

use std::collections::BTreeMap;

use aya::Ebpf;
use aya::maps::Array;
use profiler_common::config::NO_OFFSET;
use profiler_common::rdma_kernel::RdmaOffsets;

use self::attach::{Attached, Types};
use super::ProbeOptions;
use super::event::Event;
use crate::trace::rdma_setup::{RdmaCommandTotals, RdmaSetupTotals};
use crate::trace::record::{Coverage, Environment, FamilyState};

/// Name in the table of coverage.
pub const FAMILY: &str = "rdma_kernel";

/// The probes, or why there are none.
#[derive(Debug, Default)]
pub(super) struct RdmaKernel {
    /// `None`: not asked for.
    state: Option<Result<Attached, String>>,
}

impl RdmaKernel {
    /// Probes what this kernel lets us probe, where it is asked for. What fails is told by [`RdmaKernel::coverage`]. All maps
    /// must still be in `ebpf`.
    pub(super) fn attach(ebpf: &mut Ebpf, options: &ProbeOptions) -> RdmaKernel {
        let state = options
            .rdma_kernel
            .then(|| start(ebpf, options.verbose).inspect_err(|reason| log::debug!("{FAMILY}: {reason}")));
        RdmaKernel { state }
    }

    /// Takes all probes off.
    pub(super) fn detach(&mut self) {
        if let Some(Ok(attached)) = &mut self.state {
            attached.detach();
        }
    }

    /// What is seen; `None` where it was not asked for.
    pub(super) fn coverage(&self) -> Option<Coverage> {
        let row = |state, reason| Some(Coverage { family: FAMILY.to_owned(), state, reason });
        match self.state.as_ref()? {
            Err(reason) => row(FamilyState::Off, reason.clone()),
            Ok(attached) => {
                let parts = attached.missing.iter();
                let missing: Vec<String> =
                    parts.map(|(figure, reason)| format!("{figure} not seen ({reason})")).collect();
                let state = match (attached.counts.is_empty(), missing.is_empty()) {
                    (true, _) => FamilyState::Off,
                    (false, true) => FamilyState::On,
                    (false, false) => FamilyState::Partial,
                };
                row(state, missing.join("; "))
            }
        }
    }

    /// How many functions of each module are probed, and how.
    pub(super) fn environment(&self) -> Option<Environment> {
        let Some(Ok(attached)) = &self.state else { return None };
        let mut modules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((module, how), count) in &attached.counts {
            modules.entry(module).or_default().push(format!("{count} {}", how.name()));
        }
        let parts: Vec<String> =
            modules.into_iter().map(|(module, kinds)| format!("{module} {}", kinds.join(" + "))).collect();
        let what = "rdma.kernel_probes".to_owned();
        (!parts.is_empty()).then(|| Environment { what, value: parts.join(", "), pid: 0 })
    }

    pub(super) fn totals(&self, ebpf: &Ebpf) -> (Vec<RdmaSetupTotals>, Vec<RdmaCommandTotals>) {
        match self.state {
            Some(Ok(_)) => (tables::totals(ebpf), tables::commands(ebpf)),
            _ => (Vec::new(), Vec::new()),
        }
    }

    /// Hands out calls that have not ended, of at least this length.
    pub(super) fn take_open(&self, ebpf: &Ebpf, min_ns: u64, end_ns: u64, sink: &mut dyn FnMut(Event)) {
        if let Some(Ok(_)) = self.state {
            tables::take_open(ebpf, min_ns, end_ns, sink);
        }
    }
}

/// Devices that a process can open.
const DEVICES: &str = "/sys/class/infiniband_verbs";

fn start(ebpf: &mut Ebpf, verbose: bool) -> Result<Attached, String> {
    let is_device = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("uverbs");
    let devices = std::fs::read_dir(DEVICES).into_iter().flatten().filter_map(Result::ok);
    if !devices.into_iter().any(|entry| is_device(&entry)) {
        return Err("this machine had no RDMA device when the recording began".to_owned());
    }
    let types = Types::read()?;
    tell_offsets(ebpf, &types)?;
    attach::attach(ebpf, &types, verbose)
}

fn tell_offsets(ebpf: &mut Ebpf, types: &Types) -> Result<(), String> {
    let member = |strukt, path: &[&str]| types.member(strukt, path).unwrap_or(NO_OFFSET);
    let offsets = RdmaOffsets {
        attr_state: member("ib_qp_attr", &["qp_state"]),
        qp_num: member("ib_qp", &["qp_num"]),
        channel_queue: member("ib_uverbs_completion_event_file", &["ev_queue"]),
        entry_work: member("mlx5_cmd_work_ent", &["work"]),
        entry_in: member("mlx5_cmd_work_ent", &["in"]),
        entry_ts1: member("mlx5_cmd_work_ent", &["ts1"]),
        message_data: member("mlx5_cmd_msg", &["first", "data"]),
        reserved: 0,
    };
    log::debug!("{FAMILY}: {offsets:?}");
    let map = ebpf.map_mut("RDMA_OFFSETS").ok_or("RDMA_OFFSETS is missing in the eBPF object")?;
    let mut table: Array<_, RdmaOffsets> =
        map.try_into().map_err(|error| format!("RDMA_OFFSETS: {error}"))?;
    table.set(0, offsets, 0).map_err(|error| format!("RDMA_OFFSETS: {error}"))
}
