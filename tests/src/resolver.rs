//! A host whose resolver is a scripted server on another host.

use std::time::{Duration, Instant};

use stallscope::demo::{DnsServer, Host, Network, RecordType, Rule};

use crate::check::require_root;
use crate::process::Program;

/// A client and a server that follows a script.
pub struct Resolver {
    pub client: Host,
    pub server: DnsServer,
    pub resolv_conf: String,
}

impl Resolver {
    /// The client's resolver waits one second for an answer and asks twice.
    ///
    /// # Panics
    /// When the rig cannot be made, for instance without root.
    pub fn start(rules: Vec<Rule>) -> Resolver {
        Resolver::with_options(rules, "options timeout:1 attempts:2")
    }

    /// The client's resolver has these `options` lines (see resolv.conf(5)); without any, it waits five
    /// seconds and asks twice.
    ///
    /// # Panics
    /// As [`Resolver::start`].
    pub fn with_options(rules: Vec<Rule>, options: &str) -> Resolver {
        require_root();
        let network = Network::new().expect("makes a network");
        let client = network.add_host(1).expect("makes a host");
        let host = network.add_host(53).expect("makes a host");
        let server =
            DnsServer::start(host.namespace(), host.address().into(), rules).expect("starts the server");
        let resolv_conf = format!("nameserver {}\n{options}\n", host.address());
        Resolver { client, server, resolv_conf }
    }

    /// Starts a workload program on the client.
    ///
    /// # Panics
    /// When it does not get ready.
    pub fn program(&self, arguments: &[&str]) -> Program {
        Program::start_resolving(&self.client, &self.resolv_conf, arguments)
    }

    /// Looks `name` up once; the result's name and the time in nanoseconds.
    ///
    /// # Panics
    /// When the program fails.
    pub fn look_up(&self, name: &str, family: &str) -> (String, u64) {
        let values = self.program(&["getaddrinfo", name, "1", "0", family]).run();
        (values.get("code"), values.ns())
    }

    /// Queries of a name that the server received: how many, and how many of them it answered.
    pub fn counts(&self, name: &str, qtype: RecordType) -> (usize, usize) {
        let queries = self.server.queries(name, qtype);
        (queries.len(), queries.iter().filter(|query| query.answered_ns.is_some()).count())
    }

    /// The server's time from query to answer, summed over a name and type.
    pub fn served_ns(&self, name: &str, qtype: RecordType) -> u64 {
        let queries = self.server.queries(name, qtype);
        queries.iter().filter_map(|query| Some(query.answered_ns? - query.received_ns)).sum()
    }

    /// Waits until a query has come: when, `CLOCK_MONOTONIC`.
    ///
    /// # Panics
    /// When none comes.
    pub fn wait_asked(&self) -> u64 {
        let give_up = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(query) = self.server.log().last() {
                return query.received_ns;
            }
            assert!(Instant::now() < give_up, "no query came");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// `ip:port` of the server, as in reports.
    pub fn server_name(&self) -> String {
        self.server.address().to_string()
    }
}
