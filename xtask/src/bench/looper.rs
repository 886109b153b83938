//! The measured loop: `sendto` and `recvfrom` of 64 bytes on one UDP socket of the loopback interface.
//!
//! It runs in a process of its own (`cargo xtask bench-loop`), pinned to one CPU, and prints one figure.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

#[derive(clap::Args)]
pub struct Options {
    /// Iterations that are timed; each is one sendto and one recvfrom
    #[arg(long, default_value_t = 200_000)]
    iterations: u64,
    /// Iterations a second at most; 0: as fast as it goes
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// CPU to run on
    #[arg(long)]
    cpu: usize,
    /// Wait for a line on standard input before the timed part
    #[arg(long)]
    wait: bool,
}

pub fn run(options: &Options) -> Result<()> {
    pin(options.cpu)?;
    let socket = UdpSocket::bind("127.0.0.1:0").context("cannot bind a loopback socket")?;
    let address = socket.local_addr().context("the socket has no address")?;
    println!("ready");
    if options.wait {
        std::io::stdin().read_line(&mut String::new()).context("standard input closed")?;
    }
    let started = Instant::now();
    let mut bytes = [0u8; 64];
    for iteration in 0..options.iterations {
        socket.send_to(&bytes, address).context("sendto")?;
        let (length, _) = socket.recv_from(&mut bytes).context("recvfrom")?;
        ensure!(length == bytes.len(), "a datagram came back short");
        if let Some(due) = (iteration * 1_000_000_000).checked_div(options.rate) {
            let due = Duration::from_nanos(due);
            // Spinning, not sleeping: sleeps would be calls that the figures must not contain.
            while started.elapsed() < due {
                std::hint::spin_loop();
            }
        }
    }
    let spent = started.elapsed().as_nanos() as f64;
    println!("ns_per_iteration {:.1}", spent / options.iterations as f64);
    Ok(())
}

/// Ties this process to one CPU.
pub fn pin(cpu: usize) -> Result<()> {
    // SAFETY: an all-zero cpu_set_t is an empty set; CPU_SET stays inside it for the CPU numbers checked here.
    let outcome = unsafe {
        ensure!(cpu < libc::CPU_SETSIZE as usize, "no such CPU: {cpu}");
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    ensure!(outcome == 0, "cannot run on CPU {cpu}: {}", std::io::Error::last_os_error());
    Ok(())
}
