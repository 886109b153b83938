//! Plain records and identifiers shared by the eBPF programs and userspace.
//!
//! Everything here is `#[repr(C)]`, has no padding that is not named, and has its size asserted at
//! compile time: both sides are built by different compilers for different targets. All integers are
//! in host byte order unless a field says otherwise; all times are nanoseconds of `CLOCK_MONOTONIC`.

#![no_std]

pub mod agent;
pub mod call;
pub mod config;
pub mod counter;
pub mod cuda;
pub mod marker;
pub mod rdma_kernel;
pub mod record;
pub mod stack;
pub mod table;
pub mod verbs;

pub use call::{Api, Call};
pub use config::{Offsets, Settings, Target};
pub use counter::{CallTotals, Loss};
pub use record::{
    ApiRecord, DnsRecord, HandshakeRecord, Header, LifeRecord, RecordKind, RetransmitRecord, SockRecord,
    StackRecord, WaitRecord,
};
pub use stack::{Shape, ShapeKey, Shapes};
pub use table::{NonblockingKey, NonblockingWait, SampleCounts, SampleKey};
