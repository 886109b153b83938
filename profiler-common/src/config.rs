//! What userspace tells the eBPF programs.

/// Value of the map `TARGETS` (key: process id as the host sees it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Target {
    /// Bit 0: children that are forked become targets too.
    pub flags: u32,
    /// Open waits on non-blocking sockets of this process, so that calls that never saw `EAGAIN` need no
    /// look-up.
    pub open_nonblocking: u32,
}

/// `Target::flags`: follow children.
pub const TARGET_FOLLOW: u32 = 1;

/// Places in the map `MARKS`: a byte that is not 0 at a process's id modulo this number says that it may be a target.
/// Nobody takes a mark away, and processes share them: it only spares almost everybody else the look-up in `TARGETS`.
pub const MARK_COUNT: u32 = 1 << 16;

/// Set once before the programs are loaded; a frozen global, so that the verifier sees constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Settings {
    /// A wait that is shorter and did not fail is counted and not recorded.
    pub min_stall_ns: u64,
    /// Two looks at a non-blocking descriptor that are further apart than this are not one wait.
    pub spin_gap_ns: u64,
    /// The recorder's own process, never a target.
    pub own_tgid: u32,
    pub reserved: u32,
}

/// Byte offsets of kernel structure members on the running kernel, from its BTF. `NO_OFFSET` where the
/// kernel has no such member: the program leaves out what it needs it for.
///
/// Frozen like [`Settings`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Offsets {
    pub task_files: u32,
    pub task_pid: u32,
    pub task_tgid: u32,
    pub task_state: u32,
    pub task_exec_start: u32,
    pub task_comm: u32,
    pub files_fdt: u32,
    pub fdtable_fd: u32,
    pub fdtable_max_fds: u32,
    pub file_private_data: u32,
    pub file_inode: u32,
    pub file_flags: u32,
    pub inode_mode: u32,
    pub inode_ino: u32,
    pub socket_sk: u32,
    pub socket_file: u32,
    pub sock_family: u32,
    pub sock_state: u32,
    pub sock_daddr: u32,
    pub sock_rcv_saddr: u32,
    pub sock_dport: u32,
    pub sock_num: u32,
    pub sock_v6_daddr: u32,
    pub sock_v6_rcv_saddr: u32,
    pub sock_type: u32,
    pub sock_protocol: u32,
    pub sock_err: u32,
    pub sock_socket: u32,
    pub tcp_total_retrans: u32,
    pub unix_peer: u32,
    pub unix_addr: u32,
    pub unix_address_len: u32,
    pub unix_address_name: u32,
    pub eventpoll_rbr: u32,
    pub eventpoll_file: u32,
    pub epitem_rbn: u32,
    pub epitem_ffd: u32,
    pub epitem_event: u32,
    pub epoll_filefd_file: u32,
    pub epoll_filefd_fd: u32,
    pub rb_right: u32,
    pub rb_left: u32,
    pub task_real_parent: u32,
    pub task_signal: u32,
    /// Processor that the task ran on last.
    pub task_cpu: u32,
    /// Threads of the process that have not ended.
    pub signal_live: u32,
    /// Time of the SYN while the handshake lasts, milliseconds of `CLOCK_MONOTONIC` (low 32 bits).
    pub tcp_retrans_stamp: u32,
    /// The kernel function that goes on with an interrupted call.
    pub task_restart_fn: u32,
    /// Time that the task has waited for a processor, ever.
    pub task_run_delay: u32,
    /// Time that the task has run, ever; as of the last tick or switch.
    pub task_sum_exec: u32,
    pub tcp_snd_wnd: u32,
    pub tcp_snd_una: u32,
    pub tcp_snd_nxt: u32,
    /// Which timer of the connection is set.
    pub icsk_pending: u32,
}

/// No such member on this kernel.
pub const NO_OFFSET: u32 = u32::MAX;

const _: () = assert!(size_of::<Target>() == 8);
const _: () = assert!(size_of::<Settings>() == 24);
const _: () = assert!(size_of::<Offsets>() == 54 * 4);

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding (sizes asserted above): every bit pattern is valid.
    unsafe impl aya::Pod for super::Target {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::Settings {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::Offsets {}
}
