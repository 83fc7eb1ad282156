//! Handing KV from a prefill engine to a decode engine, as vLLM does it with `MooncakeConnector` and `NixlConnector`: who
//! keeps what, who asks whom, what happens when the other side is not there, and what ends an engine.

mod accounts;
mod bootstrap;
mod config;
mod parameters;
mod shelf;
mod wire;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub(crate) use accounts::Ledger;
pub use accounts::{Accounts, FailedLoad, Moved};
pub use config::{Connector, OnLoadFailure, TransferConfig, TransferRole};
pub(crate) use parameters::{Handover, Pull, Source};
pub(crate) use shelf::Kv;
use shelf::{Shelf, Taken};
use wire::{Ask, PullError};

use super::orders::{Board, TransferOrder};
use crate::loopback::LoopbackClient;

/// How often the bootstrap server is asked before a load fails, with [`BOOTSTRAP_PAUSE`] between two tries.
const BOOTSTRAP_TRIES: usize = 3;
/// Between two tries.
const BOOTSTRAP_PAUSE: Duration = Duration::from_millis(100);
/// `VLLM_MOONCAKE_CONNECTOR_TIMEOUT`: for one answer of a bootstrap server.
const BOOTSTRAP_TIMEOUT: Duration = Duration::from_secs(30);

/// What an engine with a connector is told from outside its argument list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferSettings {
    /// From `--kv-transfer-config`.
    pub config: TransferConfig,
    /// `--data-parallel-size`: how many engine ids this process has.
    pub ranks: usize,
    /// `VLLM_MOONCAKE_BOOTSTRAP_PORT` (default 8998); 0 for any free one.
    pub bootstrap_port: u16,
    /// `VLLM_NIXL_SIDE_CHANNEL_PORT` (default 5600); 0 for any free one.
    pub side_channel_port: u16,
    /// `VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT` (default 480 s): how long prefill keeps KV, and how long decode waits for it.
    pub abort_timeout: Duration,
    /// How much longer decode waits for an engine that is gone: real ones do not notice its death (60 s).
    pub dead_peer_timeout: Duration,
    /// KV per token of a prompt.
    pub bytes_per_token: usize,
}

/// Why KV could not be had; the words of the log of a real engine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoadFailure(pub(crate) String);

/// The hand-over of one engine.
pub(crate) struct Transfer {
    pub(crate) settings: TransferSettings,
    pub(crate) engine_ids: Vec<String>,
    pub(crate) ledger: Arc<Ledger>,
    orders: Arc<Board>,
    shelf: Shelf,
    /// Where the worker of this process listens; what `/query` says.
    worker: SocketAddr,
    next_rank: AtomicUsize,
    client: LoopbackClient,
    /// Addresses by engine id, kept for ever as real engines do.
    workers: Mutex<HashMap<String, SocketAddr>>,
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Transfer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The ports that an engine with a connector opens beside its own.
pub(crate) struct TransferPorts {
    bootstrap: Option<TcpListener>,
    worker: TcpListener,
}

impl TransferPorts {
    /// Opens them, on loopback only.
    pub(crate) async fn open(settings: &TransferSettings) -> std::io::Result<Self> {
        let listen = async |port| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await;
        match settings.config.connector {
            Connector::Mooncake => {
                // A decode engine has no bootstrap server.
                let bootstrap = if settings.config.role.produces() {
                    let listener = listen(settings.bootstrap_port).await?;
                    tracing::info!(port = listener.local_addr()?.port(), "bootstrap listening");
                    Some(listener)
                } else {
                    None
                };
                Ok(Self { bootstrap, worker: listen(0).await? })
            }
            Connector::Nixl => Ok(Self { bootstrap: None, worker: listen(settings.side_channel_port).await? }),
        }
    }
}

impl Transfer {
    pub(crate) fn new(
        settings: TransferSettings,
        ports: &TransferPorts,
        ledger: Arc<Ledger>,
        orders: Arc<Board>,
    ) -> std::io::Result<Self> {
        let base = settings.config.engine_id.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        let engine_ids: Vec<String> = match settings.ranks {
            1 => vec![base],
            ranks => (0..ranks).map(|rank| format!("{base}_dp{rank}")).collect(),
        };
        tracing::info!(engine_ids = engine_ids.join(","), "the connector is ready");
        ledger.note().engine_ids.clone_from(&engine_ids);
        Ok(Self {
            shelf: Shelf::new(settings.abort_timeout),
            settings,
            engine_ids,
            ledger,
            orders,
            worker: ports.worker.local_addr()?,
            next_rank: AtomicUsize::new(0),
            client: LoopbackClient::new(),
            workers: Mutex::default(),
        })
    }

    /// Answers bootstrap queries and hands out KV until it is dropped.
    pub(crate) async fn serve(self: Arc<Self>, ports: TransferPorts) -> std::io::Result<()> {
        let bootstrap = async {
            match ports.bootstrap {
                Some(listener) => axum::serve(listener, bootstrap::router(Arc::clone(&self))).await,
                None => std::future::pending().await,
            }
        };
        let mut pulls = JoinSet::new();
        let worker = async {
            loop {
                tokio::select! {
                    accepted = ports.worker.accept() => {
                        let (stream, _) = accepted?;
                        pulls.spawn(Arc::clone(&self).hand_out(stream));
                    }
                    Some(_) = pulls.join_next() => {}
                }
            }
        };
        tokio::select! {
            outcome = bootstrap => outcome,
            outcome = worker => outcome,
        }
    }

    /// The rank that a request runs on: the one that its header names, else one after the other.
    pub(crate) fn rank(&self, named: Option<usize>) -> Option<usize> {
        let ranks = self.engine_ids.len();
        match named {
            Some(rank) => (rank < ranks).then_some(rank),
            None => Some(self.next_rank.fetch_add(1, Ordering::Relaxed) % ranks),
        }
    }

    /// What the bootstrap server says: rank, then tensor-parallel and pipeline-parallel rank of the worker.
    fn query(&self) -> Value {
        let address = format!("tcp://{}", self.worker);
        let ranks = self.engine_ids.iter().enumerate();
        let ranks =
            ranks.map(|(rank, id)| (rank.to_string(), json!({"engine_id": id, "worker_addr": {"0": {"0": address}}})));
        Value::Object(ranks.collect())
    }

    /// Keeps a prompt's KV for decode. Returns what NIXL's decode has to be told.
    pub(crate) fn keep(&self, rank: usize, transfer_id: Option<&str>, request_id: &str, kv: Kv) -> Option<Value> {
        let engine_id = self.engine_ids.get(rank)?;
        let nixl = self.settings.config.connector == Connector::Nixl;
        let transfer_id = transfer_id
            .map_or_else(|| format!("{request_id}-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]), str::to_owned);
        if self.orders.transfer() == Some(TransferOrder::Lose) {
            return None;
        }
        self.ledger.note().prefilled += 1;
        let kept_for = nixl.then(|| {
            json!({
                "do_remote_prefill": true,
                "do_remote_decode": false,
                "remote_block_ids": [[1]],
                "remote_engine_id": engine_id,
                "remote_request_id": transfer_id,
                "remote_host": "127.0.0.1",
                "remote_port": self.worker.port(),
                "tp_size": 1,
                "dcp_size": 1,
                "pp_size": 1,
                "remote_num_tokens": kv.prompt_tokens,
                "remote_blocks_expiry_time": null,
                "transfer_mode": "pull",
                "remote_prefill_cached_tokens": 0,
            })
        });
        self.shelf.keep((engine_id.clone(), transfer_id), kv, Instant::now());
        kept_for
    }

    /// The accounts, with what the shelf counts.
    pub(crate) fn accounts(&self) -> Accounts {
        let (expired, kept) = self.shelf.counts(Instant::now());
        Accounts { expired, kept, ..self.ledger.note().clone() }
    }

    async fn hand_out(self: Arc<Self>, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        let Ok(ask) = wire::read_ask(&mut stream).await else { return };
        if !self.engine_ids.contains(&ask.engine_id) {
            self.ledger.note().refused_stale += 1;
            let _ = wire::refuse(&mut stream).await;
            return;
        }
        if self.orders.transfer() == Some(TransferOrder::Stall) {
            return wire::closed(&mut stream).await;
        }
        let kv = match self.shelf.take((ask.engine_id.clone(), ask.transfer_id.clone()), Instant::now()) {
            Taken::Kv(kv) => kv,
            Taken::Later(later) => tokio::select! {
                kv = later => match kv {
                    Ok(kv) => kv,
                    // Another decode asked with the same id: this one waits until it is tired.
                    Err(_) => return wire::closed(&mut stream).await,
                },
                () = wire::closed(&mut stream) => return,
            },
        };
        // Counted when the last byte is gone: what was sent in part was not transferred.
        if wire::send(&mut stream, kv).await.is_ok() {
            self.ledger.note().sent.push(Moved {
                transfer_id: ask.transfer_id,
                engine_id: ask.engine_id,
                request_id: None,
                bytes: kv.bytes,
            });
        }
    }

    /// Fetches the KV of a request, or says why not. What a real engine takes 480 s to notice takes as long here.
    pub(crate) async fn load(&self, pull: &Pull, request_id: &str, prompt_hash: u64) -> Result<Kv, LoadFailure> {
        let outcome = self.pull(pull).await;
        let mut note = self.ledger.note();
        let outcome = outcome.and_then(|kv| {
            if kv.prompt_hash == prompt_hash {
                return Ok(kv);
            }
            note.mixed += 1;
            Err(LoadFailure("the KV is another prompt's".to_owned()))
        });
        match &outcome {
            Ok(kv) => note.received.push(Moved {
                transfer_id: pull.transfer_id.clone(),
                engine_id: pull.engine_id.clone(),
                request_id: Some(request_id.to_owned()),
                bytes: kv.bytes,
            }),
            Err(LoadFailure(reason)) => {
                tracing::error!(request = request_id, transfer_id = pull.transfer_id, reason, "KV load failed");
                note.failed_loads.push(FailedLoad {
                    transfer_id: pull.transfer_id.clone(),
                    request_id: request_id.to_owned(),
                    reason: reason.clone(),
                });
            }
        }
        outcome
    }

    async fn pull(&self, pull: &Pull) -> Result<Kv, LoadFailure> {
        let started = Instant::now();
        let address = match &pull.source {
            Source::Bootstrap(address) => self.worker_of(address, &pull.engine_id).await?,
            Source::SideChannel { host, port } => loopback(host, *port)?,
        };
        let ask = Ask { engine_id: pull.engine_id.clone(), transfer_id: pull.transfer_id.clone() };
        match tokio::time::timeout(self.settings.abort_timeout, wire::pull(address, &ask)).await {
            Ok(Ok(kv)) => Ok(kv),
            Ok(Err(PullError::UnknownEngine)) => {
                Err(LoadFailure(format!("remote engine_id {} is not the peer's", pull.engine_id)))
            }
            Ok(Err(PullError::Corrupt)) => Err(LoadFailure("the KV is damaged".to_owned())),
            Ok(Err(PullError::Connection(problem))) => {
                // The transport of real engines does not notice that nobody is there any more. NIXL's hand-shake does.
                if self.settings.config.connector == Connector::Mooncake {
                    let patience = self.settings.abort_timeout + self.settings.dead_peer_timeout;
                    tokio::time::sleep_until(started + patience).await;
                }
                Err(LoadFailure(format!("transfer failed: {problem}")))
            }
            Err(_) => Err(LoadFailure("Timeout waiting for P side ready".to_owned())),
        }
    }

    /// Where the worker of an engine is: as it was once, else as its bootstrap server says.
    async fn worker_of(&self, bootstrap: &str, engine_id: &str) -> Result<SocketAddr, LoadFailure> {
        let known = || self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = known().get(engine_id) {
            return Ok(*address);
        }
        let unreachable = |why: &dyn std::fmt::Display| LoadFailure(format!("bootstrap server {bootstrap}: {why}"));
        let address: http::Uri = bootstrap.parse().map_err(|problem| unreachable(&problem))?;
        let host = address.host().unwrap_or_default();
        let address = loopback(host, address.port_u16().unwrap_or(80))?;
        let mut tries = 0;
        let answer = loop {
            match self.client.get(address.port(), "/query", BOOTSTRAP_TIMEOUT).await {
                Ok(answer) if answer.status.is_success() => break answer.json(),
                other => {
                    tries += 1;
                    if tries == BOOTSTRAP_TRIES {
                        let seen = other.map_or_else(|problem| problem.to_string(), |answer| answer.status.to_string());
                        return Err(unreachable(&seen));
                    }
                    tokio::time::sleep(BOOTSTRAP_PAUSE).await;
                }
            }
        };
        let engines = answer.as_object().into_iter().flat_map(serde_json::Map::values);
        let found = engines.filter(|engine| engine["engine_id"] == engine_id).find_map(|engine| {
            engine["worker_addr"]["0"]["0"].as_str()?.strip_prefix("tcp://")?.parse::<SocketAddr>().ok()
        });
        let found = found
            .ok_or_else(|| LoadFailure(format!("remote engine_id {engine_id} not found from bootstrap server")))?;
        known().insert(engine_id.to_owned(), found);
        Ok(found)
    }
}

/// Simulated engines are on this machine.
fn loopback(host: &str, port: u16) -> Result<SocketAddr, LoadFailure> {
    match host {
        "localhost" | "127.0.0.1" => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        other => Err(LoadFailure(format!("{other} is not on this machine"))),
    }
}
