//! One row of the endpoint table, typed as far as it can be read.

use std::collections::{BTreeMap, BTreeSet};

use crate::problem::{FieldProblem, QUOTED_VALUE_CHARACTERS, bounded};
use crate::status::{RegionEntry, State};
use crate::wire::{Item, Value};

/// What the row asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DesiredState {
    /// Created or (by the original) edited; not yet serving anywhere.
    Deploying,
    /// Should serve; routers let traffic through.
    Running,
    /// Should hold no pods.
    Stopped,
    /// Should vanish; terminal.
    Deleted,
    /// A word that this version does not know: nothing is done for it.
    Unknown(String),
}

/// One endpoint as the table holds it.
///
/// Reading never loses anything: [`EndpointRow::item`] is the row exactly as read. Attributes of a wrong type read as
/// absent and are named in [`EndpointRow::problems`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointRow {
    /// `endpoint_name`
    pub name: String,
    /// `lifecycle_id`: 64 hexadecimal digits; absent on rows older than lifecycle fencing.
    pub lifecycle_id: Option<String>,
    /// `desired_state`; absent reads as `deploying`.
    pub desired_state: DesiredState,
    /// `target_regions`, in order.
    pub target_regions: Vec<String>,
    /// `cleanup_regions`; `None` when absent.
    pub cleanup_regions: Option<Vec<String>>,
    /// `region_generations`; `None` when absent.
    pub region_generations: Option<BTreeMap<String, String>>,
    /// `namespace`
    pub namespace: Option<String>,
    /// `spec`, unchecked; `Null` when absent. [`crate::spec::Spec::check`] types it.
    pub spec: Value,
    /// `ingress_path`
    pub ingress_path: Option<String>,
    /// `created_at`
    pub created_at: Option<String>,
    /// `updated_at`: the row's version.
    pub updated_at: Option<String>,
    /// `region_status` by region.
    pub region_status: BTreeMap<String, RegionEntry>,
    /// `labels`
    pub labels: BTreeMap<String, String>,
    /// `created_by`
    pub created_by: Option<String>,
    /// `deletion_generation`
    pub deletion_generation: Option<String>,
    /// `deletion_regions`; `None` when absent.
    pub deletion_regions: Option<Vec<String>>,
    /// `control.paused` (ours; the original keeps it and does not know it).
    pub paused: bool,
    /// `control.refresh` (ours, likewise): somebody asked for the current rendering of pods.
    pub refresh: Option<Refresh>,
    /// `control.absent_regions` (ours): regions that an operator declared gone for good, by region.
    pub absent_regions: BTreeMap<String, AbsentRegion>,
    /// Attributes of a type that the contract does not give them.
    pub problems: Vec<FieldProblem>,
    /// The row exactly as read.
    pub item: Item,
}

/// An operator's signed word that a region of a deleted endpoint is gone for good (D-21).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsentRegion {
    /// Who said so.
    pub by: String,
    /// When, ISO-8601.
    pub at: String,
    /// Why.
    pub reason: String,
    /// Of which life of the name: in another one it counts for nothing.
    pub lifecycle_id: String,
    /// Of which deletion.
    pub deletion_generation: String,
}

impl DesiredState {
    /// The word of the contract.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Deploying => "deploying",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Deleted => "deleted",
            Self::Unknown(word) => word,
        }
    }

    /// Reads a word of the contract.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        match word {
            "deploying" => Self::Deploying,
            "running" => Self::Running,
            "stopped" => Self::Stopped,
            "deleted" => Self::Deleted,
            other => Self::Unknown(other.to_owned()),
        }
    }
}

/// A wish that pods run what the monitors render now, though no edit asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// `requested_at`: when, ISO-8601; tells one wish from another.
    pub requested_at: String,
    /// `at_once`: how many endpoints of a region may restart at once for it; a region's own limit counts if it is lower.
    pub at_once: Option<u32>,
}

/// How far the regions are with confirming a deletion (contract C.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// Every region of `deletion_regions` has acknowledged, or was declared absent: the row may be purged.
    Stands,
    /// These regions, in the row's order, have not acknowledged yet and were not declared absent.
    Missing(Vec<String>),
    /// The row is not being deleted, or lacks what a purge is conditioned on; which attribute, and why.
    Undefined(FieldProblem),
}

/// Complete absence sweeps in a row that make an acknowledgement terminal (contract C.9).
pub const TERMINAL_OBSERVATIONS: u32 = 2;

impl EndpointRow {
    /// Reads a row.
    ///
    /// # Errors
    /// Only when `endpoint_name` is absent, empty or not a string.
    pub fn parse(item: Item) -> Result<Self, FieldProblem> {
        let name = match item.get("endpoint_name") {
            Some(Value::String(name)) if !name.is_empty() => name.clone(),
            _ => return Err(FieldProblem::new("endpoint_name", "must be a non-empty string")),
        };
        let mut reader = Reader { item: &item, problems: Vec::new() };
        let desired_state = match reader.present("desired_state") {
            None => DesiredState::Deploying,
            Some(Value::String(word)) => DesiredState::from_word(word),
            // Read as absent it would be deployed, which nobody asked for.
            Some(other) => DesiredState::Unknown(other.type_name().to_owned()),
        };
        if let DesiredState::Unknown(word) = &desired_state {
            let shown = bounded(word, QUOTED_VALUE_CHARACTERS);
            reader.problem("desired_state", format!("is unknown (\"{shown}\"): nothing is done for this row"));
        }
        let mut region_status = BTreeMap::new();
        for (region, value) in reader.map("region_status").unwrap_or(&Item::new()) {
            let (entry, problems) = RegionEntry::parse(&format!("region_status.{region}"), value);
            reader.problems.extend(problems);
            region_status.insert(region.clone(), entry);
        }
        let paused = match reader.map("control").and_then(|control| control.get("paused")) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Bool(true)) => true,
            Some(other) => {
                // Who wrote anything here meant to stop changes; the harmless reading of an unclear word is "paused".
                reader.problem("control.paused", format!("must be a BOOL, is {}; read as true", other.type_name()));
                true
            }
        };
        let refresh = reader.refresh();
        let row = Self {
            name,
            lifecycle_id: reader.non_empty_text("lifecycle_id"),
            desired_state,
            target_regions: reader.texts("target_regions").unwrap_or_default(),
            cleanup_regions: reader.texts("cleanup_regions"),
            region_generations: reader.text_map("region_generations"),
            namespace: reader.text("namespace"),
            spec: item.get("spec").cloned().unwrap_or(Value::Null),
            ingress_path: reader.text("ingress_path"),
            created_at: reader.text("created_at"),
            updated_at: reader.non_empty_text("updated_at"),
            region_status,
            labels: reader.text_map("labels").unwrap_or_default(),
            created_by: reader.text("created_by"),
            deletion_generation: reader.non_empty_text("deletion_generation"),
            deletion_regions: reader.texts("deletion_regions"),
            paused,
            refresh,
            absent_regions: reader.absent_regions(),
            problems: Vec::new(),
            item: Item::new(),
        };
        let problems = reader.problems;
        Ok(Self { problems, item, ..row })
    }

    /// Whether nothing of the lifecycle metadata is missing (contract C.4, step 2): lifecycle, clean-up list, and a
    /// generation for every region of that list.
    #[must_use]
    pub fn lifecycle_complete(&self) -> bool {
        let generation = |region: &String| self.region_generation(region).is_some();
        self.lifecycle_id.is_some() && self.cleanup_regions.as_ref().is_some_and(|list| list.iter().all(generation))
    }

    /// Whether the row asks for this region.
    #[must_use]
    pub fn is_target(&self, region: &str) -> bool {
        self.target_regions.iter().any(|target| target == region)
    }

    /// Whether this region is or ever was asked for, as far as the row knows.
    #[must_use]
    pub fn concerns(&self, region: &str) -> bool {
        let listed = |list: &Option<Vec<String>>| list.iter().flatten().any(|listed| listed == region);
        self.is_target(region)
            || listed(&self.cleanup_regions)
            || listed(&self.deletion_regions)
            || self.region_status.contains_key(region)
    }

    /// The region's generation token; an empty one reads as none.
    #[must_use]
    pub fn region_generation(&self, region: &str) -> Option<&str> {
        self.region_generations.as_ref()?.get(region).map(String::as_str).filter(|token| !token.is_empty())
    }

    /// Whether the region has confirmed, with finality, that nothing of this endpoint is left in it (contract C.9): state
    /// `deleted` of this lifecycle, two absence observations, and the row's deletion generation (a deleted row) or the
    /// region's generation (a live row that the region was removed from; never for a target).
    #[must_use]
    pub fn acknowledged(&self, region: &str) -> bool {
        let Some(entry) = self.region_status.get(region) else { return false };
        let same = |one: Option<&str>, other: Option<&str>| one.is_some() && one == other;
        let right_generation = if self.desired_state == DesiredState::Deleted {
            same(entry.deletion_generation.as_deref(), self.deletion_generation.as_deref())
        } else {
            !self.is_target(region) && same(entry.region_generation.as_deref(), self.region_generation(region))
        };
        entry.state == State::Deleted
            && same(entry.lifecycle_id.as_deref(), self.lifecycle_id.as_deref())
            && right_generation
            && entry.absence_observations.is_some_and(|count| count >= TERMINAL_OBSERVATIONS)
    }

    /// Whether an operator declared this region gone for good in this very deletion (D-21).
    #[must_use]
    pub fn declared_absent(&self, region: &str) -> bool {
        self.desired_state == DesiredState::Deleted
            && self.absent_regions.get(region).is_some_and(|absent| {
                self.lifecycle_id.as_ref() == Some(&absent.lifecycle_id)
                    && self.deletion_generation.as_ref() == Some(&absent.deletion_generation)
            })
    }

    /// Whether the row may be purged, or which regions have neither acknowledged its deletion (contract C.9) nor been declared
    /// absent by an operator (D-21).
    #[must_use]
    pub fn quorum(&self) -> Quorum {
        let undefined = |field: &str, message: &str| Quorum::Undefined(FieldProblem::new(field, message));
        if self.desired_state != DesiredState::Deleted {
            return undefined("desired_state", "is not deleted");
        }
        for (field, value) in [
            ("lifecycle_id", &self.lifecycle_id),
            ("deletion_generation", &self.deletion_generation),
            ("updated_at", &self.updated_at),
        ] {
            if value.is_none() {
                return undefined(field, "must be a non-empty string before the row can be purged");
            }
        }
        // Read from the item: an element of a wrong type is left out of the typed list, and a quorum of a list with
        // holes would be no quorum.
        let regions = match self.item.get("deletion_regions").and_then(Value::as_list) {
            Some(list) if !list.is_empty() => list,
            _ => return undefined("deletion_regions", "must be a non-empty list before the row can be purged"),
        };
        let mut distinct = BTreeSet::new();
        if !regions.iter().all(|region| region.as_str().is_some_and(|name| !name.is_empty() && distinct.insert(name))) {
            return undefined("deletion_regions", "must hold distinct non-empty strings");
        }
        let missing: Vec<String> = regions
            .iter()
            .filter_map(Value::as_str)
            .filter(|region| !self.acknowledged(region) && !self.declared_absent(region))
            .map(str::to_owned)
            .collect();
        if missing.is_empty() { Quorum::Stands } else { Quorum::Missing(missing) }
    }
}

/// Reads attributes of known types, noting those of others.
struct Reader<'a> {
    item: &'a Item,
    problems: Vec<FieldProblem>,
}

impl<'a> Reader<'a> {
    fn problem(&mut self, field: &str, message: impl AsRef<str>) {
        self.problems.push(FieldProblem::new(field, message));
    }

    /// The attribute; `NULL` counts as absent.
    fn present(&self, name: &str) -> Option<&'a Value> {
        self.item.get(name).filter(|value| **value != Value::Null)
    }

    fn wrong_type(&mut self, field: &str, wanted: &str, found: &Value) {
        self.problem(field, format!("must be {wanted}, is of type {}", found.type_name()));
    }

    fn text(&mut self, name: &str) -> Option<String> {
        match self.present(name)? {
            Value::String(text) => Some(text.clone()),
            other => {
                self.wrong_type(name, "a string", other);
                None
            }
        }
    }

    fn non_empty_text(&mut self, name: &str) -> Option<String> {
        self.text(name).filter(|text| !text.is_empty())
    }

    fn map(&mut self, name: &str) -> Option<&'a Item> {
        match self.present(name)? {
            Value::Map(map) => Some(map),
            other => {
                self.wrong_type(name, "a map", other);
                None
            }
        }
    }

    /// `control.refresh`. One that cannot be read restarts nothing.
    fn refresh(&mut self) -> Option<Refresh> {
        let refresh = match self.map("control").and_then(|control| control.get("refresh")) {
            None | Some(Value::Null) => return None,
            Some(refresh) => refresh,
        };
        let requested_at = refresh.at(&["requested_at"]).and_then(Value::as_str).filter(|text| !text.is_empty());
        let at_once = match refresh.at(&["at_once"]) {
            None | Some(Value::Null) => Ok(None),
            Some(count) => count
                .as_integer()
                .and_then(|count| u32::try_from(count).ok())
                .filter(|count| *count > 0)
                .map(Some)
                .ok_or(()),
        };
        let (Some(requested_at), Ok(at_once)) = (requested_at, at_once) else {
            self.problem(
                "control.refresh",
                "must be a map with `requested_at` S and, if at all, `at_once` N from 1 on",
            );
            return None;
        };
        Some(Refresh { requested_at: requested_at.to_owned(), at_once })
    }

    /// A declaration that lacks something counts for nothing, and is named.
    fn absent_regions(&mut self) -> BTreeMap<String, AbsentRegion> {
        let mut read = BTreeMap::new();
        let control = self.present("control").and_then(Value::as_map);
        let Some(declared) = control.and_then(|control| control.get("absent_regions")) else { return read };
        let Value::Map(declared) = declared else {
            self.wrong_type("control.absent_regions", "a map", declared);
            return read;
        };
        for (region, value) in declared {
            let text = |key: &str| value.at(&[key]).and_then(Value::as_str).filter(|text| !text.is_empty());
            let fields = ["by", "at", "reason", "lifecycle_id", "deletion_generation"].map(text);
            let [Some(by), Some(at), Some(reason), Some(lifecycle_id), Some(deletion_generation)] =
                fields.map(|field| field.map(str::to_owned))
            else {
                let place = format!("control.absent_regions.{region}");
                self.problem(
                    &place,
                    "must have by, at, reason, lifecycle_id and deletion_generation; it is not counted",
                );
                continue;
            };
            read.insert(region.clone(), AbsentRegion { by, at, reason, lifecycle_id, deletion_generation });
        }
        read
    }

    fn texts(&mut self, name: &str) -> Option<Vec<String>> {
        let list = match self.present(name)? {
            Value::List(list) => list,
            other => {
                self.wrong_type(name, "a list of strings", other);
                return None;
            }
        };
        let mut texts = Vec::new();
        for (index, element) in list.iter().enumerate() {
            match element {
                Value::String(text) if !text.is_empty() => texts.push(text.clone()),
                other => self.wrong_type(&format!("{name}[{index}]"), "a non-empty string", other),
            }
        }
        Some(texts)
    }

    fn text_map(&mut self, name: &str) -> Option<BTreeMap<String, String>> {
        let mut texts = BTreeMap::new();
        for (key, value) in self.map(name)? {
            match value {
                Value::String(text) => {
                    texts.insert(key.clone(), text.clone());
                }
                other => self.wrong_type(&format!("{name}.{key}"), "a string", other),
            }
        }
        Some(texts)
    }
}
