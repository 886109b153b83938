//! From the path of a trace to its analysis.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::CliError;
use crate::analysis::{Analysis, AnalysisOptions, analyse_model};
use crate::model::Model;
use crate::model::topology::Topology;
use crate::trace::TraceReader;

/// No topology file is larger; `/dev/zero` is.
const TOPOLOGY_MAX: u64 = 16 << 20;

/// Reads and analyses a trace, as far as it can be read.
pub fn load_analysis(trace: &Path, topology: Option<&Path>) -> Result<Analysis, CliError> {
    let topology = topology.map(load_topology).transpose()?;
    load_with(trace, &AnalysisOptions { topology, ..AnalysisOptions::default() })
}

/// The same with all options.
pub fn load_with(trace: &Path, options: &AnalysisOptions) -> Result<Analysis, CliError> {
    let mut reader = TraceReader::open(trace)?;
    let model = Model::from_records(reader.by_ref());
    Ok(analyse_model(model, reader.state(), options))
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
