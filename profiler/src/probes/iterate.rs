//! Runs the iterator programs, which look at what exists already.

use std::io::Read;

use aya::Ebpf;
use aya::programs::{Iter, ProgramError};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::error::one_line;

/// Runs the iterator program `name` over everything it iterates over, and waits for it.
pub(super) fn run(ebpf: &mut Ebpf, name: &str) -> Result<(), String> {
    let program = ebpf.program_mut(name).ok_or_else(|| format!("no program {name}"))?;
    let mut file = open(program).map_err(|error| format!("{name}: {error}"))?;
    // The programs write to maps only; what is read here is nothing, and reading makes them run.
    let mut nothing = [0_u8; 4096];
    loop {
        match file.read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("{name}: {error}")),
        }
    }
}

fn open(program: &mut aya::programs::Program) -> Result<std::fs::File, String> {
    let attach = |error: ProgramError| one_line(&error);
    let program: &mut Iter = program.try_into().map_err(attach)?;
    let id = program.attach().map_err(attach)?;
    let link = program.take_link(id).map_err(attach)?;
    link.into_file().map_err(|error| one_line(&error))
}

/// Visits every processor that this thread may run on, for an instant. The scheduler stamps a task with its own
/// clock when it goes to sleep; the program on `sched_switch` sees this thread leave each processor, and notes how
/// that clock differs from `CLOCK_MONOTONIC` there. Where it cannot be done, ages of blocked threads are unknown.
pub(super) fn calibrate_clocks() {
    let own = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(own) else { return };
    for cpu in 0..CpuSet::count() {
        let mut one = CpuSet::new();
        if allowed.is_set(cpu).unwrap_or(false)
            && one.set(cpu).is_ok()
            && sched_setaffinity(own, &one).is_ok()
        {
            // Sleeping is what makes the switch.
            std::thread::sleep(std::time::Duration::from_micros(1));
        }
    }
    if let Err(error) = sched_setaffinity(own, &allowed) {
        log::debug!("affinity of the recorder's thread: {error}");
    }
}
