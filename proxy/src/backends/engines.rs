//! Which engine ids a prefill instance has.
//!
//! Decode finds a prefill engine by its engine id, a random identity of the process, which the instance's bootstrap server
//! tells: `GET /query` answers a map from data-parallel rank to `engine_id` and `worker_addr` (contract D.6). An id of a
//! process that is gone makes decode wait for minutes, so it is kept by backend (that is: by pod UID, never by address),
//! and asked again after a change of readiness and after a failed exchange.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use gco_runtime::text::bounded;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::backend::{Backend, Bootstrap};
use crate::backends::sources::ask;

/// The most that an answer of `/query` may have: 64 KiB are 300 ranks with 16 workers each.
const LONGEST_ANSWER: usize = 64 * 1024;

/// For how long a failed question is not asked again: a flood of requests must not become a flood of questions, and an
/// instance whose engines have just registered must be found soon.
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// One engine of a prefill instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Its data-parallel rank: the `X-data-parallel-rank` header of the prefill leg when there are several.
    pub rank: u32,
    /// What decode is told as `remote_engine_id`.
    pub engine_id: String,
}

/// All engines of a prefill instance, by rank; never empty.
#[derive(Debug)]
pub struct Engines {
    engines: Vec<Engine>,
    turn: AtomicUsize,
}

impl Engines {
    /// How many data-parallel ranks there are; at least one.
    pub fn ranks(&self) -> usize {
        self.engines.len()
    }

    /// All of them, by rank.
    pub fn all(&self) -> &[Engine] {
        &self.engines
    }

    /// The engine for the next exchange: in turn, so that every rank gets as much. `None` never happens, since there is
    /// at least one.
    pub fn next(&self) -> Option<&Engine> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.engines.get(turn % self.engines.len().max(1))
    }

    /// Reads an answer of `/query`.
    ///
    /// # Errors
    /// When it is not such a map, or holds no engine.
    pub fn parse(answer: &[u8]) -> Result<Self, QueryError> {
        let map: BTreeMap<String, serde_json::Value> = serde_json::from_slice(answer)
            .map_err(|error| QueryError::Malformed(bounded(&error.to_string(), SHOWN_CHARACTERS)))?;
        if map.is_empty() {
            return Err(QueryError::Empty);
        }
        let mut engines = Vec::with_capacity(map.len());
        for (rank, engine) in &map {
            let shown = bounded(rank, SHOWN_CHARACTERS);
            let rank = rank.parse().map_err(|_| QueryError::Malformed(format!("{shown:?} is no rank")))?;
            let engine_id = engine.get("engine_id").and_then(serde_json::Value::as_str).filter(|id| !id.is_empty());
            let engine_id = engine_id.ok_or_else(|| QueryError::Malformed(format!("rank {rank} has no engine_id")))?;
            engines.push(Engine { rank, engine_id: engine_id.to_owned() });
        }
        engines.sort_by_key(|engine| engine.rank);
        Ok(Self { engines, turn: AtomicUsize::new(0) })
    }
}

/// How much of a foreign text an error shows.
const SHOWN_CHARACTERS: usize = 120;

/// Why no engine id is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The backend has no bootstrap server.
    #[error("this backend has no bootstrap server")]
    NoBootstrap,
    /// It could not be asked.
    #[error("the bootstrap server cannot be asked: {0}")]
    Unreachable(String),
    /// It did not answer in time.
    #[error("the bootstrap server did not answer in time")]
    TimedOut,
    /// It answered another status than 200.
    #[error("the bootstrap server answered {0}")]
    Status(u16),
    /// No engine has registered yet: it is starting.
    #[error("no engine has registered at the bootstrap server")]
    Empty,
    /// The answer is not what an engine's bootstrap server answers.
    #[error("the bootstrap server's answer is not understood: {0}")]
    Malformed(String),
}

impl QueryError {
    /// Whether the instance is merely starting: that is no failure of it.
    #[must_use]
    pub const fn is_starting(&self) -> bool {
        matches!(self, Self::Empty)
    }
}

/// The engines of one backend, as last heard.
#[derive(Debug, Default)]
pub(super) struct EngineCache {
    known: ArcSwapOption<Engines>,
    /// Held while asking, so that one question is under way at a time; what the last failed one said, and when.
    asking: Mutex<Option<(Instant, QueryError)>>,
}

impl EngineCache {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        self.known.store(None);
    }
}

impl Backend {
    /// The engines behind it, from memory or asked now.
    ///
    /// # Errors
    /// When the bootstrap server gives no usable answer within `time_out`, or did not a moment ago.
    pub async fn engines(&self, time_out: Duration) -> Result<Arc<Engines>, QueryError> {
        if let Some(known) = self.engines.known.load_full() {
            return Ok(known);
        }
        let bootstrap = self.bootstrap().ok_or(QueryError::NoBootstrap)?;
        let mut last = self.engines.asking.lock().await;
        // Somebody else may have asked while this one waited.
        if let Some(known) = self.engines.known.load_full() {
            return Ok(known);
        }
        if let Some((at, error)) = &*last
            && Instant::now().saturating_duration_since(*at) < ASKED_AGAIN_AFTER
        {
            return Err(error.clone());
        }
        match query(bootstrap, time_out).await {
            Ok(engines) => {
                *last = None;
                let engines = Arc::new(engines);
                self.engines.known.store(Some(engines.clone()));
                tracing::info!(backend = self.authority(), ranks = engines.ranks(), "engine ids are known");
                Ok(engines)
            }
            Err(error) => {
                tracing::warn!(backend = self.authority(), error = %error, "no engine id");
                *last = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// An exchange with these engines failed: they are asked for again, unless that happened already.
    pub fn forget_engines(&self, used: &Arc<Engines>) {
        let known = self.engines.known.load();
        if known.as_ref().is_some_and(|known| Arc::ptr_eq(known, used)) {
            self.engines.known.compare_and_swap(&*known, None);
        }
    }
}

async fn query(bootstrap: &Bootstrap, time_out: Duration) -> Result<Engines, QueryError> {
    let authority = bootstrap.address.strip_prefix("http://").unwrap_or(&bootstrap.address);
    let asked = ask::get(&bootstrap.dial, authority, "/query", LONGEST_ANSWER);
    match tokio::time::timeout(time_out, asked).await {
        Err(_) => Err(QueryError::TimedOut),
        Ok(Err(error)) => Err(QueryError::Unreachable(bounded(&format!("{error:#}"), SHOWN_CHARACTERS))),
        Ok(Ok((200, body))) => Engines::parse(&body),
        Ok(Ok((status, _))) => Err(QueryError::Status(status)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicU32;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::backends::{Availability, BackendKey, Description, Dial, Role};

    const BOUND: Duration = Duration::from_secs(20);

    /// A bootstrap server that gives these bodies in turn, the last one for ever, and counts the questions.
    async fn bootstrap(bodies: Vec<&'static str>) -> (SocketAddr, Arc<AtomicU32>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let count = asked.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let turn = count.fetch_add(1, Ordering::SeqCst) as usize;
                let body = bodies[turn.min(bodies.len() - 1)];
                let mut head = [0; 1024];
                let read = stream.read(&mut head).await.unwrap();
                assert!(head[..read].starts_with(b"GET /query HTTP/1.1\r\n"), "{head:?}");
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        (address, asked)
    }

    fn backend(address: SocketAddr) -> Backend {
        let description = Description {
            key: BackendKey::new("uid-1"),
            role: Role::Prefill,
            authority: "192.0.2.7:8000".to_owned(),
            dial: Dial::Address(address),
            bootstrap: Some(Bootstrap { address: format!("http://{address}"), dial: Dial::Address(address) }),
        };
        Backend::new(description, Availability::Ready, 0)
    }

    const ONE: &str = r#"{"0":{"engine_id":"4d551262","worker_addr":{"0":{"0":"tcp://127.0.0.1:44671"}}}}"#;
    const OTHER: &str = r#"{"0":{"engine_id":"99999999","worker_addr":{}}}"#;

    #[tokio::test]
    async fn it_is_asked_once_until_it_is_forgotten() {
        let (address, asked) = bootstrap(vec![ONE, OTHER]).await;
        let backend = backend(address);
        let engines = backend.engines(BOUND).await.unwrap();
        assert_eq!(engines.all(), [Engine { rank: 0, engine_id: "4d551262".to_owned() }]);
        assert!(Arc::ptr_eq(&engines, &backend.engines(BOUND).await.unwrap()));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        backend.forget_engines(&engines);
        let newer = backend.engines(BOUND).await.unwrap();
        assert_eq!(newer.all()[0].engine_id, "99999999");
        // A late failure of an exchange with the old id does not throw the new one away.
        backend.forget_engines(&engines);
        assert!(Arc::ptr_eq(&newer, &backend.engines(BOUND).await.unwrap()));
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_change_of_readiness_makes_it_ask_again() {
        let (address, asked) = bootstrap(vec![ONE, OTHER]).await;
        let backend = backend(address);
        backend.engines(BOUND).await.unwrap();
        backend.set_availability(Availability::NotReady, 5);
        backend.set_availability(Availability::Ready, 6);
        assert_eq!(backend.engines(BOUND).await.unwrap().all()[0].engine_id, "99999999");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn requests_at_the_same_time_ask_one_question() {
        let (address, asked) = bootstrap(vec![ONE]).await;
        let backend = Arc::new(backend(address));
        let all = (0..50).map(|_| {
            let backend = backend.clone();
            tokio::spawn(async move { backend.engines(BOUND).await.is_ok() })
        });
        for one in all.collect::<Vec<_>>() {
            assert!(one.await.unwrap());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn an_instance_whose_engines_register_late_is_found_then() {
        let (address, asked) = bootstrap(vec!["{}", ONE]).await;
        let backend = backend(address);
        assert_eq!(backend.engines(BOUND).await.unwrap_err(), QueryError::Empty);
        // Not asked again at once.
        assert_eq!(backend.engines(BOUND).await.unwrap_err(), QueryError::Empty);
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let found = async {
            loop {
                if let Ok(engines) = backend.engines(BOUND).await {
                    return engines;
                }
                tokio::task::yield_now().await;
            }
        };
        assert_eq!(tokio::time::timeout(BOUND, found).await.unwrap().all()[0].engine_id, "4d551262");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_or_silent_is_an_error_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let silent = backend(address);
        assert_eq!(silent.engines(Duration::from_millis(20)).await.unwrap_err(), QueryError::TimedOut);
        drop(listener);
        let gone = backend(address);
        assert!(matches!(gone.engines(BOUND).await.unwrap_err(), QueryError::Unreachable(_)));
        let mut description = gone.description().clone();
        description.bootstrap = None;
        let none = Backend::new(description, Availability::Ready, 0);
        assert_eq!(none.engines(BOUND).await.unwrap_err(), QueryError::NoBootstrap);
    }

    #[test]
    fn ranks_are_sorted_by_number_and_used_in_turn() {
        let ranks: Vec<String> = (0..12).map(|rank| format!(r#""{rank}":{{"engine_id":"e{rank}"}}"#)).collect();
        let engines = Engines::parse(format!("{{{}}}", ranks.join(",")).as_bytes()).unwrap();
        assert_eq!(engines.ranks(), 12);
        let used: Vec<u32> = (0..13).map(|_| engines.next().unwrap().rank).collect();
        assert_eq!(used, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0]);
    }

    #[test]
    fn an_answer_that_is_no_map_of_engines_is_refused() {
        assert_eq!(Engines::parse(b"{}").unwrap_err(), QueryError::Empty);
        let long = format!(r#"{{"{}":{{"engine_id":"x"}}}}"#, "9".repeat(5_000));
        for answer in ["", "[]", r#"{"a":{"engine_id":"x"}}"#, r#"{"0":{}}"#, r#"{"0":{"engine_id":""}}"#, &long] {
            let error = Engines::parse(answer.as_bytes()).unwrap_err();
            assert!(matches!(&error, QueryError::Malformed(text) if text.len() < 300), "{answer}: {error}");
        }
    }
}
