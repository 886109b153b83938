//! A program under test: started, told to go on, asked for what it measured.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use stallscope::demo::{Host, Role};

use crate::check::Measured;

/// How long a program may take to answer. Generous: the machine may be busy, and two threads that spin for each other, as an
/// adapter in software and its user do, then take turns of a few milliseconds. No assertion depends on it.
const PATIENCE: Duration = Duration::from_mins(4);

/// `key=value …` of a line that the program printed.
#[derive(Debug, Default)]
pub struct Values(HashMap<String, String>);

impl Values {
    fn parse(line: &str) -> Values {
        Values(
            line.split_whitespace()
                .filter_map(|word| word.split_once('='))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    /// # Panics
    /// When the program did not print this value, or something else than a `T`.
    #[track_caller]
    pub fn get<T: FromStr>(&self, key: &str) -> T {
        let text = self.0.get(key).unwrap_or_else(|| panic!("the program printed no {key}: {:?}", self.0));
        text.parse().unwrap_or_else(|_| panic!("{key}={text} cannot be read"))
    }

    #[track_caller]
    pub fn ns(&self) -> u64 {
        self.get("ns")
    }

    /// Nanoseconds that the program ran, or waited for a processor, while it measured.
    #[track_caller]
    pub fn busy_ns(&self) -> u64 {
        self.get("busy")
    }

    /// [`Values::ns`], of which the program may have been busy for [`Values::busy_ns`].
    #[track_caller]
    pub fn measured(&self) -> Measured {
        Measured { ns: self.ns(), busy_ns: self.busy_ns() }
    }
}

/// A running `workload` program (see `src/bin/workload`). It is killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// What it said when it was set up.
    pub ready: Values,
}

impl Program {
    /// Starts `workload ARGUMENTS…` on this machine and waits until it is set up.
    ///
    /// # Panics
    /// When it cannot be started or does not get ready.
    pub fn start(arguments: &[&str]) -> Program {
        Program::start_command(Command::new(workload()).args(arguments))
    }

    /// Starts `command`, which ends up as a workload program.
    ///
    /// # Panics
    /// As [`Program::start`].
    pub fn start_command(command: &mut Command) -> Program {
        Program::adopt(
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts a command"),
        )
    }

    /// Starts it on a host of the rig.
    ///
    /// # Panics
    /// As [`Program::start`].
    pub fn start_on(host: &Host, arguments: &[&str]) -> Program {
        Program::start_role(host.role(workload()), arguments)
    }

    /// Starts it on a host of the rig with this `/etc/resolv.conf`.
    ///
    /// # Panics
    /// As [`Program::start`].
    pub fn start_resolving(host: &Host, resolv_conf: &str, arguments: &[&str]) -> Program {
        Program::start_role(host.role(workload()).resolver(resolv_conf), arguments)
    }

    fn start_role(role: Role, arguments: &[&str]) -> Program {
        let role = role.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        Program::adopt(role.spawn().expect("starts workload on its host"))
    }

    /// Takes over a child that speaks the workload's protocol on its piped standard input and output.
    ///
    /// # Panics
    /// When it does not get ready.
    pub fn adopt(mut child: Child) -> Program {
        let stdin = child.stdin.take();
        let lines = read_lines(child.stdout.take().expect("piped"));
        let mut program = Program { child, stdin, lines, ready: Values::default() };
        program.ready = program.expect("ready");
        program
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processes that its first thread has started and that still exist.
    ///
    /// # Panics
    /// When it has ended.
    pub fn children(&self) -> Vec<u32> {
        let pid = self.pid();
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
        list.split_whitespace().map(|child| child.parse().expect("a process id")).collect()
    }

    /// Nanoseconds that its first thread has run so far, and that it has waited for a processor.
    ///
    /// # Panics
    /// When it has ended.
    pub fn schedstat(&self) -> (u64, u64) {
        let pid = self.pid();
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).expect("it runs");
        let mut numbers = text.split_whitespace().map(|ns| ns.parse().expect("a number"));
        (numbers.next().expect("running"), numbers.next().expect("runnable"))
    }

    /// Tells the program to do what its arguments say.
    ///
    /// # Panics
    /// When it has ended.
    pub fn go(&mut self) {
        let stdin = self.stdin.as_mut().expect("still open");
        stdin.write_all(b"go\n").expect("the program still runs");
    }

    /// Waits until the program has done its work; what it measured. It stays until it is dropped.
    ///
    /// # Panics
    /// When it ends before or takes too long.
    pub fn done(&mut self) -> Values {
        self.expect("done")
    }

    /// [`Program::go`], then [`Program::done`].
    pub fn run(&mut self) -> Values {
        self.go();
        self.done()
    }

    /// Waits until it is stopped.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn wait_stopped(&self) {
        let give_up = Instant::now() + PATIENCE;
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it runs");
        while !stat().contains(") T ") {
            assert!(Instant::now() < give_up, "it does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When it has ended.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.pid().cast_signed());
        nix::sys::signal::kill(pid, signal).expect("it runs");
    }

    /// Ends the program with SIGKILL.
    pub fn kill(self) {}

    /// Waits for the program to end by itself; its exit code.
    ///
    /// # Panics
    /// When it was killed by a signal.
    pub fn wait(&mut self) -> i32 {
        self.child.wait().expect("is our child").code().expect("ends by itself")
    }

    /// Tells the program that there is no more to do by closing its standard input, and waits for its end; its exit
    /// code.
    ///
    /// # Panics
    /// As [`Program::wait`].
    pub fn end(&mut self) -> i32 {
        self.stdin = None;
        self.wait()
    }

    fn expect(&mut self, what: &str) -> Values {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|error| {
                panic!("the workload said no {what:?} ({error}); ended: {:?}", self.child.try_wait())
            });
            if let Some(values) = line.strip_prefix(what) {
                return Values::parse(values);
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Path of the workload program.
///
/// # Panics
/// When it was not built, which `cargo test` does by itself.
pub fn workload() -> PathBuf {
    let test = std::env::current_exe().expect("has a path");
    let found =
        test.ancestors().skip(1).take(2).map(|folder| folder.join("workload")).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no program `workload` beside {}", Path::new(&test).display()))
}
