//! Hosts of a private network: anonymous network namespaces around a bridge.
//!
//! Nothing of the machine's own configuration is touched: the namespaces have no names, exist only as
//! descriptors of this process and vanish with it, however it ends. Links are made with `ip` inside of them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};
use serde_json::Value;

use super::error::DemoError;
use super::role::Role;

/// How long a new link may take to pass packets; the kernel's link watcher can wait for a second.
const LINK_PATIENCE: Duration = Duration::from_secs(30);

/// An anonymous network namespace, alive as long as this descriptor or a process in it.
#[derive(Clone, Debug)]
pub struct Namespace {
    fd: Arc<OwnedFd>,
}

impl Namespace {
    /// Makes a namespace with its loopback device up. Needs `CAP_SYS_ADMIN`.
    pub fn new() -> Result<Namespace, DemoError> {
        // unshare() moves the calling thread for good, so a short-lived one does it.
        let made = std::thread::scope(|scope| {
            let maker = std::thread::Builder::new().name("netns".into()).spawn_scoped(scope, || {
                unshare(CloneFlags::CLONE_NEWNET)?;
                File::open("/proc/thread-self/ns/net")
            })?;
            maker.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes it died")))
        });
        let file = made.map_err(|source| DemoError::Namespace { source })?;
        let namespace = Namespace { fd: Arc::new(file.into()) };
        namespace.ip("link set lo up\n")?;
        Ok(namespace)
    }

    /// Takes over a descriptor of a namespace that another process made.
    pub fn from_fd(fd: OwnedFd) -> Namespace {
        Namespace { fd: Arc::new(fd) }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Runs `body` on a thread inside the namespace; sockets made there stay there.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, DemoError> {
        std::thread::scope(|scope| {
            let inside = std::thread::Builder::new().name("netns".into()).spawn_scoped(scope, || {
                setns(self.fd(), CloneFlags::CLONE_NEWNET)?;
                Ok(body())
            })?;
            match inside.join() {
                Ok(result) => result,
                // A failed assertion of a test inside the namespace is the caller's failure.
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
        .map_err(|source: io::Error| DemoError::Namespace { source })
    }

    /// Runs the lines of `batch` through `ip -batch` inside the namespace.
    pub fn ip(&self, batch: &str) -> Result<(), DemoError> {
        self.run_ip(&["-batch", "-"], batch).map(drop)
    }

    /// What `ip` knows of the network interface `name`.
    fn link(&self, name: &str) -> Result<Value, DemoError> {
        let text = self.run_ip(&["-json", "-details", "link", "show", "dev", name], "")?;
        let links: Value = serde_json::from_slice(&text).unwrap_or_default();
        Ok(links.get(0).cloned().unwrap_or_default())
    }

    fn run_ip(&self, arguments: &[&str], input: &str) -> Result<Vec<u8>, DemoError> {
        let mut command = Command::new("ip");
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let fd = self.fd.as_raw_fd();
        // SAFETY: setns is a bare system call on a descriptor that outlives the spawn; nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                if libc::setns(fd, libc::CLONE_NEWNET) == 0 {
                    Ok(())
                } else {
                    Err(io::Error::last_os_error())
                }
            });
        }
        let failed = |source| DemoError::IpMissing { source };
        let mut child = command.spawn().map_err(failed)?;
        if let Some(mut pipe) = child.stdin.take() {
            // ip may leave early on an error; its own message says more than a broken pipe.
            let _ = pipe.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().map_err(failed)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let commands = if input.is_empty() { arguments.join(" ") } else { input.to_owned() };
        Err(DemoError::Ip { commands, message })
    }

    /// Writes a setting below `/proc/sys/net` of this namespace, `ipv4/tcp_syn_retries` for instance.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<(), DemoError> {
        let path = format!("/proc/sys/net/{name}");
        self.run(|| std::fs::write(&path, value))?.map_err(|source| DemoError::Write { path, source })
    }
}

/// Hosts on one link: `10.77.0.n/24` and `fd77::n/64` for host number `n`.
#[derive(Debug)]
pub struct Network {
    switch: Namespace,
}

impl Network {
    pub fn new() -> Result<Network, DemoError> {
        let switch = Namespace::new()?;
        switch.ip("link add br0 type bridge stp_state 0 mcast_snooping 0\nlink set br0 up\n")?;
        Ok(Network { switch })
    }

    /// Adds a host with number `number`, linked to all others.
    pub fn add_host(&self, number: u8) -> Result<Host, DemoError> {
        if number == 0 || number == 255 {
            return Err(DemoError::HostNumber { number });
        }
        let namespace = Namespace::new()?;
        let target = format!("/proc/{}/fd/{}", std::process::id(), namespace.fd.as_raw_fd());
        self.switch.ip(&format!(
            "link add port{number} type veth peer name eth0 netns {target}\n\
             link set port{number} master br0 up\n"
        ))?;
        let host = Host { namespace, switch: self.switch.clone(), number };
        host.namespace.ip(&format!(
            "link set eth0 up\naddr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\n",
            host.address(),
            host.address6()
        ))?;
        self.wait_for_link(&host)?;
        Ok(host)
    }

    pub(super) fn switch(&self) -> &Namespace {
        &self.switch
    }

    /// Waits until the bridge lets packets through at a port of its own.
    pub(super) fn wait_for_port(&self, port: &str) -> Result<(), DemoError> {
        Self::wait_until(port, || self.forwards(port))
    }

    /// Waits until packets pass between the host and the bridge. Both ends are up at once, but the kernel lets
    /// packets through only when its link watcher has seen that, which it does at most once a second while links
    /// come and go; packets until then vanish, and a first query would cost its sender a time-out.
    fn wait_for_link(&self, host: &Host) -> Result<(), DemoError> {
        let port = format!("port{}", host.number);
        Self::wait_until(&port, || {
            Ok(self.forwards(&port)? && host.namespace.link("eth0")?["operstate"] == "UP")
        })
    }

    fn forwards(&self, port: &str) -> Result<bool, DemoError> {
        let link = self.switch.link(port)?;
        Ok(link.pointer("/linkinfo/info_slave_data/state").is_some_and(|state| state == "forwarding"))
    }

    fn wait_until(port: &str, is_up: impl Fn() -> Result<bool, DemoError>) -> Result<(), DemoError> {
        let give_up = Instant::now() + LINK_PATIENCE;
        while !is_up()? {
            if Instant::now() > give_up {
                return Err(DemoError::LinkDown { port: port.to_owned() });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// One host of a [`Network`].
#[derive(Clone, Debug)]
pub struct Host {
    namespace: Namespace,
    switch: Namespace,
    number: u8,
}

impl Host {
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number)
    }

    pub fn address6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(self.number))
    }

    /// Runs `body` on a thread inside the host.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, DemoError> {
        self.namespace.run(body)
    }

    /// Packets to `address` of the link are sent and nobody ever answers: its neighbour entry names a
    /// card that does not exist.
    pub fn make_silent(&self, address: IpAddr) -> Result<(), DemoError> {
        self.namespace
            .ip(&format!("neigh replace {address} lladdr 02:77:00:00:de:ad nud permanent dev eth0\n"))
    }

    /// Packets to `address` are refused by this host's own routing with `EHOSTUNREACH`, at once.
    pub fn make_unreachable(&self, address: IpAddr) -> Result<(), DemoError> {
        self.namespace.ip(&format!("route replace unreachable {address}\n"))
    }

    /// Takes the host's port off the bridge: packets vanish both ways while the link stays up.
    pub fn unplug(&self) -> Result<(), DemoError> {
        self.switch.ip(&format!("link set port{} nomaster\n", self.number))
    }

    /// Puts the port back.
    pub fn plug(&self) -> Result<(), DemoError> {
        self.switch.ip(&format!("link set port{} master br0\n", self.number))
    }

    /// A program to be run on this host.
    pub fn role(&self, program: impl AsRef<OsStr>) -> Role {
        Role::new(program, self.namespace.clone())
    }
}
