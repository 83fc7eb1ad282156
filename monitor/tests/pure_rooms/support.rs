//! Rows of the fixtures, specs, and what tests say about them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gco_monitor::identity::{LeaderMark, RowIdentity};
use gco_monitor::intent::{Intent, RegionContext};
use gco_monitor::object::{DesiredSet, ObservedPod, ObservedPort};
use gco_monitor::render::{RenderInput, classic};
use gco_store::row::EndpointRow;
use gco_store::spec::Spec;
use gco_store::wire::{Item, Value, item_from_dynamodb_json};

pub(crate) const REGION: &str = "us-east-1";
pub(crate) const NAMESPACE: &str = "gco-inference";
pub(crate) const CLUSTER: &str = "gco-cluster";
pub(crate) const NOW: &str = "2026-11-29T12:00:00+00:00";

/// The workspace's `tests` folder.
pub(crate) fn tests_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests")
}

/// A fixture's row as the table holds it.
pub(crate) fn item(fixture: &str) -> Item {
    let path = tests_folder().join(format!("fixtures/rows/{fixture}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    item_from_dynamodb_json(&serde_json::from_str(&text).unwrap()).unwrap()
}

pub(crate) fn row(fixture: &str) -> EndpointRow {
    EndpointRow::parse(item(fixture)).unwrap()
}

/// The row of a fixture after a change of its attributes.
pub(crate) fn row_with(fixture: &str, change: impl FnOnce(&mut Item)) -> EndpointRow {
    let mut item = item(fixture);
    change(&mut item);
    EndpointRow::parse(item).unwrap()
}

/// The map at an attribute.
pub(crate) fn map<'a>(item: &'a mut Item, attribute: &str) -> &'a mut Item {
    let value = item.entry(attribute.to_owned()).or_insert_with(|| Value::Map(Item::new()));
    match value {
        Value::Map(map) => map,
        other => panic!("{attribute} is {}", other.type_name()),
    }
}

/// Decides for a fixture's row with nothing special around it.
pub(crate) fn decide(row: &EndpointRow) -> Intent {
    decide_in(row, REGION)
}

pub(crate) fn decide_in(row: &EndpointRow, region: &str) -> Intent {
    let others = BTreeSet::new();
    gco_monitor::intent::decide(
        row,
        &RegionContext { region, namespace: NAMESPACE, other_names: &others, frozen: false },
    )
}

/// Lifecycle and generation of a row, or made-up ones for a row that is older than both.
pub(crate) fn identity_of(row: &EndpointRow, region: &str) -> RowIdentity {
    let made_up = |digit: &str| digit.repeat(64);
    RowIdentity {
        lifecycle_id: row.lifecycle_id.clone().unwrap_or_else(|| made_up("a")),
        region_generation: row.region_generation(region).map_or_else(|| made_up("b"), str::to_owned),
    }
}

pub(crate) fn identity(digit: char) -> RowIdentity {
    RowIdentity { lifecycle_id: digit.to_string().repeat(64), region_generation: "9".repeat(64) }
}

pub(crate) fn spec_of(row: &EndpointRow) -> Spec {
    Spec::check(&row.spec).unwrap().spec
}

/// A spec with an image and every default.
pub(crate) fn small_spec() -> Spec {
    let map = Item::from([("image".to_owned(), Value::from("vllm/vllm-openai:v0.28.0"))]);
    Spec::check(&Value::Map(map)).unwrap().spec
}

pub(crate) fn rendered(name: &str, identity: &RowIdentity, spec: &Spec) -> DesiredSet {
    classic(&RenderInput { name, namespace: NAMESPACE, region: REGION, cluster_name: CLUSTER, identity, spec })
}

pub(crate) fn leader(term: u64) -> LeaderMark {
    LeaderMark { epoch: format!("{term:064x}"), term }
}

/// A pod that is ready.
pub(crate) fn ready_pod(name: &str, app: &str, identity: &RowIdentity, input_hash: Option<&str>) -> ObservedPod {
    ObservedPod {
        name: name.to_owned(),
        app: app.to_owned(),
        ready: true,
        terminating: false,
        ended: false,
        input_hash: input_hash.map(str::to_owned),
        template: None,
        port: Some(ObservedPort { name: Some("http".to_owned()), number: 8000 }),
        lifecycle_id: Some(identity.lifecycle_id.clone()),
        reason: None,
        message: None,
        exit_code: None,
        restarts: 0,
    }
}

/// A pod that is not.
pub(crate) fn waiting_pod(name: &str, app: &str, identity: &RowIdentity, reason: &str, message: &str) -> ObservedPod {
    ObservedPod {
        ready: false,
        reason: Some(reason.to_owned()),
        message: (!message.is_empty()).then(|| message.to_owned()),
        ..ready_pod(name, app, identity, None)
    }
}

pub(crate) fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
