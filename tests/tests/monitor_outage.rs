//! Outages: the API server answers 429 and 503 to everything, then the table is throttled, then both at once. Meanwhile
//! people go on editing. No region stops being routable, nothing is deleted, the monitor does not hammer what is down, and
//! afterwards every edit arrives.
//!
//! `GCO_SUITE_SIZE=full` takes 50 endpoints and three minutes for each outage.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use gco_bed::rewriting_proxy::{Answer, Decision, Exchange, RewritingProxy};
use gco_tests::region::history::History;
use gco_tests::region::rows::spec;
use gco_tests::region::{Monitor, MonitorSettings, Region, RegionSettings, TableKind, TestTable};
use gco_tests::size::Size;
use http::StatusCode;
use tokio::time::Instant;

/// Longest time until every edit that was made during an outage has arrived after it.
const RECOVERY: Duration = Duration::from_secs(180);

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    Api,
    Table,
    Both,
}

/// Calls that one outage may see: a fixed number for what was under way, and so many per second and per edited endpoint.
///
/// Per second: the Lease is tried twice (read and write) every half second, four watches back off up to 10 s, the table is
/// read every 0.3 s and each read repeated with doubling waits, a heartbeat comes every 2 s.
fn most_calls(seconds: u64, edits: usize) -> usize {
    const UNDER_WAY: usize = 60;
    const PER_SECOND: usize = 12;
    const PER_EDIT: usize = 10;
    UNDER_WAY + PER_SECOND * usize::try_from(seconds).unwrap_or(usize::MAX) + PER_EDIT * edits
}

fn break_api(proxy: &RewritingProxy) {
    let number = AtomicUsize::new(0);
    proxy.set_hook(move |_| {
        Decision::AnswerInstead(match number.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => Answer::kubernetes_too_many_requests(),
            _ => Answer::kubernetes_status(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "the server is currently unable to handle the request",
            ),
        })
    });
}

fn throttle_table(proxy: &RewritingProxy) {
    proxy.set_hook(|_| Decision::AnswerInstead(Answer::dynamodb_throttled()));
}

fn is_refused(exchange: &Exchange) -> bool {
    exchange.decision == gco_bed::rewriting_proxy::DecisionKind::AnswerInstead
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_api_server_table_or_both_leaves_every_region_serving_and_is_recovered_from() -> anyhow::Result<()>
{
    let size = Size::asked();
    let (endpoints, seconds) = size.choose((8_usize, 6_u64), (50, 180));
    let table = TestTable::on_server(TableKind::Ministack).await?;
    let region = Region::start_with(RegionSettings::named("us-east-1"), table).await?;
    let (api, rows) = (region.api_proxy().await?, region.table_proxy().await?);
    let settings = MonitorSettings::named("m1").api_through(api.url()).table_through(rows.url());
    let monitor = Monitor::leading_with(&region, settings).await?;
    let names: Vec<String> = (0..endpoints).map(|number| format!("out-{number:02}")).collect();
    // Two pods each: a rollout without a spare accelerator takes one of them at a time.
    let deployed = futures::stream::iter(&names).map(|name| region.deploy(name, spec(2, "0"))).buffer_unordered(8);
    deployed.collect::<Vec<_>>().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    region.all_agree(&names, Duration::from_secs(600)).await?;

    let histories: Vec<History> = names.iter().map(|name| region.history(name)).collect();
    let start = region.audit()?.mark()?;
    println!("outage  seconds  API calls refused  table calls refused  allowed  recovered after");
    for outage in [Outage::Api, Outage::Table, Outage::Both] {
        let (api_mark, rows_mark) = (api.mark(), rows.mark());
        if outage != Outage::Table {
            break_api(&api);
        }
        if outage != Outage::Api {
            throttle_table(&rows);
        }
        let began = Instant::now();
        // People go on: every second endpoint is edited, past what is down.
        let edited: Vec<&String> = names.iter().step_by(2).collect();
        for name in &edited {
            region.mark(name, &format!("{outage:?}")).await?;
        }
        tokio::time::sleep_until(began + Duration::from_secs(seconds)).await;
        let (api_calls, table_calls) = (
            api.exchanges_since(api_mark).iter().filter(|exchange| is_refused(exchange)).count(),
            rows.exchanges_since(rows_mark).iter().filter(|exchange| is_refused(exchange)).count(),
        );
        api.pass_everything();
        rows.pass_everything();
        let ended = Instant::now();
        region
            .all_agree(&names, RECOVERY)
            .await
            .map_err(|error| anyhow::anyhow!("{error}; {}", monitor.described()))?;
        let allowed = most_calls(seconds, edited.len());
        println!(
            "{:<7} {:<8} {:<18} {:<20} {:<8} {:.1} s",
            format!("{outage:?}"),
            seconds,
            api_calls,
            table_calls,
            allowed,
            ended.elapsed().as_secs_f64()
        );
        assert_eq!(api_calls > 0, outage != Outage::Table, "{outage:?}: {api_calls} calls of the API server refused");
        assert_eq!(table_calls > 0, outage != Outage::Api, "{outage:?}: {table_calls} calls of the table refused");
        assert!(api_calls <= allowed, "{outage:?}: {api_calls} calls of the API server, at most {allowed} allowed");
        assert!(table_calls <= allowed, "{outage:?}: {table_calls} calls of the table, at most {allowed} allowed");
    }
    for (name, history) in names.iter().zip(&histories) {
        assert_eq!(history.unroutable(), [], "{name} stopped being routable; all looks: {:?}", history.looks());
    }
    let deletes: Vec<_> =
        region.monitor_writes_since(start)?.into_iter().filter(|event| event.verb.starts_with("delete")).collect();
    assert!(deletes.is_empty(), "{deletes:?}");
    monitor.answers("/readyz", 200).await?;
    Ok(())
}
