//! `demo`: runs a real workload that stalls, records it, and leaves a flame graph and a report.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use super::analysed::analysed;
use super::error::CliError;
use super::output::write_file;
use super::record;
use crate::demo::Demo;
use crate::record::{RecordOptions, TargetChoice};
use crate::render::{flame, text, tree::FlameOptions};

const DURATION: Duration = Duration::from_secs(10);
/// The workload's processes are at work after a second; a busy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Leaves `demo.stall`, `flame.svg` and `report.txt` in `folder`.
pub fn run(folder: &Path, out: &mut dyn Write) -> Result<u8, CliError> {
    fs::create_dir_all(folder).map_err(|source| CliError::file("create the folder", folder, &source))?;
    let trace = folder.join("demo.stall");
    eprintln!(
        "starting the demo: a resolver where nobody answers, one that answers late, and four ranks of which one sends late"
    );
    let mut demo = Demo::start()?;
    demo.wait_ready(PATIENCE)?;
    let options = RecordOptions {
        target: TargetChoice::Pids(vec![demo.pid()]),
        duration: Some(DURATION),
        output: trace.clone(),
        min_stall: Duration::from_micros(100),
        follow: true,
        unavailable: Vec::new(),
        dns: true,
        verbose: false,
    };
    let status = record::run(&options, None, out)?;
    demo.stop();
    let analysis = analysed(&trace, None)?;
    write_file(&folder.join("flame.svg"), |file| {
        flame::write_svg(&analysis, &FlameOptions::default(), file).map_err(CliError::from)
    })?;
    write_file(&folder.join("report.txt"), |file| text::write_report(&analysis, file).map_err(CliError::from))?;
    writeln!(out, "\nlook at {0}/flame.svg and {0}/report.txt", folder.display())?;
    Ok(status)
}
