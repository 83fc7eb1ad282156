//! Everything that is rendered or installed, before a real API server in strict dry-run: unknown fields and doubled keys
//! are errors, and nothing is kept.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use gco_local::platform;
use gco_tests::region::Region;
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

/// Where each kind that is rendered is created.
const PLACES: [(&str, &str); 2] = [
    ("Service", "/api/v1/namespaces/{namespace}/services"),
    ("Deployment", "/apis/apps/v1/namespaces/{namespace}/deployments"),
];

fn workspace() -> anyhow::Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate is outside a workspace")
}

/// Creates an object, in a dry run; gives the server's answer.
async fn create(client: &Client, object: &Value) -> anyhow::Result<Value> {
    let kind = object["kind"].as_str().context("no kind")?;
    let place = PLACES.iter().find(|(known, _)| *known == kind).with_context(|| format!("{kind} has no place here"))?.1;
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let uri = format!("{}?fieldValidation=Strict&dryRun=All", place.replace("{namespace}", namespace));
    let request = Request::builder().method(Method::POST).uri(uri).header("content-type", "application/json");
    let name = &object["metadata"]["name"];
    let answer = client.request::<Value>(request.body(serde_json::to_vec(object)?)?).await;
    answer.with_context(|| format!("{kind} {name}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reference_file_of_a_rendered_object_is_accepted_strictly() -> anyhow::Result<()> {
    let region = Region::start().await?;
    let folder = workspace()?.join("tests/golden");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    ensure!(files.len() >= 10, "{files:?}");
    for path in &files {
        let text = std::fs::read_to_string(path)?;
        let mut object: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        object["metadata"]["namespace"] = json!(region.namespace());
        let stored = create(region.client(), &object).await.with_context(|| path.display().to_string())?;
        // What was sent is in what would be stored: the server dropped nothing.
        let lost = first_lost("", &object, &stored);
        assert_eq!(lost, None, "{}", path.display());
    }
    println!("{} objects accepted by a real server, strictly", files.len());
    assert!(region.snapshot().await?.is_empty(), "a dry run kept something");
    Ok(())
}

/// The first place that is in `sent` and not, or otherwise, in `stored`. Quantities are stored in one form.
fn first_lost(path: &str, sent: &Value, stored: &Value) -> Option<String> {
    match (sent, stored) {
        (Value::Object(sent), Value::Object(stored)) => sent.iter().find_map(|(name, value)| {
            let path = format!("{path}/{name}");
            match stored.get(name) {
                Some(stored) => first_lost(&path, value, stored),
                // The server leaves out zeros and empty parts.
                None => (!is_nothing(value)).then_some(path),
            }
        }),
        (Value::Array(sent), Value::Array(stored)) if sent.len() == stored.len() => sent
            .iter()
            .zip(stored)
            .enumerate()
            .find_map(|(index, (sent, stored))| first_lost(&format!("{path}/{index}"), sent, stored)),
        _ if path.contains("/resources/") || sent == stored => None,
        _ => Some(format!("{path}: {sent} became {stored}")),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_nothing),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_manifest_that_is_installed_is_accepted_strictly_in_its_order() -> anyhow::Result<()> {
    let region = Region::start().await?;
    let mut folders: Vec<PathBuf> = std::fs::read_dir(workspace()?.join("deploy"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    folders.retain(|path| path.join("kustomization.yaml").is_file());
    folders.sort();
    ensure!(!folders.is_empty(), "there is nothing to install");
    let mut accepted = 0;
    for folder in folders {
        let order: Value = serde_saphyr::from_str(&std::fs::read_to_string(folder.join("kustomization.yaml"))?)?;
        let listed: Vec<&str> = order["resources"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for entry in std::fs::read_dir(&folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let known = name == "kustomization.yaml" || listed.contains(&name.as_str());
            ensure!(known || !name.ends_with(".yaml"), "{name} is not installed: it is not in the kustomization");
        }
        for file in listed {
            let text = std::fs::read_to_string(folder.join(file)).with_context(|| file.to_owned())?;
            for document in text.split("\n---\n") {
                let object: Value = serde_saphyr::from_str(document).with_context(|| file.to_owned())?;
                // For good: what comes later may need it. The bed has all but the bindings already.
                platform::apply(region.client(), &object).await.with_context(|| file.to_owned())?;
                accepted += 1;
            }
        }
    }
    println!("{accepted} installed objects accepted by a real server, strictly");
    Ok(())
}
