//! What ran on GPUs.

use std::borrow::Cow;
use std::collections::HashMap;

use super::intern::{Interner, NameId};
use super::thread::Interval;
use crate::trace::gpu::{GpuActivities, GpuActivity, GpuName, GpuWhat};
use crate::trace::gpu_sync::{GpuSync, GpuSyncs};

/// Names in a trace at most; no recorder writes more.
const NAMES: usize = 1 << 16;

/// Kernels and copies, by process, device, stream and start.
#[derive(Clone, Debug, Default)]
pub struct Gpu {
    pub activities: Vec<GpuActivity>,
    /// Calls that waited for the GPU, until the model is whole: then they are among the waits of their threads.
    pub(super) syncs: Vec<GpuSync>,
    names: HashMap<u32, KernelName>,
}

/// Name of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelName {
    /// For people.
    pub text: String,
    /// What it says, where it is one of NCCL.
    pub nccl: Option<NcclKernel>,
    /// The number of its short label, of NCCL's.
    pub label: NameId,
}

impl Gpu {
    pub fn add_name(&mut self, name: &GpuName) {
        if self.names.len() < NAMES {
            let text = readable(&name.name);
            let nccl = NcclKernel::parse(&text);
            self.names.insert(name.id, KernelName { text, nccl, label: NameId::default() });
        }
    }

    /// False where the columns do not fit together.
    pub fn add(&mut self, batch: &GpuActivities) -> bool {
        let rows = batch.rows();
        let is_whole = rows.is_some();
        self.activities.extend(rows.unwrap_or_default());
        is_whole
    }

    /// False where the columns do not fit together.
    pub fn add_syncs(&mut self, batch: &GpuSyncs) -> bool {
        let rows = batch.rows();
        let is_whole = rows.is_some();
        self.syncs.extend(rows.unwrap_or_default());
        is_whole
    }

    /// Gives numbers to all that threads can be said to wait for.
    pub(super) fn name_all(&mut self, names: &mut Interner) {
        for name in self.names.values_mut() {
            if let Some(nccl) = &name.nccl {
                name.label = names.intern(&nccl.label());
            }
        }
        for what in COPIES.iter().chain([&QUEUED]) {
            names.intern(what);
        }
    }

    /// Cuts everything to the window, and orders it.
    pub fn clip(&mut self, window: Interval) {
        self.activities.retain_mut(|one| {
            let inside = one.end_ns > window.start_ns && one.start_ns < window.end_ns;
            one.start_ns = one.start_ns.max(window.start_ns);
            one.end_ns = one.end_ns.min(window.end_ns);
            inside && one.end_ns >= one.start_ns
        });
        self.activities.sort_by_key(|one| (one.pid, one.device, one.stream, one.start_ns, one.end_ns));
    }

    /// Name of a kernel.
    pub fn name(&self, id: u32) -> Option<&KernelName> {
        self.names.get(&id)
    }

    /// What a kernel or a copy is called.
    pub fn label(&self, activity: &GpuActivity) -> &str {
        match activity.what {
            GpuWhat::Kernel(id) => self.name(id).map_or("[unknown kernel]", |name| &name.text),
            GpuWhat::Copy { kind, .. } => copy_name(kind),
        }
    }

    /// The same, of NCCL's kernels in few words: `AllReduce Sum f32 RING_LL`.
    pub fn short_label(&self, activity: &GpuActivity) -> Cow<'_, str> {
        let nccl = match activity.what {
            GpuWhat::Kernel(id) => self.name(id).and_then(|name| name.nccl.as_ref()),
            GpuWhat::Copy { .. } => None,
        };
        nccl.map_or_else(|| Cow::Borrowed(self.label(activity)), |nccl| Cow::Owned(nccl.label()))
    }

    pub fn class(&self, activity: &GpuActivity) -> GpuClass {
        match activity.what {
            GpuWhat::Copy { .. } => GpuClass::Copy,
            GpuWhat::Kernel(id) if self.name(id).is_some_and(|name| name.nccl.is_some()) => GpuClass::Nccl,
            GpuWhat::Kernel(_) => GpuClass::Compute,
        }
    }
}

/// What a kernel or a copy counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuClass {
    Nccl,
    Copy,
    Compute,
}

impl GpuClass {
    pub const fn name(self) -> &'static str {
        match self {
            GpuClass::Nccl => "nccl",
            GpuClass::Copy => "copy",
            GpuClass::Compute => "compute",
        }
    }
}

/// A kernel of NCCL, as its name says.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NcclKernel {
    /// `AllReduce`, `SendRecv` …
    pub op: String,
    /// `Sum` …; not all operations have one.
    pub reduction: Option<String>,
    /// `f32` …
    pub data_type: Option<String>,
    /// `RING`, `TREE` …
    pub algorithm: Option<String>,
    /// `LL`, `LL128`, `SIMPLE`.
    pub protocol: Option<String>,
}

const REDUCTIONS: [&str; 8] = ["Sum", "Prod", "Min", "Max", "MinMax", "PreMulSum", "SumPostDiv", "Avg"];

impl NcclKernel {
    /// `None` for a kernel that is not NCCL's.
    pub fn parse(name: &str) -> Option<NcclKernel> {
        let rest = ["ncclDevKernel_", "ncclKernel_", "ncclSymkDevKernel_", "ncclSymDevKernel_"]
            .iter()
            .find_map(|mark| name.split_once(mark).map(|(_, rest)| rest))?;
        let end = rest.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(rest.len());
        let mut words = rest.get(..end)?.split('_').filter(|word| !word.is_empty()).peekable();
        let op = words.next()?.to_owned();
        let reduction = words.next_if(|word| REDUCTIONS.contains(word)).map(str::to_owned);
        let is_type = |word: &&str| word.starts_with(char::is_lowercase);
        let data_type = words.next_if(is_type).map(str::to_owned);
        Some(NcclKernel {
            op,
            reduction,
            data_type,
            algorithm: words.next().map(str::to_owned),
            protocol: words.next().map(str::to_owned),
        })
    }

    /// `AllReduce f32 RING_LL`.
    pub fn label(&self) -> String {
        let mut text = self.op.clone();
        for word in [&self.reduction, &self.data_type].into_iter().flatten() {
            text = format!("{text} {word}");
        }
        let way: Vec<&str> =
            [&self.algorithm, &self.protocol].into_iter().flatten().map(String::as_str).collect();
        if way.is_empty() { text } else { format!("{text} {}", way.join("_")) }
    }
}

/// A kernel's name for people: demangled, without arguments.
pub fn readable(raw: &str) -> String {
    let Some(mangled) = raw.strip_prefix("_Z") else { return raw.to_owned() };
    // The name of an NCCL kernel stands in it as it is; its arguments' types are of no use.
    let digits: String = mangled.chars().take_while(char::is_ascii_digit).collect();
    if let Some(name) = digits.parse::<usize>().ok().and_then(|len| mangled.get(digits.len()..)?.get(..len)) {
        return name.to_owned();
    }
    crate::symbols::demangle_function(raw)
}

/// What a thread waits for while nothing runs and something was launched.
pub const QUEUED: &str = "launched, not started";

const COPIES: [&str; 7] = [
    "copy",
    "host to device",
    "device to host",
    "array copy",
    "device to device",
    "host to host",
    "peer to peer",
];

/// Name of a copy's direction, as CUPTI numbers them.
pub fn copy_name(kind: u32) -> &'static str {
    match kind {
        1 => "host to device",
        2 => "device to host",
        3..=7 => "array copy",
        8 => "device to device",
        9 => "host to host",
        10 => "peer to peer",
        _ => "copy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_s_names_tell_operation_type_and_way() {
        let label = |name: &str| NcclKernel::parse(name).map(|kernel| kernel.label());
        for (name, expected) in [
            (
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                "AllReduce Sum f32 RING_LL",
            ),
            ("ncclDevKernel_AllGather_RING_LL128(x)", "AllGather RING_LL128"),
            ("ncclDevKernel_SendRecv(x)", "SendRecv"),
            ("ncclKernel_ReduceScatter_Sum_bf16_TREE_SIMPLE", "ReduceScatter Sum bf16 TREE_SIMPLE"),
        ] {
            assert_eq!(label(name).as_deref(), Some(expected), "{name}");
        }
        assert_eq!(label("_ZN2at6native10reduce_kernelE"), None);
    }

    #[test]
    fn a_mangled_plain_function_keeps_its_name_alone() {
        assert_eq!(
            readable("_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"),
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        );
        assert_eq!(readable("kernel"), "kernel");
        assert_eq!(readable("_Z99short"), "_Z99short");
    }

    #[test]
    fn everything_is_cut_to_the_window() {
        let one = |start_ns, end_ns| GpuActivity {
            pid: 1,
            device: 0,
            stream: 7,
            what: GpuWhat::Kernel(1),
            start_ns,
            end_ns,
            queue_ns: None,
        };
        let mut gpu = Gpu { activities: vec![one(150, 300), one(10, 90), one(50, 120)], ..Gpu::default() };
        gpu.clip(Interval { start_ns: 100, end_ns: 200 });
        let times: Vec<_> = gpu.activities.iter().map(|one| (one.start_ns, one.end_ns)).collect();
        assert_eq!(times, [(100, 120), (150, 200)]);
    }
}
