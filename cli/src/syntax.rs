//! What the command line parser says: help to standard output, mistakes to standard error without repeating secrets.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::{EXIT_DONE, EXIT_FAILED, EXIT_USAGE};
use crate::output::Console;

/// Prints help, the version or a mistake; returns the exit code.
pub fn answer(error: &clap::Error, arguments: &[OsString], console: &mut Console<'_>) -> u8 {
    let (written, code) = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => (write!(console.stdout, "{}", error.render()), EXIT_DONE),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            (writeln!(console.stderr, "{}", error.render().to_string().trim_end()), EXIT_USAGE)
        }
        _ => (writeln!(console.stderr, "✗ {}", mistake(error, arguments)), EXIT_USAGE),
    };
    if written.is_ok() { code } else { EXIT_FAILED }
}

/// The parser's words for a mistake, without values that may be secrets.
fn mistake(error: &clap::Error, arguments: &[OsString]) -> String {
    let invalid = text_of(error, ContextKind::InvalidArg);
    // `--env TOKEN= secret`: the stray word may well be the secret, so it is told by its place.
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(word) = invalid.filter(|word| !word.starts_with('-'))
    {
        let place = arguments.iter().position(|argument| argument.to_string_lossy() == word).unwrap_or(0);
        return format!("argument number {place} is unexpected: it belongs to no flag (quote values that have blanks)");
    }
    let mut text = error.render().to_string();
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidValue, ContextKind::InvalidSubcommand] {
        let Some(word) = text_of(error, kind) else { continue };
        if let Some((name, value)) = word.split_once('=').filter(|(_, value)| !value.is_empty()) {
            text = text.replace(&format!("{name}={value}"), &format!("{name}=…"));
        }
    }
    text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned()
}

fn text_of(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}
