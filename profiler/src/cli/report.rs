//! `stallscope report`.

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;

use super::args::{ReportArgs, ReportFormat};
use super::error::CliError;
use super::load::{leave, load_topology, load_with};
use super::output::{keep_inputs, write_output};
use crate::analysis::AnalysisOptions;
use crate::analysis::findings::Thresholds;
use crate::render::RenderError;
use crate::render::html::write_html;
use crate::render::json::write_json;
use crate::render::text::{TextOptions, write_report_with};

pub fn run(args: &ReportArgs) -> Result<(), CliError> {
    let settings = [&args.topology, &args.thresholds].into_iter().flatten();
    let inputs = std::iter::once(&args.trace).chain(settings).map(PathBuf::as_path);
    keep_inputs(args.output.as_deref(), inputs)?;
    let thresholds = match &args.thresholds {
        Some(path) => Thresholds::read(path).map_err(|error| {
            CliError::new(format!("cannot read the thresholds: {error}"))
                .with_help("docs/findings.md lists the tables and names that the file may have")
        })?,
        None => Thresholds::default(),
    };
    let topology = args.topology.as_deref().map(load_topology).transpose()?;
    let analysis = load_with(&args.trace, &AnalysisOptions { topology, thresholds, merge_stalls: true })?;
    let colour = args.output.is_none() && colours_wanted();
    write_output(args.output.as_deref(), |out| match args.format {
        ReportFormat::Text => {
            write_report_with(&analysis, TextOptions { colour, ..TextOptions::default() }, out)
                .map_err(RenderError::from)
        }
        ReportFormat::Json => write_json(&analysis.report, out).map_err(RenderError::from),
        ReportFormat::Html => write_html(&analysis, out),
    })?;
    leave(analysis);
    Ok(())
}

/// A terminal, and no word against colours (<https://no-color.org>).
pub fn colours_wanted() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stdout().is_terminal() && !refused && !dumb
}
