//! Running other programs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// Runs a command, its output on ours, and fails unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    let line = describe(command);
    let status = command.status().with_context(|| format!("cannot start {line}"))?;
    if !status.success() {
        bail!("{line}: {status}");
    }
    Ok(())
}

/// As [`run`], with each line of its output handed to `take` too.
pub fn tee(command: &mut Command, mut take: impl FnMut(&str)) -> Result<()> {
    let line = describe(command);
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    // One pipe for both, so that they keep their order.
    command.stdout(writer.try_clone().context("cannot make a pipe")?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start {line}"))?;
    // The command keeps the ends that it was given, and the pipe would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            if sender.send(std::mem::take(&mut bytes)).is_err() {
                break;
            }
        }
    });
    loop {
        match lines.recv_timeout(Duration::from_secs(1)) {
            Ok(bytes) => {
                // Where nobody reads it, the tests go on all the same.
                let _ = std::io::stdout().write_all(&bytes);
                take(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']));
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // A program that a test left behind can hold the pipe.
            Err(RecvTimeoutError::Timeout) if matches!(child.try_wait(), Ok(Some(_))) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for {line}"))?;
    if !status.success() {
        bail!("{line}: {status}");
    }
    Ok(())
}

/// The command's standard output, or nothing where it fails or does not exist.
pub fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program of this name is in `PATH`.
pub fn exists(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
