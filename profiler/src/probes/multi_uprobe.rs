//! One link for all entry probes of a library (kernel 6.6 and later). The kernel waits for grace periods when it removes
//! a probe, about a tenth of a second for each link: fourteen links of their own would hold up the end of a recording
//! for more than a second.
//!
//! aya 0.14 has no such links. The program is taken from the object once more, and given to `bpf(2)` here.

use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya::Ebpf;
use aya::maps::Map;
use aya_obj::Object;
use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_insn, bpf_prog_type};
use profiler_common::Api;

/// `union bpf_attr` for `BPF_PROG_LOAD`, as far as it is used.
#[repr(C)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// `union bpf_attr` for `BPF_LINK_CREATE`, as far as it is used.
#[repr(C)]
struct LinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    cnt: u32,
    multi_flags: u32,
    pid: u32,
    reserved: u32,
}

const ATTACH_TYPE: u32 = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;

/// A loaded program and its links. Dropping it removes the probes.
#[derive(Debug)]
pub(super) struct MultiUprobe {
    program: OwnedFd,
    links: Vec<OwnedFd>,
}

impl MultiUprobe {
    /// Loads the program `name` of the object, on the maps that `ebpf` has made for it.
    pub(super) fn load(object: &[u8], name: &str, ebpf: &Ebpf) -> Result<MultiUprobe, String> {
        let instructions = instructions(object, name, ebpf)?;
        let mut prog_name = [0; 16];
        for (to, from) in prog_name.iter_mut().zip(name.bytes().take(15)) {
            *to = from;
        }
        let attr = LoadAttr {
            prog_type: bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32,
            insn_cnt: u32::try_from(instructions.len()).map_err(|error| error.to_string())?,
            insns: instructions.as_ptr() as u64,
            license: c"Dual MIT/GPL".as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log_buf: 0,
            kern_version: 0,
            prog_flags: 0,
            prog_name,
            prog_ifindex: 0,
            expected_attach_type: ATTACH_TYPE,
        };
        // SAFETY: the pointers in `attr` are to the instructions and the licence, which live on.
        let program = unsafe { bpf(bpf_cmd::BPF_PROG_LOAD, &attr) }.map_err(|error| error.to_string())?;
        Ok(MultiUprobe { program, links: Vec::new() })
    }

    /// Probes all these offsets into the file, or none.
    pub(super) fn attach(&mut self, path: &Path, entries: &[(Api, u64)]) -> Result<(), String> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        let offsets: Vec<u64> = entries.iter().map(|(_, offset)| *offset).collect();
        let cookies: Vec<u64> = entries.iter().map(|(api, _)| *api as u64).collect();
        let attr = LinkAttr {
            prog_fd: self.program.as_raw_fd().cast_unsigned(),
            target_fd: 0,
            attach_type: ATTACH_TYPE,
            flags: 0,
            path: path.as_ptr() as u64,
            offsets: offsets.as_ptr() as u64,
            ref_ctr_offsets: 0,
            cookies: cookies.as_ptr() as u64,
            cnt: u32::try_from(entries.len()).map_err(|error| error.to_string())?,
            multi_flags: 0,
            pid: 0,
            reserved: 0,
        };
        // SAFETY: the pointers in `attr` are to the path and to `cnt` offsets and cookies, which live on.
        let link = unsafe { bpf(bpf_cmd::BPF_LINK_CREATE, &attr) }.map_err(|error| error.to_string())?;
        self.links.push(link);
        Ok(())
    }
}

/// The program's instructions, with the maps' descriptors in them and the functions it calls behind it.
fn instructions(object: &[u8], name: &str, ebpf: &Ebpf) -> Result<Vec<bpf_insn>, String> {
    Ok(function(object, name, ebpf)?.instructions)
}

/// The same, with what the kernel wants to know of its functions.
pub(super) fn function(object: &[u8], name: &str, ebpf: &Ebpf) -> Result<aya_obj::Function, String> {
    let mut object = Object::parse(object).map_err(|error| error.to_string())?;
    object.programs.retain(|program, _| program == name);
    let key = object.programs.get(name).ok_or("missing in the eBPF object")?.function_key();
    let described = std::mem::take(&mut object.maps);
    let maps = described.iter().filter_map(|(name, map)| Some((name.as_str(), descriptor(ebpf, name)?, map)));
    // A map without one would silently be replaced by another.
    if let Some(gone) = described.keys().find(|name| descriptor(ebpf, name).is_none()) {
        return Err(format!("the map {gone} was taken out before"));
    }
    let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_maps(maps, &text).map_err(|error| error.to_string())?;
    object.relocate_calls(&text).map_err(|error| error.to_string())?;
    object.functions.remove(&key).ok_or_else(|| "the eBPF object has no code for it".to_owned())
}

fn descriptor(ebpf: &Ebpf, name: &str) -> Option<RawFd> {
    match ebpf.map(name)? {
        Map::Array(map)
        | Map::HashMap(map)
        | Map::LruHashMap(map)
        | Map::PerCpuArray(map)
        | Map::RingBuf(map) => Some(map.fd().as_fd().as_raw_fd()),
        _ => None,
    }
}

/// `bpf(2)` for the commands that return a descriptor.
///
/// # Safety
///
/// `attr` is what the command expects, and what it points to is alive.
unsafe fn bpf<T>(command: bpf_cmd, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: see above.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, &raw const *attr, size_of::<T>()) };
    match RawFd::try_from(result) {
        // SAFETY: a new descriptor, nobody else's.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
