//! `gco inference plan` on a real cluster: it says before what the monitor does after, changes nothing itself, and has nothing to
//! say once everything is as asked.

use anyhow::ensure;
use gco_tests::region::command::Ran;
use gco_tests::region::rows::spec;
use gco_tests::region::{Monitor, Region};
use serde_json::{Value as Json, json};

async fn plan(region: &Region, what: &[&str]) -> anyhow::Result<Json> {
    let mut arguments = vec!["plan", "--region", region.name(), "-o", "json"];
    arguments.extend(what);
    let ran: Ran = region.gco(&arguments).await?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ran.json()
}

/// Verb and object of every step of one endpoint's plan, in order.
fn steps(document: &Json, name: &str) -> Vec<String> {
    let plans = document["plans"].as_array().cloned().unwrap_or_default();
    let of_it = plans.iter().filter(|plan| plan["name"] == name);
    let words =
        |step: &Json| format!("{} {}", step["verb"].as_str().unwrap_or("?"), step["object"].as_str().unwrap_or("?"));
    of_it.flat_map(|plan| plan["steps"].as_array().cloned().unwrap_or_default()).map(|step| words(&step)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_says_what_the_monitor_then_does_and_is_empty_afterwards() -> anyhow::Result<()> {
    let region = Region::start().await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.deploy("code", spec(1, "0")).await?;
    let before = plan(&region, &["chat"]).await?;
    assert_eq!(steps(&before, "chat"), ["create deployment/chat", "create service/chat"]);
    assert_eq!((&before["changes"], &before["endpoints_restarting"]), (&json!(2), &json!(0)));
    let mark = region.audit()?.mark()?;
    plan(&region, &["--all"]).await?;
    assert!(region.monitor_writes_since(mark)?.is_empty(), "a plan changes nothing");
    assert!(region.snapshot().await?.is_empty());

    let monitor = Monitor::leading(&region).await?;
    region.settled("chat").await?;
    region.settled("code").await?;
    let rest = plan(&region, &["--all"]).await?;
    assert_eq!(rest["changes"], json!(0), "{rest}");

    // While the monitor is away: an edit that replaces pods, one that does not, and a removal.
    monitor.kill().await;
    region.mark("chat", "1").await?;
    region.scale("code", 2).await?;
    let edited = plan(&region, &["--all"]).await?;
    assert_eq!(steps(&edited, "chat"), ["replace deployment/chat"]);
    assert_eq!(steps(&edited, "code"), ["replace deployment/code"]);
    assert_eq!(edited["endpoints_restarting"], json!(1), "{edited}");
    let text = region.gco(&["plan", "chat", "--region", region.name()]).await?.stdout;
    assert!(text.contains("[RESTARTS PODS]") && text.contains("env"), "{text}");
    region.delete("code").await?;
    let deleted = plan(&region, &["code"]).await?;
    assert_eq!(deleted["plans"][0]["asked"], json!("delete"));
    assert!(steps(&deleted, "code").contains(&"delete deployment/code".to_owned()), "{deleted}");

    let _monitor = Monitor::leading_with(&region, gco_tests::region::MonitorSettings::named("m2")).await?;
    region.agrees("chat").await?;
    region.purged("code").await?;
    assert_eq!(plan(&region, &["--all"]).await?["changes"], json!(0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_names_what_stands_in_the_way_and_what_cannot_be_served() -> anyhow::Result<()> {
    let region = Region::start().await?;
    let mut bad = region.deploy("bad", spec(1, "0")).await?.item;
    if let Some(gco_store::wire::Value::Map(spec)) = bad.get_mut("spec") {
        spec.insert("port".to_owned(), gco_store::wire::Value::from("many"));
    }
    region.put_row(bad).await?;
    let text = region.gco(&["plan", "bad", "--region", region.name()]).await?.stdout;
    assert!(text.contains("! InvalidSpec") && text.contains("spec.port"), "{text}");
    region.table().store().set_frozen(region.name(), true).await?;
    region.deploy("chat", spec(1, "0")).await?;
    let frozen = plan(&region, &["chat"]).await?;
    assert_eq!(frozen["plans"][0]["paused"], json!(true));

    let nobody = region.gco(&["plan", "nobody", "--region", region.name()]).await?;
    assert_eq!(nobody.code, Some(1), "{nobody:?}");
    for wrong in [&["plan"][..], &["plan", "chat"], &["plan", "chat", "--all", "--region", "us-east-1"]] {
        assert_eq!(region.gco(wrong).await?.code, Some(2), "{wrong:?}");
    }
    let elsewhere = region.gco(&["plan", "chat", "--region", region.name(), "--context", "no-such"]).await?;
    assert!(elsewhere.code == Some(1) && elsewhere.stderr.contains("the cluster of us-east-1"), "{elsewhere:?}");
    Ok(())
}
