//! Thirty rows that cannot be served, each of another kind: each gets one clear message that names what is wrong, and the
//! requests of a neighbour meanwhile do not fail.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_bed::wait;
use gco_store::wire::{Item, Value};
use gco_tests::region::load::Load;
use gco_tests::region::rows::spec;
use gco_tests::region::{BOUND, Monitor, Pods, Region, RegionSettings, TableKind, TestTable};
use serde_json::{Value as Json, json};

/// How a good row is spoilt.
enum Spoilt {
    /// By these keys of its spec.
    Spec(Json),
    /// By setting an attribute; `None` takes it away.
    Attribute(&'static str, Option<Value>),
    /// By its name.
    Name(String),
}

/// A row and the field that its one message has to name.
struct BadRow {
    name: &'static str,
    spoilt: Spoilt,
    field: &'static str,
}

fn bad(name: &'static str, spec: Json, field: &'static str) -> BadRow {
    BadRow { name, spoilt: Spoilt::Spec(spec), field }
}

fn attribute(name: &'static str, value: impl Into<Option<Value>>, field: &'static str) -> BadRow {
    BadRow { name, spoilt: Spoilt::Attribute(field, value.into()), field }
}

fn bad_rows() -> Vec<BadRow> {
    vec![
        bad("port-large", json!({"port": 70_000}), "spec.port"),
        bad("port-zero", json!({"port": 0}), "spec.port"),
        bad("port-text", json!({"port": "http"}), "spec.port"),
        bad("replicas-negative", json!({"replicas": -1}), "spec.replicas"),
        bad("replicas-many", json!({"replicas": 100_000}), "spec.replicas"),
        bad("replicas-list", json!({"replicas": [1]}), "spec.replicas"),
        bad("gpu-negative", json!({"gpu_count": -2}), "spec.gpu_count"),
        bad("gpu-text", json!({"gpu_count": "two"}), "spec.gpu_count"),
        bad("image-empty", json!({"image": ""}), "spec.image"),
        bad("image-map", json!({"image": {"name": "vllm"}}), "spec.image"),
        bad("health-relative", json!({"health_check_path": "health"}), "spec.health_check_path"),
        bad("env-name", json!({"env": {"NOT=A NAME": "x"}}), "spec.env"),
        bad("env-list", json!({"env": ["A=B"]}), "spec.env"),
        bad("args-text", json!({"args": "--all"}), "spec.args"),
        bad("command-number", json!({"command": [1]}), "spec.command"),
        bad("quantity", json!({"resources": {"limits": {"memory": "lots"}}}), "spec.resources.limits.memory"),
        bad(
            "requests-above",
            json!({"resources": {"requests": {"cpu": "9"}, "limits": {"cpu": "1"}}}),
            "spec.resources",
        ),
        bad("selector-key", json!({"node_selector": {"bad key!": "v"}}), "spec.node_selector"),
        bad("selector-value", json!({"node_selector": {"zone": "bad value!"}}), "spec.node_selector"),
        bad("accelerator", json!({"accelerator": "tpu"}), "spec.accelerator"),
        bad("max-surge", json!({"max_surge": 1000}), "spec.max_surge"),
        bad("startup", json!({"startup_timeout_seconds": 5}), "spec.startup_timeout_seconds"),
        bad(
            "min-above-max",
            json!({"autoscaling": {"enabled": true, "min_replicas": 9, "max_replicas": 3}}),
            "spec.autoscaling",
        ),
        attribute("spec-text", Value::from("not a map"), "spec"),
        attribute("spec-away", None, "spec"),
        attribute("state-unknown", Value::from("banana"), "desired_state"),
        attribute("regions-text", Value::from("us-east-1"), "target_regions"),
        attribute("generations-list", Value::List(vec![]), "region_generations"),
        // No label value may be that long, so the API server refuses what would be rendered.
        BadRow { name: "name-64", spoilt: Spoilt::Name("n".repeat(64)), field: "metadata" },
        BadRow { name: "neighbour-canary", spoilt: Spoilt::Name("stem-canary".to_owned()), field: "endpoint_name" },
    ]
}

/// Changes a good row.
type Spoiler = Box<dyn Fn(&mut Item)>;

/// A row of 390 KB, a number as `8E3` and unknown attributes of every type: odd, and served all the same.
fn odd_rows() -> Vec<(&'static str, Spoiler)> {
    let number = |text: &str| Value::Number(text.to_owned());
    vec![
        (
            "odd-large",
            Box::new(|item: &mut Item| drop(item.insert("notes".to_owned(), Value::from("n".repeat(390_000))))),
        ),
        (
            "odd-number",
            Box::new(move |item: &mut Item| {
                if let Some(Value::Map(spec)) = item.get_mut("spec") {
                    spec.insert("port".to_owned(), number("8E3"));
                }
            }),
        ),
        (
            "odd-types",
            Box::new(|item: &mut Item| {
                item.insert("set".to_owned(), Value::StringSet(vec!["a".to_owned()]));
                item.insert("bytes".to_owned(), Value::Binary(vec![0, 255]));
                item.insert("nothing".to_owned(), Value::Null);
            }),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_bad_rows_get_one_clear_message_each_and_neighbours_serve_on() -> anyhow::Result<()> {
    let table = TestTable::on_server(TableKind::Ministack).await?;
    let settings = RegionSettings { pods: Pods::Engines, ..RegionSettings::named("us-east-1") };
    let region = Region::start_with(settings, table).await?;
    let monitor = Monitor::leading(&region).await?;
    region.deploy("neighbour", spec(2, "0")).await?;
    region.deploy("stem", spec(1, "0")).await?;
    region.settled("neighbour").await?;
    region.settled("stem").await?;
    let load = Load::start(&region, "neighbour").await?;

    let rows = bad_rows();
    ensure!(rows.len() == 30, "{} rows", rows.len());
    let good = region.row("neighbour").await?.context("no row")?.item;
    let make = |name: &str, letter: usize| {
        let mut item = good.clone();
        item.insert("endpoint_name".to_owned(), Value::from(name));
        item.insert("lifecycle_id".to_owned(), Value::from(format!("{letter:064x}")));
        item.insert("desired_state".to_owned(), Value::from("deploying"));
        item.insert("region_status".to_owned(), Value::Map(Item::new()));
        item
    };
    for (index, (name, spoil)) in odd_rows().into_iter().enumerate() {
        let mut item = make(name, 100 + index);
        spoil(&mut item);
        region.put_row(item).await?;
    }
    let mut names = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let name = if let Spoilt::Name(name) = &row.spoilt { name.clone() } else { row.name.to_owned() };
        let mut item = make(&name, index + 1);
        match &row.spoilt {
            Spoilt::Spec(changes) => {
                let mut changed = item["spec"].to_plain_json();
                for (key, value) in changes.as_object().into_iter().flatten() {
                    changed[key] = value.clone();
                }
                let changed =
                    Value::from_plain_json("spec", &changed).map_err(|problem| anyhow::anyhow!("{problem}"))?;
                item.insert("spec".to_owned(), changed);
            }
            Spoilt::Attribute(attribute, Some(value)) => drop(item.insert((*attribute).to_owned(), value.clone())),
            Spoilt::Attribute(attribute, None) => drop(item.remove(*attribute)),
            Spoilt::Name(_) => {}
        }
        region.put_row(item).await?;
        names.push(name);
    }

    for (row, name) in rows.iter().zip(&names) {
        let message = wait::until(&format!("a message about {name}"), BOUND, || async {
            said_of(&region, &monitor, name, row.field).await.map_err(|error| format!("{error:#}"))
        })
        .await
        .with_context(|| monitor.described())?;
        println!("{:>18}: {message}", row.name);
    }
    for (name, _) in odd_rows() {
        region.agrees(name).await?;
    }
    // Said once, not with every pass.
    let complaints =
        |name: &str| -> anyhow::Result<usize> { Ok(monitor.complaints(|line| line["endpoint"] == name)?.len()) };
    let before: Vec<usize> = names.iter().map(|name| complaints(name)).collect::<Result<_, _>>()?;
    for _ in 0..3 {
        monitor.full_pass().await?;
    }
    let after: Vec<usize> = names.iter().map(|name| complaints(name)).collect::<Result<_, _>>()?;
    assert_eq!(before, after, "a pass repeats its complaints");

    let result = load.stop(Duration::from_secs(30)).await?;
    println!("neighbour: {result}");
    ensure!(result.sent >= 20, "{result}: too few requests to mean anything");
    assert_eq!(result.failed, 0, "{result}");
    Ok(())
}

/// The one message about a row: in its status, or, when the row has none that could be written, in the log.
async fn said_of(region: &Region, monitor: &Monitor, name: &str, field: &str) -> anyhow::Result<String> {
    let row = region.row(name).await?.context("no row")?;
    ensure!(region.objects_of(name).await?.is_empty(), "something was made for it");
    let entry = row.region_status.get(region.name());
    if let Some(error) = entry.and_then(|entry| entry.error.clone()) {
        ensure!(error.contains(field), "{field} is not named: {error}");
        return Ok(error);
    }
    let lines = monitor.complaints(|line| line["endpoint"] == name)?;
    let line = lines.first().with_context(|| format!("no word about it; entry {entry:?}"))?.to_string();
    ensure!(line.contains(field), "{field} is not named: {line}");
    Ok(line)
}
