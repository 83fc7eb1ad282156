//! `--sample`: an endpoint that is deployed the way people do it, and one answer from each region.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gco_bed::wait;
use gco_store::operations::{Store, StoreError};
use gco_store::row::EndpointRow;
use gco_store::table::Consistency;
use gco_store::transition::CreateRequest;
use gco_store::wire::{Item, Value};
use http_body_util::BodyExt as _;
use serde_json::json;

use super::manifests::INFERENCE_NAMESPACE;
use super::progress::Progress;
use crate::loopback::{LoopbackClient, json_request};

/// The sample's name.
pub const SAMPLE_NAME: &str = "sample";

/// An image as people really deploy it; on this machine the simulated engine stands for it.
pub const SAMPLE_IMAGE: &str = "vllm/vllm-openai:v0.28.0";

/// How long the sample may take to serve everywhere.
const SERVE_BOUND: Duration = Duration::from_secs(240);

/// How long an answer may pause between two events.
const EVENT_BOUND: Duration = Duration::from_secs(30);

/// The sample's request: who are you?
const QUESTION: &str = "Which region and which pod are you?";

/// Makes the sample, unless an earlier run has made it.
pub(super) async fn deploy(store: &Store, regions: &[String], progress: Progress) -> anyhow::Result<()> {
    let text = |text: &str| Value::String(text.to_owned());
    let number = |number: u32| Value::Number(number.to_string());
    let spec = Item::from([
        ("image".to_owned(), text(SAMPLE_IMAGE)),
        ("framework".to_owned(), text("vllm")),
        ("replicas".to_owned(), number(1)),
        ("gpu_count".to_owned(), number(1)),
        ("args".to_owned(), Value::List(vec![text("--model"), text("gco/sample")])),
    ]);
    let request = CreateRequest {
        name: SAMPLE_NAME.to_owned(),
        spec: Value::Map(spec),
        target_regions: regions.to_vec(),
        namespace: INFERENCE_NAMESPACE.to_owned(),
        labels: BTreeMap::new(),
        created_by: None,
    };
    match store.create(&request).await {
        Ok(_) => progress.say(format_args!("endpoint {SAMPLE_NAME}: created ({SAMPLE_IMAGE})")),
        Err(StoreError::Operation(problem)) if problem.to_string().contains("already exists") => {
            progress.say(format_args!("endpoint {SAMPLE_NAME}: is there from an earlier run"));
        }
        Err(problem) => return Err(problem).context("creating the sample endpoint"),
    }
    Ok(())
}

/// Waits until the sample serves behind a region's gateway.
pub(super) async fn serves(store: &Store, region: &str, gateway_port: u16, progress: Progress) -> anyhow::Result<()> {
    let client = LoopbackClient::new();
    let path = format!("/inference/{SAMPLE_NAME}/health");
    let what = format!("endpoint {SAMPLE_NAME} to serve in {region}");
    wait::until(&what, SERVE_BOUND, || async {
        let answer = client.get(gateway_port, &path, Duration::from_secs(5)).await;
        match answer {
            Ok(answer) if answer.status.is_success() => Ok(()),
            Ok(answer) => Err(format!("{}; {}", answer.text(), said_by_region(store, region).await)),
            Err(problem) => Err(problem.to_string()),
        }
    })
    .await?;
    progress.say_time(format_args!("region {region}: endpoint {SAMPLE_NAME} serves"));
    Ok(())
}

/// What the row says of the region, for a message.
async fn said_by_region(store: &Store, region: &str) -> String {
    let row: Option<EndpointRow> = store.get(SAMPLE_NAME, Consistency::Strong).await.ok().flatten();
    let Some(row) = row else { return "there is no row".to_owned() };
    let Some(entry) = row.region_status.get(region) else {
        return format!("the row is {} and the region has said nothing", row.desired_state.as_str());
    };
    let pods = entry.pods.iter().map(|pod| format!("{}: {}", pod.reason, pod.message)).collect::<Vec<_>>().join("; ");
    format!("the row is {}, the region says {} ({pods})", row.desired_state.as_str(), entry.state.as_str())
}

/// Streams one answer through a region's gateway to standard output, as it arrives.
pub(super) async fn stream_answer(region: &str, gateway_port: u16) -> anyhow::Result<()> {
    let body = json!({"messages": [{"role": "user", "content": QUESTION}], "stream": true});
    let request = json_request(&format!("/inference/{SAMPLE_NAME}/v1/chat/completions"), &body)?;
    let response = LoopbackClient::new().send(gateway_port, request).await?;
    let status = response.status();
    let mut body = response.into_body();
    if !status.is_success() {
        let text = body.collect().await?.to_bytes();
        bail!("region {region} answered {status}: {}", String::from_utf8_lossy(&text));
    }
    print!("\n{region} > ");
    let mut buffered = String::new();
    let mut is_done = false;
    while let Some(frame) =
        tokio::time::timeout(EVENT_BOUND, body.frame()).await.context("the answer stopped in the middle")?
    {
        let Ok(data) = frame?.into_data() else { continue };
        buffered.push_str(&String::from_utf8_lossy(&data));
        while let Some((event, rest)) = buffered.split_once("\n\n") {
            let data = event.strip_prefix("data: ").unwrap_or_default();
            is_done |= data == "[DONE]";
            let chunk: serde_json::Value = serde_json::from_str(data).unwrap_or_default();
            if let Some(piece) = chunk.pointer("/choices/0/delta/content").and_then(serde_json::Value::as_str) {
                print!("{piece}");
                std::io::stdout().flush().context("writing the answer")?;
            }
            buffered = rest.to_owned();
        }
    }
    println!();
    if !is_done {
        bail!("the answer of region {region} broke off");
    }
    Ok(())
}
