//! What can go wrong with a trace file as a whole. Damage inside a file is no error: it is told by
//! [`TraceState`](crate::analysis::report::TraceState), and what lies around it is read.

use std::io;
use std::path::{Path, PathBuf};

use super::format::{MAJOR, MINOR};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    #[error("cannot open the trace {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot create the trace {}: {source}", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("{} is a directory, not a trace file", path.display())]
    IsDirectory { path: PathBuf },
    #[error("{} is empty, not a trace", path.display())]
    Empty { path: PathBuf },
    /// `looks_like` says what the file seems to be: `a text file`.
    #[error("{} is not a stallscope trace but {looks_like}", path.display())]
    NotATrace { path: PathBuf, looks_like: &'static str },
    #[error("{} ends inside its file header, after {bytes} bytes: it holds no records", path.display())]
    TruncatedHeader { path: PathBuf, bytes: u64 },
    #[error("{} has trace format {major}.{minor}; this stallscope reads up to {MAJOR}.x", path.display())]
    NewerVersion { path: PathBuf, major: u16, minor: u16 },
    #[error(
        "{} has trace format {major}.{minor}, which was never released; this stallscope reads {MAJOR}.{MINOR}",
        path.display()
    )]
    OlderVersion { path: PathBuf, major: u16, minor: u16 },
    #[error("cannot read the trace {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file stays readable up to `bytes_written`.
    #[error(
        "cannot write the trace {} after {bytes_written} bytes: {source}; what was written before is readable",
        path.display()
    )]
    Write { path: PathBuf, bytes_written: u64, source: io::Error },
    /// A single record above the format's limits; it is not written, the trace goes on.
    #[error("a record of kind {kind} is too large for the trace ({bytes} bytes)")]
    RecordTooLarge { kind: &'static str, bytes: usize },
    #[error("cannot encode a record of kind {kind}: {source}")]
    Encode { kind: &'static str, source: postcard::Error },
}

/// What to do where a file may not grow any more.
pub(crate) const FILE_LIMIT: &str = "raise the limit on file sizes, `ulimit -f unlimited`";

/// What to do where the system says that a new file's path does not exist. So it does of a folder in which there can be no
/// files, as in `/proc`.
pub(crate) fn no_place(path: &Path) -> &'static str {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.unwrap_or(Path::new(".")).is_dir() {
        "no files can be made in this folder: choose a file in another one with -o"
    } else {
        "the folder does not exist: create it, or choose another file with -o"
    }
}

impl TraceError {
    /// What the user can do about it, where something can be done.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        let text = match self {
            TraceError::Open { source, .. } | TraceError::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => "name a file that `stallscope record -o FILE` wrote",
                io::ErrorKind::PermissionDenied => {
                    "traces are readable by their owner alone: read it as the user that recorded it"
                }
                _ => return None,
            },
            TraceError::Create { source, path } => match source.kind() {
                io::ErrorKind::NotFound => no_place(path),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    "choose a file in a writable folder with -o"
                }
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "free some space, or choose a file on another disk with -o"
                }
                io::ErrorKind::FileTooLarge => FILE_LIMIT,
                _ => "choose another file with -o",
            },
            TraceError::IsDirectory { .. } => "name a file inside of it",
            TraceError::Empty { .. } | TraceError::TruncatedHeader { .. } => {
                "the recording was stopped before anything was written: record again"
            }
            TraceError::NotATrace { .. } => "name a `.stall` file that `stallscope record` wrote",
            TraceError::NewerVersion { .. } => "read it with the stallscope that recorded it, or a newer one",
            TraceError::OlderVersion { .. } => "record again with this stallscope",
            TraceError::Write { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "free some space, or record to another disk with -o"
                }
                io::ErrorKind::FileTooLarge => FILE_LIMIT,
                io::ErrorKind::BrokenPipe => "the program that reads the trace has ended: record to a file",
                _ => "record to another file with -o",
            },
            TraceError::RecordTooLarge { .. } | TraceError::Encode { .. } => return None,
        };
        Some(text.to_owned())
    }
}
