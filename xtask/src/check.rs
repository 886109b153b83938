//! Formatting, lints, and the licences of everything that is linked in.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{paths, run};

/// Licences that code linked into the distributed program may have. CDDL-1.0 is inferno's: file-level
/// copyleft, its sources are used unchanged.
const ALLOWED: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "CDDL-1.0",
    "Unlicense",
    "0BSD",
    "MIT-0",
    "BSL-1.0",
    "CC0-1.0",
];

/// Packages in the dependency tree of the program, at most: a new one is a decision.
const MOST_PACKAGES: usize = 190;

pub fn run() -> Result<()> {
    let root = paths::root();
    let cargo = |args: &[&str], folder: &std::path::Path| {
        run::run(paths::with_bpf_object(Command::new("cargo").args(args).current_dir(folder)))
    };
    cargo(&["fmt", "--all", "--check"], &root)?;
    cargo(&["fmt", "--check"], &root.join("profiler-ebpf"))?;
    cargo(&["clippy", "--quiet", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"], &root)?;
    licences()
}

fn licences() -> Result<()> {
    let output = Command::new("cargo")
        .args(["tree", "--locked", "--package", "stallscope", "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{p}|{l}"])
        .current_dir(paths::root())
        .output()
        .context("cannot start cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8(output.stdout).context("cargo tree printed no UTF-8")?;
    let mut packages: Vec<&str> = text.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    packages.sort_unstable();
    packages.dedup();
    let refused: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|line| !line.split_once('|').is_some_and(|(_, l)| allowed(l)))
        .collect();
    if !refused.is_empty() {
        bail!("licences that are not on the list in xtask/src/check.rs:\n{}", refused.join("\n"));
    }
    println!("{} packages linked in, licences as listed", packages.len());
    if packages.len() > MOST_PACKAGES {
        bail!("more than {MOST_PACKAGES} packages: take one out, or raise the figure with a reason");
    }
    Ok(())
}

/// An SPDX expression is allowed where one of its alternatives is; every part of a conjunction must be.
fn allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let expression = expression.replace(['(', ')'], "");
    expression.split(" AND ").all(|part| part.split(" OR ").any(|licence| ALLOWED.contains(&licence.trim())))
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn an_alternative_that_is_listed_suffices() {
        assert!(allowed("GPL-2.0 OR MIT"));
        assert!(allowed("MIT/Apache-2.0"));
        assert!(allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
    }

    #[test]
    fn every_part_of_a_conjunction_is_needed() {
        assert!(!allowed("MIT AND GPL-3.0"));
        assert!(!allowed("GPL-3.0"));
        assert!(!allowed(""));
    }
}
