//! A monitor that learns of changes by the table's change index: what it sees at once, what only the full read shows it, and
//! what it does when the index fails or is not there.
//!
//! Each case leaves one way only by which the change can have been heard of: reads of the whole table come once an hour, or
//! the index is blind.

use std::time::Duration;

use anyhow::Context as _;
use gco_bed::rewriting_proxy::{Answer, Decision, RewritingProxy};
use gco_bed::wait;
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_store::time;
use gco_store::transition::{Change, Path, Transition, Write};
use gco_store::wire::Value;
use gco_tests::region::objects::{model_container, variable};
use gco_tests::region::rows::spec;
use gco_tests::region::{BOUND, Monitor, MonitorSettings, Region, RegionSettings, TableKind, TestTable};
use jiff::SignedDuration;
use tokio::time::Instant;

const HOUR: u64 = 3600;

/// A monitor that reads the whole table this often, with and without an index.
fn settings(without_index_seconds: u64, with_index_seconds: u64) -> MonitorSettings {
    MonitorSettings::named("m1")
        .with("RECONCILE_INTERVAL_SECONDS", without_index_seconds)
        .with("INDEXED_READ_INTERVAL_SECONDS", with_index_seconds)
        .with("CHANGE_QUERY_INTERVAL_SECONDS", "0.3")
        .with("FULL_PASS_INTERVAL_SECONDS", HOUR)
}

/// A region with one endpoint, whose table has a change index.
async fn indexed_region(table: TestTable) -> anyhow::Result<Region> {
    let region = Region::start_with(RegionSettings::named("us-east-1"), table.with_change_index().await?).await?;
    region.deploy("chat", spec(1, "0")).await?;
    Ok(region)
}

async fn operations(monitor: &Monitor, operation: &str) -> anyhow::Result<f64> {
    let labels = [("operation", operation), ("outcome", "ok")];
    Ok(monitor.metric("gco_monitor_table_operations_total", &labels).await?.unwrap_or_default())
}

async fn mode(monitor: &Monitor, mode: &str) -> anyhow::Result<()> {
    wait::until(&format!("the table to be followed by {mode}"), BOUND, || async {
        match monitor.metric("gco_monitor_table_feed", &[("mode", mode)]).await {
            Ok(Some(value)) if value > 0.5 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    Ok(())
}

/// Waits until the edit is in the Deployment; returns how long that took.
async fn applied(region: &Region, name: &str, edit: &str) -> anyhow::Result<Duration> {
    let began = Instant::now();
    region
        .wait_for(&format!("edit {edit} of {name}"), BOUND, |snapshot| {
            let container = snapshot.deployments.get(name).map(model_container);
            let found = container.as_ref().and_then(|container| variable(container, "EDIT"));
            if found == Some(edit) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await?;
    Ok(began.elapsed())
}

/// An edit by a writer whose clock is off by this much, as the original writes it: its version is simply its clock's time.
async fn edit_with_clock_off(region: &Region, edit: &str, off: SignedDuration) -> anyhow::Result<String> {
    let version = time::format(SystemClock.wall().checked_add(off)?);
    region
        .change("chat", |row| {
            let mut spec = row.spec.clone();
            let Value::Map(keys) = &mut spec else { anyhow::bail!("a spec is a map") };
            keys.insert("env".to_owned(), Value::Map([("EDIT".to_owned(), Value::from(edit))].into()));
            let name = row.name.clone();
            Ok(Transition {
                operation: gco_store::transition::Operation::UpdateSpec,
                condition: gco_store::transition::Condition::Exists(Path::of(["endpoint_name"])),
                write: Write::Update(vec![
                    Change::Set(Path::of(["spec"]), spec),
                    Change::Set(Path::of(["updated_at"]), Value::from(version.as_str())),
                ]),
                base_updated_at: row.updated_at.clone(),
                new_updated_at: Some(version.clone()),
                name,
            })
        })
        .await?;
    Ok(version)
}

/// Waits until the monitor has asked the index this often from now on.
async fn queries(monitor: &Monitor, count: f64) -> anyhow::Result<()> {
    let before = operations(monitor, "query_changes").await?;
    wait::until(&format!("{count} queries of the index"), BOUND, || async {
        match operations(monitor, "query_changes").await {
            Ok(now) if now >= before + count => Ok(()),
            other => Err(format!("{before} before, {other:?} now")),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_are_applied_by_the_index_alone_on_every_backend_that_has_one() -> anyhow::Result<()> {
    for (backend, table) in [
        ("embedded", TestTable::embedded().await?),
        ("ministack", TestTable::on_server(TableKind::Ministack).await?),
        ("moto", TestTable::on_server(TableKind::Moto).await?),
    ] {
        let region = indexed_region(table).await?;
        let monitor = Monitor::leading_with(&region, settings(HOUR, HOUR)).await?;
        mode(&monitor, "index").await?;
        applied(&region, "chat", "0").await?;
        let full_reads = operations(&monitor, "read_all").await?;
        for edit in ["1", "2", "3"] {
            region.mark("chat", edit).await?;
            println!("{backend}: edit {edit} applied after {:?}", applied(&region, "chat", edit).await?);
        }
        region.deploy("later", spec(1, "new")).await?;
        println!("{backend}: a new endpoint applied after {:?}", applied(&region, "later", "new").await?);
        region.delete("later").await?;
        let gone = Instant::now();
        wait::until("the deleted endpoint's row to be purged", BOUND, || async {
            match region.row("later").await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        println!("{backend}: a deletion went through after {:?}", gone.elapsed());
        assert_eq!(operations(&monitor, "read_all").await?, full_reads, "{backend}: nothing was read whole");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_dated_an_hour_ahead_hides_nothing_and_is_itself_seen_at_once() -> anyhow::Result<()> {
    let region = indexed_region(TestTable::on_server(TableKind::Ministack).await?).await?;
    region.deploy("other", spec(1, "0")).await?;
    let monitor = Monitor::leading_with(&region, settings(HOUR, HOUR)).await?;
    applied(&region, "other", "0").await?;
    let full_reads = operations(&monitor, "read_all").await?;
    let version = edit_with_clock_off(&region, "ahead", SignedDuration::from_hours(1)).await?;
    println!("an edit dated {version}: applied after {:?}", applied(&region, "chat", "ahead").await?);
    region.mark("other", "behind it").await?;
    println!("an edit of another row: applied after {:?}", applied(&region, "other", "behind it").await?);
    region.mark("chat", "again").await?;
    println!("the next edit of the same row: applied after {:?}", applied(&region, "chat", "again").await?);
    let row = region.row("chat").await?.context("no row")?;
    let dated = row.updated_at.as_deref().and_then(time::parse).context("no version")?;
    assert!(dated > SystemClock.wall() + SignedDuration::from_mins(50), "ours never date a row back: {dated}");
    assert_eq!(operations(&monitor, "read_all").await?, full_reads, "nothing was read whole");
    // Seen once is seen: a row that stays in every answer is not read again and again.
    queries(&monitor, 2.0).await?;
    let reads = operations(&monitor, "get").await?;
    queries(&monitor, 5.0).await?;
    assert_eq!(operations(&monitor, "get").await?, reads, "a row that was seen is read again");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_fifteen_minutes_behind_is_heard_of_with_the_next_full_read() -> anyhow::Result<()> {
    let region = indexed_region(TestTable::on_server(TableKind::Ministack).await?).await?;
    // The bound that is documented: the interval of full reads, here 4 s instead of 5 minutes.
    let monitor = Monitor::leading_with(&region, settings(HOUR, 4)).await?;
    mode(&monitor, "index").await?;
    // At rest: the answer to a status write of the monitor's own would carry the edit.
    region.settled("chat").await?;
    // Counted from before the edit: a full read may come right behind it.
    let full_reads = operations(&monitor, "read_all").await?;
    edit_with_clock_off(&region, "behind", SignedDuration::from_mins(-15)).await?;
    println!("an edit dated 15 minutes back: applied after {:?}", applied(&region, "chat", "behind").await?);
    let needed = operations(&monitor, "read_all").await? - full_reads;
    assert!((1.0..=5.0).contains(&needed), "{needed} full reads");

    // The next writer in time dates it forward again, and the index shows that at once.
    region.mark("chat", "in time").await?;
    applied(&region, "chat", "in time").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_removes_is_noticed_with_the_next_full_read() -> anyhow::Result<()> {
    let region = indexed_region(TestTable::on_server(TableKind::Ministack).await?).await?;
    let monitor = Monitor::leading_with(&region, settings(HOUR, 4)).await?;
    applied(&region, "chat", "0").await?;
    assert_eq!(monitor.metric("gco_monitor_rows", &[]).await?, Some(1.0));
    region.change("chat", |row| Ok(removal(row))).await?;
    let began = Instant::now();
    wait::until("the row to be forgotten", BOUND, || async {
        match monitor.metric("gco_monitor_rows", &[]).await {
            Ok(Some(0.0)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    println!("a removed row: noticed after {:?}", began.elapsed());
    Ok(())
}

fn removal(row: &gco_store::row::EndpointRow) -> Transition {
    Transition {
        operation: gco_store::transition::Operation::Purge,
        name: row.name.clone(),
        condition: gco_store::transition::Condition::Exists(Path::of(["endpoint_name"])),
        write: Write::Delete,
        base_updated_at: row.updated_at.clone(),
        new_updated_at: None,
    }
}

fn refuse_queries(proxy: &RewritingProxy, answer: fn() -> Answer) {
    proxy.set_hook(
        move |request| {
            if request.is_operation("Query") { Decision::AnswerInstead(answer()) } else { Decision::Forward }
        },
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_fails_is_replaced_by_full_reads_and_used_again_when_it_answers() -> anyhow::Result<()> {
    let region = indexed_region(TestTable::on_server(TableKind::Ministack).await?).await?;
    let proxy = region.table_proxy().await?;
    let settings = settings(1, 5).table_through(proxy.url());
    let monitor = Monitor::leading_with(&region, settings).await?;
    applied(&region, "chat", "0").await?;
    mode(&monitor, "index").await?;
    for (failing, answer, edit) in [
        ("index_failed", Answer::dynamodb_throttled as fn() -> Answer, "1"),
        ("no_index", || Answer::dynamodb_error("AccessDeniedException", "no dynamodb:Query on the index"), "2"),
        ("no_index", || Answer::dynamodb_error("ValidationException", "no such index"), "3"),
    ] {
        refuse_queries(&proxy, answer);
        mode(&monitor, failing).await?;
        region.mark("chat", edit).await?;
        println!("{failing}: an edit applied after {:?}", applied(&region, "chat", edit).await?);
        assert!(monitor.metric("gco_monitor_table_away", &[]).await?.unwrap_or_default() < 0.5);
        proxy.pass_everything();
        mode(&monitor, "index").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_made_while_monitors_run_is_taken_into_use_and_one_that_is_switched_off_is_not()
-> anyhow::Result<()> {
    let table = TestTable::on_server(TableKind::Ministack).await?;
    let region = Region::start_with(RegionSettings::named("us-east-1"), table.clone()).await?;
    region.deploy("chat", spec(1, "0")).await?;
    let monitor = Monitor::leading_with(&region, settings(1, 3)).await?;
    mode(&monitor, "no_index").await?;
    let off = settings(1, 3).with("USE_CHANGE_INDEX", false);
    let off = MonitorSettings { name: "m2".to_owned(), ..off };
    let other = Monitor::start(&region, off).await?;
    mode(&other, "off").await?;
    table.with_change_index().await?;
    mode(&monitor, "index").await?;
    region.mark("chat", "1").await?;
    applied(&region, "chat", "1").await?;
    mode(&other, "off").await?;
    assert_eq!(operations(&other, "query_changes").await?, 0.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_a_lagging_read_shows_old_is_read_again_until_it_shows_the_change() -> anyhow::Result<()> {
    let region = indexed_region(TestTable::on_server(TableKind::Ministack).await?).await?;
    let proxy = region.table_proxy().await?;
    let monitor = Monitor::leading_with(&region, settings(HOUR, HOUR).table_through(proxy.url())).await?;
    applied(&region, "chat", "0").await?;
    queries(&monitor, 3.0).await?;
    // Every read of the row answers what it was before the edit: as a copy that lags behind does.
    let old = region.row("chat").await?.context("no row")?.item;
    let answer = serde_json::json!({ "Item": gco_store::wire::item_to_dynamodb_json(&old) }).to_string();
    let lag = move |request: &gco_bed::rewriting_proxy::RequestFacts| {
        if !request.is_operation("GetItem") || gco_tests::region::gate::is_of_the_second_table(request) {
            return Decision::Forward;
        }
        let answer = answer.clone();
        Decision::AnswerInstead(Answer::new(http_ok(), "application/x-amz-json-1.0", answer))
    };
    proxy.set_hook(lag);
    let mark = proxy.mark();
    region.mark("chat", "late").await?;
    wait::until("three reads of the row that show nothing new", BOUND, || async {
        let reads = proxy.exchanges_since(mark).iter().filter(|seen| seen.request.is_operation("GetItem")).count();
        if reads >= 3 { Ok(()) } else { Err(format!("{reads} reads")) }
    })
    .await?;
    proxy.pass_everything();
    println!("once the copy had caught up: applied after {:?}", applied(&region, "chat", "late").await?);
    Ok(())
}

fn http_ok() -> http::StatusCode {
    http::StatusCode::OK
}
