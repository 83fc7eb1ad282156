//! `gco inference …`: how people drive inference endpoints; `gco local …`: regions on this machine.
//!
//! * [`arguments`]: verbs and flags; [`flags`], [`draft`]: reading and checking their values, all at once.
//! * [`change`]: from the flags of `set` to changes of a spec.
//! * [`connect`]: which table; [`regions`], [`image`]: which regions, and what each of them pulls.
//! * [`commands`]: what each verb does.
//! * [`describe`], [`goal`], [`explain`]: what a row says, in words. Pure.
//! * [`output`], [`failure`]: streams, formats, prefixes, exit codes.

pub mod age;
pub mod arguments;
pub mod change;
pub mod commands;
pub mod connect;
pub mod describe;
pub mod draft;
pub mod explain;
pub mod failure;
pub mod flags;
pub mod follow;
pub mod goal;
pub mod image;
pub mod instance;
pub mod output;
pub mod regions;
pub mod syntax;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Parser;
use gco_runtime::environment::Environment;
use gco_store::problem::FieldProblem;

use crate::arguments::{CommandLine, CommonFlags, Room};
use crate::commands::Context;
use crate::failure::{EXIT_DONE, EXIT_FAILED, Failure};
use crate::output::{Console, Format, Output};

/// Environment variable with the default output format.
const FORMAT_VARIABLE: &str = "GCO_OUTPUT_FORMAT";

/// The program: arguments, environment and streams of this process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let environment = Environment::process();
    let stdin = io::stdin();
    let stdin_is_terminal = stdin.is_terminal();
    let (mut stdout, mut stderr, mut stdin) = (io::stdout(), io::stderr(), stdin.lock());
    let mut console = Console { stdout: &mut stdout, stderr: &mut stderr, stdin: &mut stdin, stdin_is_terminal };
    match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() {
        Ok(runtime) => ExitCode::from(runtime.block_on(run(&arguments, &environment, &mut console))),
        Err(error) => {
            // Nothing is left to do when this cannot be said either.
            let _ = writeln!(console.stderr, "✗ cannot start: {error}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// Runs one command line (`arguments[0]` is the program) and returns its exit code.
pub async fn run(arguments: &[OsString], environment: &Environment, console: &mut Console<'_>) -> u8 {
    // Everything after `local` belongs to gco-local, whatever it looks like.
    if arguments.get(1).is_some_and(|word| word == "local") {
        let outcome = commands::local::execute(&arguments[2..]);
        return finish(outcome, &mut Output::new(console, Format::Table));
    }
    let command_line = match CommandLine::try_parse_from(arguments) {
        Ok(command_line) => command_line,
        Err(error) => return syntax::answer(&error, arguments, console),
    };
    let format = match read_format(&command_line.common, environment) {
        Ok(format) => format,
        Err(problem) => {
            return finish(Err(Failure::Usage(vec![problem])), &mut Output::new(console, Format::Table));
        }
    };
    let mut output = Output::new(console, format);
    let outcome = match command_line.room {
        Room::Local { arguments } => commands::local::execute(&arguments),
        Room::Inference { verb } => {
            let mut context = Context::new(environment, &command_line.common, &mut output);
            commands::execute(verb, &mut context).await
        }
    };
    finish(outcome, &mut output)
}

fn finish(outcome: Result<(), Failure>, output: &mut Output<'_, '_>) -> u8 {
    let Err(failure) = outcome else { return EXIT_DONE };
    for message in failure.messages() {
        // When standard error is gone, the exit code still tells.
        let _ = output.error(&message);
    }
    failure.exit_code()
}

fn read_format(common: &CommonFlags, environment: &Environment) -> Result<Format, FieldProblem> {
    let (field, text) = match &common.output {
        Some(text) => ("--output", text.as_str()),
        None => (FORMAT_VARIABLE, environment.non_empty(FORMAT_VARIABLE).unwrap_or("table")),
    };
    Format::parse(text).ok_or_else(|| flags::not_a_choice(field, text, &["table", "json", "yaml"]))
}
