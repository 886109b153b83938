//! Tries the kernel's attach kinds with two-instruction programs, by bpf(2) and perf_event_open(2) directly:
//! what loads is the only honest answer to "does this kernel allow it".

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_PROG_LOAD: libc::c_long = 5;

pub(super) const PROG_KPROBE: u32 = 2;
pub(super) const PROG_TRACEPOINT: u32 = 5;
pub(super) const PROG_RAW_TRACEPOINT: u32 = 17;
pub(super) const PROG_TRACING: u32 = 26;

pub(super) const ATTACH_RAW_TP: u32 = 23;
pub(super) const ATTACH_FENTRY: u32 = 24;
pub(super) const ATTACH_ITER: u32 = 28;

const MAP_RINGBUF: u32 = 27;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// `r0 = 0; exit`
const RETURN_ZERO: [u64; 2] = [0x0000_00b7, 0x0000_0095];

/// Loads a program that does nothing. `btf_id` is that of the tracepoint, function or iterator, 0 for none.
pub(super) fn load_program(kind: u32, attach: u32, btf_id: u32) -> io::Result<()> {
    let license = c"GPL";
    let mut attr = [0_u8; 128];
    put(&mut attr, 0, &kind.to_ne_bytes());
    put(&mut attr, 4, &(RETURN_ZERO.len() as u32).to_ne_bytes());
    put(&mut attr, 8, &(RETURN_ZERO.as_ptr() as u64).to_ne_bytes());
    put(&mut attr, 16, &(license.as_ptr() as u64).to_ne_bytes());
    put(&mut attr, 68, &attach.to_ne_bytes());
    put(&mut attr, 108, &btf_id.to_ne_bytes());
    bpf(BPF_PROG_LOAD, &attr).map(drop)
}

/// Makes a ring buffer of one page.
pub(super) fn create_ring_buffer(page: u32) -> io::Result<()> {
    let mut attr = [0_u8; 128];
    put(&mut attr, 0, &MAP_RINGBUF.to_ne_bytes());
    put(&mut attr, 12, &page.to_ne_bytes());
    bpf(BPF_MAP_CREATE, &attr).map(drop)
}

/// Opens a perf event on a kernel function or, for `uprobe`, on the first byte of this program's file, which is
/// no instruction: nothing is patched anywhere.
pub(super) fn open_perf_probe(pmu: &str) -> io::Result<()> {
    let kind: u32 = fs::read_to_string(format!("/sys/bus/event_source/devices/{pmu}/type"))?
        .trim()
        .parse()
        .map_err(io::Error::other)?;
    let place = CString::new(if pmu == "uprobe" { "/proc/self/exe" } else { "vfs_read" })?;
    let mut attr = [0_u8; 72];
    put(&mut attr, 0, &kind.to_ne_bytes());
    put(&mut attr, 4, &72_u32.to_ne_bytes());
    // disabled = 1
    put(&mut attr, 40, &1_u64.to_ne_bytes());
    put(&mut attr, 56, &(place.as_ptr() as u64).to_ne_bytes());
    // SAFETY: `attr` is a `perf_event_attr` of the size it names, and `place` outlives the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), -1_i32, 0_i32, -1_i32, PERF_FLAG_FD_CLOEXEC)
    };
    owned(fd).map(drop)
}

fn bpf(command: libc::c_long, attr: &[u8; 128]) -> io::Result<OwnedFd> {
    // SAFETY: `attr` is a zero-filled `bpf_attr` of the length given; what it points to outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), attr.len()) })
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(fd) {
        // SAFETY: the kernel just gave out this descriptor, nobody else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn put(attr: &mut [u8], offset: usize, value: &[u8]) {
    if let Some(place) = attr.get_mut(offset..offset + value.len()) {
        place.copy_from_slice(value);
    }
}
