//! What can keep a recording from beginning, or end it early.

use std::ffi::OsString;
use std::io;

use crate::probes::ProbeError;
use crate::target::SelectError;
use crate::target::marker::MarkerError;
use crate::trace::error::TraceError;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Marker(#[from] Box<MarkerError>),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("cannot run {}: {source}", program.display())]
    Command { program: OsString, source: io::Error },
    #[error(
        "no more than {limit} files may be open at once (RLIMIT_NOFILE), which is too few for the probes"
    )]
    OpenFiles { limit: u64 },
    #[error("all targets ended before the recording began")]
    TargetsGone,
    #[error("cannot start the recorder's {what}: {source}")]
    Start { what: &'static str, source: io::Error },
}

impl RecordError {
    /// What the user can do about it, where something can be done.
    pub fn help(&self) -> Option<String> {
        match self {
            RecordError::Select(error) => Some(error.help()),
            RecordError::Probe(error) => Some(probe_help(error).to_owned()),
            RecordError::Trace(error) => error.help(),
            RecordError::Marker(error) => Some(error.help()),
            RecordError::Command { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("give the program's path, or check PATH".to_owned())
            }
            RecordError::Command { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("make it executable (chmod +x), or name its interpreter first".to_owned())
            }
            RecordError::OpenFiles { .. } => Some("run it where `ulimit -Hn` says 1024 or more".to_owned()),
            RecordError::TargetsGone => {
                Some("start the program under stallscope: `stallscope record -- COMMAND`".to_owned())
            }
            RecordError::Command { source, .. } | RecordError::Start { source, .. } => {
                match source.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE) => Some("run it where `ulimit -n` says 1024 or more".to_owned()),
                    Some(libc::EAGAIN) => Some("run it where more threads (`ulimit -u`, the container's pids limit) or more memory (`ulimit -v`) are allowed".to_owned()),
                    Some(libc::ENOMEM) => Some("run it where more memory is allowed (`ulimit -v`), or on a machine with more of it".to_owned()),
                    _ => None,
                }
            }
        }
    }
}

fn probe_help(error: &ProbeError) -> &'static str {
    match error {
        ProbeError::NoPrograms => "`cargo xtask build` makes the eBPF programs and the binary around them",
        ProbeError::PidNamespace => "on the host, name the process by the id that the host shows",
        ProbeError::KernelTypes(_) => "a kernel with CONFIG_DEBUG_INFO_BTF is needed (5.8 or newer)",
        _ if !nix::unistd::geteuid().is_root() => "run it as root (sudo)",
        _ => "`stallscope doctor` shows what this machine allows",
    }
}
