//! One of several processes that race for an embedded table: opens the file, says `ready`, and executes one transition per
//! line that it reads, answering `applied`, `refused` or the error.
//!
//! Usage: `table-writer <file> <endpoint> <number>`; each line is `go`: read, then write under what was read; `look` reads.

use std::io::{BufRead as _, Write as _};
use std::path::Path;

use anyhow::Context as _;
use gco_store::embedded::EmbeddedTable;
use gco_tests::tables::races::{Raced, Racer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |what: &str| {
        arguments.next().with_context(|| format!("usage: table-writer <file> <endpoint> <number>: no {what}"))
    };
    let file = argument("file")?;
    let name = argument("endpoint")?;
    let number = argument("number")?.parse()?;
    let table = EmbeddedTable::open(Path::new(&file))?;
    let mut racer = Racer::new(std::sync::Arc::new(table), &name, number);
    let (input, mut output) = (std::io::stdin().lock(), std::io::stdout());
    for line in input.lines() {
        let answer = match line?.as_str() {
            "look" => racer.look().await.map(|()| "looked".to_owned()),
            "go" => racer.write().await.map(|raced| match raced {
                Raced::Applied => "applied".to_owned(),
                Raced::Refused => "refused".to_owned(),
            }),
            other => anyhow::bail!("unknown command {other:?}"),
        };
        writeln!(output, "{}", answer.unwrap_or_else(|error| format!("failed: {error:#}")))?;
        output.flush()?;
    }
    Ok(())
}
