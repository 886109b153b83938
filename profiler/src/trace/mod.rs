//! The trace file: what it holds ([`record`]), how it is written ([`writer`]) and read ([`reader`]).
//! `docs/trace-format.md` describes the bytes.

mod block;
mod budget;
mod columns;
pub mod error;
pub mod format;
pub mod gpu;
pub mod gpu_sync;
pub mod ids;
pub mod kind;
pub mod marker;
pub mod place;
pub mod rdma;
pub mod rdma_setup;
pub mod reader;
pub mod record;
mod sched_columns;
mod window;
pub mod writer;

pub use columns::rows::WaitBlock;
pub use error::TraceError;
pub use reader::{Piece, TraceReader, UNENDED, read_all};
pub use writer::TraceWriter;
