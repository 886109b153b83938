//! From a descriptor to the socket behind it.

use aya_ebpf::helpers::generated::bpf_get_current_task_btf;
use profiler_common::SockRecord;
use profiler_common::config::NO_OFFSET;

use crate::mem::{kernel, kernel_bytes, member};
use crate::offset;
use crate::thread::Dest;

pub const AF_UNIX: u16 = 1;
pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;

const S_IFMT: u16 = 0o170_000;
const S_IFSOCK: u16 = 0o140_000;

pub const TCP_SYN_SENT: u8 = 2;
pub const SOCK_STREAM: u8 = 1;

/// Address of the `struct file` behind a task's descriptor, 0: none.
#[inline(never)]
pub fn file_of(task: u64, fd: u32) -> u64 {
    let files: u64 = member(task, offset!(task_files));
    let table: u64 = member(files, offset!(files_fdt));
    if fd >= member::<u32>(table, offset!(fdtable_max_fds)) {
        return 0;
    }
    let array: u64 = member(table, offset!(fdtable_fd));
    if array == 0 {
        return 0;
    }
    kernel(array + u64::from(fd) * 8)
}

/// The same for the current task, on the hot path: loads that the verifier knows to be within the kernel's structures
/// cost a fraction of a helper's call.
#[inline(always)]
pub fn own_file(fd: u32) -> u64 {
    let (files, table) = (offset!(task_files), offset!(files_fdt));
    let (array, count) = (offset!(fdtable_fd), offset!(fdtable_max_fds));
    if files == NO_OFFSET || table == NO_OFFSET || array == NO_OFFSET || count == NO_OFFSET {
        return 0;
    }
    // SAFETY: the verifier follows the types from the task on, and a bad pointer reads as zero.
    let array = unsafe {
        let task = bpf_get_current_task_btf().cast::<u8>();
        let files = *task.add(files as usize).cast::<*const u8>();
        if files.is_null() {
            return 0;
        }
        let table = *files.add(table as usize).cast::<*const u8>();
        if table.is_null() || fd >= *table.add(count as usize).cast::<u32>() {
            return 0;
        }
        *table.add(array as usize).cast::<u64>()
    };
    if array == 0 { 0 } else { kernel(array + u64::from(fd) * 8) }
}

#[inline(always)]
pub fn is_socket(file: u64) -> bool {
    let inode: u64 = member(file, offset!(file_inode));
    member::<u16>(inode, offset!(inode_mode)) & S_IFMT == S_IFSOCK
}

/// Address of the `struct sock` of a file that is a socket.
#[inline(always)]
pub fn sock_of(file: u64) -> u64 {
    let socket: u64 = member(file, offset!(file_private_data));
    member(socket, offset!(socket_sk))
}

/// Describes the file behind a descriptor in `out`, all but the events. Returns the address of the `struct sock`,
/// 0 where it is no socket.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn describe(file: u64, fd: u32, out: *mut SockRecord) -> u64 {
    // SAFETY: callers pass a record in a map or on their stack; the verifier checks it.
    let Some(out) = (unsafe { out.as_mut() }) else { return 0 };
    *out = crate::thread::NO_SOCK;
    out.fd = fd as i32;
    if file == 0 {
        return 0;
    }
    let inode: u64 = member(file, offset!(file_inode));
    out.ino = member(inode, offset!(inode_ino));
    if member::<u16>(inode, offset!(inode_mode)) & S_IFMT != S_IFSOCK {
        return 0;
    }
    let sock = sock_of(file);
    describe_sock(sock, out);
    sock
}

/// Fills in what a `struct sock` tells.
#[inline(always)]
pub fn describe_sock(sock: u64, out: &mut SockRecord) {
    out.family = member(sock, offset!(sock_family));
    out.sock_type = member(sock, offset!(sock_type));
    out.state = member(sock, offset!(sock_state));
    match out.family {
        AF_INET => {
            ports(sock, out);
            let base = &raw mut out.addr;
            read_at(base.cast(), 4, sock, offset!(sock_rcv_saddr));
            // SAFETY: within the 40 bytes.
            read_at(unsafe { base.cast::<u8>().add(16) }, 4, sock, offset!(sock_daddr));
        }
        AF_INET6 => {
            ports(sock, out);
            let base = &raw mut out.addr;
            read_at(base.cast(), 16, sock, offset!(sock_v6_rcv_saddr));
            // SAFETY: within the 40 bytes.
            read_at(unsafe { base.cast::<u8>().add(16) }, 16, sock, offset!(sock_v6_daddr));
        }
        AF_UNIX => unix_path(sock, out),
        _ => {}
    }
}

#[inline(always)]
fn ports(sock: u64, out: &mut SockRecord) {
    out.local_port = member(sock, offset!(sock_num));
    out.peer_port = u16::from_be(member(sock, offset!(sock_dport)));
}

#[inline(always)]
fn read_at(to: *mut u8, len: u32, base: u64, offset: u32) {
    if offset != NO_OFFSET {
        kernel_bytes(to, len, base + u64::from(offset));
    }
}

/// The peer's path; the socket's own where it has no peer, or one without a name.
#[inline(always)]
fn unix_path(sock: u64, out: &mut SockRecord) {
    let peer: u64 = member(sock, offset!(unix_peer));
    let mut address: u64 = member(peer, offset!(unix_addr));
    if address == 0 {
        address = member(sock, offset!(unix_addr));
    }
    let len: u32 = member(address, offset!(unix_address_len));
    let name = offset!(unix_address_name);
    if address == 0 || len <= 2 || name == NO_OFFSET {
        return;
    }
    let len = if len - 2 > 40 { 40 } else { len - 2 };
    // Two bytes of family come first.
    kernel_bytes((&raw mut out.addr).cast(), len, address + u64::from(name) + 2);
}

/// Puts the address that was asked for where the socket has none (any more).
#[inline(always)]
pub fn merge_dest(out: &mut SockRecord, dest: &Dest) {
    if dest.family == 0 {
        return;
    }
    if dest.family == AF_UNIX {
        if out.family == AF_UNIX && out.addr[0] == 0 && out.addr[1] == 0 {
            out.addr = dest.addr;
        }
        return;
    }
    if out.peer_port == 0 && (out.family == AF_INET || out.family == AF_INET6) {
        set_peer(out, dest);
    }
}

/// Replaces the peer by an Internet address of the socket's own family.
#[inline(always)]
pub fn set_peer(out: &mut SockRecord, dest: &Dest) {
    out.family = dest.family;
    out.peer_port = dest.port;
    let mut index = 16;
    while index < 32 {
        out.addr[index] = dest.addr[index];
        index += 1;
    }
}
