//! The monitor's binary.
//!
//! | Exit code | Meaning |
//! |---|---|
//! | 0 | ended as asked (SIGTERM, SIGINT) |
//! | 1 | something failed that should not: no Kubernetes configuration, a port in use, a task that ended by itself |
//! | 2 | settings are wrong; every problem is named on standard error |
//! | 3 | the table must not be used: it does not exist, has another key, or is an eventually consistent global table |

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gco_monitor::admin::{self, telemetry::Telemetry};
use gco_monitor::cluster::{Api, Caches, Cluster};
use gco_monitor::config::{Config, TableChoice};
use gco_monitor::control::{self, feed, metered::MeteredTable, shared::Shared, shared::SharedParts};
use gco_monitor::leadership::{Elector, ElectorSettings};
use gco_runtime::clock::{Clock, SystemClock};
use gco_runtime::environment::Environment;
use gco_runtime::random::{Randomness, SystemRandomness};
use gco_runtime::{log, shutdown, tls};
use gco_store::dynamodb::{DynamoDbSettings, DynamoDbTable};
use gco_store::table::Table;
use tokio_util::sync::CancellationToken;

/// Exit code for something that failed that should not.
const EXIT_FAILED: u8 = 1;
/// Exit code for wrong settings.
const EXIT_SETTINGS: u8 = 2;
/// Exit code for a table that must not be used.
const EXIT_TABLE: u8 = 3;

/// How long a connection to the API server may take to come up.
const CONNECT_TIME_OUT: Duration = Duration::from_secs(5);

/// How long an operation on the table may be retried; the control loop retries it anyway, with what is known then.
const TABLE_TOTAL_TIME: Duration = Duration::from_secs(8);

/// How long the Lease's release may keep the process, above its own bound.
const RELEASE_BOUND: Duration = Duration::from_secs(5);

/// Hexadecimal digits after the holder's prefix.
const HOLDER_DIGITS: usize = 8;

fn main() -> ExitCode {
    let config = match Config::read(&Environment::process()) {
        Ok(config) => config,
        Err(error) => {
            // The log's form is a setting, too, so these go to people as they are.
            for problem in &error.problems {
                eprintln!("{problem}");
            }
            return ExitCode::from(EXIT_SETTINGS);
        }
    };
    if let Err(error) = log::init(config.log.clone()) {
        eprintln!("{error}");
        return ExitCode::from(EXIT_FAILED);
    }
    tls::install_provider();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(error = %error, "no runtime");
            return ExitCode::from(EXIT_FAILED);
        }
    };
    let code = match runtime.block_on(run(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<feed::UnusableTable>() => {
            tracing::error!(error = %error, exit_code = EXIT_TABLE, "ending");
            ExitCode::from(EXIT_TABLE)
        }
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), exit_code = EXIT_FAILED, "ending");
            ExitCode::from(EXIT_FAILED)
        }
    };
    // Abandoned calls must not keep the process: their time-outs are longer than a shutdown may be.
    runtime.shutdown_background();
    code
}

async fn run(config: Config) -> anyhow::Result<()> {
    let stop = shutdown::install().context("no signal handlers")?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let randomness: Arc<dyn Randomness> = Arc::new(SystemRandomness);
    let telemetry = Arc::new(Telemetry::new()?);
    let token = randomness.token();
    let holder = format!("{}_{}", config.holder_prefix, token.get(..HOLDER_DIGITS).unwrap_or(&token));

    let client = kubernetes_client().await?;
    let api = Api::new(client, &config.namespace, config.kubernetes_time_out, clock.clone(), telemetry.clone());
    let table: Arc<dyn Table> = Arc::new(MeteredTable::new(open_table(&config).await?, telemetry.clone()));
    let caches = Caches::new(clock.clone()).with_kind_interval(config.optional_kinds_interval);
    let (elector, leadership) = Elector::new(ElectorSettings {
        api: api.clone(),
        holder: holder.clone(),
        times: config.lease,
        clock: clock.clone(),
        randomness: randomness.clone(),
        telemetry: telemetry.clone(),
    });
    let (listener, address) = admin::bind(&config.metrics_host, config.metrics_port).await?;
    tracing::info!(port = address.port(), address = %address, holder = %holder, "listening for health and metrics");
    let shared = Arc::new(Shared::new(SharedParts {
        config,
        holder,
        table,
        cluster: Cluster::new(api.clone(), caches.clone()),
        leadership,
        clock,
        randomness,
        telemetry,
    }));

    // Ends after everything else: the caches and the port are of use while passes finish.
    let last = CancellationToken::new();
    let admin = tokio::spawn(admin::serve(listener, shared.clone(), last.clone()));
    feed::check(&shared, &stop).await?;
    let watches = {
        let (caches, last) = (caches.clone(), last.clone());
        tokio::spawn(async move { caches.watch(&api, last).await })
    };
    let give_up = CancellationToken::new();
    let mut election = {
        let give_up = give_up.clone();
        tokio::spawn(async move { elector.run(give_up, move || caches.highest_term()).await })
    };
    let result = tokio::select! {
        ended = control::run(shared, stop) => ended.map_err(anyhow::Error::from),
        // Without the task that renews and ends the claim nothing may go on.
        ended = &mut election => Err(anyhow::anyhow!("the leadership task ended by itself: {ended:?}")),
    };
    give_up.cancel();
    if !election.is_finished() && tokio::time::timeout(RELEASE_BOUND, election).await.is_err() {
        tracing::warn!("the leadership task did not end in time");
    }
    last.cancel();
    watches.abort();
    admin.abort();
    tracing::info!("ended");
    result
}

/// A client that never repeats a request by itself: a repeated write could outlive the claim that it was made under.
async fn kubernetes_client() -> anyhow::Result<kube::Client> {
    let mut config = kube::Config::infer().await.context("no Kubernetes configuration")?;
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIME_OUT);
    kube::Client::try_from(config).context("no Kubernetes client")
}

async fn open_table(config: &Config) -> anyhow::Result<Arc<dyn Table>> {
    match &config.table {
        TableChoice::DynamoDb => {
            let clock = Arc::new(|| SystemClock.boot().elapsed_since_boot());
            let mut settings = DynamoDbSettings::new(&config.table_name, &config.table_region, clock);
            settings.endpoint_url.clone_from(&config.table_endpoint_url);
            settings.total_time = TABLE_TOTAL_TIME;
            Ok(Arc::new(DynamoDbTable::connect(settings).await.context("no client for the table")?))
        }
        #[cfg(feature = "embedded-table")]
        TableChoice::Embedded(path) => {
            Ok(Arc::new(gco_store::embedded::EmbeddedTable::open(path).context("the table's file")?))
        }
        #[cfg(not(feature = "embedded-table"))]
        TableChoice::Embedded(path) => {
            anyhow::bail!("{}: this build has no embedded table", path.display())
        }
    }
}
