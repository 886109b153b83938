//! Starts and stops the demo's workload.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::dns_script::{Action, Rule};
use super::dns_server::DnsServer;
use super::error::DemoError;
use super::link::{LinkScript, SlowLink};
use super::netns::{Host, Network};
use super::workload::{self, RANKS, READY, ROLES};

/// How late the slow resolver answers.
pub const SLOW_ANSWER: Duration = Duration::from_millis(400);
/// How late packets between the two racks are, each way.
pub const SLOW_HOP: Duration = Duration::from_millis(2);
/// Hosts with this number and above are in rack B.
const RACK_B: u8 = 3;
/// Number of the address where nobody is.
const DEAD_RESOLVER: u8 = 53;
const SLOW_RESOLVER: u8 = 54;

/// The running workload: one process to attach to, whose children do the roles. Stopped when dropped.
///
/// - `rank0` gathers 64 KiB from `rank1` to `rank3` over TCP, each step; `rank3` sends 60 ms late.
/// - `rank0` and `rank1` are in rack A, the others in rack B, and the way between the racks is 2 ms long.
/// - `lookup-dead` asks a resolver address where nobody answers.
/// - `lookup-slow` asks a resolver that answers after 400 ms.
pub struct Demo {
    job: Child,
    ready: Receiver<String>,
    resolver: DnsServer,
    link: Result<SlowLink, DemoError>,
    /// Keep the addresses alive.
    _hosts: Vec<Host>,
}

impl Demo {
    /// Starts the workload from this binary, which must hand `demo --role ROLE …` to
    /// [`workload::run_workload`]. Needs root and `ip`. The workload ends with the calling thread at the latest.
    pub fn start() -> Result<Demo, DemoError> {
        Demo::start_program(workload::own_program())
    }

    /// As [`Demo::start`], with the program that does the roles.
    pub fn start_program(program: impl AsRef<OsStr>) -> Result<Demo, DemoError> {
        let (network, other_rack) = (Network::new()?, Network::new()?);
        // Some containers have no /dev/net/tun: then all hosts are at one bridge, which is a job all the same.
        let link = match SlowLink::bridge(&network, &other_rack, LinkScript::delay(SLOW_HOP)) {
            Err(error) if !matches!(error, DemoError::Tun { .. }) => return Err(error),
            link => link,
        };
        let is_apart = link.is_ok();
        let rack = |number| if number >= RACK_B && is_apart { &other_rack } else { &network };
        let ranks: Vec<Host> =
            (1..=RANKS).map(|number| rack(number).add_host(number)).collect::<Result<_, _>>()?;
        let dead = network.add_host(RANKS + 1)?;
        let slow = network.add_host(RANKS + 2)?;
        let resolver_host = network.add_host(SLOW_RESOLVER)?;
        let mut nobody = dead.address().octets();
        nobody[3] = DEAD_RESOLVER;
        dead.make_silent(IpAddr::from(nobody))?;
        let rules = vec![Rule::new("", Action::Answer { delay: SLOW_ANSWER })];
        let resolver = DnsServer::start(resolver_host.namespace(), resolver_host.address().into(), rules)?;

        let root = ranks.first().map_or(dead.address(), Host::address);
        let mut hosts = ranks;
        hosts.extend([dead, slow]);
        let fds: Vec<i32> = hosts.iter().map(|host| host.namespace().fd().as_raw_fd()).collect();
        let arguments = workload::job_arguments(root, nobody.into(), resolver_host.address(), &fds);
        let rest: Vec<&str> = arguments.iter().map(String::as_str).collect();
        // The launcher sits on the root's host, as a launcher does.
        let launcher_host = hosts.first().unwrap_or(&resolver_host);
        let mut role = launcher_host
            .role(program)
            .args(workload::role_arguments(workload::job_role(), &rest))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        for host in &hosts {
            role = role.pass(host.namespace().fd());
        }
        let mut job = role.spawn()?;
        let ready = match job.stdout.take() {
            Some(stdout) => lines(stdout)?,
            None => return Err(DemoError::NotReady { reason: "it has no standard output".into() }),
        };
        hosts.push(resolver_host);
        Ok(Demo { job, ready, resolver, link, _hosts: hosts })
    }

    /// The process to attach to.
    pub fn pid(&self) -> u32 {
        self.job.id()
    }

    /// Waits until every role is at work.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<(), DemoError> {
        let until = Instant::now() + timeout;
        let mut missing = ROLES;
        while missing > 0 {
            match self.ready.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line == READY => missing -= 1,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let reason = format!("{missing} of {ROLES} processes are not at work after {timeout:?}");
                    return Err(DemoError::NotReady { reason });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let reason = "it ended, with its reason above".to_owned();
                    return Err(DemoError::NotReady { reason });
                }
            }
        }
        Ok(())
    }

    /// Which rank is in which rack, as a topology file.
    pub fn topology() -> String {
        let host = |number: u8| {
            let rack = if number < RACK_B { "A" } else { "B" };
            format!("10.77.0.{number} {rack}")
        };
        let hosts: Vec<String> = (1..=RANKS).map(host).collect();
        format!("# host rack\n{}\n", hosts.join("\n"))
    }

    /// The way between the racks, with the log of what went over it: from rack A to rack B and back. Or why there is
    /// none, and the hosts of both racks are near each other.
    pub fn link(&self) -> Result<&SlowLink, &DemoError> {
        self.link.as_ref()
    }

    /// The resolver that answers late, with the log of what it was asked.
    pub fn resolver(&self) -> &DnsServer {
        &self.resolver
    }

    /// Ends every process of the workload.
    pub fn stop(self) {}
}

impl Drop for Demo {
    fn drop(&mut self) {
        // The launcher ends its children when its standard input closes.
        drop(self.job.stdin.take());
        let _ = self.job.wait();
    }
}

/// Reads lines on a thread of their own, so that waiting for one can have a limit.
fn lines(output: impl std::io::Read + Send + 'static) -> Result<Receiver<String>, DemoError> {
    let (sender, receiver) = channel();
    let read = move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new()
        .name("demo-ready".into())
        .spawn(read)
        .map_err(|source| DemoError::Thread { source })?;
    Ok(receiver)
}
