//! The proxy's binary.
//!
//! | Exit code | Meaning |
//! |---|---|
//! | 0 | ended as asked (SIGTERM, SIGINT), all requests answered |
//! | 1 | something failed that should not: a port in use, no Kubernetes configuration; or requests outlived the drain |
//! | 2 | settings are wrong; every problem is named on standard error |

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use gco_proxy::admin::Admin;
use gco_proxy::admin::metrics::{Metrics, ServerFacts};
use gco_proxy::backends::{Fleet, Role, sources};
use gco_proxy::config::Settings;
use gco_proxy::exchange::Rules;
use gco_proxy::front::Tls;
use gco_proxy::server::client_io::Patience;
use gco_proxy::server::{Options, Server, Shared};
use gco_runtime::environment::Environment;
use gco_runtime::random::SystemRandomness;
use gco_runtime::shutdown::Drained;
use gco_runtime::{log, shutdown, tls};
use tokio::net::TcpListener;
use tokio::time::Instant;

/// A request is some forty small allocations of one thread, which jemalloc's caches serve in less time than the C library's: 0.94 of
/// the processor time of a short request, 0.88 of one with a prompt of 64 KiB, 0.78 of a paced event, and no more memory per
/// stream. mimalloc is as fast and keeps more than there may be.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code for something that failed that should not.
const EXIT_FAILED: u8 = 1;
/// Exit code for wrong settings.
const EXIT_SETTINGS: u8 = 2;

fn main() -> ExitCode {
    let settings = match Settings::read(&Environment::process()) {
        Ok(settings) => settings,
        Err(error) => {
            // The log's form is a setting, too, so these go to people as they are.
            for problem in &error.problems {
                eprintln!("{problem}");
            }
            return ExitCode::from(EXIT_SETTINGS);
        }
    };
    if let Err(error) = log::init(settings.log.clone()) {
        eprintln!("{error}");
        return ExitCode::from(EXIT_FAILED);
    }
    tls::install_provider();
    // Requests run on the workers' own runtimes; this one accepts connections and watches backends.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(error = %error, "no runtime");
            return ExitCode::from(EXIT_FAILED);
        }
    };
    let code = match runtime.block_on(run(settings)) {
        Ok(Drained::Finished) => ExitCode::SUCCESS,
        Ok(Drained::GaveUp) => ExitCode::from(EXIT_FAILED),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), exit_code = EXIT_FAILED, "ending");
            ExitCode::from(EXIT_FAILED)
        }
    };
    runtime.shutdown_background();
    code
}

async fn run(settings: Settings) -> anyhow::Result<Drained> {
    let stop = shutdown::install().context("no signal handlers")?;
    for name in &settings.unknown {
        tracing::warn!(variable = name, "this variable means nothing; is it misspelled?");
    }
    let fleet = Fleet::new(settings.fleet, Instant::now());
    sources::start(&settings.sources, &fleet, &stop).await.context("backends cannot be found")?;
    let (host, port) = (settings.host.as_str(), settings.port);
    let listener = TcpListener::bind((host, port)).await.with_context(|| format!("{host}:{port} cannot be bound"))?;
    let address = listener.local_addr().context("the port has no address")?;
    let metrics = Arc::new(Metrics::new(&fleet, Admin::mode(&settings)).context("the metrics cannot be registered")?);
    let admin = Arc::new(Admin::new(&settings, fleet.clone(), metrics.clone()));
    let tls = settings.tls.as_ref().map(Tls::load).transpose().context("no certificate")?.map(Arc::new);
    if let Some(tls) = tls.clone() {
        let metrics = metrics.clone();
        tokio::spawn(tls.watch(move |good| metrics.certificate_loaded(good)));
    }
    tokio::spawn({
        let (stop, admin) = (stop.clone(), admin.clone());
        async move {
            stop.cancelled().await;
            admin.set_draining();
        }
    });
    let backends = fleet.clone();
    let shared = Shared { options: options(&settings), fleet, observer: metrics.clone(), routes: admin, tls, stop };
    let server = Server::start(shared, &SystemRandomness).context("the workers cannot be started")?;
    let mut runtimes = server.runtimes();
    runtimes.push(tokio::runtime::Handle::current());
    metrics.set_server(ServerFacts { runtimes, connections: Box::new(server.connections()) });
    tracing::info!(
        address = %address,
        port = address.port(),
        connector = settings.connector.word(),
        fallback = settings.fallback.word(),
        scheduling = settings.fleet.policy.word(),
        workers = settings.worker_count(),
        prefill_backends = backends.backends(Role::Prefill).len(),
        decode_backends = backends.backends(Role::Decode).len(),
        "listening"
    );
    let drained = server.run(listener).await;
    tracing::info!("ended");
    Ok(drained)
}

/// What the server needs of the settings.
fn options(settings: &Settings) -> Options {
    Options {
        rules: Rules { connector: settings.connector, fallback: settings.fallback },
        has_prefill: settings.sources.has_prefill(),
        forwarded: settings.forward_headers.clone(),
        affinity: settings.affinity_header.clone(),
        no_decode_status: settings.no_decode_status,
        no_decode_message: settings.no_decode_message.clone(),
        prefill_time_out: settings.prefill_time_out,
        hand_off_time_out: settings.hand_off_time_out,
        connect_time_out: settings.connect_time_out,
        answer_time_out: settings.answer_time_out,
        idle_time_out: settings.idle_time_out,
        body_time_out: settings.client_time_out,
        patience: Patience {
            keep_alive: settings.keep_alive,
            header: settings.header_time_out,
            taking: settings.client_time_out,
        },
        pool_idle: settings.pool_idle,
        max_body_bytes: settings.max_body_bytes,
        max_header_bytes: settings.max_header_bytes,
        max_connections: settings.max_connections,
        workers: settings.worker_count(),
        drain: settings.drain,
        access_log_sample: settings.access_log_sample,
    }
}
