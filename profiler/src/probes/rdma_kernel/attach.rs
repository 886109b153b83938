//! Puts a probe on each function of the table by the best kind that this kernel lets us have: `fentry`, else a kprobe, else a
//! tracepoint.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use aya::Ebpf;
use aya_obj::btf::BtfFeatures;
use aya_obj::generated::bpf_prog_type;
use aya_obj::{Function as Program, Object};
use profiler_common::rdma_kernel::cookie;

use super::functions::{Argument, FUNCTIONS, Function, MODULES};
use crate::kernel::btf::{Btf, Kind};
use crate::probes::load::OBJECT;
use crate::probes::multi_uprobe;
use crate::probes::raw_bpf::{self, Code, Kprobe, Traced};

/// Bytes of the verifier's words that are kept where somebody reads them.
const LOG_BYTES: usize = 1 << 20;

/// How a function is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum How {
    Fentry,
    Kprobe,
    Tracepoint,
}

impl How {
    pub(super) fn name(self) -> &'static str {
        match self {
            How::Fentry => "fentry",
            How::Kprobe => "kprobe",
            How::Tracepoint => "tracepoint",
        }
    }
}

/// What holds probes where they are.
#[derive(Debug)]
#[expect(dead_code, reason = "held open")]
enum Link {
    /// The link first, then its program.
    Traced(OwnedFd, OwnedFd),
    Kprobe(Kprobe),
    Tracepoint(OwnedFd, OwnedFd),
}

/// What came of attaching. Dropping it takes all probes off.
#[derive(Debug, Default)]
pub(super) struct Attached {
    links: Vec<Link>,
    /// Functions by module and kind.
    pub(super) counts: BTreeMap<(&'static str, How), u32>,
    /// What is not seen, and why.
    pub(super) missing: Vec<(&'static str, String)>,
}

impl Attached {
    /// Takes all probes off.
    pub(super) fn detach(&mut self) {
        self.links.clear();
    }
}

/// The kernel's types and those of the modules that are loaded.
#[derive(Debug)]
pub(super) struct Types {
    kernel: Arc<Btf>,
    modules: Vec<(&'static str, Btf, OwnedFd)>,
}

impl Types {
    pub(super) fn read() -> Result<Types, String> {
        let kernel = Arc::new(Btf::from_kernel().map_err(|error| error.to_string())?);
        let mut modules = Vec::new();
        for module in MODULES {
            match Btf::from_module(module, &kernel).map_err(|error| error.to_string()).and_then(|types| {
                let held = raw_bpf::module_types(module).map_err(|error| error.to_string())?;
                Ok((module, types, held))
            }) {
                Ok(found) => modules.push(found),
                Err(reason) => log::debug!("types of {module}: {reason}"),
            }
        }
        Ok(Types { kernel, modules })
    }

    /// Where the function's types are: its number and the module's descriptor.
    fn function(&self, name: &str) -> Option<(u32, &Btf, Option<&OwnedFd>)> {
        let in_module = self
            .modules
            .iter()
            .find_map(|(_, types, held)| Some((types.id(Kind::Func, name)?, types, Some(held))));
        in_module.or_else(|| Some((self.kernel.id(Kind::Func, name)?, &*self.kernel, None)))
    }

    /// Byte offset of a member, in whichever of the types has the structure.
    pub(super) fn member(&self, strukt: &str, path: &[&str]) -> Option<u32> {
        let mut all = self.modules.iter().map(|(_, types, _)| types).chain([&*self.kernel]);
        all.find_map(|types| types.member_offset(strukt, path))
    }
}

/// The programs, ready to be loaded.
struct Programs {
    types: OwnedFd,
    entry: Program,
    exit: Program,
    kprobe: Program,
    kretprobe: Program,
    point: Program,
    log: Vec<u8>,
    /// Loaded once for all functions.
    loaded: BTreeMap<&'static str, OwnedFd>,
    /// Why the kernel lets us have none of a kind.
    refused: BTreeMap<How, String>,
}

const FENTRY: &str = "rdma_fentry";
const FEXIT: &str = "rdma_fexit";
const KPROBE: &str = "rdma_kprobe";
const KRETPROBE: &str = "rdma_kret";
const POINT: &str = "rdma_point";

impl Programs {
    fn new(ebpf: &Ebpf, verbose: bool) -> Result<Programs, String> {
        let program = |name| multi_uprobe::function(OBJECT, name, ebpf);
        let mut object = Object::parse(OBJECT).map_err(|error| error.to_string())?;
        let features = BtfFeatures::new(true, true, true, true, true, true, true, true);
        let types = object.fixup_and_sanitize_btf(&features).map_err(|error| error.to_string())?;
        let types = types.ok_or("the eBPF object has no types")?.to_bytes();
        Ok(Programs {
            types: raw_bpf::load_types(&types).map_err(|error| format!("types: {error}"))?,
            entry: program(FENTRY)?,
            exit: program(FEXIT)?,
            kprobe: program(KPROBE)?,
            kretprobe: program(KRETPROBE)?,
            point: program(POINT)?,
            log: if verbose { vec![0; LOG_BYTES] } else { Vec::new() },
            loaded: BTreeMap::new(),
            refused: BTreeMap::new(),
        })
    }

    fn traced(&mut self, to: Traced<'_>, cookie: u64) -> Result<Link, String> {
        let (name, function) = if to.at_return { (FEXIT, &self.exit) } else { (FENTRY, &self.entry) };
        let code = Code { name, function, types: &self.types };
        let program = raw_bpf::load_traced(&code, to, &mut self.log).map_err(|error| {
            // A refusal of the verifier's, as against one of this kind as a whole.
            log::debug!("{name}: {error}: {}", log_text(&self.log));
            error.to_string()
        })?;
        let link = raw_bpf::link_traced(&program, to, cookie).map_err(|error| error.to_string())?;
        Ok(Link::Traced(link, program))
    }

    fn plain(&mut self, name: &'static str, kind: bpf_prog_type) -> Result<&OwnedFd, String> {
        if !self.loaded.contains_key(name) {
            let function = match name {
                KPROBE => &self.kprobe,
                KRETPROBE => &self.kretprobe,
                _ => &self.point,
            };
            let code = Code { name, function, types: &self.types };
            let program = raw_bpf::load_plain(&code, kind, &mut self.log).map_err(|error| {
                log::debug!("{name}: {error}: {}", log_text(&self.log));
                error.to_string()
            })?;
            self.loaded.insert(name, program);
        }
        self.loaded.get(name).ok_or_else(|| format!("{name} was not loaded"))
    }
}

fn log_text(log: &[u8]) -> String {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    String::from_utf8_lossy(log.get(..end).unwrap_or_default()).into_owned()
}

/// Probes all functions that this kernel has.
pub(super) fn attach(ebpf: &Ebpf, types: &Types, verbose: bool) -> Result<Attached, String> {
    let mut programs = Programs::new(ebpf, verbose)?;
    let mut attached = Attached::default();
    for function in FUNCTIONS.iter().filter(|function| is_loaded(function.module)) {
        match one(&mut programs, types, function) {
            Ok((how, links)) => {
                *attached.counts.entry((function.module, how)).or_default() += 1;
                attached.links.extend(links);
            }
            Err(reason) => {
                log::debug!("{}: {reason}", function.names.join(", "));
                let known = attached.missing.iter().any(|(figure, _)| *figure == function.figure);
                if !function.figure.is_empty() && !known {
                    attached.missing.push((function.figure, reason));
                }
            }
        }
    }
    Ok(attached)
}

/// A module that is built in has a folder there too.
fn is_loaded(module: &str) -> bool {
    std::path::Path::new("/sys/module").join(module).exists()
}

fn one(programs: &mut Programs, types: &Types, function: &Function) -> Result<(How, Vec<Link>), String> {
    let mut reasons = Vec::new();
    for name in function.names {
        match by_fentry(programs, types, function, name) {
            Ok(links) => return Ok((How::Fentry, links)),
            Err(reason) => reasons.push(reason),
        }
        match by_kprobe(programs, types, function, name) {
            Ok(links) => return Ok((How::Kprobe, links)),
            Err(reason) => reasons.push(reason),
        }
    }
    if let Some(point) = function.tracepoint {
        match by_tracepoint(programs, point) {
            Ok(link) => return Ok((How::Tracepoint, vec![link])),
            Err(reason) => reasons.push(reason),
        }
    }
    reasons.dedup();
    Err(reasons.join(", "))
}

fn by_fentry(
    programs: &mut Programs,
    types: &Types,
    function: &Function,
    name: &str,
) -> Result<Vec<Link>, String> {
    if let Some(reason) = programs.refused.get(&How::Fentry) {
        return Err(reason.clone());
    }
    let (number, known, held) = types.function(name).ok_or_else(|| format!("no types of {name}"))?;
    let cookie = cookie_of(function, name, Some(known));
    let to = Traced { function: number, types: held, at_return: false };
    let entry = programs.traced(to, cookie).map_err(|error| format!("{name} by fentry: {error}"));
    let mut links = match entry {
        Ok(link) => vec![link],
        Err(reason) => {
            // Where not one function can be had so, none is tried again.
            if reason.ends_with("(os error 1)") {
                programs.refused.insert(How::Fentry, format!("fentry: {}", permission()));
            }
            return Err(reason);
        }
    };
    if function.ends() {
        let to = Traced { at_return: true, ..to };
        links.push(programs.traced(to, cookie).map_err(|error| format!("{name} by fexit: {error}"))?);
    }
    Ok(links)
}

fn permission() -> std::io::Error {
    std::io::Error::from_raw_os_error(libc::EPERM)
}

fn by_kprobe(
    programs: &mut Programs,
    types: &Types,
    function: &Function,
    name: &str,
) -> Result<Vec<Link>, String> {
    if let Some(reason) = programs.refused.get(&How::Kprobe) {
        return Err(reason.clone());
    }
    if !std::path::Path::new("/sys/bus/event_source/devices/kprobe").exists() {
        let reason = "this kernel has no kprobes";
        programs.refused.insert(How::Kprobe, reason.to_owned());
        return Err(reason.to_owned());
    }
    let known = types.function(name).map(|(_, known, _)| known);
    let cookie = cookie_of(function, name, known);
    let symbol = CString::new(name).map_err(|error| error.to_string())?;
    let mut put = |program: &'static str, at_return| {
        let loaded = programs.plain(program, bpf_prog_type::BPF_PROG_TYPE_KPROBE)?;
        raw_bpf::link_kprobe(loaded, &symbol, at_return, cookie)
            .map(Link::Kprobe)
            .map_err(|error| format!("{name} by kprobe: {error}"))
    };
    let mut links = Vec::new();
    if function.ends() {
        // The return first: an end without a beginning is left out, the reverse is not.
        links.push(put(KRETPROBE, true)?);
    }
    links.push(put(KPROBE, false)?);
    Ok(links)
}

fn by_tracepoint(programs: &mut Programs, point: &str) -> Result<Link, String> {
    let name = CString::new(point).map_err(|error| error.to_string())?;
    let code = Code { name: POINT, function: &programs.point, types: &programs.types };
    let kind = bpf_prog_type::BPF_PROG_TYPE_RAW_TRACEPOINT;
    let program = raw_bpf::load_plain(&code, kind, &mut programs.log).map_err(|error| error.to_string())?;
    let link = raw_bpf::link_tracepoint(&program, &name)
        .map_err(|error| format!("{point} by tracepoint: {error}"))?;
    Ok(Link::Tracepoint(link, program))
}

fn cookie_of(function: &Function, name: &str, types: Option<&Btf>) -> u64 {
    let place = |argument: Argument| {
        let known = types.and_then(|types| types.parameter(name, argument.names));
        known.unwrap_or(argument.place)
    };
    cookie(function.role, function.op, function.arguments.map(place))
}
