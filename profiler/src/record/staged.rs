//! The trace file of a recording that may not come about: an older recording of that name stays until there is a new
//! one, and where nothing was recorded there is no file.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::trace::{TraceError, TraceWriter};

/// Where the new recording is written for now.
#[derive(Debug)]
pub(super) struct Staged {
    /// The file beside the place, until it takes it.
    beside: Option<PathBuf>,
    /// Where the recording belongs, without links in its path.
    place: PathBuf,
}

impl Staged {
    /// Opens a file beside `output` for writing; where that cannot be (a folder that may not be written to), and where
    /// `output` is there and no ordinary file, that one is opened.
    pub(super) fn create(output: &Path) -> Result<(TraceWriter<File>, Staged), TraceError> {
        let place = fs::canonicalize(output).unwrap_or_else(|_| output.to_owned());
        let is_free = match fs::metadata(&place) {
            // What opening a file says that may not be written to is said below.
            Ok(data) => data.is_file() && OpenOptions::new().write(true).open(&place).is_ok(),
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        if is_free && let Some((file, beside)) = open_beside(&place) {
            let staged = Staged { beside: Some(beside), place };
            return Ok((TraceWriter::new(file, output)?, staged));
        }
        Ok((TraceWriter::create(output)?, Staged { beside: None, place }))
    }

    /// Puts the new file into its place: from now on it is a recording.
    pub(super) fn commit(mut self) {
        if let Some(beside) = self.beside.take()
            && let Err(error) = fs::rename(&beside, &self.place)
        {
            log::warn!("the recording stays in {}: {error}", beside.display());
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            // Nothing was recorded into it.
            let _ = fs::remove_file(beside);
        }
    }
}

fn open_beside(place: &Path) -> Option<(File, PathBuf)> {
    let mut name = std::ffi::OsString::from(".");
    name.push(place.file_name()?);
    name.push(format!(".{}", std::process::id()));
    let beside = place.with_file_name(name);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside).ok()?;
    Some((file, beside))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn an_old_recording_stays_until_there_is_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.stall");
        fs::write(&path, "old").unwrap();
        let (writer, staged) = Staged::create(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop((writer, staged));
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path())),
            (b"old".to_vec(), vec!["run.stall".into()])
        );

        let (writer, staged) = Staged::create(&path).unwrap();
        staged.commit();
        assert_ne!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["run.stall"]);
        drop(writer);
    }

    #[test]
    fn a_recording_that_does_not_begin_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.stall");
        drop(Staged::create(&path).unwrap());
        assert!(names(folder.path()).is_empty());
        Staged::create(&path).unwrap().1.commit();
        assert_eq!(names(folder.path()), ["run.stall"]);
    }

    #[test]
    fn a_link_keeps_leading_to_the_recording() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("run.stall"), folder.path().join("latest.stall"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink("run.stall", &link).unwrap();
        let (_writer, staged) = Staged::create(&link).unwrap();
        staged.commit();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_ne!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn what_is_no_file_is_opened_as_it_is() {
        let (_, staged) = Staged::create(Path::new("/dev/null")).unwrap();
        assert!(staged.beside.is_none());
        assert!(Staged::create(Path::new("/no-such-folder/run.stall")).is_err());
    }
}
