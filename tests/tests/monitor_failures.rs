//! Weaknesses of the control plane that came before, and how the monitor behaves instead: when something around it fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gco_bed::rewriting_proxy::{Answer, Decision, Gate, RequestFacts};
use gco_bed::wait;
use gco_store::status::State;
use gco_store::wire::Value;
use gco_tests::region::gate::is_of_the_second_table;
use gco_tests::region::objects::{model_container, text, variable};
use gco_tests::region::rows::{IMAGE, spec};
use gco_tests::region::{BOUND, Monitor, MonitorSettings, Region, RegionSettings, TableKind, TestTable};
use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::DeleteParams;

type TestResult = anyhow::Result<()>;

/// A write to an object that is an endpoint's.
fn is_object_write(request: &RequestFacts) -> bool {
    request.is_write() && request.kubernetes.as_ref().is_some_and(|kubernetes| kubernetes.resource != "leases")
}

async fn on_a_server() -> anyhow::Result<Region> {
    Region::start_with(RegionSettings::named("us-east-1"), TestTable::on_server(TableKind::Ministack).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn d9_a_throttled_failing_or_conflicting_call_never_turns_a_running_endpoint_into_an_error() -> TestResult {
    let region = Region::start().await?;
    let proxy = region.api_proxy().await?;
    let _monitor = Monitor::leading_with(&region, MonitorSettings::named("m1").api_through(proxy.url())).await?;
    region.deploy("chat", spec(2, "0")).await?;
    region.settled("chat").await?;
    for (number, answer) in [
        Answer::kubernetes_too_many_requests(),
        Answer::kubernetes_status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "etcdserver: leader changed"),
        Answer::kubernetes_status(StatusCode::CONFLICT, "Conflict", "the object has been modified"),
        Answer::kubernetes_status(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "apiserver is shutting down"),
        Answer::kubernetes_status(StatusCode::GATEWAY_TIMEOUT, "Timeout", "request did not complete"),
    ]
    .into_iter()
    .enumerate()
    {
        let history = region.history("chat");
        let refused = std::sync::Arc::new(AtomicUsize::new(0));
        let counter = refused.clone();
        let what = answer.status;
        proxy.set_hook(move |request| {
            // The first two writes fail; the server never sees them.
            if is_object_write(request) && counter.fetch_add(1, Ordering::SeqCst) < 2 {
                return Decision::AnswerInstead(answer.clone());
            }
            Decision::Forward
        });
        region.mark("chat", &format!("{what}-{number}")).await?;
        region.agrees("chat").await?;
        assert!(refused.load(Ordering::SeqCst) >= 2, "{what}: no write was refused");
        assert_eq!(history.unroutable(), [], "{what}; all looks: {:?}", history.looks());
        assert!(history.looks().iter().all(|look| look.state != "error"), "{what}: {:?}", history.looks());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d9_a_lost_answer_of_a_create_is_no_failure() -> TestResult {
    let region = Region::start().await?;
    let proxy = region.api_proxy().await?;
    let _monitor = Monitor::leading_with(&region, MonitorSettings::named("m1").api_through(proxy.url())).await?;
    for resource in ["deployments", "services"] {
        proxy.once(move |request| request.is_request("create", resource), Decision::ForwardThenDrop);
    }
    region.deploy("chat", spec(1, "0")).await?;
    let objects = region.settled("chat").await?;
    assert_eq!((objects.deployments.len(), objects.services.len()), (1, 1));
    let created = region.requests_where(|event| event.verb == "create" && event.resource == "deployments")?;
    assert_eq!(created.iter().filter(|event| event.code == 201).count(), 1, "{created:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d57_a_write_that_loses_its_race_is_tried_again_within_moments() -> TestResult {
    let region = Region::start().await?;
    let proxy = region.api_proxy().await?;
    let settings = MonitorSettings::named("m1")
        .api_through(proxy.url())
        // Neither a read of the table nor a pass by the clock comes to help.
        .with("FULL_PASS_INTERVAL_SECONDS", 3600);
    let _monitor = Monitor::leading_with(&region, settings).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    for _ in 0..3 {
        let conflict = Answer::kubernetes_status(StatusCode::CONFLICT, "Conflict", "the object has been modified");
        proxy.once(is_object_write, Decision::AnswerInstead(conflict));
    }
    let before = tokio::time::Instant::now();
    region.mark("chat", "1").await?;
    region
        .wait_for("the edit to arrive after three conflicts", BOUND, |snapshot| {
            let container = model_container(&snapshot.deployments["chat"]);
            if variable(&container, "EDIT") == Some("1") { Ok(()) } else { Err(format!("{}", container["env"])) }
        })
        .await?;
    let took = before.elapsed();
    println!("three conflicts cost {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d17_rows_beyond_the_first_megabyte_are_served() -> TestResult {
    let table = TestTable::on_server(TableKind::Dynalite).await?;
    let region = Region::start_with(RegionSettings::named("us-east-1"), table).await?;
    let names: Vec<String> = (0..6).map(|number| format!("large-{number}")).collect();
    for name in &names {
        let mut item = region.deploy(name, spec(1, "0")).await?.item;
        // A key that we do not know, kept as it is: 300 KB of it, of which three fill a page.
        item.insert("notes".to_owned(), Value::from("n".repeat(300_000)));
        region.put_row(item).await?;
    }
    let read = region.table().store().read_all(gco_store::table::Consistency::Strong).await?;
    assert!(read.pages > 1, "{} pages do not test anything", read.pages);
    let _monitor = Monitor::leading(&region).await?;
    for name in &names {
        region.agrees(name).await?;
        let row = region.row(name).await?.unwrap();
        assert_eq!(row.item["notes"].as_str().map(str::len), Some(300_000));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d18_a_monitor_ends_within_seconds_while_a_call_hangs() -> TestResult {
    let region = Region::start().await?;
    let proxy = region.api_proxy().await?;
    let settings = MonitorSettings::named("m1").api_through(proxy.url());
    let monitor = Monitor::leading_with(&region, settings).await?;
    let gate = Gate::new();
    proxy.once(is_object_write, Decision::HoldThenForward(gate.clone()));
    let mark = proxy.mark();
    region.deploy("chat", spec(1, "0")).await?;
    proxy.wait_for("a write to hang", BOUND, mark, |exchange| is_object_write(&exchange.request)).await?;
    let took = monitor.terminate(Duration::from_secs(30)).await?;
    println!("SIGTERM during a hanging write: ended after {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    gate.open();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d18_one_endpoint_whose_calls_hang_delays_no_other() -> TestResult {
    let region = Region::start().await?;
    let proxy = region.api_proxy().await?;
    let settings = MonitorSettings::named("m1").api_through(proxy.url());
    let monitor = Monitor::leading_with(&region, settings).await?;
    let gate = Gate::new();
    let closed = gate.clone();
    proxy.set_hook(move |request| {
        let about_slow = String::from_utf8_lossy(&request.body).contains("\"slow\"");
        if is_object_write(request) && about_slow {
            return Decision::HoldThenForward(closed.clone());
        }
        Decision::Forward
    });
    let mark = proxy.mark();
    region.deploy("slow", spec(1, "0")).await?;
    proxy.wait_for("a write to hang", BOUND, mark, |exchange| is_object_write(&exchange.request)).await?;
    for number in 0..5 {
        let name = format!("quick-{number}");
        let before = tokio::time::Instant::now();
        region.deploy(&name, spec(1, "0")).await?;
        region.agrees(&name).await?;
        println!("{name} served after {:?} beside one that hangs", before.elapsed());
    }
    assert!(region.objects_of("slow").await?.is_empty());
    gate.open();
    proxy.pass_everything();
    region.agrees("slow").await.map_err(|error| anyhow::anyhow!("{error}; {}", monitor.described()))?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d31_a_table_that_fails_shows_in_metrics_and_serving_goes_on() -> TestResult {
    let region = on_a_server().await?;
    let proxy = region.table_proxy().await?;
    let monitor = Monitor::leading_with(&region, MonitorSettings::named("m1").table_through(proxy.url())).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    let failures = async |monitor: &Monitor| {
        let failed = monitor.metric("gco_monitor_table_operations_total", &[("outcome", "unavailable")]).await?;
        anyhow::Ok(failed.unwrap_or_default())
    };
    let before = failures(&monitor).await?;
    proxy.set_hook(|_| Decision::AnswerInstead(Answer::dynamodb_internal_error()));
    wait::until("failures of the table to be counted", BOUND, || async {
        match failures(&monitor).await {
            Ok(count) if count > before => Ok(()),
            Ok(count) => Err(format!("{count} failures")),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await?;
    wait::until("the table to count as away", BOUND, || async {
        match monitor.metric("gco_monitor_table_away", &[]).await {
            Ok(Some(1.0)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    proxy.pass_everything();
    region.mark("chat", "1").await?;
    region.agrees("chat").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d31_a_row_that_cannot_be_read_or_completed_stops_no_other() -> TestResult {
    let region = Region::start().await?;
    let monitor = Monitor::leading(&region).await?;
    // No map where one must be; back-fill of it fails for good.
    let mut broken = region.deploy("broken", spec(1, "0")).await?.item;
    broken.insert("region_generations".to_owned(), Value::from("not a map"));
    broken.insert("target_regions".to_owned(), Value::from("not a list"));
    region.put_row(broken).await?;
    let mut legacy = region.deploy("legacy", spec(1, "0")).await?.item;
    for missing in ["lifecycle_id", "cleanup_regions", "region_generations", "region_status"] {
        legacy.remove(missing);
    }
    region.put_row(legacy).await?;
    region.deploy("healthy", spec(1, "0")).await?;
    region.agrees("healthy").await?;
    region.agrees("legacy").await?;
    let unusable = monitor.metric("gco_monitor_rows_unusable", &[]).await?;
    assert_eq!(unusable, Some(1.0));
    let named = monitor.complaints(|line| line["endpoint"] == "broken")?;
    assert!(!named.is_empty(), "no line of the log names the row");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d32_readiness_follows_the_table_and_liveness_does_not() -> TestResult {
    let region = on_a_server().await?;
    let proxy = region.table_proxy().await?;
    let monitor = Monitor::leading_with(&region, MonitorSettings::named("m1").table_through(proxy.url())).await?;
    proxy.set_hook(|_| Decision::DropBefore);
    monitor.answers("/readyz", 503).await?;
    let why = monitor.get("/readyz").await?.text();
    assert!(why.contains("table"), "{why}");
    assert_eq!(monitor.get("/healthz").await?.status, 200);
    proxy.pass_everything();
    monitor.ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d48_what_a_server_says_goes_into_the_row_short_and_clean() -> TestResult {
    let region = Region::start().await?;
    let proxy = region.api_proxy().await?;
    let _monitor = Monitor::leading_with(&region, MonitorSettings::named("m1").api_through(proxy.url())).await?;
    let noise = format!("spec.x: Invalid value: \"\u{1b}[31m\n{}\"", "secret ".repeat(50_000));
    let refusal = Answer::kubernetes_status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &noise);
    proxy.set_hook(move |request| {
        if request.is_request("create", "deployments") {
            Decision::AnswerInstead(refusal.clone())
        } else {
            Decision::Forward
        }
    });
    region.deploy("chat", spec(1, "0")).await?;
    let entry = wait::until("the refusal to be reported", BOUND, || async {
        let row = region.row("chat").await.map_err(|error| error.to_string())?.ok_or("no row")?;
        let entry = row.region_status.get("us-east-1").cloned().ok_or("no entry")?;
        if entry.error.is_some() { Ok(entry) } else { Err(format!("{entry:?}")) }
    })
    .await?;
    let error = entry.error.clone().unwrap_or_default();
    assert!(error.len() < 1000 && !error.contains(char::is_control), "{error:?}");
    let size = Value::Map(entry.to_item()).size_bytes();
    assert!(size < 8 * 1024, "the entry has {size} bytes");
    proxy.pass_everything();
    region.agrees("chat").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_table_away_lost_objects_come_back_and_nothing_is_taken_down() -> TestResult {
    let region = on_a_server().await?;
    let proxy = region.table_proxy().await?;
    let monitor = Monitor::leading_with(&region, MonitorSettings::named("m1").table_through(proxy.url())).await?;
    region.deploy("chat", spec(2, "0")).await?;
    region.settled("chat").await?;
    proxy.set_hook(|_| Decision::DropBefore);
    monitor.answers("/readyz", 503).await?;
    // Nobody of ours sees these before the table is back.
    region.scale("chat", 1).await?;
    let deployments: Api<Deployment> = Api::namespaced(region.client().clone(), region.namespace());
    let before = deployments.get("chat").await?;
    deployments.delete("chat", &DeleteParams::foreground()).await?;
    region
        .wait_for("the deleted Deployment to come back as it was", BOUND, |snapshot| {
            let deployment = snapshot.deployments.get("chat").ok_or("no Deployment")?;
            let uid = text(deployment, "/metadata/uid");
            let replicas = deployment["spec"]["replicas"].as_i64();
            let new = uid != before.metadata.uid.as_deref();
            if new && replicas == Some(2) { Ok(()) } else { Err(format!("{uid:?} with {replicas:?}")) }
        })
        .await?;
    let user = region.monitor_user();
    let deleted = region.requests_where(|event| event.user == user && event.verb == "delete")?;
    assert_eq!(deleted, []);
    proxy.pass_everything();
    let objects = region.settled("chat").await?;
    assert_eq!(objects.pods.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_that_starts_without_the_table_changes_nothing_and_says_so() -> TestResult {
    let region = on_a_server().await?;
    let proxy = region.table_proxy().await?;
    let first = Monitor::leading(&region).await?;
    region.deploy("chat", spec(1, "0")).await?;
    let before = region.settled("chat").await?;
    first.kill().await;
    proxy.set_hook(|_| Decision::DropBefore);
    let settings = MonitorSettings::named("m2").table_through(proxy.url());
    let second = Monitor::start(&region, settings).await?;
    second.answers("/healthz", 200).await?;
    let deployments: Api<Deployment> = Api::namespaced(region.client().clone(), region.namespace());
    let mark = region.audit()?.mark()?;
    deployments.delete("chat", &DeleteParams::background()).await?;
    second.answers("/readyz", 503).await?;
    region
        .wait_for("the pods to go", BOUND, |snapshot| {
            if snapshot.pods.is_empty() { Ok(()) } else { Err(format!("{:?}", snapshot.pods.keys())) }
        })
        .await?;
    // A monitor that would act on its caches would have by now; the table's return is what makes it.
    assert_eq!(region.monitor_writes_since(mark)?, []);
    proxy.pass_everything();
    second.ready().await?;
    let after = region.settled("chat").await?;
    assert_ne!(before.versions(), after.versions());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_endpoint_is_observed_and_left_until_it_is_resumed() -> TestResult {
    let region = Region::start().await?;
    let monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(2, "0")).await?;
    region.settled("chat").await?;
    region.set_paused("chat", true).await?;
    let mark = region.audit()?.mark()?;
    region.set("chat", "image", "vllm/vllm-openai:v0.29.0").await?;
    // It is observed: the row says that another spec was seen than is applied.
    wait::until("the paused edit to be seen", BOUND, || async {
        let row = region.row("chat").await.map_err(|error| error.to_string())?.ok_or("no row")?;
        let entry = row.region_status.get("us-east-1").ok_or("no entry")?;
        let observed = entry.observed_spec.clone().unwrap_or_default();
        let paused = entry.conditions.iter().any(|condition| condition.kind == "Paused" && condition.status == "True");
        let seen = observed.seen != observed.applied;
        if seen && paused && entry.state == State::Running { Ok(()) } else { Err(format!("{entry:?}")) }
    })
    .await?;
    monitor.full_pass().await?;
    assert_eq!(region.monitor_writes_since(mark)?, []);
    region.set_paused("chat", false).await?;
    region.settled("chat").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_region_changes_nothing_until_it_is_thawed() -> TestResult {
    let region = on_a_server().await?;
    let proxy = region.table_proxy().await?;
    let settings = MonitorSettings::named("m1").table_through(proxy.url()).with("HEARTBEAT_INTERVAL_SECONDS", "0.3");
    let monitor = Monitor::leading_with(&region, settings).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    region.table().store().set_frozen("us-east-1", true).await?;
    wait::until("the freeze to be seen", BOUND, || async {
        match monitor.metric("gco_monitor_frozen", &[]).await {
            Ok(Some(1.0)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let mark = region.audit()?.mark()?;
    let table_mark = proxy.mark();
    region.mark("chat", "1").await?;
    region.deploy("second", spec(1, "0")).await?;
    region.delete("second").await?;
    proxy
        .wait_for("the rows to be read", BOUND, table_mark, |exchange| {
            exchange.request.is_operation("Scan") && !is_of_the_second_table(&exchange.request) && exchange.finished
        })
        .await?;
    monitor.full_pass().await?;
    assert_eq!(region.monitor_writes_since(mark)?, []);
    region.table().store().set_frozen("us-east-1", false).await?;
    region.settled("chat").await?;
    region.purged("second").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_pulled_is_named_in_the_row() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    region.set("chat", "image", "vllm/vllm-openai:fault-pull").await?;
    let entry = wait::until("the pull error to be reported", BOUND, || async {
        let row = region.row("chat").await.map_err(|error| error.to_string())?.ok_or("no row")?;
        let entry = row.region_status.get("us-east-1").cloned().ok_or("no entry")?;
        let pull = entry.pods.iter().any(|pod| pod.reason.contains("ImagePull") || pod.reason.contains("ErrImage"));
        if pull { Ok(entry) } else { Err(format!("{entry:?}")) }
    })
    .await?;
    println!("{:?}", entry.pods);
    region.set("chat", "image", IMAGE).await?;
    region.settled("chat").await?;
    Ok(())
}
