//! Writers that race for one row under one condition.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use gco_store::row::EndpointRow;
use gco_store::table::{Consistency, Outcome, Table};
use gco_store::transition::{self, Transition};
use jiff::{Timestamp, ToSpan};

use super::scenarios::{Kind, Scenarios};
use super::seed::Seed;
use super::specs::{self, Shape};

/// What a writer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raced {
    /// It won.
    Applied,
    /// It lost.
    Refused,
}

/// One of several writers of one row.
#[derive(Debug)]
pub struct Racer {
    table: Arc<dyn Table>,
    name: String,
    number: u32,
    rounds: i64,
    seed: Seed,
    next: Option<Transition>,
}

impl Racer {
    /// Writer `number` of the row `name`; its writes differ from those of every other writer.
    #[must_use]
    pub fn new(table: Arc<dyn Table>, name: &str, number: u32) -> Self {
        let seed = Seed::new(u64::from(number) + 1000);
        Self { table, name: name.to_owned(), number, rounds: 0, seed, next: None }
    }

    /// Reads the row and makes up its mind: a new spec under the row's version; or a new row when there is none.
    ///
    /// # Errors
    /// A read that fails, or a row that cannot be edited.
    pub async fn look(&mut self) -> anyhow::Result<()> {
        self.rounds += 1;
        let row = self.table.get(&self.name, Consistency::Strong).await?;
        let Some(row) = row else {
            self.next = Some(Scenarios::new(&self.name, u64::from(self.number)).transition(Kind::Create, None)?);
            return Ok(());
        };
        let row = EndpointRow::parse(row).map_err(|problem| anyhow::anyhow!("{problem}"))?;
        // Every writer's clock is a little different: no two versions are the same.
        let now = Timestamp::UNIX_EPOCH
            .saturating_add(600_000.hours())?
            .saturating_add(self.rounds.seconds())?
            .saturating_add(i64::from(self.number).microseconds())?;
        let spec = specs::spec(Shape::Plain, &mut self.seed)?;
        self.next = Some(transition::update_spec(&row, spec, now)?);
        Ok(())
    }

    /// Writes what it made up its mind to.
    ///
    /// # Errors
    /// A write that fails, and one that was reported with another row than its own.
    pub async fn write(&mut self) -> anyhow::Result<Raced> {
        let transition = self.next.take().context("look first")?;
        match self.table.execute(&transition).await? {
            Outcome::Refused(_) => Ok(Raced::Refused),
            Outcome::Applied(Some(row)) => {
                let version = row.get("updated_at").and_then(gco_store::wire::Value::as_str);
                if version != transition.new_updated_at.as_deref() {
                    bail!("applied, and the row's version is {version:?} instead of {:?}", transition.new_updated_at);
                }
                Ok(Raced::Applied)
            }
            Outcome::Applied(None) => bail!("applied, and there is no row"),
        }
    }
}
