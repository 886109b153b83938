//! DNS as it was seen on the target's sockets: messages decoded ([`message`]), TCP streams put together
//! again ([`stream`]), queries matched with their answers ([`exchange`]).

pub mod exchange;
pub mod lookup;
pub mod message;
pub mod name;
pub mod query;
pub mod stream;
pub mod unsent;

/// Port of the servers that are watched.
pub const PORT: u16 = 53;
