//! Scenes as resolvers play them, with real messages.

mod script;

mod earlier;
mod ladder;
mod outcome;
mod random;

pub(crate) use script::{MS, SEC, Script};
