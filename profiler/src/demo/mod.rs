//! A real workload that stalls, in network namespaces; also the rig of the live tests.

pub mod clock;
pub mod dns_script;
pub mod dns_server;
pub mod error;
pub mod job;
pub mod link;
pub mod netns;
pub mod role;
pub mod workload;

pub use clock::monotonic_ns;
pub use dns_script::{Action, Rule};
pub use dns_server::{DnsServer, QueryRecord};
pub use error::DemoError;
pub use hickory_proto::rr::RecordType;
pub use job::{Demo, SLOW_ANSWER, SLOW_HOP};
pub use link::{LinkScript, SlowLink};
pub use netns::{Host, Namespace, Network};
pub use role::Role;
pub use workload::run_workload;
