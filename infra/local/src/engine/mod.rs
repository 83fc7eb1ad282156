//! The simulated engine: a model server that speaks the `OpenAI` API the way vLLM does, without a
//! model. It takes a real argument list, loads for a while, answers at a chosen pace, and says in
//! every answer which region and pod it runs in.

mod answer;
mod arguments;
mod complete;
mod fault;
mod metrics;
mod orders;
mod request;
mod server;
mod text;
mod transfer;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gco_runtime::clock::{Clock as _, SystemClock};
use gco_runtime::environment::{Environment, EnvironmentError};
use tokio::net::TcpListener;

pub use arguments::{ArgumentError, DeclaredFlag, EngineArguments};
pub use fault::Fault;
pub use orders::{CompletionOrder, CutEnd, CutPoint, Orders, QueryOrder, TransferOrder};
pub use server::RecordedRequest;
pub(crate) use text::hash as stable_hash;
pub use transfer::{
    Accounts, Connector, FailedLoad, Moved, OnLoadFailure, TransferConfig, TransferRole, TransferSettings,
};

/// The exit code of an engine whose port is taken: whoever chose the port may choose another one.
pub const EXIT_CODE_PORT_TAKEN: u8 = 98;

/// The exit code of a server whose engine died, of its own assertion or because it was told to: the API server of vLLM 0.32.0
/// ends itself then as if it had been asked to.
const EXIT_CODE_ENGINE_DEAD: u8 = 0;

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `GCO_REGION`.
    pub region: String,
    /// `POD_NAME`.
    pub pod: String,
}

/// Everything an engine needs to know before it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSettings {
    /// The model server's argument list.
    pub arguments: EngineArguments,
    /// Who it says it is.
    pub identity: Identity,
    /// From the start of the process until `/health` answers 200.
    pub load: Duration,
    /// Between two tokens of one sequence.
    pub token_pause: Duration,
    /// How long open requests may go on after the stop signal.
    pub grace: Duration,
    /// How it fails.
    pub fault: Fault,
    /// The hand-over of KV; `None` without a simulated connector.
    pub transfer: Option<TransferSettings>,
    /// How many requests `/simulated/requests` remembers; none by default.
    pub recorded_requests: usize,
    /// Variables that `/server_info` shows.
    pub environment: BTreeMap<String, String>,
}

impl EngineSettings {
    /// Puts arguments and environment together. Read are `GCO_REGION`, `POD_NAME` (else
    /// `HOSTNAME`), `GCO_ENGINE_PORT`, `GCO_ENGINE_LOAD_SECONDS` (default 0),
    /// `GCO_ENGINE_TOKEN_MILLISECONDS` (default 20), `GCO_ENGINE_GRACE_SECONDS` (default 25),
    /// `GCO_ENGINE_FAULT` (see [`Fault::parse`]; else the model's name decides),
    /// `GCO_ENGINE_RECORDED_REQUESTS` (default 0) and `GCO_ENGINE_SHOWN_VARIABLES` (names, separated
    /// by commas, that `/server_info` shows). A flag wins over a variable, except for the port:
    /// whoever sets `GCO_ENGINE_PORT` knows which one is free.
    ///
    /// With `--kv-transfer-config`, vLLM's own `VLLM_MOONCAKE_BOOTSTRAP_PORT` (8998),
    /// `VLLM_NIXL_SIDE_CHANNEL_PORT` (5600) and `VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT` (480 s; for NIXL
    /// `VLLM_NIXL_ABORT_REQUEST_TIMEOUT`), and ours: `GCO_ENGINE_DEAD_PEER_SECONDS` (60, what a real
    /// engine waits longer for one that is gone) and `GCO_ENGINE_KV_BYTES_PER_TOKEN` (1024).
    ///
    /// # Errors
    ///
    /// When variables have values that cannot be used; all of them are named.
    pub fn new(mut arguments: EngineArguments, environment: &Environment) -> Result<Self, EnvironmentError> {
        let mut reader = environment.reader();
        let day = Duration::from_secs(86_400);
        let region = reader.text("GCO_REGION", "unknown-region");
        let host = reader.text("HOSTNAME", "unknown-pod");
        let pod = reader.text("POD_NAME", &host);
        arguments.port = reader.number("GCO_ENGINE_PORT", arguments.port, 0..=u16::MAX);
        let load = reader.seconds("GCO_ENGINE_LOAD_SECONDS", Duration::ZERO, Duration::ZERO..=day);
        let load = arguments.load.unwrap_or(load);
        let token_milliseconds = reader.number("GCO_ENGINE_TOKEN_MILLISECONDS", 20.0, 0.0..=60_000.0);
        let grace = reader.seconds("GCO_ENGINE_GRACE_SECONDS", Duration::from_secs(25), Duration::ZERO..=day);
        let fault = reader.parsed(
            "GCO_ENGINE_FAULT",
            Fault::of_model(&arguments.model).unwrap_or_default(),
            "one of crash-CODE, crash-after-SECONDS-CODE, never-healthy, slow-load-SECONDS",
            Fault::parse,
        );
        let recorded_requests = reader.number("GCO_ENGINE_RECORDED_REQUESTS", 0, 0..=100_000);
        let transfer = arguments.transfer.clone().map(|config| {
            let abort_variable = match config.connector {
                Connector::Mooncake => "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT",
                Connector::Nixl => "VLLM_NIXL_ABORT_REQUEST_TIMEOUT",
            };
            TransferSettings {
                config,
                ranks: arguments.data_parallel_size,
                bootstrap_port: reader.number("VLLM_MOONCAKE_BOOTSTRAP_PORT", 8998, 0..=u16::MAX),
                side_channel_port: reader.number("VLLM_NIXL_SIDE_CHANNEL_PORT", 5600, 0..=u16::MAX),
                abort_timeout: reader.seconds(abort_variable, Duration::from_secs(480), Duration::ZERO..=day),
                dead_peer_timeout: reader.seconds(
                    "GCO_ENGINE_DEAD_PEER_SECONDS",
                    Duration::from_secs(60),
                    Duration::ZERO..=day,
                ),
                // At most 16 MiB, so that a full prompt of the default length stays below 128 GiB of counted bytes.
                bytes_per_token: reader.number("GCO_ENGINE_KV_BYTES_PER_TOKEN", 1024, 0..=16 * 1024 * 1024),
            }
        });
        let shown = reader.list("GCO_ENGINE_SHOWN_VARIABLES");
        reader.finish()?;
        Ok(Self {
            identity: Identity { region, pod },
            load: if let Fault::SlowLoad { delay } = fault { delay } else { load },
            token_pause: Duration::from_secs_f64(token_milliseconds / 1000.0),
            grace,
            fault,
            transfer,
            recorded_requests,
            environment: shown
                .into_iter()
                .filter_map(|name| environment.get(&name).map(str::to_owned).map(|value| (name, value)))
                .collect(),
            arguments,
        })
    }
}

/// Opens the engine's port. It listens on loopback only, whatever `--host` says: this is a
/// simulation on somebody's own machine.
///
/// # Errors
///
/// When the port is taken or may not be opened.
pub async fn listen(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
}

/// How a served engine came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to stop and every open request was answered.
    Drained,
    /// It was told to stop; the grace was over before the last request was.
    GraceOver,
    /// It was told to fail in this way.
    Crashed {
        /// 1 to 255.
        exit_code: u8,
    },
}

/// Serves until `stop` completes, then accepts no more connections and lets open requests finish
/// within the grace.
///
/// # Errors
///
/// When the listener fails for good.
pub async fn serve(
    settings: EngineSettings,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<Ended> {
    if let Fault::CrashAtStart { exit_code } = settings.fault {
        tracing::error!(exit_code, "this engine was told to crash at its start");
        return Ok(Ended::Crashed { exit_code });
    }
    let (grace, load, fault) = (settings.grace, settings.load, settings.fault.clone());
    let (ledger, orders) = (Arc::default(), Arc::default());
    let transfer = match settings.transfer.clone() {
        Some(transfer) => {
            let ports = transfer::TransferPorts::open(&transfer).await?;
            let transfer = transfer::Transfer::new(transfer, &ports, Arc::clone(&ledger), Arc::clone(&orders))?;
            Some((Arc::new(transfer), ports))
        }
        None => None,
    };
    let (transfer, ports) = transfer.unzip();
    let started_seconds = SystemClock.wall().as_second();
    let engine = server::Engine::new(settings, started_seconds, transfer.clone(), ledger, orders);
    let hand_over = async {
        match (transfer, ports) {
            (Some(transfer), Some(ports)) => transfer.serve(ports).await,
            _ => std::future::pending().await,
        }
    };
    tokio::pin!(hand_over);
    let (stopping, mut is_stopping) = tokio::sync::watch::channel(false);
    let drain = {
        let mut is_stopping = is_stopping.clone();
        async move {
            // The sender lives as long as this function.
            let _ = is_stopping.wait_for(|stopping| *stopping).await;
        }
    };
    let server = axum::serve(listener, server::router(Arc::clone(&engine))).with_graceful_shutdown(drain);
    let server = tokio::spawn(server.into_future());

    let load = async {
        if fault == Fault::NeverHealthy {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(load).await;
        engine.loaded.store(true, Ordering::Release);
        tracing::info!("the model is loaded");
        std::future::pending::<()>().await;
    };
    let crash = async {
        match fault {
            Fault::CrashAfter { delay, exit_code } => {
                tokio::time::sleep(delay).await;
                exit_code
            }
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        () = load => {}
        exit_code = crash => {
            tracing::error!(exit_code, "this engine was told to crash now");
            server.abort();
            return Ok(Ended::Crashed { exit_code });
        }
        () = engine.ends.cancelled() => {
            server.abort();
            return Ok(Ended::Crashed { exit_code: EXIT_CODE_ENGINE_DEAD });
        }
        failed = &mut hand_over => return failed.map(|()| Ended::Drained),
        () = stop => {}
    }

    tracing::info!("stopping: no new connections, open requests finish");
    stopping.send_replace(true);
    let _ = is_stopping.borrow_and_update();
    let abort = server.abort_handle();
    // KV is handed out until the last request is answered: decodes may still wait for it.
    let drained = async {
        tokio::select! {
            result = server => match result {
                Ok(result) => result.map(|()| Ended::Drained),
                Err(problem) => Err(std::io::Error::other(problem)),
            },
            () = engine.ends.cancelled() => Ok(Ended::Crashed { exit_code: EXIT_CODE_ENGINE_DEAD }),
            failed = hand_over => failed.map(|()| Ended::Drained),
        }
    };
    let ended = tokio::time::timeout(grace, drained).await;
    abort.abort();
    ended.unwrap_or(Ok(Ended::GraceOver))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(arguments: &[&str], environment: &[(&str, &str)]) -> Result<EngineSettings, EnvironmentError> {
        let environment = Environment::from_pairs(environment.iter().copied());
        EngineSettings::new(EngineArguments::parse(arguments.iter().copied()).unwrap(), &environment)
    }

    #[test]
    fn a_flag_wins_over_a_variable_but_the_port_of_the_environment_wins() {
        let read = settings(
            &["--load-seconds", "2", "--port", "8000"],
            &[("GCO_ENGINE_LOAD_SECONDS", "9"), ("GCO_ENGINE_PORT", "23001")],
        )
        .unwrap();
        assert_eq!((read.load, read.arguments.port), (Duration::from_secs(2), 23001));
    }

    #[test]
    fn the_fault_comes_from_the_environment_else_from_the_model() {
        let model = ["--model", "sample/fault-crash-3"];
        assert_eq!(settings(&model, &[]).unwrap().fault, Fault::CrashAtStart { exit_code: 3 });
        let chosen = settings(&model, &[("GCO_ENGINE_FAULT", "slow-load-7")]).unwrap();
        assert_eq!(chosen.load, Duration::from_secs(7));
    }

    #[test]
    fn variables_are_shown_only_when_named() {
        let read = settings(&[], &[("A", "1"), ("B", "2"), ("GCO_ENGINE_SHOWN_VARIABLES", "A, C")]).unwrap();
        assert_eq!(read.environment, BTreeMap::from([("A".to_owned(), "1".to_owned())]));
    }

    #[test]
    fn a_variable_that_cannot_be_used_is_refused_by_name() {
        let refused = settings(&[], &[("GCO_ENGINE_TOKEN_MILLISECONDS", "fast")]).unwrap_err();
        assert_eq!(refused.to_string(), "GCO_ENGINE_TOKEN_MILLISECONDS: \"fast\" is not a number from 0 to 60000");
    }
}
