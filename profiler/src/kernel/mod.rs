//! What this kernel offers: BTF member offsets, attach kinds, capabilities.
