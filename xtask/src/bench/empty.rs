//! Two programs that do nothing, on entry and return of every system call: what the kernel itself takes for calling
//! programs there, and nobody who watches system calls this way can go below.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};

const PROG_LOAD: i64 = 5;
const RAW_TRACEPOINT_OPEN: i64 = 17;
const PROG_TYPE_RAW_TRACEPOINT: u64 = 17;
/// `r0 = 0`, `exit`
const NOTHING: [u64; 2] = [0xb7, 0x95];

/// Dropping it detaches the programs.
pub struct EmptyPrograms(#[expect(dead_code, reason = "held for its descriptors")] Vec<OwnedFd>);

impl EmptyPrograms {
    pub fn attach() -> Result<EmptyPrograms> {
        let mut held = Vec::new();
        for point in [c"sys_enter", c"sys_exit"] {
            // prog_type and insn_cnt, insns, license; the rest is zero.
            let count = NOTHING.len() as u64;
            let load = [
                PROG_TYPE_RAW_TRACEPOINT | count << 32,
                NOTHING.as_ptr() as u64,
                c"GPL".as_ptr() as u64,
                0,
                0,
                0,
            ];
            // SAFETY: the instructions and the licence are constants.
            let program = unsafe { bpf(PROG_LOAD, &load) }.context("cannot load an empty program")?;
            // name, prog_fd
            let open = [point.as_ptr() as u64, program as u64];
            // SAFETY: the name is a constant.
            let link =
                unsafe { bpf(RAW_TRACEPOINT_OPEN, &open) }.context("cannot attach an empty program")?;
            // SAFETY: new descriptors, nobody else's.
            held.extend([program, link].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        Ok(EmptyPrograms(held))
    }
}

/// `bpf(2)` for commands that return a descriptor.
///
/// # Safety
///
/// `attr` is what the command expects, and what it points to is alive.
unsafe fn bpf<const N: usize>(command: i64, attr: &[u64; N]) -> io::Result<i32> {
    // SAFETY: see above.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(attr)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
