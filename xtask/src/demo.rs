//! Builds everything and runs the demo.

use std::process::Command;

use anyhow::Result;

use crate::{build, paths, run};

#[derive(clap::Args)]
pub struct Options {}

pub fn run(_: &Options) -> Result<()> {
    build::run(&build::Options::default())?;
    let folder = paths::root().join("demo");
    run::run(Command::new(paths::stallscope()).arg("demo").arg("-o").arg(&folder).current_dir(paths::root()))
}
