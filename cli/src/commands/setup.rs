//! `gco inference setup`: what the fleet's tables are made of, looked at or made. No row is ever read or written.

use std::time::Duration;

use gco_store::index::{Part, PartState};
use serde_json::json;

use crate::arguments::SetupFlags;
use crate::commands::Context;
use crate::connect::Connection;
use crate::failure::Failure;
use crate::output::{Format, columns};

/// How long an index that was just asked for is watched, so that a small table's is reported as ready.
const INDEX_PATIENCE: Duration = Duration::from_secs(10);
const INDEX_INTERVAL: Duration = Duration::from_millis(500);

/// What was found of a part, and what was done about it.
struct Found {
    part: Part,
    state: PartState,
    made: bool,
}

/// Looks at every part, and with `--apply` makes what is missing.
///
/// # Errors
/// Wrong flags, a table that does not answer, and with `--check` a part that is missing or cannot be used.
pub async fn execute(given: &SetupFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    if given.check == given.apply {
        return Err(Failure::usage("--check, --apply", "exactly one of them is needed"));
    }
    if given.create_table && !given.apply {
        return Err(Failure::usage("--create-table", "needs --apply"));
    }
    let connection = context.connect().await?;
    let mut found = Vec::new();
    for part in Part::ALL {
        let state = inspect(&connection, part).await?;
        found.push(Found { part, state, made: false });
    }
    if given.apply {
        for one in &mut found {
            if one.state != PartState::Missing {
                continue;
            }
            if one.part == Part::Endpoints && !given.create_table {
                return Err(Failure::refused(format!(
                    "there is no {}, and nothing was made: add --create-table to make it, or check the table's name and \
                     region",
                    connection.described
                )));
            }
            connection.table.create(one.part).await.map_err(|error| connection.failed(&error))?;
            one.made = true;
            one.state = settled(&connection, one.part).await?;
        }
    }
    print(&found, &connection, context)?;
    finish(&found, given)
}

async fn inspect(connection: &Connection, part: Part) -> Result<PartState, Failure> {
    connection.table.inspect(part).await.map_err(|error| connection.failed(&error))
}

/// The state of a part that was just made; an index is given a moment.
async fn settled(connection: &Connection, part: Part) -> Result<PartState, Failure> {
    let mut waited = Duration::ZERO;
    loop {
        let state = inspect(connection, part).await?;
        if matches!(state, PartState::Ready | PartState::Unusable(_)) || waited >= INDEX_PATIENCE {
            return Ok(state);
        }
        tokio::time::sleep(INDEX_INTERVAL).await;
        waited += INDEX_INTERVAL;
    }
}

fn part_in_words(part: Part) -> &'static str {
    match part {
        Part::Endpoints => "endpoint table",
        Part::Regions => "regions' table",
        Part::ChangeIndex => "change index",
    }
}

fn state_in_words(found: &Found) -> String {
    match &found.state {
        PartState::Missing => "missing".to_owned(),
        PartState::Making => "being built: usable when --check says so; large tables take a while".to_owned(),
        PartState::Ready if found.made => "made".to_owned(),
        PartState::Ready => "ready".to_owned(),
        PartState::Unusable(why) => format!("cannot be used: {why}"),
    }
}

fn print(found: &[Found], connection: &Connection, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    match context.output.format() {
        Format::Table => {
            let mut text = format!("Setup of {}\n", connection.described);
            for one in found {
                text.push_str(&format!("  {}\n", columns(&[(part_in_words(one.part), 16), (&state_in_words(one), 0)])));
            }
            Ok(context.output.text(&text)?)
        }
        Format::Json | Format::Yaml => {
            let parts: Vec<_> = found
                .iter()
                .map(|one| {
                    let (state, reason) = match &one.state {
                        PartState::Missing => ("missing", None),
                        PartState::Making => ("making", None),
                        PartState::Ready => ("ready", None),
                        PartState::Unusable(why) => ("unusable", Some(why)),
                    };
                    json!({"part": part_in_words(one.part), "state": state, "made": one.made, "reason": reason})
                })
                .collect();
            Ok(context.output.document(&json!({"table": connection.described, "parts": parts}))?)
        }
    }
}

fn finish(found: &[Found], given: &SetupFlags) -> Result<(), Failure> {
    if let Some(bad) = found.iter().find(|one| matches!(one.state, PartState::Unusable(_))) {
        let part = part_in_words(bad.part);
        return Err(Failure::refused(format!("the {part} is there but cannot be used; nothing of it was changed")));
    }
    let missing: Vec<&str> =
        found.iter().filter(|one| one.state == PartState::Missing).map(|one| part_in_words(one.part)).collect();
    if given.check && !missing.is_empty() {
        let missing = missing.join(", ");
        return Err(Failure::refused(format!(
            "missing: {missing}; 'gco inference setup --apply' makes what is missing"
        )));
    }
    Ok(())
}
