//! The system calls that are made under a thread's filters once the agent comes: those that the recorder makes in the
//! stopped thread, those of the agent and its thread, and those that glibc, its loader and CUPTI make for them. What a
//! program of the C library makes anyway stands here too: a filter that forbids it to a thread forbids it to ours.

use super::bpf::Call;

/// What it means when a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// The agent does not get on without it.
    Needed,
    /// glibc has an older way where the kernel does not know the call (`ENOSYS`), and no other.
    Newest,
    /// It may fail: whoever makes it goes on without.
    Tried,
}

/// One call with what is known of its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) name: &'static str,
    pub(super) weight: Weight,
    pub(super) call: Call,
}

/// An argument that may be anything.
const ANY: Option<u64> = None;

const fn need(weight: Weight, name: &'static str, number: i64, args: [Option<u64>; 6]) -> Need {
    Need { name, weight, call: Call { number: number as u32, args } }
}

const fn needed(name: &'static str, number: i64) -> Need {
    need(Weight::Needed, name, number, [ANY; 6])
}

const fn tried(name: &'static str, number: i64) -> Need {
    need(Weight::Tried, name, number, [ANY; 6])
}

const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const EXECUTE: u64 = libc::PROT_EXEC as u64;
const NOTHING: u64 = libc::PROT_NONE as u64;
const PRIVATE: u64 = libc::MAP_PRIVATE as u64;
const SHARED: u64 = libc::MAP_SHARED as u64;
const FIXED: u64 = libc::MAP_FIXED as u64;
const ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;
const LOADED: u64 = PRIVATE | libc::MAP_DENYWRITE as u64;
const STACK: u64 = PRIVATE | ANONYMOUS | libc::MAP_STACK as u64;

const fn mmap(protection: u64, flags: u64) -> Need {
    need(Weight::Needed, "mmap", libc::SYS_mmap, [ANY, ANY, Some(protection), Some(flags), ANY, ANY])
}

/// What glibc gives `clone` for a thread.
const THREAD: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u64;

pub(super) const NEEDS: &[Need] = &[
    // In the stopped thread, by the recorder and the agent's entry.
    need(
        Weight::Needed,
        "memfd_create",
        libc::SYS_memfd_create,
        [ANY, Some(libc::MFD_CLOEXEC as u64), ANY, ANY, ANY, ANY],
    ),
    mmap(READ | WRITE, PRIVATE | ANONYMOUS),
    mmap(READ | EXECUTE, PRIVATE | FIXED),
    mmap(READ | WRITE, SHARED),
    needed("munmap", libc::SYS_munmap),
    needed("close", libc::SYS_close),
    needed("ftruncate", libc::SYS_ftruncate),
    needed("clock_gettime", libc::SYS_clock_gettime),
    needed("sched_yield", libc::SYS_sched_yield),
    needed("restart_syscall", libc::SYS_restart_syscall),
    needed("rt_sigreturn", libc::SYS_rt_sigreturn),
    // A child's zeros, which tell it from the process that is recorded.
    need(
        Weight::Needed,
        "madvise",
        libc::SYS_madvise,
        [ANY, ANY, Some(libc::MADV_WIPEONFORK as u64), ANY, ANY, ANY],
    ),
    need(Weight::Tried, "madvise", libc::SYS_madvise, [ANY; 6]),
    // The beginning and the end of a thread.
    mmap(NOTHING, STACK),
    mmap(NOTHING, PRIVATE | ANONYMOUS | libc::MAP_NORESERVE as u64),
    need(Weight::Needed, "mprotect", libc::SYS_mprotect, [ANY, ANY, Some(READ | WRITE), ANY, ANY, ANY]),
    need(Weight::Newest, "clone3", libc::SYS_clone3, [ANY; 6]),
    need(Weight::Needed, "clone", libc::SYS_clone, [Some(THREAD), ANY, ANY, ANY, ANY, ANY]),
    needed("rt_sigprocmask", libc::SYS_rt_sigprocmask),
    tried("set_robust_list", libc::SYS_set_robust_list),
    tried("rseq", libc::SYS_rseq),
    needed("futex", libc::SYS_futex),
    needed("exit", libc::SYS_exit),
    // The agent's thread.
    needed("gettid", libc::SYS_gettid),
    needed("nanosleep", libc::SYS_nanosleep),
    need(Weight::Tried, "prctl", libc::SYS_prctl, [Some(libc::PR_SET_NAME as u64), ANY, ANY, ANY, ANY, ANY]),
    // The loader, for CUPTI, and the allocator.
    needed("openat", libc::SYS_openat),
    needed("read", libc::SYS_read),
    needed("pread64", libc::SYS_pread64),
    // Older and newer versions of glibc make one of these two.
    needed("fstat", libc::SYS_fstat),
    needed("newfstatat", libc::SYS_newfstatat),
    mmap(READ, LOADED),
    mmap(READ, PRIVATE),
    mmap(READ | EXECUTE, LOADED | FIXED),
    mmap(READ | WRITE, LOADED | FIXED),
    mmap(READ | WRITE, PRIVATE | FIXED | ANONYMOUS),
    need(Weight::Needed, "mprotect", libc::SYS_mprotect, [ANY, ANY, Some(READ), ANY, ANY, ANY]),
    need(Weight::Needed, "mprotect", libc::SYS_mprotect, [ANY, ANY, Some(NOTHING), ANY, ANY, ANY]),
    needed("brk", libc::SYS_brk),
    tried("access", libc::SYS_access),
    tried("readlink", libc::SYS_readlink),
    tried("getcwd", libc::SYS_getcwd),
    tried("getrandom", libc::SYS_getrandom),
    tried("mremap", libc::SYS_mremap),
    // CUPTI and the driver. They live with what they are refused; nothing of it may be the end of the process.
    tried("ioctl", libc::SYS_ioctl),
    tried("open", libc::SYS_open),
    tried("write", libc::SYS_write),
    tried("writev", libc::SYS_writev),
    tried("pwrite64", libc::SYS_pwrite64),
    tried("stat", libc::SYS_stat),
    tried("lstat", libc::SYS_lstat),
    tried("statx", libc::SYS_statx),
    tried("lseek", libc::SYS_lseek),
    tried("getdents64", libc::SYS_getdents64),
    tried("fcntl", libc::SYS_fcntl),
    tried("dup", libc::SYS_dup),
    tried("poll", libc::SYS_poll),
    tried("ppoll", libc::SYS_ppoll),
    tried("pipe2", libc::SYS_pipe2),
    tried("eventfd2", libc::SYS_eventfd2),
    tried("epoll_create1", libc::SYS_epoll_create1),
    tried("epoll_ctl", libc::SYS_epoll_ctl),
    tried("epoll_wait", libc::SYS_epoll_wait),
    tried("timerfd_create", libc::SYS_timerfd_create),
    need(Weight::Tried, "socket", libc::SYS_socket, [Some(libc::AF_UNIX as u64), ANY, ANY, ANY, ANY, ANY]),
    tried("connect", libc::SYS_connect),
    tried("sendmsg", libc::SYS_sendmsg),
    tried("recvmsg", libc::SYS_recvmsg),
    need(Weight::Tried, "mmap", libc::SYS_mmap, [ANY; 6]),
    need(Weight::Tried, "mprotect", libc::SYS_mprotect, [ANY; 6]),
    tried("mlock", libc::SYS_mlock),
    tried("memfd_create", libc::SYS_memfd_create),
    tried("sched_getaffinity", libc::SYS_sched_getaffinity),
    tried("sched_setaffinity", libc::SYS_sched_setaffinity),
    tried("sched_getparam", libc::SYS_sched_getparam),
    tried("sched_getscheduler", libc::SYS_sched_getscheduler),
    tried("sched_get_priority_max", libc::SYS_sched_get_priority_max),
    tried("sched_get_priority_min", libc::SYS_sched_get_priority_min),
    tried("getcpu", libc::SYS_getcpu),
    tried("get_mempolicy", libc::SYS_get_mempolicy),
    tried("set_mempolicy", libc::SYS_set_mempolicy),
    tried("mbind", libc::SYS_mbind),
    tried("getpid", libc::SYS_getpid),
    tried("getuid", libc::SYS_getuid),
    tried("geteuid", libc::SYS_geteuid),
    tried("getgid", libc::SYS_getgid),
    tried("uname", libc::SYS_uname),
    tried("sysinfo", libc::SYS_sysinfo),
    tried("prlimit64", libc::SYS_prlimit64),
    tried("getrusage", libc::SYS_getrusage),
    tried("clock_nanosleep", libc::SYS_clock_nanosleep),
    tried("clock_getres", libc::SYS_clock_getres),
    tried("gettimeofday", libc::SYS_gettimeofday),
    tried("rt_sigaction", libc::SYS_rt_sigaction),
    tried("sigaltstack", libc::SYS_sigaltstack),
    tried("tgkill", libc::SYS_tgkill),
];
