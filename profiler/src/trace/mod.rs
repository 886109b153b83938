//! The trace file: what it holds ([`record`]), how it is written and read.

pub mod ids;
pub mod record;
