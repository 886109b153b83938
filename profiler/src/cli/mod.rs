//! The command line: one file a command.

use std::ffi::OsString;
use std::io::{Write, stderr};

use clap::Parser;
use log::LevelFilter;

pub mod agent;
pub mod args;
pub mod demo;
pub mod diff;
pub mod doctor;
pub mod error;
pub mod export;
pub mod flame;
pub mod load;
pub mod output;
pub mod progress;
pub mod record;
pub mod report;
mod terminal;

use self::args::{Cli, Command};
use self::error::CliError;
use crate::record::{HeldBack, survive_file_limit};

/// Runs the command that `arguments` (the program's name first) name, and returns the exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    // First thing: what comes before this line ends the process by a signal, without a word.
    let held_back = HeldBack::new();
    survive_file_limit();
    let command = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.command,
        Err(error) => {
            // Help goes to standard output, errors to standard error; where nobody reads it, nothing is lost.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(error::USAGE);
        }
    };
    start_log(matches!(&command, Command::Record(args) if args.verbose));
    run_command(&command, held_back).unwrap_or_else(|error| {
        // Without standard error there is nobody to tell; the exit status still does.
        let _ = error.write(&mut stderr());
        error.code
    })
}

fn run_command(command: &Command, held_back: HeldBack) -> Result<u8, CliError> {
    if let Command::Record(args) = command {
        return record::run(args, held_back);
    }
    // Nothing of these needs an end of its own.
    drop(held_back);
    match command {
        Command::Record(_) => {}
        Command::Flame(args) => flame::run(args)?,
        Command::Report(args) => report::run(args)?,
        Command::Diff(args) => return diff::run(args),
        Command::Export(args) => export::run(args)?,
        Command::Demo(args) => demo::run(args)?,
        Command::Agent(args) => agent::run(args)?,
        Command::Doctor(args) => return doctor::run(args),
    }
    Ok(0)
}

/// Warnings of our own as `warning: …`; with `--verbose` everything, and what the eBPF programs log.
fn start_log(verbose: bool) {
    let mut builder = env_logger::Builder::new();
    if verbose {
        builder.filter_level(LevelFilter::Debug);
    } else {
        builder.filter_level(LevelFilter::Off).filter_module("stallscope", LevelFilter::Warn);
    }
    builder.format(|out, record| {
        let level = match record.level() {
            log::Level::Error => "error",
            log::Level::Warn => "warning",
            log::Level::Info => "info",
            log::Level::Debug => "debug",
            log::Level::Trace => "trace",
        };
        writeln!(out, "{level}: {}", record.args())
    });
    // Another logger can be there already only in tests.
    let _ = builder.try_init();
}
