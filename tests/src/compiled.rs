//! Small C programs, built when a test needs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A folder with what was built from `tests/programs`.
#[derive(Debug)]
pub struct Compiled {
    folder: TempDir,
}

impl Default for Compiled {
    fn default() -> Compiled {
        Compiled::new()
    }
}

impl Compiled {
    /// # Panics
    /// When there is no place for temporary files.
    pub fn new() -> Compiled {
        Compiled { folder: tempfile::tempdir().expect("makes a temporary folder") }
    }

    /// Builds `source` as `target`; its path.
    ///
    /// # Panics
    /// Without this compiler (`cargo xtask setup` installs it), or where it fails.
    pub fn build(&self, compiler: &str, source: &str, target: &str, flags: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
        let path = self.folder.path().join(target);
        let mut command = Command::new(compiler);
        command.args(["-O1", "-g", "-fno-omit-frame-pointer", "-Wall"]).args(flags);
        let output = command.arg(source).arg("-o").arg(&path).output();
        let output = output.unwrap_or_else(|error| panic!("{compiler}: {error}; run `cargo xtask setup`"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        path
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
