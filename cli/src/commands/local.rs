//! `gco local …`: hands over to the `gco-local` binary beside this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::failure::Failure;

/// Name of the binary that runs regions on this machine.
const BINARY: &str = "gco-local";

/// Becomes `gco-local` with these arguments; returns only when that fails.
///
/// # Errors
/// When the binary is absent or cannot be run.
pub fn execute(arguments: &[OsString]) -> Result<(), Failure> {
    let this =
        std::env::current_exe().map_err(|error| Failure::refused(format!("cannot tell where gco is: {error}")))?;
    let binary = this.with_file_name(BINARY);
    if !binary.is_file() {
        let hint = "install it next to gco, or build it with 'cargo build -p gco-local'";
        return Err(Failure::refused(format!("{BINARY} is not installed: there is no {} ({hint})", binary.display())));
    }
    let error = Command::new(&binary).args(arguments).exec();
    Err(Failure::refused(format!("cannot run {}: {error}", binary.display())))
}
