//! The agent's library as a file, for jobs that are prepared for a recording (`CUDA_INJECTION64_PATH`).

use super::args::AgentArgs;
use super::error::CliError;
use super::output::write_output;
use crate::agent::{AgentError, library};

pub fn run(args: &AgentArgs) -> Result<(), CliError> {
    let bytes = library().ok_or_else(|| CliError::new(AgentError::NotBuilt.to_string()))?;
    let name = args.write.to_string_lossy().into_owned();
    write_output(Some(&args.write), |out| {
        out.write_all(bytes).map_err(|error| CliError::output(&name, &error))
    })
}
