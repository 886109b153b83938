//! Small programs that wait in one known way each, for the live tests to record.
//!
//! Protocol: the program prints `ready key=value …` when it is set up, waits for a line on standard input,
//! does what its arguments say, prints `done key=value …` and stays until standard input is closed.

mod asking;
mod connecting;
mod idling;
mod limited;
mod living;
mod nesting;
mod receiving;
mod resolving;
mod scheduling;
mod sys;

use std::cell::Cell;
use std::fmt::Display;
use std::io::{Write, stdin, stdout};
use std::str::FromStr;

/// The arguments behind the command's name.
pub struct Arguments(Vec<String>);

impl Arguments {
    fn get<T: FromStr>(&self, index: usize) -> T
    where
        T::Err: Display,
    {
        let text = self.0.get(index).unwrap_or_else(|| panic!("argument {index} is missing"));
        text.parse().unwrap_or_else(|error| panic!("argument {index}, {text:?}: {error}"))
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get_or<T: FromStr>(&self, index: usize, default: T) -> T
    where
        T::Err: Display,
    {
        if self.0.len() > index { self.get(index) } else { default }
    }
}

fn main() {
    let mut words = std::env::args().skip(1);
    let command = words.next().expect("a command");
    let arguments = Arguments(words.collect());
    if command == "demo" {
        let [flag, role, rest @ ..] = arguments.0.as_slice() else { panic!("demo --role ROLE …") };
        assert_eq!(flag, "--role");
        if let Err(error) = stallscope::demo::run_workload(role, rest) {
            eprintln!("error: {error}");
            std::process::exit(1);
        }
        return;
    }
    match command.as_str() {
        "ask" => asking::ask(&arguments),
        "connect" => connecting::blocking(&arguments),
        "connect-epoll" => connecting::epoll(&arguments),
        "connect-parallel" => connecting::parallel(&arguments),
        "connect-limit" => limited::connect(&arguments),
        "recv-limit" => limited::receive(&arguments),
        "send-limit" => limited::send(&arguments),
        "close-linger" => limited::close(&arguments),
        "nested-listener" => nesting::listener(&arguments),
        "nested-recv" => nesting::receive(&arguments),
        "connect-unix" => connecting::unix(&arguments),
        "recv" => receiving::receive(&arguments),
        "recv-now" => receiving::receive_now(&arguments),
        "send" => receiving::send(&arguments),
        "udp-loop" => receiving::udp_loop(&arguments),
        "accept" => idling::accept(),
        "poll-listener" => idling::poll_with_listener(&arguments),
        "poll-sparse" => idling::poll_sparse(&arguments),
        "epoll-crowd" => idling::epoll_crowd(&arguments),
        "poll-crowd" => receiving::poll_crowd(&arguments),
        "sleep" => idling::sleep(&arguments),
        "pool" => idling::pool(&arguments),
        "mutex" => scheduling::mutex(&arguments),
        "work" => scheduling::work(&arguments),
        "copy" => scheduling::copy(&arguments),
        "threads" => living::threads(&arguments),
        "named" => living::named(&arguments),
        "fork-recv" => living::fork_then_receive(&arguments),
        "exec-recv" => living::exec_then_receive(&arguments),
        "exit-early" => living::exit_early(&arguments),
        "zombie" => living::zombie(),
        "hold" => {
            ready("");
            go();
        }
        "getaddrinfo" => resolving::forward(&arguments),
        "getnameinfo" => resolving::reverse(&arguments),
        "nscd" => resolving::name_cache(&arguments),
        "demo-owner" => living::demo_owner(),
        other => panic!("no command {other}"),
    }
    finish();
}

/// Says that the set-up is done; `values` is `key=value …`.
fn ready(values: &str) {
    say("ready", values);
}

/// Says what was measured; `busy` is the thread's processor and run-queue time since the word to go on, `runq` its
/// run-queue time alone, and `end` the clock now.
fn done(values: &str) {
    let ((running, runnable), at_go) = (cpu_times(), AT_GO.get());
    let runq = runnable.saturating_sub(at_go.1);
    done_with(&format!("{values} runq={runq}"), running.saturating_sub(at_go.0) + runq);
}

/// [`done`] for programs whose other threads waited, with the sum of their `busy` times.
fn done_with(values: &str, busy_ns: u64) {
    say("done", &format!("{values} busy={busy_ns} end={}", sys::monotonic_ns()));
}

thread_local! {
    static AT_GO: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Nanoseconds that this thread has run, and waited for a processor, by the kernel's account.
fn cpu_times() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel has schedstat");
    let mut fields = text.split_whitespace().map(|field| field.parse().expect("a number"));
    (fields.next().expect("running"), fields.next().expect("runnable"))
}

/// Nanoseconds that this thread has run or waited for a processor.
fn busy_ns() -> u64 {
    let (running, runnable) = cpu_times();
    running + runnable
}

fn say(what: &str, values: &str) {
    // The test may have given up already; then it shows its own error.
    let _ = writeln!(stdout(), "{what} {values}").and_then(|()| stdout().flush());
}

/// Waits for the word to go on.
fn go() {
    let mut line = String::new();
    if stdin().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(0);
    }
    AT_GO.set(cpu_times());
}

/// Stays until the test closes standard input.
fn finish() {
    let mut line = String::new();
    while stdin().read_line(&mut line).unwrap_or(0) > 0 {}
}
