//! Where a result goes: standard output, or a file that is replaced as a whole.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::error::CliError;

/// Writes a result to `path`, or to standard output without one or with `-`.
///
/// A regular file is replaced only when everything was written, so that a failure leaves the old one and
/// never half a document. Anything else (a pipe, `/dev/null`) is written to directly.
pub fn write_output<E: Into<CliError>>(
    path: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), CliError> {
    match path {
        Some(path) if path.as_os_str() != "-" => write_file(path, write),
        _ => {
            let mut tracked = Tracked { inner: io::stdout().lock(), error: None };
            let result = write_through(&mut tracked, write);
            finish("standard output", tracked.error.as_ref(), result)
        }
    }
}

/// Refuses an output that is one of the files that are read: nothing recorded is lost by a slip.
/// Links and other names of the same file count as the file.
pub fn keep_inputs<'p>(
    output: Option<&Path>,
    inputs: impl IntoIterator<Item = &'p Path>,
) -> Result<(), CliError> {
    let to = output.filter(|path| path.as_os_str() != "-").unwrap_or(Path::new("/proc/self/fd/1"));
    let Ok(to) = fs::metadata(to) else { return Ok(()) };
    if !to.is_file() {
        return Ok(());
    }
    let is_output =
        |path: &&Path| fs::metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (to.dev(), to.ino()));
    match inputs.into_iter().find(is_output) {
        Some(input) => Err(CliError::usage(format!("{} is read, and would be overwritten", input.display()))
            .with_help("name another file with -o")),
        None => Ok(()),
    }
}

/// Keeps the error of the sink, which a renderer may have wrapped.
struct Tracked<W> {
    inner: W,
    error: Option<io::Error>,
}

impl<W: Write> Tracked<W> {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            let copy = error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
            self.error.get_or_insert(copy);
        }
        result
    }
}

impl<W: Write> Write for Tracked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.inner.write(bytes);
        self.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.inner.flush();
        self.note(result)
    }
}

fn write_through<W: Write, E: Into<CliError>>(
    sink: &mut Tracked<W>,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), CliError> {
    let mut buffer = BufWriter::with_capacity(64 << 10, sink);
    let result = write(&mut buffer).map_err(Into::into);
    // What was rendered before an error of the renderer is no result.
    if result.is_ok() {
        buffer.flush().map_err(|error| CliError::new(error.to_string()))
    } else {
        drop(buffer.into_parts());
        result
    }
}

/// An error of the sink explains any error of the renderer.
fn finish(name: &str, error: Option<&io::Error>, result: Result<(), CliError>) -> Result<(), CliError> {
    match error {
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(CliError::closed_pipe()),
        Some(error) => Err(CliError::output(name, error)),
        None => result,
    }
}

fn write_file<E: Into<CliError>>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), CliError> {
    let name = path.display().to_string();
    let fail = |error: io::Error| CliError::output(&name, &error);
    // A link is followed: what it names is replaced, not the link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let existing = fs::metadata(&target).ok();
    if existing.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(fail(plain(io::ErrorKind::IsADirectory)));
    }
    let regular = existing.as_ref().is_none_or(fs::Metadata::is_file);
    let temporary = if regular { Some(beside(&target)) } else { None };
    match temporary {
        Some(Ok(file)) => {
            let mut tracked = Tracked { inner: file, error: None };
            let result = write_through(&mut tracked, write);
            finish(&name, tracked.error.as_ref(), result)?;
            replace(tracked.inner, &target, existing.as_ref()).map_err(fail)
        }
        // The folder may be closed to us and the file open.
        Some(Err(error)) if existing.is_none() => Err(fail(error)),
        _ => {
            let file = OpenOptions::new().write(true).truncate(true).open(&target).map_err(fail)?;
            let mut tracked = Tracked { inner: file, error: None };
            let result = write_through(&mut tracked, write);
            finish(&name, tracked.error.as_ref(), result)
        }
    }
}

/// A temporary file in the same folder, with the permissions of an ordinary new file.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.map_or_else(|| PathBuf::from("."), Path::to_owned);
    tempfile::Builder::new()
        .prefix(".stallscope-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(|error| plain(error.kind()))
}

/// The system's own words: the library's error names its temporary file, which means nothing to the user.
fn plain(kind: io::ErrorKind) -> io::Error {
    let errno = match kind {
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::NotADirectory => libc::ENOTDIR,
        io::ErrorKind::IsADirectory => libc::EISDIR,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::ReadOnlyFilesystem => libc::EROFS,
        io::ErrorKind::StorageFull => libc::ENOSPC,
        io::ErrorKind::QuotaExceeded => libc::EDQUOT,
        _ => return kind.into(),
    };
    io::Error::from_raw_os_error(errno)
}

/// Owner and permissions of the file that is replaced stay.
fn replace(file: NamedTempFile, path: &Path, existing: Option<&fs::Metadata>) -> io::Result<()> {
    if let Some(meta) = existing {
        keep_owner(file.as_file(), meta);
        file.as_file().set_permissions(Permissions::from_mode(meta.mode() & 0o777))?;
    }
    file.persist(path).map(drop).map_err(|error| error.error)
}

fn keep_owner(file: &File, meta: &fs::Metadata) {
    if let Err(error) = std::os::unix::fs::fchown(file, Some(meta.uid()), Some(meta.gid())) {
        log::debug!("the owner of the output changes: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_text(path: &Path, text: &str) -> Result<(), CliError> {
        write_output(Some(path), |out| {
            out.write_all(text.as_bytes()).map_err(|error| CliError::new(error.to_string()))
        })
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn what_is_read_is_not_overwritten_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| folder.path().join(name);
        fs::write(name("a.stall"), "trace").unwrap();
        fs::write(name("other"), "old").unwrap();
        fs::hard_link(name("a.stall"), name("hard")).unwrap();
        std::os::unix::fs::symlink(name("a.stall"), name("soft")).unwrap();
        let check = |output: &str| keep_inputs(Some(&name(output)), [name("a.stall").as_path()]);
        for output in ["a.stall", "hard", "soft"] {
            let error = check(output).unwrap_err();
            assert_eq!(error.code, super::super::error::USAGE);
            assert!(error.message.contains("a.stall is read"), "{error:?}");
        }
        assert_eq!(check("other"), Ok(()));
        assert_eq!(check("new"), Ok(()));
        assert_eq!(keep_inputs(Some(Path::new("/dev/null")), [Path::new("/dev/null")]), Ok(()));
    }

    #[test]
    fn a_file_is_replaced_and_keeps_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.txt");
        write_text(&path, "one, and longer").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        write_text(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(files(folder.path()), 1);
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.txt");
        write_text(&path, "old").unwrap();
        let result = write_output(Some(&path), |out| {
            out.write_all(&vec![b'x'; 100_000]).unwrap();
            Err(CliError::new("no rank 7 in this trace"))
        });
        assert_eq!(result.unwrap_err().message, "no rank 7 in this trace");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(files(folder.path()), 1);
    }

    #[test]
    fn a_link_stays_and_what_it_names_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_text(&link, "new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }

    #[test]
    fn places_that_cannot_be_written_are_named_with_help() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no/such/report.txt");
        for path in [folder.path(), missing.as_path(), Path::new("/dev/full"), Path::new("/proc/report.txt")]
        {
            let error = write_text(path, "text").unwrap_err();
            assert_eq!(error.code, 1);
            assert!(error.message.contains(path.to_str().unwrap()), "{error:?}");
            assert!(!error.message.contains(".stallscope-"), "{error:?}");
            assert!(error.message.contains("os error"), "{error:?}");
            assert_eq!(error.help.len(), 1, "{error:?}");
        }
    }

    #[test]
    fn devices_are_written_to_and_not_replaced() {
        write_text(Path::new("/dev/null"), "gone").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
