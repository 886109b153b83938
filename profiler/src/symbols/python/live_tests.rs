//! Reads the interpreters of this machine.

use std::collections::{BTreeSet, HashSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::target::ProcRoot;
use crate::trace::record::PythonFrame;

const PROGRAM: &str = "import sys, threading
def inner():
    print('ready', flush=True)
    return sys.stdin.readline()
class Outer:
    def method(self):
        def local(): return (inner(),
                             1)
        return local()
def outer():
    for x in (Outer().method() for y in [1]):
        pass
if len(sys.argv) > 1:
    threading.Thread(target=outer).start()
    threading.Event().wait()
outer()
";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The system's interpreter, and those of pyenv.
fn interpreters() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let mut found: Vec<PathBuf> = vec!["/usr/bin/python3".into()];
    if let Ok(versions) = std::fs::read_dir(Path::new(&home).join(".pyenv/versions")) {
        found.extend(versions.flatten().map(|version| version.path().join("bin/python3")));
    }
    found.retain(|path| path.exists());
    found
}

struct Read {
    minor: u8,
    look: PythonLook,
}

/// What the thread that waits for input is in. `None` for interpreters that are too old.
fn read(python: &Path, arguments: &[&str]) -> Option<Read> {
    let mut command = Command::new(python);
    command.args(["-c", PROGRAM]).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Killed(command.spawn().unwrap());
    let mut line = String::new();
    let mut output = BufReader::new(child.0.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let pid = child.0.id();
    let process = match PythonProcess::find(pid) {
        Err(PythonError::TooOld { .. }) => return None,
        // The oldest have no runtime that could be found.
        found => found.unwrap()?,
    };
    let tids: HashSet<u32> = ProcRoot::default().tids(pid).unwrap().into_iter().collect();
    loop {
        for tid in &tids {
            let call = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap();
            // Reads from standard input: it may still be on its way there.
            if call.starts_with("0 0x0 ") {
                let look = process.look(&process.threads(&tids), *tid).expect("it is in a function");
                return Some(Read { minor: process.version().1, look });
            }
        }
        std::thread::yield_now();
    }
}

/// `name line`, with `!` where C code entered the interpreter.
fn lines(look: &PythonLook) -> Vec<String> {
    let line = |frame: &PythonFrame| {
        let name = frame.function.rsplit('.').next().unwrap();
        format!("{name} {}{}", frame.line, if frame.entry { "!" } else { "" })
    };
    look.frames.iter().map(line).collect()
}

#[test]
fn functions_of_every_interpreter_on_this_machine_are_read() {
    let mut minors = BTreeSet::new();
    for python in interpreters() {
        let Some(Read { minor, look }) = read(&python, &[]) else { continue };
        minors.insert(minor);
        assert!(!look.truncated && look.frames.iter().all(|frame| frame.file == "<string>"), "{look:?}");
        // One run of the interpreter for all calls in Python from 3.11 on.
        let wanted = if minor <= 10 {
            ["inner 4!", "local 7!", "method 9!", "<genexpr> 11!", "outer 11!", "<module> 16!"]
        } else {
            ["inner 4", "local 7", "method 9", "<genexpr> 11!", "outer 11", "<module> 16!"]
        };
        assert_eq!(lines(&look), wanted, "3.{minor}");
        let qualified = look.frames.iter().any(|frame| frame.function == "Outer.method.<locals>.local");
        assert_eq!(qualified, minor >= 11);
    }
    assert!(!minors.is_empty(), "no interpreter");
}

#[test]
fn threads_are_told_apart() {
    for python in interpreters() {
        let Some(Read { minor, look }) = read(&python, &["thread"]) else { continue };
        let read = lines(&look);
        assert_eq!(read[0].trim_end_matches('!'), "inner 4", "3.{minor}");
        assert!(read.iter().all(|line| !line.starts_with("<module>")), "3.{minor}: {read:?}");
        let outermost = look.frames.last().unwrap();
        assert!(outermost.function.ends_with("_bootstrap") && outermost.entry, "3.{minor}: {outermost:?}");
    }
}
