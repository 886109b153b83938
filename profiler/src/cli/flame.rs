//! `stallscope flame`.

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;

use super::args::{FilterArgs, FlameArgs};
use super::error::CliError;
use super::load::{leave, load_stacks};
use super::output::{keep_inputs, write_output};
use crate::render::flame::write_svg;
use crate::render::tree::{FlameOptions, View};

pub fn run(args: &FlameArgs) -> Result<(), CliError> {
    if args.output.is_none() && stdout().is_terminal() {
        let error = CliError::usage("the picture would go to the terminal");
        return Err(error.with_help("name a file: -o flame.svg; or -o - if the terminal is meant"));
    }
    let inputs = std::iter::once(&args.trace).chain(&args.topology).map(PathBuf::as_path);
    keep_inputs(args.output.as_deref(), inputs)?;
    let analysis = load_stacks(&args.trace, args.topology.as_deref())?;
    let options = flame_options(args.view, &args.filter);
    write_output(args.output.as_deref(), |out| write_svg(&analysis, &options, out))?;
    leave(analysis);
    Ok(())
}

fn flame_options(view: View, filter: &FilterArgs) -> FlameOptions {
    FlameOptions { view, cause: filter.cause, tid: filter.tid, rank: filter.rank, ..FlameOptions::default() }
}
