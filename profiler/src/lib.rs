//! A profiler for communication stalls in distributed GPU training.
//!
//! Everything after the kernel is one direction: collect, trace file, model, analysis, render.

pub mod analysis;
pub mod cli;
pub mod demo;
pub mod kernel;
pub mod model;
pub mod probes;
pub mod record;
pub mod render;
pub mod symbols;
pub mod target;
pub mod trace;
