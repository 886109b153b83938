//! What a trace means: threads, spans, peers and causes, without any view of them.

pub mod cause;
