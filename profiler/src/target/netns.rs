//! Doing something inside of a process's network namespace.

use std::fs::File;
use std::io;

use nix::sched::{CloneFlags, setns};

use super::root::{ProcRoot, ReadError};

/// Runs `work` on a thread of its own that has moved into the network namespace of `pid`, and returns
/// what it returned. Sockets that it opens keep serving that namespace afterwards.
///
/// # Errors
///
/// When the process is gone, or moving is not permitted (it needs `CAP_SYS_ADMIN`).
pub fn inside<T: Send + 'static>(
    root: &ProcRoot,
    pid: u32,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReadError> {
    let path = root.process_path(pid, "ns/net");
    let namespace = File::open(&path).map_err(|source| ReadError::new(&path, source))?;
    let moved = std::thread::Builder::new().name("stallscope-netns".into()).spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok::<T, io::Error>(work())
    });
    let result = moved.and_then(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("panicked"))));
    result.map_err(|source| ReadError::new(path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_has_no_namespace() {
        assert!(inside(&ProcRoot::default(), u32::MAX, || ()).unwrap_err().is_gone());
    }

    #[test]
    fn a_file_that_is_no_namespace_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("3/ns")).unwrap();
        std::fs::write(directory.path().join("3/ns/net"), "").unwrap();
        let error = inside(&ProcRoot::new(directory.path()), 3, || ()).unwrap_err();
        assert!(error.to_string().contains("3/ns/net"), "{error}");
    }
}
