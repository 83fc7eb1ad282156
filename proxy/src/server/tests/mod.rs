//! The proxy with engines and clients in one process: what goes over the wire, and what does not.

mod client;
mod engine;
mod failures;
mod fuzz;
mod passing;
mod stopping;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use gco_runtime::random::SeededRandomness;
use gco_runtime::shutdown::Drained;
use http::{Response, StatusCode, request};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client_io::Patience;
use super::{Ended, Observer, Options, Routes, Server, Shared};
use crate::backends::{Availability, BackendKey, Bootstrap, Description, Dial, Fleet, FleetSettings, Role};
use crate::exchange::{Connector, Fallback, Outcome, Rules};
use crate::relay::headers::Forwarded;
use engine::{Engine, json};

/// A request that ended, as the observer was told.
#[derive(Clone, Debug, PartialEq)]
struct Note {
    outcome: Option<Outcome>,
    status: Option<u16>,
    broken: bool,
    pieces: u32,
}

#[derive(Default)]
struct Notes(Mutex<Vec<Note>>);

impl Observer for Notes {
    fn ended(&self, ended: &Ended<'_>) {
        let note = Note {
            outcome: ended.outcome,
            status: ended.status,
            broken: ended.broken,
            pieces: ended.gaps.counts().iter().sum(),
        };
        self.0.lock().unwrap().push(note);
    }
}

struct OneRoute;

impl Routes for OneRoute {
    fn answer(&self, request: &request::Parts) -> Option<Response<Bytes>> {
        (request.uri.path() == "/health").then(|| Response::new(Bytes::from_static(b"{\"status\":\"ok\"}")))
    }
}

/// The proxy, running.
struct Proxy {
    address: SocketAddr,
    fleet: Fleet,
    notes: Arc<Notes>,
    stop: CancellationToken,
    run: JoinHandle<Drained>,
}

/// The engines of a test: each prefill with its bootstrap server.
struct Engines {
    prefill: Vec<Engine>,
    bootstrap: Vec<Engine>,
    decode: Vec<Engine>,
}

const ANSWER: &str = r#"{"id":"cmpl-1","choices":[{"text":"hello"}]}"#;
/// What a NIXL prefill answers.
const NIXL_ANSWER: &str = r#"{"id":"p","kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_host":"127.0.0.1","remote_port":7}}"#;

impl Engines {
    async fn start(prefills: usize, decodes: usize) -> Self {
        let (mut prefill, mut bootstrap, mut decode) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..prefills {
            prefill.push(Engine::start(json(NIXL_ANSWER)).await);
            bootstrap.push(Engine::bootstrap(&format!("engine-{index}")).await);
        }
        for _ in 0..decodes {
            decode.push(Engine::start(json(ANSWER)).await);
        }
        Self { prefill, bootstrap, decode }
    }
}

fn described(role: Role, address: SocketAddr, bootstrap: Option<SocketAddr>) -> (Description, Availability) {
    let description = Description {
        key: BackendKey::new(&format!("{address}")),
        role,
        authority: address.to_string(),
        dial: Dial::Address(address),
        bootstrap: bootstrap
            .map(|address| Bootstrap { address: format!("http://{address}"), dial: Dial::Address(address) }),
    };
    (description, Availability::Ready)
}

/// Settings with clocks that no test runs into on a busy machine unless it means to.
fn options(connector: Connector, fallback: Fallback) -> Options {
    Options {
        rules: Rules { connector, fallback },
        has_prefill: true,
        forwarded: Forwarded::default(),
        affinity: None,
        no_decode_status: StatusCode::SERVICE_UNAVAILABLE,
        no_decode_message: "no available decode backend".to_owned(),
        prefill_time_out: Duration::from_secs(100),
        hand_off_time_out: Duration::from_secs(100),
        connect_time_out: Duration::from_secs(60),
        answer_time_out: Duration::from_secs(100),
        idle_time_out: Duration::from_secs(100),
        body_time_out: Duration::from_secs(100),
        patience: Patience {
            keep_alive: Duration::from_secs(75),
            header: Duration::from_secs(100),
            taking: Duration::from_secs(100),
        },
        pool_idle: Duration::from_secs(4),
        max_body_bytes: 1 << 20,
        max_header_bytes: 64 * 1024,
        max_connections: 10_000,
        workers: 2,
        drain: Duration::from_secs(100),
        access_log_sample: 0.0,
    }
}

impl Proxy {
    async fn start(engines: &Engines, options: Options) -> Self {
        Self::with_fleet(engines, options, FleetSettings::default()).await
    }

    async fn with_fleet(engines: &Engines, options: Options, settings: FleetSettings) -> Self {
        let fleet = Fleet::new(settings, Instant::now());
        let prefill: Vec<_> = engines
            .prefill
            .iter()
            .zip(&engines.bootstrap)
            .map(|(engine, bootstrap)| described(Role::Prefill, engine.address, Some(bootstrap.address)))
            .collect();
        let decode: Vec<_> =
            engines.decode.iter().map(|engine| described(Role::Decode, engine.address, None)).collect();
        fleet.apply(Role::Prefill, &prefill, Instant::now());
        fleet.apply(Role::Decode, &decode, Instant::now());
        let notes = Arc::new(Notes::default());
        let stop = CancellationToken::new();
        let shared = Shared {
            options,
            fleet: fleet.clone(),
            observer: notes.clone(),
            routes: Arc::new(OneRoute),
            tls: None,
            stop: stop.clone(),
        };
        let server = Server::start(shared, &SeededRandomness::new(1)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let run = tokio::spawn(server.run(listener));
        Self { address, fleet, notes, stop, run }
    }

    /// The outcomes so far, in the order in which requests ended.
    fn outcomes(&self) -> Vec<Option<Outcome>> {
        self.notes.0.lock().unwrap().iter().map(|note| note.outcome).collect()
    }

    fn last_note(&self) -> Option<Note> {
        self.notes.0.lock().unwrap().last().cloned()
    }

    /// Requests that backends have now.
    fn in_flight(&self) -> usize {
        Role::ALL
            .iter()
            .map(|role| self.fleet.backends(*role).iter().map(|backend| backend.in_flight()).sum::<usize>())
            .sum()
    }

    /// Stops it; everything must be at rest afterwards.
    async fn end(self) {
        eventually("in-flight counters are back at nothing", || (self.in_flight() == 0).then_some(())).await;
        self.stop.cancel();
        let drained = tokio::time::timeout(client::PATIENCE, self.run).await;
        assert_eq!(drained.expect("it never ended").unwrap(), Drained::Finished);
    }
}

/// Waits until `look` sees something; a state, not a time.
async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + client::PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < until, "never seen: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
