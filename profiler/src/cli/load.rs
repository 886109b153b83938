//! From the path of a trace to its analysis.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::CliError;
use super::progress::Progress;
use crate::analysis::report::TraceState;
use crate::analysis::{Analysis, AnalysisOptions, analyse_with};
use crate::model::Model;
use crate::model::topology::Topology;
use crate::trace::TraceReader;

/// No topology file is larger; `/dev/zero` is.
const TOPOLOGY_MAX: u64 = 16 << 20;

/// Leaves what was read to the end of the process, which is near: giving it back piece by piece takes long for a large
/// trace.
pub(super) fn leave<T>(all: T) {
    std::mem::forget(all);
}

/// Reads and analyses a trace, as far as it can be read. Stalls that look the same are added up
/// ([`Analysis::merged`]), so that a trace of any length can be shown.
pub fn load_analysis(trace: &Path, topology: Option<&Path>) -> Result<Analysis, CliError> {
    let topology = topology.map(load_topology).transpose()?;
    load_with(trace, &AnalysisOptions { topology, merge_stalls: true, ..AnalysisOptions::default() })
}

/// The same for views by stacks, without the report's tables of causes, stalls and sockets.
pub fn load_stacks(trace: &Path, topology: Option<&Path>) -> Result<Analysis, CliError> {
    let topology = topology.map(load_topology).transpose()?;
    let options =
        AnalysisOptions { topology, merge_stalls: true, only_stacks: true, ..AnalysisOptions::default() };
    load_with(trace, &options)
}

/// The same with all options.
pub fn load_with(trace: &Path, options: &AnalysisOptions) -> Result<Analysis, CliError> {
    let progress = Progress::new(1);
    let (model, state) = load_model(trace, &progress)?;
    let half = progress.half();
    Ok(analyse_with(model, state, options, &|done, all| half.set(done, all)))
}

/// Reads a trace as far as it can be read, and tells how whole it was.
pub fn load_model(trace: &Path, progress: &Progress) -> Result<(Model, TraceState), CliError> {
    let mut reader = TraceReader::open(trace)?;
    // Of something without a length, as a pipe, nothing is shown.
    let size = std::fs::metadata(trace).map_or(0, |metadata| metadata.len());
    let half = progress.half();
    let model = Model::read(&mut reader, &|read| half.set(read.min(size), size));
    half.set(1, 1);
    Ok((model, reader.state()))
}

pub fn load_topology(path: &Path) -> Result<Topology, CliError> {
    let fail = |reason: String| {
        CliError::new(format!("cannot read the topology {}: {reason}", path.display()))
            .with_help("name a text file that lists racks and their hosts")
    };
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(TOPOLOGY_MAX + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(fail(error.to_string())),
        Ok(len) if len as u64 > TOPOLOGY_MAX => Err(fail("it is larger than 16 MiB".to_owned())),
        Ok(_) => {
            let text = String::from_utf8(bytes).map_err(|_| fail("it is no text".to_owned()))?;
            Topology::parse(&text).map_err(|error| CliError::topology(path, &error))
        }
    }
}
