//! What this kernel offers: BTF member offsets, attach kinds, capabilities.

pub mod btf;
pub mod features;
pub mod offsets;
mod probe_load;
