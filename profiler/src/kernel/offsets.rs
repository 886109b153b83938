//! Where the running kernel has the members that the eBPF programs read.

use profiler_common::Offsets;
use profiler_common::config::NO_OFFSET;

use super::btf::Btf;

/// A field of [`Offsets`] and the members it stands for: the first that exists counts, since some were
/// renamed between kernels.
type Wanted = (fn(&mut Offsets) -> &mut u32, &'static str, &'static [&'static [&'static str]]);

const WANTED: &[Wanted] = &[
    (|o| &mut o.task_files, "task_struct", &[&["files"]]),
    (|o| &mut o.task_pid, "task_struct", &[&["pid"]]),
    (|o| &mut o.task_tgid, "task_struct", &[&["tgid"]]),
    (|o| &mut o.task_state, "task_struct", &[&["__state"], &["state"]]),
    (|o| &mut o.task_exec_start, "task_struct", &[&["se", "exec_start"]]),
    (|o| &mut o.task_comm, "task_struct", &[&["comm"]]),
    (|o| &mut o.task_real_parent, "task_struct", &[&["real_parent"]]),
    (|o| &mut o.task_signal, "task_struct", &[&["signal"]]),
    (|o| &mut o.task_cpu, "task_struct", &[&["thread_info", "cpu"], &["cpu"]]),
    (|o| &mut o.task_restart_fn, "task_struct", &[&["restart_block", "fn"]]),
    (|o| &mut o.task_run_delay, "task_struct", &[&["sched_info", "run_delay"]]),
    (|o| &mut o.task_sum_exec, "task_struct", &[&["se", "sum_exec_runtime"]]),
    (|o| &mut o.signal_live, "signal_struct", &[&["live"]]),
    (|o| &mut o.files_fdt, "files_struct", &[&["fdt"]]),
    (|o| &mut o.fdtable_fd, "fdtable", &[&["fd"]]),
    (|o| &mut o.fdtable_max_fds, "fdtable", &[&["max_fds"]]),
    (|o| &mut o.file_private_data, "file", &[&["private_data"]]),
    (|o| &mut o.file_inode, "file", &[&["f_inode"]]),
    (|o| &mut o.file_flags, "file", &[&["f_flags"]]),
    (|o| &mut o.inode_mode, "inode", &[&["i_mode"]]),
    (|o| &mut o.inode_ino, "inode", &[&["i_ino"]]),
    (|o| &mut o.socket_sk, "socket", &[&["sk"]]),
    (|o| &mut o.socket_file, "socket", &[&["file"]]),
    (|o| &mut o.sock_family, "sock", &[&["__sk_common", "skc_family"]]),
    (|o| &mut o.sock_state, "sock", &[&["__sk_common", "skc_state"]]),
    (|o| &mut o.sock_daddr, "sock", &[&["__sk_common", "skc_daddr"]]),
    (|o| &mut o.sock_rcv_saddr, "sock", &[&["__sk_common", "skc_rcv_saddr"]]),
    (|o| &mut o.sock_dport, "sock", &[&["__sk_common", "skc_dport"]]),
    (|o| &mut o.sock_num, "sock", &[&["__sk_common", "skc_num"]]),
    (|o| &mut o.sock_v6_daddr, "sock", &[&["__sk_common", "skc_v6_daddr"]]),
    (|o| &mut o.sock_v6_rcv_saddr, "sock", &[&["__sk_common", "skc_v6_rcv_saddr"]]),
    (|o| &mut o.sock_type, "sock", &[&["sk_type"]]),
    (|o| &mut o.sock_protocol, "sock", &[&["sk_protocol"]]),
    (|o| &mut o.sock_err, "sock", &[&["sk_err"]]),
    (|o| &mut o.sock_socket, "sock", &[&["sk_socket"]]),
    (|o| &mut o.tcp_total_retrans, "tcp_sock", &[&["total_retrans"]]),
    (|o| &mut o.tcp_retrans_stamp, "tcp_sock", &[&["retrans_stamp"]]),
    (|o| &mut o.tcp_snd_wnd, "tcp_sock", &[&["snd_wnd"]]),
    (|o| &mut o.tcp_snd_una, "tcp_sock", &[&["snd_una"]]),
    (|o| &mut o.tcp_snd_nxt, "tcp_sock", &[&["snd_nxt"]]),
    (|o| &mut o.icsk_pending, "inet_connection_sock", &[&["icsk_pending"]]),
    (|o| &mut o.unix_peer, "unix_sock", &[&["peer"]]),
    (|o| &mut o.unix_addr, "unix_sock", &[&["addr"]]),
    (|o| &mut o.unix_address_len, "unix_address", &[&["len"]]),
    (|o| &mut o.unix_address_name, "unix_address", &[&["name"]]),
    (|o| &mut o.eventpoll_rbr, "eventpoll", &[&["rbr", "rb_root", "rb_node"], &["rbr", "rb_node"]]),
    (|o| &mut o.eventpoll_file, "eventpoll", &[&["file"]]),
    (|o| &mut o.epitem_rbn, "epitem", &[&["rbn"]]),
    (|o| &mut o.epitem_ffd, "epitem", &[&["ffd"]]),
    (|o| &mut o.epitem_event, "epitem", &[&["event"]]),
    (|o| &mut o.epoll_filefd_file, "epoll_filefd", &[&["file"]]),
    (|o| &mut o.epoll_filefd_fd, "epoll_filefd", &[&["fd"]]),
    (|o| &mut o.rb_right, "rb_node", &[&["rb_right"]]),
    (|o| &mut o.rb_left, "rb_node", &[&["rb_left"]]),
];

/// Structures that were renamed, members and all: the former name and, since Linux 7.3, the present one.
const RENAMED: &[(&str, &str)] = &[("epoll_filefd", "epoll_key")];

/// Offset of a member, whatever the kernel calls the structure.
fn offset_of(btf: &Btf, strukt: &str, path: &[&str]) -> Option<u32> {
    btf.member_offset(strukt, path).or_else(|| {
        let (_, present) = RENAMED.iter().find(|(former, _)| *former == strukt)?;
        btf.member_offset(present, path)
    })
}

/// Looks every member up. Those that this kernel lacks are `NO_OFFSET`.
pub fn find(btf: &Btf) -> Offsets {
    let mut offsets = Offsets::default();
    for (field, strukt, paths) in WANTED {
        *field(&mut offsets) =
            paths.iter().find_map(|path| offset_of(btf, strukt, path)).unwrap_or(NO_OFFSET);
    }
    offsets
}

/// Members that were not found, as `struct.member`, for messages.
pub fn missing(offsets: &Offsets) -> Vec<String> {
    let mut copy = *offsets;
    WANTED
        .iter()
        .filter(|(field, ..)| *field(&mut copy) == NO_OFFSET)
        .map(|(_, strukt, paths)| {
            format!("{strukt}.{}", paths.first().map(|path| path.join(".")).unwrap_or_default())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_field_is_looked_up_once() {
        let mut offsets = Offsets::default();
        let fields: HashSet<usize> =
            WANTED.iter().map(|(field, ..)| std::ptr::from_mut(field(&mut offsets)) as usize).collect();
        assert_eq!(fields.len(), WANTED.len());
        assert_eq!(WANTED.len(), size_of::<Offsets>() / 4);
    }

    #[test]
    fn an_empty_description_gives_no_offset_at_all() {
        let mut blob = Vec::new();
        blob.extend(0xeb9f_u16.to_ne_bytes());
        blob.extend([1, 0]);
        for field in [24_u32, 0, 0, 0, 1] {
            blob.extend(field.to_ne_bytes());
        }
        blob.push(0);
        let offsets = find(&Btf::parse(blob).unwrap());
        assert_eq!(missing(&offsets).len(), WANTED.len());
        assert_eq!(offsets.task_files, NO_OFFSET);
    }

    #[test]
    fn the_running_kernel_has_what_tells_a_socket() {
        // A machine without BTF cannot be recorded either; `doctor` says so.
        let Ok(btf) = Btf::from_kernel() else { return };
        let offsets = find(&btf);
        let missing: Vec<String> = missing(&offsets)
            .into_iter()
            .filter(|name| !name.starts_with("task_struct.thread_info"))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(offsets.fdtable_fd < 64 && offsets.sock_family < 64);
        assert_ne!(offsets.sock_v6_daddr, offsets.sock_v6_rcv_saddr);
    }
}
