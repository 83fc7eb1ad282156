//! How long an edit takes from its commit in the table to the write at the API server, while many rows lie beside it.
//!
//! ```text
//! cargo build --workspace
//! cargo bench --profile dev -p gco-tests --bench edit_latency -- [--rows 500] [--seconds 60] [--rate 10] [--interval 1] [--table embedded]
//!     [--index no]
//! ```
//!
//! With `--index yes` the table has a change index, which the monitor asks every `--interval` seconds; without it the whole
//! table is read that often. `--rows 1000 --table ministack --index yes` is the size whose p99 must be under 1.5 s.
//!
//! Measured at both ends by others than the monitor: the commit is when the table's server has answered the edit, the write
//! is when the API server's audit log says that the monitor's request came in. Target at the defaults: p99 under 2 s.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures::StreamExt as _;
use gco_bed::wait;
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_tests::region::objects::{model_container, variable};
use gco_tests::region::rows::spec;
use gco_tests::region::{Monitor, MonitorSettings, Pods, Region, RegionSettings, TableKind, TestTable};
use jiff::Timestamp;

struct Arguments {
    rows: usize,
    seconds: u64,
    rate: u32,
    interval: f64,
    table: String,
    index: bool,
}

impl Arguments {
    fn read() -> anyhow::Result<Self> {
        let mut arguments =
            Self { rows: 500, seconds: 60, rate: 10, interval: 1.0, table: "embedded".to_owned(), index: false };
        let mut given = std::env::args().skip(1);
        while let Some(name) = given.next() {
            // Cargo says so to every bench.
            if name == "--bench" {
                continue;
            }
            let value = given.next().with_context(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--rows" => arguments.rows = value.parse().context("--rows")?,
                "--seconds" => arguments.seconds = value.parse().context("--seconds")?,
                "--rate" => arguments.rate = value.parse().context("--rate")?,
                "--interval" => arguments.interval = value.parse().context("--interval")?,
                "--table" => arguments.table = value,
                "--index" => {
                    arguments.index = match value.as_str() {
                        "yes" => true,
                        "no" => false,
                        other => bail!("--index {other}: must be yes or no"),
                    }
                }
                other => {
                    bail!("unknown argument {other}; allowed: --rows, --seconds, --rate, --interval, --table, --index")
                }
            }
        }
        ensure!(arguments.rows > 0 && arguments.rate > 0 && arguments.seconds > 0, "all arguments must be above zero");
        Ok(arguments)
    }
}

/// An edit that was committed.
struct Edit {
    endpoint: String,
    committed_at: Timestamp,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    let table = match arguments.table.as_str() {
        "embedded" => TestTable::embedded().await?,
        "ministack" => TestTable::on_server(TableKind::Ministack).await?,
        "dynalite" => TestTable::on_server(TableKind::Dynalite).await?,
        "moto" => TestTable::on_server(TableKind::Moto).await?,
        other => bail!("--table {other}: must be embedded, ministack, dynalite or moto"),
    };
    let table = if arguments.index { table.with_change_index().await? } else { table };
    // Without pods: what is measured is the way of an edit, not how fast this machine makes pods. One that stays pending
    // costs the control plane 0.12 core seconds per edit, and the whole bed then carries seven edits a second on two cores.
    let settings = RegionSettings { pods: Pods::Never, ..RegionSettings::named("us-east-1") };
    let region = Region::start_with(settings, table).await?;
    let names: Vec<String> = (0..arguments.rows).map(|number| format!("edit-{number:04}")).collect();
    futures::stream::iter(&names)
        .map(|name| region.deploy(name, spec(1, "0")))
        .buffer_unordered(8)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?;
    let settings = MonitorSettings::named("m1")
        // With an index as in production, but for the queries' interval when one is given.
        .with("RECONCILE_INTERVAL_SECONDS", if arguments.index { 15.0 } else { arguments.interval })
        .with("CHANGE_QUERY_INTERVAL_SECONDS", arguments.interval)
        .with("FULL_PASS_INTERVAL_SECONDS", 300)
        .with("HEARTBEAT_INTERVAL_SECONDS", 60)
        .with("LEASE_DURATION_SECONDS", 15)
        .with("LEASE_RENEW_INTERVAL_SECONDS", 5)
        .with("LEASE_RENEW_TIMEOUT_SECONDS", 3);
    let monitor = Monitor::leading_with(&region, settings).await?;
    region
        .wait_for("a Deployment for every row", Duration::from_secs(600), |snapshot| {
            let made = snapshot.deployments.len();
            if made == arguments.rows { Ok(()) } else { Err(format!("{made} of {}", arguments.rows)) }
        })
        .await?;
    monitor.full_pass().await?;

    let before = Work::of(&monitor).await?;
    let mark = region.audit()?.mark()?;
    let total = usize::try_from(arguments.seconds * u64::from(arguments.rate))?;
    let began = tokio::time::Instant::now();
    // At their times, however long the ones before them take: a slow table must not make the edits fewer.
    let edit = |number: usize| {
        // A stride that visits every row before it returns to one.
        let (region, endpoint) = (&region, names[number * 7 % names.len()].clone());
        async move {
            tokio::time::sleep_until(began + Duration::from_secs(1) / arguments.rate * u32::try_from(number)?).await;
            region.mark(&endpoint, &format!("e{number}")).await?;
            anyhow::Ok(Edit { endpoint, committed_at: SystemClock.wall() })
        }
    };
    let edits: Vec<Edit> = futures::future::try_join_all((0..total).map(edit)).await?;
    let took = began.elapsed();

    let last: BTreeMap<&str, usize> =
        edits.iter().enumerate().map(|(number, edit)| (edit.endpoint.as_str(), number)).collect();
    wait::until("every last edit to arrive", Duration::from_secs(120), || async {
        let snapshot = region.snapshot().await.map_err(|error| format!("{error:#}"))?;
        let missing = last.iter().filter(|(endpoint, number)| {
            let arrived = snapshot.deployments.get(**endpoint).map(model_container);
            arrived.as_ref().and_then(|container| variable(container, "EDIT")) != Some(format!("e{number}").as_str())
        });
        match missing.count() {
            0 => Ok(()),
            count => Err(format!("{count} of {} have not", last.len())),
        }
    })
    .await?;

    let work = Work::of(&monitor).await?;
    let writes = region.monitor_writes_since(mark)?;
    let mut arrivals: BTreeMap<&str, Vec<Timestamp>> = BTreeMap::new();
    for write in writes.iter().filter(|write| write.resource == "deployments" && (200..300).contains(&write.code)) {
        arrivals.entry(write.name.as_str()).or_default().push(write.received_at);
    }
    let mut latencies: Vec<f64> = Vec::new();
    let mut merged = 0;
    for edit in &edits {
        let first = arrivals.get(edit.endpoint.as_str()).into_iter().flatten().find(|at| **at >= edit.committed_at);
        match first {
            Some(at) => latencies.push(at.duration_since(edit.committed_at).as_secs_f64()),
            // The write came between the commit and our hearing of it, or served a later edit of the same row, too.
            None => merged += 1,
        }
    }
    latencies.sort_by(f64::total_cmp);
    ensure!(!latencies.is_empty(), "no edit arrived");
    let at = |share: f64| latencies[(((latencies.len() - 1) as f64) * share).round() as usize];
    println!("rows   edits  per second  interval  writes  at once  p50      p90      p99      most");
    println!(
        "{:<6} {:<6} {:<11.1} {:<9} {:<7} {:<8} {:<8} {:<8} {:<8} {:.3} s",
        arguments.rows,
        edits.len(),
        edits.len() as f64 / took.as_secs_f64(),
        format!("{} s", arguments.interval),
        writes.len(),
        merged,
        format!("{:.3} s", at(0.5)),
        format!("{:.3} s", at(0.9)),
        format!("{:.3} s", at(0.99)),
        at(1.0),
    );
    let passes = work.passes - before.passes;
    println!(
        "the monitor meanwhile: {passes} passes of {:.1} ms on average, {} status writes, {} reads of the whole table, {} \
         queries of the index, {} reads of single rows",
        (work.pass_seconds - before.pass_seconds) * 1000.0 / passes.max(1.0),
        work.status_writes - before.status_writes,
        work.full_reads - before.full_reads,
        work.queries - before.queries,
        work.row_reads - before.row_reads,
    );
    Ok(())
}

/// What the monitor has done so far, by its own count.
struct Work {
    passes: f64,
    pass_seconds: f64,
    status_writes: f64,
    full_reads: f64,
    queries: f64,
    row_reads: f64,
}

impl Work {
    async fn of(monitor: &Monitor) -> anyhow::Result<Self> {
        let operations = "gco_monitor_table_operations_total";
        let count = async |name, labels| anyhow::Ok(monitor.metric(name, labels).await?.unwrap_or_default());
        Ok(Self {
            passes: count("gco_monitor_pass_duration_seconds_count", &[]).await?,
            pass_seconds: count("gco_monitor_pass_duration_seconds_sum", &[]).await?,
            status_writes: count(operations, &[("operation", "write_region_status")]).await?,
            full_reads: count(operations, &[("operation", "read_all")]).await?,
            queries: count(operations, &[("operation", "query_changes")]).await?,
            row_reads: count(operations, &[("operation", "get")]).await?,
        })
    }
}
