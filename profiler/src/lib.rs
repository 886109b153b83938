//! A profiler for communication stalls in distributed GPU training.
//!
//! Everything after the kernel is one direction: collect, trace file, model, analysis, render.

// The recorder must survive whatever it meets, and so must what it watches.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::todo,
        clippy::unimplemented
    )
)]

pub mod agent;
pub mod analysis;
pub mod cli;
pub mod demo;
pub mod hash;
pub mod kernel;
pub mod model;
pub mod out_of_memory;
pub mod parallel;
pub mod probes;
pub mod random;
pub mod record;
pub mod render;
pub mod symbols;
pub mod target;
pub mod trace;
