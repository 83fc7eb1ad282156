//! How a command can end badly, and with which exit code.

use std::io;

use gco_store::problem::{FieldProblem, bounded};

/// Exit code of a command that did what it was asked.
pub const EXIT_DONE: u8 = 0;
/// Exit code of a command that was refused or that failed.
pub const EXIT_FAILED: u8 = 1;
/// Exit code of a wrong command line; nothing was read or written.
pub const EXIT_USAGE: u8 = 2;
/// Exit code of a wait whose time ran out.
pub const EXIT_TIMED_OUT: u8 = 3;
/// Exit code of a wait that Ctrl-C ended: 128 plus the number of SIGINT, as shells have it.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Longest message that is printed, in characters.
const LONGEST_MESSAGE_CHARACTERS: usize = 2000;

/// Most problems of one command line that are printed.
const MOST_PROBLEMS: usize = 20;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// The command line is wrong, in each of these places.
    Usage(Vec<FieldProblem>),
    /// The command line parser's own words, already cleaned.
    Syntax(String),
    /// Refused by the state of things, or failed.
    Refused(String),
    /// A wait took too long.
    TimedOut(String),
    /// Ctrl-C during a wait.
    Interrupted(String),
    /// Standard output or standard error could not be written.
    Output(io::Error),
}

impl Failure {
    /// A wrong flag or argument.
    pub fn usage(field: impl Into<String>, message: impl AsRef<str>) -> Self {
        Self::Usage(vec![FieldProblem::new(field, message)])
    }

    /// Something that was refused or that failed.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Refused(message.into())
    }

    /// The exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Syntax(_) => EXIT_USAGE,
            Self::Refused(_) | Self::Output(_) => EXIT_FAILED,
            Self::TimedOut(_) => EXIT_TIMED_OUT,
            Self::Interrupted(_) => EXIT_INTERRUPTED,
        }
    }

    /// The messages for people, bounded in number and length; none when nobody listens any more.
    #[must_use]
    pub fn messages(&self) -> Vec<String> {
        match self {
            Self::Usage(problems) => {
                let mut lines: Vec<String> = problems.iter().take(MOST_PROBLEMS).map(ToString::to_string).collect();
                if problems.len() > MOST_PROBLEMS {
                    lines.push(format!("and {} more", problems.len() - MOST_PROBLEMS));
                }
                lines
            }
            // The parser's words have lines of their own, and are short.
            Self::Syntax(message) => vec![message.clone()],
            Self::Refused(message) | Self::TimedOut(message) | Self::Interrupted(message) => {
                vec![bounded(message, LONGEST_MESSAGE_CHARACTERS)]
            }
            // The reader of a pipe went away (`gco … | head`): there is nobody to tell.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Vec::new(),
            Self::Output(error) => vec![format!("cannot write the output: {error}")],
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded_in_number_and_length() {
        let many = (0..50).map(|number| FieldProblem::new(format!("--env (number {number})"), "is wrong")).collect();
        let lines = Failure::Usage(many).messages();
        assert_eq!(lines.len(), 21);
        assert_eq!(lines[20], "and 30 more");
        let long = Failure::refused("x".repeat(10_000)).messages();
        assert_eq!(long[0].chars().count(), 2000);
    }

    #[test]
    fn a_closed_pipe_is_nobody_to_complain_to() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(failure.messages().is_empty());
        assert_eq!(failure.exit_code(), EXIT_FAILED);
    }
}
