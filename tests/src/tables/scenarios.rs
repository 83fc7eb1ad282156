//! One transition of every kind, with a row that it is for and with what another writer does meanwhile.

use std::collections::BTreeMap;

use anyhow::Context as _;
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::status::{RegionEntry, State};
use gco_store::transition::{self, CreateRequest, StatusAuthority, Transition};
use gco_store::wire::{Item, Value};
use jiff::{Timestamp, ToSpan};

use super::reference::{Expected, Reference};
use super::seed::Seed;
use super::specs::{self, Shape};

/// The regions of the rows.
pub const REGIONS: [&str; 2] = ["us-east-1", "eu-west-1"];

/// A kind of transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// B.1
    Create,
    /// B.4
    BackFill,
    /// B.5 to `stopped`
    Stop,
    /// B.5 to `deleted`
    Delete,
    /// `deploying` to `running`
    Promote,
    /// B.6
    Start,
    /// B.7
    UpdateSpec,
    /// B.8
    Scale,
    /// B.9, live
    Observe,
    /// B.9, deletion
    Acknowledge,
    /// B.10
    ChangeTargets,
    /// B.11
    Purge,
    /// `control.paused`
    Pause,
}

/// Every kind.
pub const KINDS: [Kind; 13] = [
    Kind::Create,
    Kind::BackFill,
    Kind::Stop,
    Kind::Delete,
    Kind::Promote,
    Kind::Start,
    Kind::UpdateSpec,
    Kind::Scale,
    Kind::Observe,
    Kind::Acknowledge,
    Kind::ChangeTargets,
    Kind::Purge,
    Kind::Pause,
];

/// Makes rows and transitions of one endpoint; times grow from call to call.
#[derive(Debug)]
pub struct Scenarios {
    name: String,
    seed: Seed,
    now: Timestamp,
}

impl Scenarios {
    /// For the endpoint of this name.
    #[must_use]
    pub fn new(name: &str, seed: u64) -> Self {
        let now = Timestamp::UNIX_EPOCH.saturating_add(500_000.hours()).unwrap_or(Timestamp::UNIX_EPOCH);
        Self { name: name.to_owned(), seed: Seed::new(seed), now }
    }

    fn tick(&mut self) -> Timestamp {
        self.now = self.now.saturating_add(1.second()).unwrap_or(self.now);
        self.now
    }

    /// The transitions that lead to the row that a transition of this kind is for.
    ///
    /// # Errors
    /// A row or a transition that the store refuses.
    pub fn history(&mut self, kind: Kind) -> anyhow::Result<Vec<Transition>> {
        let steps: &[Kind] = match kind {
            Kind::Create => &[],
            Kind::BackFill => &[Kind::Create],
            Kind::Promote => &[Kind::Create],
            Kind::Start => &[Kind::Create, Kind::Promote, Kind::Stop],
            Kind::Acknowledge => &[Kind::Create, Kind::Promote, Kind::Observe, Kind::Delete],
            Kind::Purge => &[Kind::Create, Kind::Promote, Kind::Delete, Kind::Acknowledge, Kind::Acknowledge],
            _ => &[Kind::Create, Kind::Promote, Kind::Observe],
        };
        let mut reference = Reference::default();
        let mut history = Vec::new();
        for step in steps {
            let mut transition = self.transition(*step, reference.row(&self.name))?;
            if let (Kind::BackFill, gco_store::transition::Write::Put(row)) = (kind, &mut transition.write) {
                row.remove("lifecycle_id");
                row.remove("region_generations");
            }
            let expected = reference.execute(&transition);
            anyhow::ensure!(matches!(expected, Expected::Applied(_)), "{step:?} for {kind:?}: {expected:?}");
            history.push(transition);
        }
        Ok(history)
    }

    /// A transition of a kind from a row.
    ///
    /// # Errors
    /// When the row's state forbids it.
    pub fn transition(&mut self, kind: Kind, row: Option<&Item>) -> anyhow::Result<Transition> {
        let now = self.tick();
        if kind == Kind::Create {
            let request = CreateRequest {
                name: self.name.clone(),
                spec: specs::spec(Shape::Plain, &mut self.seed)?,
                target_regions: REGIONS.map(str::to_owned).to_vec(),
                namespace: transition::NAMESPACE.to_owned(),
                labels: BTreeMap::new(),
                created_by: None,
            };
            return Ok(transition::create(&request, now, &mut || self.seed.token())?);
        }
        let row = EndpointRow::parse(row.cloned().context("there is no row")?)
            .map_err(|problem| anyhow::anyhow!("{problem}"))?;
        let spec = specs::spec(Shape::Plain, &mut self.seed)?;
        let replicas = i64::try_from(self.seed.below(500))? + 1;
        let seed = &mut self.seed;
        let mut token = || seed.token();
        Ok(match kind {
            Kind::Create | Kind::BackFill => {
                transition::back_fill(&row, now, &mut token)?.context("nothing is missing in the row")?
            }
            Kind::Stop => transition::set_desired_state(&row, DesiredState::Stopped, None, now, &mut token)?,
            Kind::Delete => transition::set_desired_state(&row, DesiredState::Deleted, None, now, &mut token)?,
            Kind::Promote => transition::promote(&row, now)?,
            Kind::Start => transition::start(&row, now)?,
            Kind::UpdateSpec => transition::update_spec(&row, spec, now)?,
            Kind::Scale => transition::scale(&row, replicas, now)?,
            Kind::Observe => observation(&row, REGIONS[0], now)?,
            Kind::Acknowledge => acknowledgement(&row, now)?,
            Kind::ChangeTargets => {
                let targets = if row.target_regions.len() == 1 { &REGIONS[..] } else { &REGIONS[..1] };
                let targets: Vec<_> = targets.iter().map(|region| (*region).to_owned()).collect();
                transition::update_target_regions(&row, &targets, now, &mut token)?
            }
            Kind::Purge => transition::purge(&row).context("the quorum does not stand")?,
            Kind::Pause => transition::set_paused(&row, !row.paused, now)?,
        })
    }

    /// What another writer does to the row that stands there now: where possible it undoes the kind's transition, so that
    /// blindly repeating that one would find its condition true again.
    ///
    /// # Errors
    /// When the row's state forbids it.
    pub fn meddle(&mut self, kind: Kind, row: Option<&Item>) -> anyhow::Result<Transition> {
        let Some(item) = row else { return self.transition(Kind::Create, None) };
        let row = EndpointRow::parse(item.clone()).map_err(|problem| anyhow::anyhow!("{problem}"))?;
        let other = match (kind, &row.desired_state) {
            // The row stays until every region has confirmed; nobody can purge it within the time of one operation.
            (Kind::Create, _) => Kind::Delete,
            (_, DesiredState::Deleted) if matches!(kind, Kind::Purge | Kind::Delete) => Kind::Delete,
            (_, DesiredState::Deleted) => Kind::Acknowledge,
            (Kind::Stop, DesiredState::Stopped) => Kind::Start,
            (Kind::Start, DesiredState::Running) => Kind::Stop,
            (Kind::Promote, DesiredState::Running) => {
                let now = self.tick();
                let seed = &mut self.seed;
                let deploying = DesiredState::Deploying;
                return Ok(transition::set_desired_state(&row, deploying, None, now, &mut || seed.token())?);
            }
            (Kind::UpdateSpec | Kind::Scale | Kind::ChangeTargets | Kind::Pause | Kind::Observe, _) => kind,
            _ if row.lifecycle_id.is_none() => Kind::BackFill,
            _ => Kind::Pause,
        };
        self.transition(other, Some(item))
    }
}

fn observation(row: &EndpointRow, region: &str, now: Timestamp) -> anyhow::Result<Transition> {
    let authority = StatusAuthority::Live {
        lifecycle_id: row.lifecycle_id.clone().context("no lifecycle")?,
        region_generation: row.region_generation(region).context("no generation")?.to_owned(),
    };
    let mut entry = RegionEntry::new(State::Running);
    entry.replicas_ready = row.region_status.get(region).map_or(1, |entry| entry.replicas_ready + 1);
    entry.replicas_desired = 3;
    Ok(transition::write_region_status(row, region, &entry, &authority, now)?)
}

/// The next region's confirmation; once all have confirmed, nothing is left to confirm.
fn acknowledgement(row: &EndpointRow, now: Timestamp) -> anyhow::Result<Transition> {
    let authority = StatusAuthority::Deletion {
        lifecycle_id: row.lifecycle_id.clone().context("no lifecycle")?,
        deletion_generation: row.deletion_generation.clone().context("no deletion generation")?,
    };
    let confirmed = |region: &&str| row.region_status.get(*region).is_some_and(|entry| entry.state == State::Deleted);
    let region = REGIONS.iter().find(|region| !confirmed(region)).context("every region has confirmed")?;
    let mut entry = RegionEntry::new(State::Deleted);
    entry.absence_observations = Some(2);
    Ok(transition::write_region_status(row, region, &entry, &authority, now)?)
}

/// `desired_state` of a row, for messages.
#[must_use]
pub fn desired_state(row: Option<&Item>) -> &str {
    row.and_then(|row| row.get("desired_state")).and_then(Value::as_str).unwrap_or("no row")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_row_that_it_changes_and_another_writer_that_changes_it_too() {
        for kind in KINDS {
            let mut scenarios = Scenarios::new("chat", 1);
            let mut reference = Reference::default();
            for step in scenarios.history(kind).unwrap() {
                reference.execute(&step);
            }
            let transition = scenarios.transition(kind, reference.row("chat")).unwrap();
            let before = reference.clone();
            assert!(matches!(reference.execute(&transition), Expected::Applied(_)), "{kind:?}");
            for mut reference in [before, reference] {
                let other = scenarios.meddle(kind, reference.row("chat")).unwrap();
                assert!(matches!(reference.execute(&other), Expected::Applied(_)), "{kind:?}: {other:?}");
            }
        }
    }
}
