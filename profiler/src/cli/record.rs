//! `record`: runs the recorder, then prints a summary of what it found.

use std::io::Write;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use super::analysed::analysed;
use super::error::CliError;
use crate::model::topology::Topology;
use crate::record::{Narrator, RecordOptions, Recording, TargetChoice, record};
use crate::render::text;

struct Terminal;

impl Narrator for Terminal {
    fn opened(&mut self, what: &str) {
        eprintln!("recording {what}");
    }
}

/// Records, prints the summary to `out`, and returns the exit status: that of the command where one was
/// recorded, else 0.
pub fn run(
    options: &RecordOptions,
    topology: Option<Topology>,
    out: &mut dyn Write,
) -> Result<u8, CliError> {
    let recording = record(options, &mut Terminal)?;
    // What was recorded is shown even where its end could not be written.
    let summary = summarise(&options.output, topology, out);
    told(&recording, &options.output);
    if let Some(error) = recording.write_error {
        return Err(error.into());
    }
    summary?;
    Ok(status(&options.target, &recording))
}

fn summarise(path: &Path, topology: Option<Topology>, out: &mut dyn Write) -> Result<(), CliError> {
    let analysis = analysed(path, topology)?;
    text::write_summary(&analysis, out)?;
    Ok(())
}

fn told(recording: &Recording, path: &Path) {
    let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let lost = match recording.totals.lost {
        0 => "nothing lost".to_owned(),
        lost => format!("{lost} events lost"),
    };
    eprintln!(
        "recorded {} events, {lost}, {} in {}",
        recording.totals.events,
        crate::render::unit::bytes(size),
        path.display()
    );
    eprintln!("next: stallscope report {0}; stallscope flame {0} -o out.svg", path.display());
}

fn status(target: &TargetChoice, recording: &Recording) -> u8 {
    if !matches!(target, TargetChoice::Command(..)) {
        return 0;
    }
    match recording.command {
        // As a shell does: 128 and the signal's number.
        Some(status) => {
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            u8::try_from(code & 0xff).unwrap_or(1)
        }
        None => 0,
    }
}
