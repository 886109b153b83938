//! The process under study: tree, maps, namespaces, libraries, sockets.
//!
//! Everything is read through a [`ProcRoot`]; what the target controls (its memory map, its files, its
//! names) is taken for hostile input: bounded, checked, and never able to lead out of the target's own
//! root. A process can vanish at any moment: errors say so (`is_gone`), and that is nothing to report.
//!
//! The recorder goes [`select`] → [`set`] and then, for each process that came in: [`traits`],
//! [`environment`], [`resolver`], [`sockets`].

pub mod blocked;
pub mod diag;
pub mod elf;
pub mod environment;
pub mod maps;
pub mod marker;
pub mod netlink;
pub mod netns;
pub mod owners;
pub mod place;
pub mod process;
pub mod resolv_conf;
pub mod resolver;
pub mod root;
pub mod rooted;
pub mod route;
mod sampler;
pub mod select;
pub mod set;
pub mod sockets;
pub mod traits;
pub mod verbs;

pub use environment::{Rank, rank_of};
pub use maps::{FileId, Mapping};
pub use resolv_conf::ResolvConf;
pub use resolver::{Flavour, ResolverLibraries, ResolverLibrary};
pub use root::{ProcRoot, ReadError, monotonic_ns};
pub use select::SelectError;
pub use set::{Change, TargetSet};
pub use sockets::SocketSamplers;
pub use traits::Traits;
