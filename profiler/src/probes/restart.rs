//! Calls that a signal or a debugger interrupted go on inside `restart_syscall`, whose number does not say which call it
//! was: the kernel function that goes on with it does. Somebody who looked at a hanging job with a debugger before
//! stallscope left its polling threads like that.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, MapError};
use profiler_common::Call;

/// Functions by name, and the call that each goes on with.
const FUNCTIONS: [(&str, Call); 4] = [
    ("do_restart_poll", Call::Poll),
    ("hrtimer_nanosleep_restart", Call::ClockNanosleep),
    ("posix_cpu_nsleep_restart", Call::ClockNanosleep),
    ("futex_wait_restart", Call::Futex),
];

/// Threads looked at in a process at most.
const THREADS: usize = 4096;

/// Whether a thread of one of the processes is in `restart_syscall` now.
pub(super) fn is_needed(pids: &[u32]) -> bool {
    let number = libc::SYS_restart_syscall.to_string();
    pids.iter().any(|pid| {
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
        threads.filter_map(Result::ok).take(THREADS).any(|thread| {
            fs::read_to_string(thread.path().join("syscall"))
                .is_ok_and(|text| text.split_whitespace().next() == Some(&number))
        })
    })
}

/// Tells the programs the functions' addresses. Without them such threads are left out of the snapshot.
pub(super) fn fill(ebpf: &mut Ebpf) {
    let Ok(kallsyms) = File::open("/proc/kallsyms") else { return };
    let found = find(BufReader::new(kallsyms));
    if let Err(error) = write(ebpf, &found) {
        log::debug!("restarted calls stay unknown: {error}");
    }
}

fn write(ebpf: &mut Ebpf, found: &[(u64, Call)]) -> Result<(), MapError> {
    let Some(map) = ebpf.map_mut("RESTARTS") else { return Ok(()) };
    let mut table: HashMap<&mut MapData, u64, u32> = map.try_into()?;
    found.iter().try_for_each(|(address, call)| table.insert(address, *call as u32, 0))
}

/// Addresses of [`FUNCTIONS`] in the text of a `/proc/kallsyms`. Hidden addresses are zero and left out.
fn find(kallsyms: impl BufRead) -> Vec<(u64, Call)> {
    let mut found = Vec::new();
    for line in kallsyms.lines() {
        let Ok(line) = line else { break };
        let mut words = line.split_whitespace();
        let (Some(address), Some(_), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if let Some((_, call)) = FUNCTIONS.iter().find(|(function, _)| *function == name)
            && let Ok(address) = u64::from_str_radix(address, 16)
            && address != 0
        {
            found.push((address, *call));
            if found.len() == FUNCTIONS.len() {
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_functions_among_all_symbols() {
        let text = "ffffffff81000000 T _text\n\
                    ffffffff8139a480 t do_restart_poll\n\
                    ffffffff8139a481 t do_restart_poll_not\n\
                    0000000000000000 t futex_wait_restart\n\
                    garbage\n\
                    ffffffff811c7b20 t hrtimer_nanosleep_restart\t[module]\n";
        let found = find(text.as_bytes());
        assert_eq!(
            found,
            [(0xffff_ffff_8139_a480, Call::Poll), (0xffff_ffff_811c_7b20, Call::ClockNanosleep)]
        );
    }

    #[test]
    fn a_process_that_is_gone_needs_nothing() {
        assert!(!is_needed(&[u32::MAX]));
    }
}
