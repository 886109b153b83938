//! What a command tells the user when it fails.

use std::io::{self, Write};
use std::path::Path;

use crate::demo::DemoError;
use crate::model::topology::TopologyError;
use crate::record::RecordError;
use crate::render::RenderError;
use crate::target::SelectError;
use crate::trace::TraceError;
use crate::trace::error::{FILE_LIMIT, no_place};

/// Failed at run time.
pub const FAILED: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 2;
/// `diff --fail-above`: stalls became longer by more than is allowed.
pub const REGRESSION: u8 = 3;
/// `record -- COMMAND`: the recording failed, as against the command.
pub const RECORDING_FAILED: u8 = 125;

/// The end of a command that failed: `error: …`, then a `help: …` for each line of help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliError {
    /// One line. Empty: nothing is said, since nobody listens any more.
    pub message: String,
    pub help: Vec<String>,
    /// Exit status.
    pub code: u8,
}

impl CliError {
    pub fn new(message: impl Into<String>) -> CliError {
        CliError { message: message.into(), help: Vec::new(), code: FAILED }
    }

    pub fn usage(message: impl Into<String>) -> CliError {
        CliError { code: USAGE, ..CliError::new(message) }
    }

    /// The reader of standard output went away: `head` has seen enough. That is no failure.
    pub fn closed_pipe() -> CliError {
        CliError { message: String::new(), help: Vec::new(), code: 0 }
    }

    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> CliError {
        self.help.push(help.into());
        self
    }

    #[must_use]
    pub fn with_code(mut self, code: u8) -> CliError {
        self.code = code;
        self
    }

    /// A file or standard output that cannot be written.
    pub fn output(name: &str, error: &io::Error) -> CliError {
        let message = format!("cannot write {name}: {error}");
        let help = match error.kind() {
            io::ErrorKind::NotFound => no_place(Path::new(name)),
            io::ErrorKind::IsADirectory => "name a file inside of it with -o",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space, or choose a file on another disk with -o"
            }
            io::ErrorKind::FileTooLarge => FILE_LIMIT,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "choose a file in a writable folder with -o"
            }
            _ => "choose another file with -o",
        };
        CliError::new(message).with_help(help)
    }

    /// A topology file that cannot be used.
    pub fn topology(path: &Path, error: &TopologyError) -> CliError {
        let message = format!("{}: {error}", path.display());
        CliError::new(message)
            .with_help("the README shows the form of a topology file, with one [[rack]] for each rack")
    }

    /// Writes the lines. A standard error that is closed is ignored.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.message.is_empty() {
            return Ok(());
        }
        writeln!(out, "error: {}", one_line(&self.message))?;
        for help in &self.help {
            writeln!(out, "help: {}", one_line(help))?;
        }
        Ok(())
    }
}

/// Paths and names of other processes can hold anything: no control character reaches the terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

impl From<TraceError> for CliError {
    fn from(error: TraceError) -> CliError {
        CliError::from(&error)
    }
}

impl From<&TraceError> for CliError {
    fn from(error: &TraceError) -> CliError {
        CliError { message: error.to_string(), help: error.help().into_iter().collect(), code: FAILED }
    }
}

impl From<RecordError> for CliError {
    fn from(error: RecordError) -> CliError {
        CliError {
            message: crate::probes::one_line(&error),
            help: error.help().into_iter().collect(),
            code: FAILED,
        }
    }
}

impl From<SelectError> for CliError {
    fn from(error: SelectError) -> CliError {
        CliError::new(error.to_string()).with_help(error.help())
    }
}

impl From<RenderError> for CliError {
    fn from(error: RenderError) -> CliError {
        let help = match &error {
            RenderError::UnknownRank { .. } => "leave --rank out to see all processes",
            RenderError::UnknownThread { .. } => "`stallscope report` lists the threads with their ids",
            RenderError::TooLarge => "the trace is damaged: `stallscope report` says where",
            RenderError::Write(source) => return CliError::output("the output", source),
        };
        CliError::new(error.to_string()).with_help(help)
    }
}

impl From<DemoError> for CliError {
    fn from(error: DemoError) -> CliError {
        let help = match &error {
            DemoError::IpMissing { .. } => "apt-get install iproute2",
            _ if !nix::unistd::geteuid().is_root() => {
                "the demo makes network namespaces: run it as root (sudo)"
            }
            DemoError::Namespace { .. } | DemoError::Ip { .. } => {
                "the demo needs a kernel and a container that allow network namespaces and veth"
            }
            _ => "`stallscope doctor` shows what this machine allows",
        };
        CliError::new(error.to_string()).with_help(help)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(error: &CliError) -> String {
        let mut out = Vec::new();
        error.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_error_is_a_line_with_help_below() {
        let error = CliError::from(TraceError::IsDirectory { path: "/tmp".into() });
        assert_eq!(
            lines(&error),
            "error: /tmp is a directory, not a trace file\nhelp: name a file inside of it\n"
        );
        assert_eq!(error.code, 1);
    }

    #[test]
    fn names_cannot_break_out_of_their_line() {
        let error = CliError::from(TraceError::Empty { path: "a\n\u{1b}[31mb".into() });
        assert!(lines(&error).starts_with("error: a\u{fffd}\u{fffd}[31mb is empty"), "{}", lines(&error));
    }

    #[test]
    fn a_closed_pipe_says_nothing() {
        assert_eq!(lines(&CliError::closed_pipe()), "");
        assert_eq!(CliError::closed_pipe().code, 0);
    }
}
