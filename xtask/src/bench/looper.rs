//! The measured loops. They run in a process of their own (`cargo xtask bench-loop`), pinned to one CPU, and print one
//! figure.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// `sendto` and `recvfrom` of 64 bytes on one UDP socket of the loopback interface
    Datagrams,
    /// Two threads that wake each other by a byte through a pipe: two switches, two of write and of read
    Switches,
    /// The same calls by one thread, which finds its own byte and never sleeps
    Bytes,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Datagrams => "datagrams",
            Kind::Switches => "switches",
            Kind::Bytes => "bytes",
        }
    }
}

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, value_enum, default_value_t = Kind::Datagrams)]
    kind: Kind,
    /// Iterations that are timed
    #[arg(long, default_value_t = 200_000)]
    iterations: u64,
    /// Iterations of datagrams a second at most; 0: as fast as it goes
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
    let spent = match options.kind {
        Kind::Datagrams => datagrams(options)?,
        Kind::Switches => switches(options)?,
        Kind::Bytes => bytes(options)?,
    };
    println!("ns_per_iteration {:.1}", spent.as_nanos() as f64 / options.iterations as f64);
    Ok(())
}

fn get_ready(options: &Options) -> Result<Instant> {
    println!("ready");
    if options.wait {
        std::io::stdin().read_line(&mut String::new()).context("standard input closed")?;
    }
    Ok(Instant::now())
}

fn datagrams(options: &Options) -> Result<Duration> {
    let socket = UdpSocket::bind("127.0.0.1:0").context("cannot bind a loopback socket")?;
    let address = socket.local_addr().context("the socket has no address")?;
    let started = get_ready(options)?;
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
    Ok(started.elapsed())
}

fn switches(options: &Options) -> Result<Duration> {
    let (from_here, to_there) = pipe().context("pipe")?;
    let (from_there, to_here) = pipe().context("pipe")?;
    let iterations = options.iterations;
    do_not_preempt()?;
    // It is pinned as its parent is, and polite as well.
    let partner = std::thread::spawn(move || pass_on(&from_here, &to_here, iterations));
    let started = get_ready(options)?;
    let before = switches_so_far()?;
    for _ in 0..iterations {
        give(&to_there)?;
        take(&from_there)?;
    }
    let spent = started.elapsed();
    let slept = switches_so_far()? - before;
    // Where somebody else has the processor in between, the answer may be there before anybody slept.
    ensure!(slept >= iterations * 2 * 85 / 100, "{slept} sleeps only in {iterations} rounds");
    drop(to_there);
    partner.join().map_err(|_| anyhow!("the partner ended badly"))??;
    Ok(spent)
}

/// From now on a thread that is woken up waits until the one that woke it sleeps. Otherwise it would often run at once,
/// and answer before anybody had gone to sleep.
fn do_not_preempt() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is a local's.
    let outcome = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const priority) };
    ensure!(outcome == 0, "sched_setscheduler: {}", std::io::Error::last_os_error());
    Ok(())
}

fn pass_on(from: &PipeReader, to: &PipeWriter, iterations: u64) -> Result<()> {
    for _ in 0..iterations {
        take(from)?;
        give(to)?;
    }
    Ok(())
}

fn bytes(options: &Options) -> Result<Duration> {
    let (reader, writer) = pipe().context("pipe")?;
    let started = get_ready(options)?;
    for _ in 0..2 * options.iterations {
        give(&writer)?;
        take(&reader)?;
    }
    Ok(started.elapsed())
}

fn give(mut to: &PipeWriter) -> Result<()> {
    to.write_all(&[1]).context("write")
}

fn take(mut from: &PipeReader) -> Result<()> {
    from.read_exact(&mut [0]).context("read")
}

/// How often threads of this process went to sleep.
fn switches_so_far() -> Result<u64> {
    // SAFETY: an all-zero rusage is valid, and the pointer is a local's.
    let (outcome, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), usage)
    };
    ensure!(outcome == 0, "getrusage: {}", std::io::Error::last_os_error());
    u64::try_from(usage.ru_nvcsw).context("switches")
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
