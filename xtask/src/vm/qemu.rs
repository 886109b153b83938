//! Starts a guest and reads what its tests say on the serial line.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::apt::Unpacked;
use super::kernel::Kernel;

/// The number of programs follows that the guest runs.
const PROGRAMS: &str = "vm-guest: programs ";

/// The line by which each of them ends; the number of assertions follows.
const COUNT: &str = "vm-guest: passed ";

/// Before a line that says what failed.
const FAILED: &str = "vm-guest: FAILED ";

/// Boots the kernel, shows the guest's lines, and returns how many assertions passed in all.
pub fn boot(kernel: &Kernel, initramfs: &Path, qemu: &Unpacked, limit_s: u64) -> Result<u64> {
    let share = qemu.root.join("usr/share");
    let mut command = qemu.command("qemu-system-x86_64", "usr/bin/qemu-system-x86_64");
    command
        .arg("-L")
        .arg(share.join("qemu"))
        .arg("-L")
        .arg(share.join("seabios"))
        .arg("-L")
        .arg(qemu.root.join("usr/lib/ipxe/qemu"))
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-M", "q35"])
        // Software emulation: it is there on every machine, and nested virtualisation was measured to be slower.
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1500M", "-serial", "stdio"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable"])
        // Parts of QEMU are loaded as it starts, emulation among them.
        .env("QEMU_MODULE_DIR", qemu.root.join("usr/lib/x86_64-linux-gnu/qemu"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    println!("vm: starting {}", kernel.release);
    let child = command.spawn().context("cannot start QEMU; --refresh unpacks its packages again")?;
    let mut guest = Guest(child);
    let said = guest.read(kernel.series.name(), Duration::from_secs(limit_s))?;
    said.verdict()
}

/// The process of a guest, ended in any case.
struct Guest(Child);

impl Guest {
    fn read(&mut self, name: &str, limit: Duration) -> Result<Said> {
        let output = self.0.stdout.take().context("no output of QEMU")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    break;
                }
            }
        });
        let end = Instant::now() + limit;
        let mut said = Said::default();
        loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    println!("  {name}: {line}");
                    said.take(&line);
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(said),
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "the guest was not done after {} s (--limit): its last lines are above",
                        limit.as_secs()
                    )
                }
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Default)]
struct Said {
    programs: Option<usize>,
    passed: Vec<u64>,
    failed: Vec<String>,
}

impl Said {
    fn take(&mut self, line: &str) {
        if let Some(what) = line.strip_prefix(FAILED) {
            self.failed.push(what.to_owned());
        } else if let Some(count) = line.strip_prefix(PROGRAMS) {
            self.programs = count.parse().ok();
        } else if let Some(count) = line.strip_prefix(COUNT) {
            self.passed.extend(count.parse::<u64>());
        }
    }

    fn verdict(&self) -> Result<u64> {
        if !self.failed.is_empty() {
            bail!("{} assertions failed: {}", self.failed.len(), self.failed.join("; "));
        }
        match self.programs {
            None => bail!("the guest did not come to its tests: its last lines are above"),
            Some(programs) if programs != self.passed.len() => {
                bail!(
                    "{} of the guest's {programs} programs ended with a count of assertions",
                    self.passed.len()
                )
            }
            Some(0) => bail!("the guest has no tests"),
            Some(_) if self.passed.contains(&0) => bail!("a program of the guest asserted nothing"),
            Some(_) => Ok(self.passed.iter().sum()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(lines: &[&str]) -> Result<u64> {
        let mut said = Said::default();
        for line in lines {
            said.take(line);
        }
        said.verdict()
    }

    #[test]
    fn the_counts_of_the_guest_s_programs_are_the_result() {
        let lines = ["booting", "vm-guest: programs 2", "vm-guest: passed 7", "vm-guest: passed 2"];
        assert_eq!(verdict(&lines).unwrap(), 9);
    }

    #[test]
    fn a_guest_without_a_count_fails() {
        assert!(verdict(&["Kernel panic", "vm-guest: passed many"]).is_err());
        assert!(verdict(&[]).is_err());
        assert!(verdict(&["vm-guest: passed 7"]).is_err());
        assert!(verdict(&["vm-guest: programs 0"]).is_err());
        assert!(verdict(&["vm-guest: programs 1", "vm-guest: passed 0"]).is_err());
    }

    #[test]
    fn a_program_of_the_guest_without_a_count_fails_the_run() {
        let error = verdict(&["vm-guest: programs 2", "vm-guest: passed 7"]).unwrap_err();
        assert!(error.to_string().contains("1 of the guest's 2"), "{error}");
    }

    #[test]
    fn one_failed_assertion_fails_the_run() {
        let lines = ["vm-guest: programs 1", "vm-guest: FAILED one is two", "vm-guest: passed 7"];
        let error = verdict(&lines).unwrap_err();
        assert!(error.to_string().contains("one is two"), "{error}");
    }
}
