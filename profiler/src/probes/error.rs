//! What can go wrong with the probes as a whole. A family that cannot run alone is no error, see
//! [`super::ProbeSet::coverage`].

use std::error::Error;
use std::path::PathBuf;

use thiserror::Error;

use crate::kernel::btf::BtfError;

#[derive(Debug, Error)]
pub enum ProbeError {
    #[error("built without eBPF programs; build with cargo xtask build")]
    NoPrograms,
    #[error("this kernel does not describe its types")]
    KernelTypes(#[source] BtfError),
    #[error(
        "this process is in a PID namespace of its own: process ids would not match the kernel's; run it on the host"
    )]
    PidNamespace,
    #[error("cannot load the eBPF programs")]
    Load(#[source] Box<dyn Error + Send + Sync>),
    #[error("the eBPF object has no {name}; build it again")]
    Missing { name: &'static str },
    #[error("system calls cannot be watched: {reason}")]
    NothingRuns { reason: String },
    #[error("cannot add process {pid} as a target")]
    Target {
        pid: u32,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    #[error("process {pid} is the recorder itself")]
    OwnProcess { pid: u32 },
    #[error("resolver functions of {path} cannot be probed: {reason}")]
    Resolver { path: PathBuf, reason: String },
    #[error("blocked threads cannot be listed: {reason}")]
    Snapshot { reason: String },
}

/// An error and its causes on one line, each cause once: verifier logs and the like are cut to their first line.
pub(crate) fn one_line(error: &dyn Error) -> String {
    let mut text = first_line(error);
    let mut next = error.source();
    while let Some(source) = next {
        let line = first_line(source);
        if !text.contains(&line) {
            text = format!("{text}: {line}");
        }
        next = source.source();
    }
    text
}

fn first_line(error: &dyn Error) -> String {
    error.to_string().lines().next().unwrap_or_default().trim_end_matches([':', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_causes_fits_on_one_line() {
        let source = std::io::Error::other("permission denied\nverifier log …");
        let error = ProbeError::Load(Box::new(source));
        assert_eq!(one_line(&error), "cannot load the eBPF programs: permission denied");
    }

    #[test]
    fn a_cause_that_repeats_its_effect_is_named_once() {
        #[derive(Debug, Error)]
        #[error("outer: inner")]
        struct Outer(#[source] std::io::Error);
        assert_eq!(one_line(&Outer(std::io::Error::other("inner"))), "outer: inner");
    }
}
