//! Unwinding of user stacks and names for addresses.
