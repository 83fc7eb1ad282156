//! Compares what monitors asked of API servers over a run of all suites with what their Role grants.
//!
//! Usage: `compare-rights <folder>`, the folder that `GCO_RIGHTS_FOLDER` named during the run. Ends with 1 when they differ.

use std::process::ExitCode;

use anyhow::Context as _;
use gco_tests::rights;

fn main() -> anyhow::Result<ExitCode> {
    let folder = std::env::args_os().nth(1).context("usage: compare-rights <folder>")?;
    let granted = rights::granted()?;
    let (regions, asked) = rights::recorded(folder.as_ref())?;
    for (right, count) in &asked.used {
        println!("{count:>8}  {right}");
    }
    let differences = rights::differences(&granted, &asked);
    for difference in &differences {
        println!("{difference}");
    }
    let refused = asked.refused.len();
    println!(
        "{regions} regions: {} rights used, {} granted, {refused} requests refused for lack of a right",
        asked.used.len(),
        granted.len()
    );
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
