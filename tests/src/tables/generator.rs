//! Seeded actors: each remembers rows as it once read them, and acts on what it remembers.
//!
//! The generator sees only the reference, so the same seed gives the same steps whatever the backends answer.

use std::collections::{BTreeMap, VecDeque};

use gco_store::row::{DesiredState, EndpointRow};
use gco_store::status::{RegionEntry, State};
use gco_store::transition::{
    self, Condition, CreateRequest, Declaration, Operation, Path, StatusAuthority, Transition, Write,
};
use gco_store::wire::{Item, Value};
use jiff::{Timestamp, ToSpan};

use super::reference::Reference;
use super::seed::Seed;
use super::specs;

/// How many writers take turns.
pub const ACTORS: usize = 3;
/// The regions that endpoints are for.
pub const REGIONS: [&str; 3] = ["us-east-1", "eu-west-1", "ap-northeast-2"];
/// Reads of one name that an actor may still act on.
const REMEMBERED_READS: usize = 4;
/// Rows as they once stood, one per life and desired state, that an actor may still act on: a process that slept long.
const REMEMBERED_PASTS: usize = 12;
/// How often an actor acts on such a past, in percent, by what stands there now: nothing (otherwise the row is made again
/// before anybody can miss it), a row that is being deleted, a live row.
const LATECOMER_PERCENT: (usize, usize, usize) = (92, 36, 16);
/// How often an actor learns of a write of somebody else, in percent.
const OVERHEARD_PERCENT: usize = 30;
/// How often an actor reads the row again just before it acts, in percent: the rest acts on an old read.
const FRESH_PERCENT: usize = 55;
/// Operations that the row's state forbids are drawn again; after so many the actor just reads.
const MOST_DRAWS: usize = 20;
/// What somebody who comes late tries, by weight: those most that few rows allow.
const LATECOMERS: [(usize, Attempt); 13] = [
    (6, Attempt::BackFill),
    (3, Attempt::Promote),
    (5, Attempt::Start),
    (3, Attempt::Pause),
    (5, Attempt::Observe),
    (4, Attempt::Scale),
    (2, Attempt::Purge),
    (2, Attempt::UpdateSpec),
    (2, Attempt::ChangeTargets),
    (1, Attempt::Acknowledge),
    (1, Attempt::Stop),
    (1, Attempt::DeleteWithLabel),
    (24, Attempt::DeclareAbsent),
];
/// Labels that rows carry and that deletions ask for.
const LABELS: [(&str, &str); 3] = [("team", "search"), ("team", "vision"), ("tier", "gold")];

/// What happens next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The actor reads one row (and remembers it).
    Get(String),
    /// The actor reads all rows.
    List,
    /// The actor executes a transition.
    Execute(Box<Transition>),
}

/// An operation that an actor may try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Create,
    LegacyRow,
    BackFill,
    Stop,
    Delete,
    DeleteWithLabel,
    Deploy,
    Promote,
    Start,
    UpdateSpec,
    Scale,
    Observe,
    Acknowledge,
    ChangeTargets,
    Purge,
    Pause,
    DeclareAbsent,
}

/// What an actor remembers of one name.
#[derive(Clone, Debug, Default)]
struct Memory {
    reads: VecDeque<Item>,
    pasts: VecDeque<Item>,
}

/// The actors, their memories and their clock.
#[derive(Debug)]
pub struct Generator {
    seed: Seed,
    names: Vec<String>,
    memories: Vec<BTreeMap<String, Memory>>,
    now: Timestamp,
    /// Draws that the row's state forbade: grows when the store refuses what these actors try.
    pub refused_draws: usize,
}

impl Generator {
    /// Actors on rows of these names.
    #[must_use]
    pub fn new(seed: u64, names: Vec<String>) -> Self {
        let now = Timestamp::UNIX_EPOCH.saturating_add(20_000.hours()).unwrap_or(Timestamp::UNIX_EPOCH);
        Self { seed: Seed::new(seed), names, memories: vec![BTreeMap::new(); ACTORS], now, refused_draws: 0 }
    }

    /// The next step and who takes it.
    ///
    /// # Errors
    /// A row of the reference that cannot be read.
    pub fn next(&mut self, reference: &Reference) -> anyhow::Result<(usize, Step)> {
        self.now = self.now.saturating_add(700.milliseconds())?;
        let actor = self.seed.below(ACTORS);
        let name = self.seed.pick(&self.names).cloned().unwrap_or_default();
        if self.seed.chance(4) {
            return Ok((actor, Step::List));
        }
        if self.seed.chance(12) {
            self.remember(actor, reference.row(&name));
            return Ok((actor, Step::Get(name)));
        }
        // Writers' clocks differ by seconds, in both directions; a version grows all the same.
        let skew = i64::try_from(self.seed.below(9))? - 4;
        let now = self.now.saturating_add(skew.seconds())?;
        if let Some(transition) = self.latecomer(actor, &name, reference, now)? {
            return Ok((actor, Step::Execute(Box::new(transition))));
        }
        for _ in 0..MOST_DRAWS {
            let snapshot = self.snapshot(actor, &name, reference);
            let row = snapshot.map(EndpointRow::parse).transpose().map_err(|problem| anyhow::anyhow!("{problem}"))?;
            let weights = weights(row.as_ref());
            let Some(attempt) = self.seed.pick_weighted(&weights).copied() else { break };
            match self.build(attempt, &name, row.as_ref(), now)? {
                Some(transition) => return Ok((actor, Step::Execute(Box::new(transition)))),
                None => self.refused_draws += 1,
            }
        }
        self.remember(actor, reference.row(&name));
        Ok((actor, Step::Get(name)))
    }

    /// An actor was told a row as it is now: as the answer to a read or to its own write. Others may hear of it.
    pub fn tell(&mut self, actor: usize, row: Option<&Item>) {
        for listener in 0..ACTORS {
            if listener == actor || self.seed.chance(OVERHEARD_PERCENT) {
                self.remember(listener, row);
            }
        }
    }

    fn remember(&mut self, actor: usize, row: Option<&Item>) {
        let (Some(row), Some(memory)) = (row, self.memories.get_mut(actor)) else { return };
        let Some(name) = row.get("endpoint_name").and_then(Value::as_str) else { return };
        let Memory { reads, pasts } = memory.entry(name.to_owned()).or_default();
        let unversioned = |entry: &Value| entry.at(&["last_sync"]).is_none();
        let from_before = |row: &Item| {
            row.get("region_status").and_then(Value::as_map).is_some_and(|entries| entries.values().any(unversioned))
        };
        let era = |row: &Item| (row.get("created_at").cloned(), row.get("desired_state").cloned(), from_before(row));
        pasts.retain(|past| era(past) != era(row));
        pasts.push_back(row.clone());
        while pasts.len() > REMEMBERED_PASTS {
            pasts.pop_front();
        }
        reads.push_back(row.clone());
        while reads.len() > REMEMBERED_READS {
            reads.pop_front();
        }
    }

    fn memory(&self, actor: usize, name: &str) -> Memory {
        self.memories.get(actor).and_then(|memory| memory.get(name)).cloned().unwrap_or_default()
    }

    /// Sometimes: an operation of any kind, on a row as it once stood. Kinds are tried in random order, each on every past,
    /// so that the rare ones are as frequent as the common ones.
    fn latecomer(
        &mut self,
        actor: usize,
        name: &str,
        reference: &Reference,
        now: Timestamp,
    ) -> anyhow::Result<Option<Transition>> {
        let deleted = |row: &Item| row.get("desired_state").and_then(Value::as_str) == Some("deleted");
        let mooncake = reference.row(name).and_then(|row| row.get("spec")?.at(&["mooncake"])).is_some();
        let percent = match reference.row(name) {
            None => LATECOMER_PERCENT.0,
            Some(row) if deleted(row) || mooncake => LATECOMER_PERCENT.1,
            Some(_) => LATECOMER_PERCENT.2,
        };
        let mut pasts = Vec::from(self.memory(actor, name).pasts);
        if pasts.is_empty() || !self.seed.chance(percent) {
            return Ok(None);
        }
        // Scaling asks whether the row became a Mooncake endpoint since: rare, unless somebody waits for it.
        let mut attempts = if mooncake { vec![(1, Attempt::Scale)] } else { LATECOMERS.to_vec() };
        while let Some(attempt) = self.seed.pick_weighted(&attempts).copied() {
            attempts.retain(|(_, other)| *other != attempt);
            let start = self.seed.below(pasts.len());
            pasts.rotate_left(start);
            for past in &pasts {
                let row = EndpointRow::parse(past.clone()).map_err(|problem| anyhow::anyhow!("{problem}"))?;
                if let Some(transition) = self.build(attempt, name, Some(&row), now)? {
                    return Ok(Some(transition));
                }
            }
        }
        Ok(None)
    }

    /// The row as the actor believes it to be.
    fn snapshot(&mut self, actor: usize, name: &str, reference: &Reference) -> Option<Item> {
        let current = reference.row(name);
        let reads = self.memory(actor, name).reads;
        if reads.is_empty() || current.is_none() || self.seed.chance(FRESH_PERCENT) {
            self.remember(actor, current);
            return current.cloned();
        }
        let index = self.seed.below(reads.len());
        reads.get(index).cloned()
    }

    /// The transition of an attempt; `None` when the row's state forbids it.
    fn build(
        &mut self,
        attempt: Attempt,
        name: &str,
        row: Option<&EndpointRow>,
        now: Timestamp,
    ) -> anyhow::Result<Option<Transition>> {
        match (attempt, row) {
            (Attempt::Create, _) => self.create(name, now),
            (Attempt::LegacyRow, _) => self.legacy_row(name, now).map(Some),
            (_, None) => Ok(None),
            (attempt, Some(row)) => self.change(attempt, row, now),
        }
    }

    fn create(&mut self, name: &str, now: Timestamp) -> anyhow::Result<Option<Transition>> {
        let labels = self.labels();
        let request = CreateRequest {
            name: name.to_owned(),
            spec: self.spec()?,
            target_regions: self.regions(),
            namespace: "gco-inference".to_owned(),
            labels,
            created_by: self.seed.chance(20).then(|| "suite".to_owned()),
        };
        let seed = &mut self.seed;
        Ok(transition::create(&request, now, &mut || seed.token()).ok())
    }

    fn change(&mut self, attempt: Attempt, row: &EndpointRow, now: Timestamp) -> anyhow::Result<Option<Transition>> {
        let spec = if attempt == Attempt::UpdateSpec { self.spec()? } else { Value::Null };
        let (targets, region) = (self.regions(), self.seed.pick(&REGIONS).copied().unwrap_or_default());
        let label = self.seed.pick(&LABELS).copied().unwrap_or_default();
        let replicas = i64::try_from(self.seed.below(5))? + 1;
        let paused = self.seed.chance(50);
        if attempt == Attempt::Observe {
            return Ok(self.observe(row, region, now));
        }
        if attempt == Attempt::Acknowledge {
            return Ok(self.acknowledge(row, region, now));
        }
        let seed = &mut self.seed;
        let mut token = || seed.token();
        let mut set = |state, label| transition::set_desired_state(row, state, label, now, &mut token).ok();
        let transition = match attempt {
            Attempt::Stop => set(DesiredState::Stopped, None),
            Attempt::Deploy => set(DesiredState::Deploying, None),
            Attempt::Delete => set(DesiredState::Deleted, None),
            Attempt::DeleteWithLabel => set(DesiredState::Deleted, Some(label)),
            Attempt::BackFill => transition::back_fill(row, now, &mut token).ok().flatten(),
            Attempt::Promote => transition::promote(row, now).ok(),
            Attempt::Start => transition::start(row, now).ok(),
            Attempt::UpdateSpec => transition::update_spec(row, spec, now).ok(),
            Attempt::Scale => transition::scale(row, replicas, now).ok(),
            Attempt::ChangeTargets => transition::update_target_regions(row, &targets, now, &mut token).ok(),
            Attempt::Purge => transition::purge(row),
            Attempt::Pause => transition::set_paused(row, paused, now).ok(),
            Attempt::DeclareAbsent => {
                let word = Declaration { by: "suite".to_owned(), reason: "gone for good".to_owned() };
                transition::declare_absent(row, region, &word, now).ok()
            }
            Attempt::Create | Attempt::LegacyRow | Attempt::Observe | Attempt::Acknowledge => None,
        };
        Ok(transition)
    }

    /// An ordinary observation of a live row; sometimes the confirmation of a region that was removed.
    fn observe(&mut self, row: &EndpointRow, region: &str, now: Timestamp) -> Option<Transition> {
        let states = [State::Creating, State::Running, State::Running, State::Stopping, State::Stopped, State::Failed];
        // Only rows from before compare-and-set have such entries.
        let unversioned = row.region_status.iter().find(|(_, entry)| entry.last_sync.is_none());
        let region = match unversioned {
            Some((unversioned, _)) if self.seed.chance(90) && row.is_target(unversioned) => unversioned,
            _ => region,
        };
        let authority = StatusAuthority::Live {
            lifecycle_id: row.lifecycle_id.clone()?,
            region_generation: row.region_generation(region)?.to_owned(),
        };
        let removed = !row.is_target(region);
        let mut entry = RegionEntry::new(if removed { State::Deleted } else { self.seed.pick(&states)?.clone() });
        entry.replicas_ready = u32::try_from(self.seed.below(4)).ok()?;
        entry.replicas_desired = 3;
        entry.degraded = self.seed.chance(20);
        entry.absence_observations = removed.then_some(2);
        entry.error = self.seed.chance(15).then(|| "PodsNotReady: image cannot be pulled".to_owned());
        transition::write_region_status(row, region, &entry, &authority, now).ok()
    }

    /// A clean-up observation of a row that is being deleted; mostly the terminal one.
    fn acknowledge(&mut self, row: &EndpointRow, region: &str, now: Timestamp) -> Option<Transition> {
        let authority = StatusAuthority::Deletion {
            lifecycle_id: row.lifecycle_id.clone()?,
            deletion_generation: row.deletion_generation.clone()?,
        };
        let missing: Vec<_> = row
            .deletion_regions
            .iter()
            .flatten()
            .filter(|region| row.region_status.get(*region).is_none_or(|entry| entry.state != State::Deleted))
            .cloned()
            .collect();
        let missing = if self.seed.chance(80) { self.seed.pick(&missing).cloned() } else { None };
        let region = missing.unwrap_or_else(|| region.to_owned());
        let terminal = self.seed.chance(80);
        let mut entry = RegionEntry::new(if terminal { State::Deleted } else { State::Deleting });
        entry.absence_observations = Some(if terminal { 2 } else { u32::from(self.seed.chance(50)) });
        transition::write_region_status(row, &region, &entry, &authority, now).ok()
    }

    /// A row as it was written before lifecycle fencing, with some of the metadata missing.
    fn legacy_row(&mut self, name: &str, now: Timestamp) -> anyhow::Result<Transition> {
        let text = |text: &str| Value::String(text.to_owned());
        let regions = self.regions();
        let list = Value::List(regions.iter().map(|region| text(region)).collect());
        let state = *self.seed.pick(&["deploying", "running", "stopped"]).unwrap_or(&"running");
        let version = gco_store::time::format(now);
        let mut item = Item::from([
            ("endpoint_name".to_owned(), text(name)),
            ("desired_state".to_owned(), text(state)),
            ("target_regions".to_owned(), list.clone()),
            ("namespace".to_owned(), text("gco-inference")),
            ("spec".to_owned(), self.spec()?),
            ("ingress_path".to_owned(), text(&format!("/inference/{name}"))),
            ("created_at".to_owned(), text(&version)),
            ("updated_at".to_owned(), text(&version)),
        ]);
        if self.seed.chance(50) {
            item.insert("written-by-a-newer-version".to_owned(), specs::unknown_key()?);
        }
        if self.seed.chance(90) {
            let mut status = Item::new();
            if self.seed.chance(90) {
                let entry = RegionEntry::new(State::Running).to_item();
                status.insert(regions.first().cloned().unwrap_or_default(), Value::Map(entry));
            }
            item.insert("region_status".to_owned(), Value::Map(status));
        }
        if self.seed.chance(60) {
            item.insert("lifecycle_id".to_owned(), Value::String(self.seed.token()));
        }
        if self.seed.chance(30) {
            item.insert("cleanup_regions".to_owned(), list);
        }
        if self.seed.chance(50) {
            let tokens = regions.iter().map(|region| (region.clone(), Value::String(self.seed.token()))).collect();
            item.insert("region_generations".to_owned(), Value::Map(tokens));
        }
        let labels = self.labels();
        if !labels.is_empty() {
            let labels = labels.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
            item.insert("labels".to_owned(), Value::Map(labels));
        }
        Ok(put_if_absent(name, item))
    }

    fn spec(&mut self) -> anyhow::Result<Value> {
        let shape = self.seed.pick_weighted(&specs::SHAPES).copied().unwrap_or(specs::Shape::Plain);
        specs::spec(shape, &mut self.seed)
    }

    /// One to three regions; mostly one, so that a deletion is soon confirmed everywhere.
    fn regions(&mut self) -> Vec<String> {
        let first = self.seed.below(REGIONS.len());
        let count = *self.seed.pick_weighted(&[(8, 1), (3, 2), (1, 3)]).unwrap_or(&1);
        REGIONS.iter().cycle().skip(first).take(count).map(|region| (*region).to_owned()).collect()
    }

    fn labels(&mut self) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        for (name, value) in LABELS {
            if self.seed.chance(40) {
                labels.insert(name.to_owned(), value.to_owned());
            }
        }
        labels
    }
}

/// How often each attempt is made on a row as the actor believes it to be.
fn weights(row: Option<&EndpointRow>) -> Vec<(usize, Attempt)> {
    let Some(row) = row else { return vec![(6, Attempt::Create), (5, Attempt::LegacyRow)] };
    let legacy = usize::from(!row.lifecycle_complete());
    let deleted = row.desired_state == DesiredState::Deleted;
    let unversioned = row.region_status.values().any(|entry| entry.last_sync.is_none());
    let live = [
        (2, Attempt::Create),
        (16 * legacy, Attempt::BackFill),
        (10, Attempt::Stop),
        (6, Attempt::Delete),
        (7, Attempt::DeleteWithLabel),
        (2, Attempt::Deploy),
        (12, Attempt::Promote),
        (18, Attempt::Start),
        (6, Attempt::UpdateSpec),
        (9, Attempt::Scale),
        (if unversioned { 40 } else { 14 }, Attempt::Observe),
        (6, Attempt::ChangeTargets),
        (4, Attempt::Pause),
    ];
    let dying = [
        (2, Attempt::Create),
        (4 * legacy, Attempt::BackFill),
        (1, Attempt::Delete),
        (1, Attempt::DeleteWithLabel),
        (1, Attempt::UpdateSpec),
        (1, Attempt::Pause),
        (18, Attempt::Acknowledge),
        (4, Attempt::DeclareAbsent),
        (30, Attempt::Purge),
    ];
    if deleted { dying.to_vec() } else { live.to_vec() }
}

/// A raw write of a whole row that is not there yet.
#[must_use]
pub fn put_if_absent(name: &str, item: Item) -> Transition {
    let key = Path(vec!["endpoint_name".to_owned()]);
    let new_updated_at = item.get("updated_at").and_then(Value::as_str).map(str::to_owned);
    Transition {
        operation: Operation::Create,
        name: name.to_owned(),
        condition: Condition::Not(Box::new(Condition::Exists(key))),
        write: Write::Put(item),
        base_updated_at: None,
        new_updated_at,
    }
}

/// A raw removal of a row.
#[must_use]
pub fn remove(name: &str) -> Transition {
    Transition {
        operation: Operation::Purge,
        name: name.to_owned(),
        condition: Condition::Exists(Path(vec!["endpoint_name".to_owned()])),
        write: Write::Delete,
        base_updated_at: None,
        new_updated_at: None,
    }
}
