//! Loads the eBPF programs, attaches them, and turns what they emit into [`event::Event`]s.

pub mod event;
