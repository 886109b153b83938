//! Numbers of the watched system calls on this machine's architecture.

use std::collections::HashMap;

use profiler_common::Call;

/// What stands in the map `CALLS` for `restart_syscall`: the call that the signal interrupted goes on.
pub const RESTART: u16 = profiler_common::call::RESTART_CALL;

/// Pairs of the kernel's number and ours. A call that the architecture lacks (`poll` on aarch64) is left out.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub fn numbers() -> Vec<(u32, u16)> {
    let numbers: Vec<(i64, u16)> = vec![
        (libc::SYS_connect, Call::Connect as u16),
        (libc::SYS_sendto, Call::Sendto as u16),
        (libc::SYS_sendmsg, Call::Sendmsg as u16),
        (libc::SYS_sendmmsg, Call::Sendmmsg as u16),
        (libc::SYS_recvfrom, Call::Recvfrom as u16),
        (libc::SYS_recvmsg, Call::Recvmsg as u16),
        (libc::SYS_recvmmsg, Call::Recvmmsg as u16),
        (libc::SYS_read, Call::Read as u16),
        (libc::SYS_write, Call::Write as u16),
        (libc::SYS_readv, Call::Readv as u16),
        (libc::SYS_writev, Call::Writev as u16),
        (libc::SYS_ppoll, Call::Ppoll as u16),
        (libc::SYS_pselect6, Call::Pselect6 as u16),
        (libc::SYS_epoll_pwait, Call::EpollPwait as u16),
        (libc::SYS_epoll_pwait2, Call::EpollPwait2 as u16),
        (libc::SYS_accept, Call::Accept as u16),
        (libc::SYS_accept4, Call::Accept4 as u16),
        (libc::SYS_close, Call::Close as u16),
        (libc::SYS_nanosleep, Call::Nanosleep as u16),
        (libc::SYS_clock_nanosleep, Call::ClockNanosleep as u16),
        (libc::SYS_futex, Call::Futex as u16),
        (libc::SYS_io_uring_enter, Call::IoUringEnter as u16),
        (libc::SYS_sendfile, Call::Sendfile as u16),
        (libc::SYS_splice, Call::Splice as u16),
        (libc::SYS_restart_syscall, RESTART),
    ];
    let numbers = numbers.into_iter().chain(OWN.iter().copied());
    numbers.filter_map(|(number, call)| Some((u32::try_from(number).ok()?, call))).collect()
}

/// Calls that not every architecture has.
#[cfg(target_arch = "x86_64")]
const OWN: &[(i64, u16)] = &[
    (libc::SYS_poll, Call::Poll as u16),
    (libc::SYS_select, Call::Select as u16),
    (libc::SYS_epoll_wait, Call::EpollWait as u16),
];
#[cfg(target_arch = "aarch64")]
const OWN: &[(i64, u16)] = &[];

/// Whether the call is watched for the sockets that it may be about.
pub fn is_of_sockets(call: u16) -> bool {
    let others = [Call::Nanosleep as u16, Call::ClockNanosleep as u16, Call::Futex as u16, RESTART];
    !others.contains(&call)
}

/// Nothing is watched on an architecture whose registers the programs cannot read.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn numbers() -> Vec<(u32, u16)> {
    Vec::new()
}

/// Watched calls by the kernel's number.
#[derive(Clone, Debug)]
pub struct CallNumbers(HashMap<u64, u16>);

impl CallNumbers {
    pub fn new() -> CallNumbers {
        CallNumbers(numbers().into_iter().map(|(number, call)| (number.into(), call)).collect())
    }

    /// The call with this number; `Call::None` where it goes on with an interrupted one, which then is any.
    pub fn call(&self, number: u64) -> Option<Call> {
        match *self.0.get(&number)? {
            RESTART => Some(Call::None),
            call => Some(Call::from_u16(call)),
        }
    }
}

impl Default for CallNumbers {
    fn default() -> CallNumbers {
        CallNumbers::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_number_and_no_call_stands_twice() {
        let numbers = numbers();
        let kernel: HashSet<u32> = numbers.iter().map(|(number, _)| *number).collect();
        let ours: HashSet<u16> = numbers.iter().map(|(_, call)| *call).collect();
        assert_eq!(kernel.len(), numbers.len());
        assert_eq!(ours.len(), numbers.len());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_call_has_its_number() {
        let ours: HashSet<u16> = numbers().iter().map(|(_, call)| *call).collect();
        for call in Call::ALL.into_iter().filter(|call| *call != Call::Uverbs) {
            assert!(ours.contains(&(call as u16)), "{}", call.name());
        }
    }

    #[test]
    fn numbers_fit_the_table_in_the_kernel() {
        assert!(numbers().iter().all(|(number, _)| *number < profiler_common::call::CALL_TABLE));
    }
}
