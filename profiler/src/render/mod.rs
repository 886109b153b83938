//! Views of an analysis: flame graphs, folded stacks, text, JSON, HTML.
//!
//! Every view is a pure function from [`Analysis`](crate::analysis::Analysis) to bytes and gives the same
//! bytes for the same analysis. Names come from the recorded machine and are hostile: [`name`] makes them
//! fit for each format.

use std::io;

use thiserror::Error;

pub mod diff;
pub mod flame;
pub mod folded;
pub mod html;
pub mod json;
pub mod name;
mod note;
mod section;
mod table;
pub mod text;
pub mod tree;
pub mod unit;

#[derive(Debug, Error)]
pub enum RenderError {
    /// `known` lists the ranks of the trace.
    #[error("no rank {rank} in this trace ({known})")]
    UnknownRank { rank: u32, known: String },
    #[error("no thread {tid} in this trace")]
    UnknownThread { tid: u32 },
    /// Only a damaged or forged trace has such times.
    #[error("the stalls of this trace add up to more than 2^63 ns")]
    TooLarge,
    #[error("cannot write the view")]
    Write(#[from] io::Error),
}

impl From<RenderError> for io::Error {
    fn from(error: RenderError) -> io::Error {
        match error {
            RenderError::Write(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidInput, other),
        }
    }
}
