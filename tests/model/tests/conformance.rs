//! The model answers as a real API server does: every rule, and random sequences of requests, answer by answer.
//!
//! The controllers of the real server are paused and those of the model do not run, so that every answer is determined. What
//! the model's controllers do is not compared by this suite (`docs/model.md` says where the model ends).

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use gco_bed::control_plane::{ControlPlane, ControlPlaneSettings};
use gco_model::Model;
use gco_model::clock::VirtualClock;
use gco_model::conformance::{KINDS, Player, Step, sequence};
use gco_model::judge::differences;
use gco_model::line::Line;
use gco_model::rules;
use gco_model::world::in_virtual_time;
use gco_tests::region::keda::install_kind;
use gco_tests::size::Size;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Requests of a random sequence.
const LENGTH: usize = 14;

/// Differences that are known, with the reason why the model keeps them.
///
/// None: where the model cannot follow the server, the requests of this suite do not go (see `docs/model.md`).
const KNOWN: [(&str, &str); 0] = [];

static SERVER: OnceCell<ControlPlane> = OnceCell::const_new();

async fn server() -> anyhow::Result<&'static ControlPlane> {
    SERVER
        .get_or_try_init(|| async {
            let plane = ControlPlane::start(ControlPlaneSettings::named("conformance")).await?;
            install_kind(&plane.client().await?).await?;
            ensure!(plane.controller_manager().pause()?, "the controllers could not be paused");
            anyhow::Ok(plane)
        })
        .await
}

/// What is played: requests, and the kinds whose watches are compared after them.
#[derive(Clone, Debug)]
struct Play {
    name: String,
    steps: Vec<Step>,
    watched: Vec<(&'static str, &'static str)>,
}

async fn played(client: kube::Client, namespace: &str, play: &Play) -> anyhow::Result<(Vec<Value>, Value)> {
    let mut player = Player::new(client, namespace);
    let answers = player.play(&play.steps).await?;
    let mut events = json!({});
    for (plural, selector) in &play.watched {
        events[*plural] = json!(player.watch(plural, selector).await?);
    }
    Ok((answers, events))
}

fn on_the_model(play: &Play) -> anyhow::Result<(Vec<Value>, Value)> {
    in_virtual_time(async {
        let model = Model::new("model-namespace", VirtualClock::new());
        model.act(&Arc::from("administrator"), |state| state.installed.insert("keda.sh"));
        played(Line::new("player", &model).client(), "model-namespace", play).await
    })
}

async fn on_the_server(play: &Play, number: usize) -> anyhow::Result<(Vec<Value>, Value)> {
    let client = server().await?.client().await?;
    let name = format!("{}-{number}", if play.name.starts_with("seed") { "sequence" } else { "rule" });
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.context("making a namespace")?;
    played(client, &name, play).await
}

/// Everything in which the two differ.
async fn compared(number: usize, play: Play) -> anyhow::Result<Vec<String>> {
    // Virtual time has a runtime of its own.
    let of_model = play.clone();
    let (model, model_events) = tokio::task::spawn_blocking(move || on_the_model(&of_model))
        .await?
        .with_context(|| format!("{} on the model", play.name))?;
    let (real, real_events) =
        on_the_server(&play, number).await.with_context(|| format!("{} on the server", play.name))?;
    let mut found = Vec::new();
    for (index, (step, (model, real))) in play.steps.iter().zip(model.iter().zip(&real)).enumerate() {
        let status = real["status"].as_u64().unwrap_or_default();
        if step.expected != 0 && u64::from(step.expected) != status {
            found.push(format!(
                "{}: the server answers {status} to request {index}, {}: {real}",
                play.name,
                step.words()
            ));
        }
        for difference in differences(model, real) {
            found.push(format!("{}: request {index}, {}: model and server: {difference}", play.name, step.words()));
        }
    }
    for difference in differences(&model_events, &real_events) {
        found.push(format!("{}: watch: model and server: {difference}", play.name));
    }
    Ok(found)
}

async fn all_compared(plays: Vec<Play>) -> anyhow::Result<Vec<String>> {
    // Before the many: starting it is not a part of any play.
    server().await?;
    let outcomes: Vec<_> = futures::stream::iter(plays.into_iter().enumerate())
        .map(|(number, play)| compared(number, play))
        .buffer_unordered(8)
        .collect()
        .await;
    let mut found = Vec::new();
    for outcome in outcomes {
        found.extend(outcome?);
    }
    found.retain(|difference| !KNOWN.iter().any(|(known, _)| difference.contains(known)));
    found.sort();
    Ok(found)
}

fn assert_none(found: &[String]) {
    let shown: Vec<&str> = found.iter().take(40).map(String::as_str).collect();
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), shown.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rule_holds_on_the_model_and_on_a_server() -> anyhow::Result<()> {
    let rules = rules::all();
    let plays: Vec<Play> = rules
        .iter()
        .map(|rule| Play {
            name: rule.name.to_owned(),
            steps: rule.steps.clone(),
            watched: rule.watched.into_iter().collect(),
        })
        .collect();
    let requests: usize = plays.iter().map(|play| play.steps.len()).sum();
    let found = all_compared(plays).await?;
    for rule in &rules {
        println!("{} ({:?})", rule.name, rule.document);
    }
    println!("{} rules, {requests} requests: {} differences", rules.len(), found.len());
    assert_none(&found);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn random_sequences_are_answered_alike() -> anyhow::Result<()> {
    let count = Size::asked().choose(60, 500);
    let plays: Vec<Play> = (0..count)
        .map(|seed| Play {
            name: format!("seed {seed}"),
            steps: sequence(seed, LENGTH),
            // A watch lasts a second: a few of them are enough.
            watched: if seed % 5 == 0 {
                KINDS.iter().map(|plural| (*plural, "half%3Deven")).collect()
            } else {
                Vec::new()
            },
        })
        .collect();
    let found = all_compared(plays).await?;
    println!("{count} sequences of {LENGTH} requests: {} differences", found.len());
    assert_none(&found);
    Ok(())
}
