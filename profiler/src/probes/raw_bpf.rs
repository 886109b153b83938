//! The commands of `bpf(2)` and `perf_event_open(2)` that aya lacks: programs on functions of modules, and probes with cookies.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use aya_obj::Function;
use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_prog_type};

/// `linux/perf_event.h`.
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const LICENSE: &CStr = c"Dual MIT/GPL";

/// A program's code with what the kernel wants to know of its functions.
#[derive(Debug)]
pub(super) struct Code<'a> {
    pub(super) name: &'a str,
    pub(super) function: &'a Function,
    /// The object's types, loaded.
    pub(super) types: &'a OwnedFd,
}

/// `union bpf_attr` for `BPF_PROG_LOAD`, as far as it is used.
#[derive(Default)]
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
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
    attach_btf_obj_fd: u32,
    padding: u32,
}

/// Where a program on a kernel function goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traced<'a> {
    /// The function's number among the types.
    pub(super) function: u32,
    /// Those of the module; `None`: the kernel's own.
    pub(super) types: Option<&'a OwnedFd>,
    pub(super) at_return: bool,
}

impl Traced<'_> {
    fn attach_type(self) -> u32 {
        (if self.at_return { bpf_attach_type::BPF_TRACE_FEXIT } else { bpf_attach_type::BPF_TRACE_FENTRY })
            as u32
    }
}

/// Loads a program for one kernel function.
pub(super) fn load_traced(code: &Code<'_>, to: Traced<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    let attr = LoadAttr {
        prog_type: bpf_prog_type::BPF_PROG_TYPE_TRACING as u32,
        expected_attach_type: to.attach_type(),
        attach_btf_id: to.function,
        attach_btf_obj_fd: to.types.map_or(0, |fd| fd.as_raw_fd().cast_unsigned()),
        ..LoadAttr::default()
    };
    load(code, attr, log)
}

/// Loads a program for any number of probes.
pub(super) fn load_plain(code: &Code<'_>, prog_type: bpf_prog_type, log: &mut [u8]) -> io::Result<OwnedFd> {
    load(code, LoadAttr { prog_type: prog_type as u32, ..LoadAttr::default() }, log)
}

fn load(code: &Code<'_>, mut attr: LoadAttr, log: &mut [u8]) -> io::Result<OwnedFd> {
    let function = code.function;
    let info = function.func_info.func_info_bytes();
    attr.insn_cnt = u32::try_from(function.instructions.len()).map_err(io::Error::other)?;
    attr.insns = function.instructions.as_ptr() as u64;
    attr.license = LICENSE.as_ptr() as u64;
    for (to, from) in attr.prog_name.iter_mut().zip(code.name.bytes().take(15)) {
        *to = from;
    }
    attr.prog_btf_fd = code.types.as_raw_fd().cast_unsigned();
    attr.func_info_rec_size = u32::try_from(function.func_info_rec_size).map_err(io::Error::other)?;
    attr.func_info = info.as_ptr() as u64;
    attr.func_info_cnt = u32::try_from(function.func_info.func_info.len()).map_err(io::Error::other)?;
    if !log.is_empty() {
        attr.log_level = 1;
        attr.log_size = u32::try_from(log.len()).map_err(io::Error::other)?;
        attr.log_buf = log.as_mut_ptr() as u64;
    }
    // SAFETY: the pointers in `attr` are to the code, its information, the licence and the log, which live on.
    unsafe { bpf(bpf_cmd::BPF_PROG_LOAD, &attr) }
}

/// Loads types.
pub(super) fn load_types(bytes: &[u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        btf: u64,
        btf_log_buf: u64,
        btf_size: u32,
        btf_log_size: u32,
        btf_log_level: u32,
        padding: u32,
    }
    let btf_size = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let attr = Attr {
        btf: bytes.as_ptr() as u64,
        btf_log_buf: 0,
        btf_size,
        btf_log_size: 0,
        btf_log_level: 0,
        padding: 0,
    };
    // SAFETY: the pointer in `attr` is to `btf_size` bytes.
    unsafe { bpf(bpf_cmd::BPF_BTF_LOAD, &attr) }
}

/// Attaches a program that was loaded for one kernel function.
pub(super) fn link_traced(program: &OwnedFd, to: Traced<'_>, cookie: u64) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        prog_fd: u32,
        target_fd: u32,
        attach_type: u32,
        flags: u32,
        target_btf_id: u32,
        padding: u32,
        cookie: u64,
    }
    let attr = Attr {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_fd: 0,
        attach_type: to.attach_type(),
        flags: 0,
        target_btf_id: 0,
        padding: 0,
        cookie,
    };
    // SAFETY: no pointers.
    unsafe { bpf(bpf_cmd::BPF_LINK_CREATE, &attr) }
}

/// A kprobe and the link that keeps a program on it.
#[derive(Debug)]
pub(super) struct Kprobe {
    /// Closed first.
    #[expect(dead_code, reason = "held open")]
    link: OwnedFd,
    #[expect(dead_code, reason = "held open")]
    event: OwnedFd,
}

/// Attaches a program to a kernel function's entry or return by a kprobe.
pub(super) fn link_kprobe(
    program: &OwnedFd,
    function: &CStr,
    at_return: bool,
    cookie: u64,
) -> io::Result<Kprobe> {
    #[repr(C)]
    struct Attr {
        prog_fd: u32,
        target_fd: u32,
        attach_type: u32,
        flags: u32,
        cookie: u64,
    }
    let event = open_kprobe(function, at_return)?;
    let attr = Attr {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_fd: event.as_raw_fd().cast_unsigned(),
        attach_type: bpf_attach_type::BPF_PERF_EVENT as u32,
        flags: 0,
        cookie,
    };
    // SAFETY: no pointers.
    let link = unsafe { bpf(bpf_cmd::BPF_LINK_CREATE, &attr) }?;
    Ok(Kprobe { link, event })
}

fn open_kprobe(function: &CStr, at_return: bool) -> io::Result<OwnedFd> {
    let kind: u32 = fs::read_to_string("/sys/bus/event_source/devices/kprobe/type")?
        .trim()
        .parse()
        .map_err(io::Error::other)?;
    // `perf_event_attr`: type, size, config …, config1 at 56. Of a kprobe bit 0 of config means its return.
    let mut attr = [0_u64; 9];
    attr[0] = u64::from(kind) | (size_of_val(&attr) as u64) << 32;
    attr[1] = u64::from(at_return);
    attr[7] = function.as_ptr() as u64;
    // SAFETY: `attr` is a `perf_event_attr` of the size that it names, and the name outlives the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), -1_i32, 0_i32, -1_i32, PERF_FLAG_FD_CLOEXEC)
    };
    owned(fd)
}

/// Attaches a program to a tracepoint, also of a module.
pub(super) fn link_tracepoint(program: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        name: u64,
        prog_fd: u32,
        padding: u32,
    }
    let attr = Attr { name: name.as_ptr() as u64, prog_fd: program.as_raw_fd().cast_unsigned(), padding: 0 };
    // SAFETY: the pointer in `attr` is to the name.
    unsafe { bpf(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &attr) }
}

/// Loaded types at most, of the kernel, its modules and all programs.
const TYPES_MAX: u32 = 1 << 16;

/// The types of a module that is loaded, as the kernel holds them.
pub(super) fn module_types(module: &str) -> io::Result<OwnedFd> {
    /// `struct bpf_btf_info`.
    #[derive(Default)]
    #[repr(C)]
    struct Info {
        btf: u64,
        btf_size: u32,
        id: u32,
        name: u64,
        name_len: u32,
        kernel_btf: u32,
    }
    #[repr(C)]
    struct ById {
        id: u32,
        next_id: u32,
        flags: u32,
        padding: u32,
    }
    #[repr(C)]
    struct ByFd {
        fd: u32,
        info_len: u32,
        info: u64,
    }
    let mut id = 0;
    for _ in 0..TYPES_MAX {
        let mut next = ById { id, next_id: 0, flags: 0, padding: 0 };
        // SAFETY: no pointers; the kernel writes the next number.
        unsafe { bpf_result(bpf_cmd::BPF_BTF_GET_NEXT_ID, &raw mut next) }?;
        id = next.next_id;
        let attr = ById { id, next_id: 0, flags: 0, padding: 0 };
        // SAFETY: no pointers. They may be gone already.
        let Ok(types) = (unsafe { bpf(bpf_cmd::BPF_BTF_GET_FD_BY_ID, &attr) }) else { continue };
        let mut name = [0_u8; 64];
        let name_len = u32::try_from(name.len()).map_err(io::Error::other)?;
        let mut info = Info { name: name.as_mut_ptr() as u64, name_len, ..Info::default() };
        let mut attr = ByFd {
            fd: types.as_raw_fd().cast_unsigned(),
            info_len: u32::try_from(size_of::<Info>()).map_err(io::Error::other)?,
            info: (&raw mut info) as u64,
        };
        // SAFETY: the pointers are to `info` and from it to the name, with their lengths.
        unsafe { bpf_result(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &raw mut attr) }?;
        let found = CStr::from_bytes_until_nul(&name).is_ok_and(|name| name.to_bytes() == module.as_bytes());
        if info.kernel_btf != 0 && found {
            return Ok(types);
        }
    }
    Err(io::Error::from(io::ErrorKind::NotFound))
}

/// `bpf(2)` for the commands that return a descriptor.
///
/// # Safety
///
/// `attr` is what the command expects, and what it points to is alive.
unsafe fn bpf<T>(command: bpf_cmd, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: see above; these commands do not write to `attr`.
    owned(unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, &raw const *attr, size_of::<T>()) })
}

/// `bpf(2)` for the commands that answer in `attr`.
///
/// # Safety
///
/// As for [`bpf`].
unsafe fn bpf_result<T>(command: bpf_cmd, attr: *mut T) -> io::Result<()> {
    // SAFETY: see above.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, attr, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(result) {
        // SAFETY: a new descriptor, nobody else's.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
