//! `gco`: how people drive inference endpoints.

use std::process::ExitCode;

fn main() -> ExitCode {
    gco::main()
}
