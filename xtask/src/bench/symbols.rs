//! `cargo xtask bench symbols LIBRARY…`: naming addresses, with an empty cache and with the one that this left.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{paths, run};

#[derive(clap::Args)]
pub struct Options {
    /// Shared libraries
    #[arg(required = true)]
    libraries: Vec<PathBuf>,
    /// Times of each
    #[arg(long, default_value_t = 3)]
    times: usize,
}

pub fn run(options: &Options) -> Result<()> {
    let build = ["build", "--release", "--locked", "--package", "stallscope", "--example", "symbols"];
    run::run(paths::with_bpf_object(Command::new("cargo").args(build).current_dir(paths::root())))?;
    let mut table = String::from(
        "# Naming the addresses of a library\n\n\
         1 000 addresses, evenly spread over the library's code, each named once by a recorder that has just started:\n\
         without a cache, and with the one that the run before left. The file itself may be in the page cache.\n\
         `peak` is the most memory that the process had resident.\n\n",
    );
    for library in &options.libraries {
        let size = fs::metadata(library).with_context(|| format!("cannot read {}", library.display()))?.len();
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        table.push_str(&format!("`{name}`, {} MiB:\n\n| cache | result |\n|---|---|\n", size >> 20));
        for _ in 0..options.times {
            let cache = Cache::new()?;
            for state in ["empty", "filled"] {
                table.push_str(&format!("| {state} | {} |\n", measure(library, &cache.0)?));
            }
        }
        table.push('\n');
    }
    let file = paths::root().join("bench/symbols.md");
    fs::write(&file, &table).with_context(|| format!("cannot write {}", file.display()))?;
    print!("{table}");
    Ok(())
}

/// A folder of our own, removed at the end.
struct Cache(PathBuf);

impl Cache {
    fn new() -> Result<Cache> {
        let folder = paths::toolchain().with_file_name(format!("bench-symbols-{}", std::process::id()));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Cache(folder))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn measure(library: &Path, cache: &Path) -> Result<String> {
    let program = paths::stallscope().with_file_name("examples").join("symbols");
    let output = Command::new(&program)
        .arg(library)
        .env("XDG_CACHE_HOME", cache)
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        bail!("{}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
