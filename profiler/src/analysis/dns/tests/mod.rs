//! Scenes as resolvers play them, with real messages.

pub(crate) mod script;

mod earlier;
mod ladder;
mod outcome;
mod random;
mod whole;
