//! `resolv.conf` as the resolver of glibc understands it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::root::{ProcRoot, ReadError, printable};
use super::rooted;

/// Bytes of a configuration file read at most.
pub const CONFIGURATION: usize = 64 * 1024;
/// Servers that glibc uses (`MAXNS`); later ones are ignored.
const SERVERS: usize = 3;
/// Upper limits that glibc puts on the options.
const TIMEOUT: u64 = 30;
const ATTEMPTS: u32 = 5;
const NDOTS: u32 = 15;
const PORT: u16 = 53;

/// Where and how often a name is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvConf {
    /// In the order they are asked; 127.0.0.1 where the file names none.
    pub servers: Vec<SocketAddr>,
    /// `servers` is the default, not from the file.
    pub default_server: bool,
    pub search: Vec<String>,
    /// Wait for the first server's answer. For the n-th one after it glibc doubles this n times and
    /// divides by the number of servers.
    pub timeout: Duration,
    /// Rounds through all servers.
    pub attempts: u32,
    /// Names with fewer dots are first tried with the search list.
    pub ndots: u32,
    pub rotate: bool,
    /// The other options, as written.
    pub options: Vec<String>,
}

impl Default for ResolvConf {
    fn default() -> ResolvConf {
        ResolvConf {
            servers: vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT)],
            default_server: true,
            search: Vec::new(),
            timeout: Duration::from_secs(5),
            attempts: 2,
            ndots: 1,
            rotate: false,
            options: Vec::new(),
        }
    }
}

impl ResolvConf {
    /// Reads the file that the process sees as `/etc/resolv.conf`; without one the defaults hold.
    pub fn read(root: &ProcRoot, pid: u32) -> Result<ResolvConf, ReadError> {
        let contents = rooted::read(root, pid, "/etc/resolv.conf", CONFIGURATION)?;
        Ok(ResolvConf::parse(&contents.bytes))
    }

    /// Lines that cannot be understood are passed over, as glibc does.
    pub fn parse(text: &[u8]) -> ResolvConf {
        let mut parsed = ResolvConf::default();
        let mut servers = Vec::new();
        for line in text.split(|byte| *byte == b'\n') {
            let line = printable(line).replace(char::REPLACEMENT_CHARACTER, " ");
            if line.starts_with(['#', ';']) {
                continue;
            }
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => servers.extend(words.next().and_then(server)),
                // The last of both wins.
                Some("search") => parsed.search = words.map(str::to_owned).collect(),
                Some("domain") => parsed.search = words.next().map(str::to_owned).into_iter().collect(),
                Some("options") => words.for_each(|option| parsed.set_option(option)),
                _ => {}
            }
        }
        servers.truncate(SERVERS);
        if !servers.is_empty() {
            parsed.servers = servers;
            parsed.default_server = false;
        }
        parsed
    }

    /// Applies `RES_OPTIONS` of the environment, which overrides the file.
    pub fn apply_options(&mut self, options: &str) {
        options.split_whitespace().for_each(|option| self.set_option(option));
    }

    fn set_option(&mut self, option: &str) {
        let (name, value) = option.split_once(':').unwrap_or((option, ""));
        let number = value.parse::<u32>().ok();
        match (name, number) {
            ("timeout", Some(seconds)) => self.timeout = Duration::from_secs(u64::from(seconds).min(TIMEOUT)),
            ("attempts", Some(count)) => self.attempts = count.min(ATTEMPTS),
            ("ndots", Some(count)) => self.ndots = count.min(NDOTS),
            ("rotate", _) => self.rotate = true,
            _ => {
                if !self.options.iter().any(|known| known == option) {
                    self.options.push(option.to_owned());
                }
            }
        }
    }

    /// One line that says all of it, for the trace's environment.
    pub fn summary(&self) -> String {
        let mut text = String::new();
        for server in &self.servers {
            text.push_str(&format!(
                "nameserver {}{}; ",
                server.ip(),
                if self.default_server { " (default)" } else { "" }
            ));
        }
        if !self.search.is_empty() {
            text.push_str(&format!("search {}; ", self.search.join(" ")));
        }
        text.push_str(&format!(
            "timeout {}s; attempts {}; ndots {}",
            self.timeout.as_secs(),
            self.attempts,
            self.ndots
        ));
        if self.rotate {
            text.push_str("; rotate");
        }
        for option in &self.options {
            text.push_str(&format!("; {option}"));
        }
        text
    }
}

/// An address, where it is a link-local one with its interface behind `%`, which is left out.
fn server(text: &str) -> Option<SocketAddr> {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    Some(SocketAddr::new(address.parse().ok()?, PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(conf: &ResolvConf) -> Vec<String> {
        conf.servers.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_empty_file_means_the_local_host_five_seconds_and_two_rounds() {
        let conf = ResolvConf::parse(b"");
        assert_eq!(addresses(&conf), ["127.0.0.1:53"]);
        assert!(conf.default_server);
        assert_eq!((conf.timeout, conf.attempts, conf.ndots), (Duration::from_secs(5), 2, 1));
    }

    #[test]
    fn reads_servers_search_and_options() {
        let conf = ResolvConf::parse(
            b"# comment\n;nameserver 9.9.9.9\nnameserver 127.0.0.53\n nameserver\t2001:db8::1 # x\n\
              nameserver nonsense\nnameserver fe80::1%eth0\nnameserver 10.0.0.4\n\
              domain old.example\nsearch a.example  b.example\n\
              options edns0 timeout:2 attempts:3 ndots:5 rotate trust-ad edns0\n",
        );
        assert_eq!(addresses(&conf), ["127.0.0.53:53", "[2001:db8::1]:53", "[fe80::1]:53"]);
        assert_eq!(conf.search, ["a.example", "b.example"]);
        assert_eq!((conf.timeout, conf.attempts, conf.ndots), (Duration::from_secs(2), 3, 5));
        assert!(conf.rotate);
        assert_eq!(
            conf.summary(),
            "nameserver 127.0.0.53; nameserver 2001:db8::1; nameserver fe80::1; search a.example b.example; \
             timeout 2s; attempts 3; ndots 5; rotate; edns0; trust-ad"
        );
    }

    #[test]
    fn values_are_limited_as_in_glibc_and_nonsense_leaves_the_default() {
        let conf = ResolvConf::parse(b"options timeout:4000 attempts:99 ndots:16\n");
        assert_eq!((conf.timeout, conf.attempts, conf.ndots), (Duration::from_secs(30), 5, 15));
        let conf =
            ResolvConf::parse(b"options timeout:x attempts:-1 ndots:99999999999\n\xff\x1b[2J\nsearch\n");
        assert_eq!((conf.timeout, conf.attempts, conf.ndots), (Duration::from_secs(5), 2, 1));
        assert!(conf.search.is_empty());
        assert!(!conf.summary().contains('\x1b'));
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let mut conf = ResolvConf::parse(b"options timeout:2 attempts:3\n");
        conf.apply_options("timeout:1 use-vc");
        assert_eq!((conf.timeout, conf.attempts), (Duration::from_secs(1), 3));
        assert_eq!(conf.options, ["use-vc"]);
    }
}
