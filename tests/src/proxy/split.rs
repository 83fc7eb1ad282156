//! The real proxy in front of prefill and decode engines.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use axum::body::Body;
use futures::future::try_join_all;
use gco_bed::wait;
use gco_local::loopback::{LoopbackClient, json_request};
use http::Request;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::engine::sum;
use super::{BOUND, Engine, EngineSpec, Logged, Reply};
use crate::region::monitor::program;

/// The program and what it is made of.
const SOURCES: [&str; 2] = ["proxy/src", "infra/runtime/src"];

/// Settings that make waits of people shorter, and every request seen in the log.
const QUICK: [(&str, &str); 4] = [
    ("PD_PROXY_HOST", "127.0.0.1"),
    ("PD_PROXY_PORT", "0"),
    ("GCO_PROXY_ACCESS_LOG_SAMPLE", "1"),
    ("GCO_PROXY_POOL_IDLE_SECONDS", "0.5"),
];

/// What a proxy holds of the machine when nothing goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtRest {
    /// Open files.
    pub file_descriptors: usize,
    /// Tasks of its runtimes.
    pub tasks: u64,
}

/// A proxy and its engines.
#[derive(Debug)]
pub struct Split {
    /// Prefill engines.
    pub prefills: Vec<Engine>,
    /// Decode engines.
    pub decodes: Vec<Engine>,
    /// The proxy's process.
    pub process: Logged,
    /// Where it listens.
    pub port: u16,
    /// Requests of clients that keep their connections.
    pub client: LoopbackClient,
    folder: TempDir,
    at_rest: Option<AtRest>,
}

impl Split {
    /// Starts the engines and a proxy that knows them by its backends file.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn start(
        prefills: Vec<EngineSpec>,
        decodes: Vec<EngineSpec>,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let (prefills, decodes) = tokio::try_join!(
            try_join_all(prefills.into_iter().map(EngineSpec::start)),
            try_join_all(decodes.into_iter().map(EngineSpec::start))
        )?;
        let known = backends(&prefills, &decodes);
        let split = Self::before(&known, settings).await?;
        Ok(Self { prefills, decodes, ..split })
    }

    /// Starts a proxy that knows the engines of this backends file, whatever they are.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn before(backends: &Value, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("gco-suite-proxy-").tempdir().context("making a folder")?;
        let file = folder.path().join("backends.json");
        std::fs::write(&file, backends.to_string()).context("writing the backends file")?;
        let file = file.to_string_lossy();
        let environment =
            QUICK.into_iter().chain([("GCO_PROXY_BACKENDS_FILE", &*file)]).chain(settings.iter().copied());
        let process = Logged::start("gco-proxy", program("gco-proxy", &SOURCES)?, [], environment)?;
        let port = process.port().await?;
        let (prefills, decodes) = (Vec::new(), Vec::new());
        let split = Self { prefills, decodes, process, port, client: LoopbackClient::new(), folder, at_rest: None };
        if settings.iter().any(|(name, _)| name.starts_with("GCO_PROXY_TLS_")) {
            return Ok(split);
        }
        // The file is read after the port is open.
        wait::until("the proxy to be ready", BOUND, async || {
            let answer = split.get("/readyz").await.map_err(|problem| format!("{problem:#}"))?;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        })
        .await?;
        Ok(split)
    }

    /// One prefill and one decode engine, hand-over by Mooncake.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn pair(settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::start(vec![EngineSpec::prefill("p-0")], vec![EngineSpec::decode("d-0")], settings).await
    }

    /// The backends file, which the proxy watches.
    #[must_use]
    pub fn backends_file(&self) -> PathBuf {
        self.folder.path().join("backends.json")
    }

    /// Writes the backends file anew: those engines, and no others.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_backends(&self, prefills: &[&Engine], decodes: &[&Engine]) -> anyhow::Result<()> {
        let next = self.folder.path().join("next.json");
        std::fs::write(&next, backends(prefills.iter().copied(), decodes.iter().copied()).to_string())?;
        std::fs::rename(&next, self.backends_file()).context("replacing the backends file")
    }

    /// A request to the proxy, and what came.
    ///
    /// # Errors
    /// When no head comes.
    pub async fn send(&self, request: Request<Body>) -> anyhow::Result<Reply> {
        Reply::to(&self.client, self.port, request).await
    }

    /// POST of a JSON value.
    ///
    /// # Errors
    /// When no head comes.
    pub async fn ask(&self, path: &str, body: &Value) -> anyhow::Result<Reply> {
        self.send(json_request(path, body)?).await
    }

    /// A completion.
    ///
    /// # Errors
    /// When no head comes.
    pub async fn complete(&self, body: &Value) -> anyhow::Result<Reply> {
        self.ask("/v1/completions", body).await
    }

    /// GET of a path, on a connection of its own.
    ///
    /// # Errors
    /// When no head comes.
    pub async fn get(&self, path: &str) -> anyhow::Result<Reply> {
        Reply::to(&LoopbackClient::without_reuse(), self.port, Request::get(path).body(Body::empty())?).await
    }

    /// The sum of the series of a family whose labels contain a text.
    ///
    /// # Errors
    /// When the proxy does not answer.
    pub async fn metric(&self, family: &str, labels: &str) -> anyhow::Result<f64> {
        Ok(sum(&self.get("/metrics").await?.text(), family, labels))
    }

    /// Notes what the proxy holds once it has nothing to do, for [`Split::rests_as_before`].
    ///
    /// # Errors
    /// When it does not come to rest.
    pub async fn note_rest(&mut self) -> anyhow::Result<AtRest> {
        // Lazily opened things (clocks, resolvers) are there after a first request.
        let warm = self.complete(&json!({"prompt": "warm", "max_tokens": 1})).await?;
        ensure!(warm.status < 500, "{}", warm.text());
        self.client = LoopbackClient::new();
        let rest = wait::until("the proxy to come to rest", BOUND, async || {
            let now = self.look().await.map_err(|problem| format!("{problem:#}"))?;
            // Longer than connections to engines are kept, so that what stays is what it always holds.
            tokio::time::sleep(Duration::from_millis(700)).await;
            let after = self.look().await.map_err(|problem| format!("{problem:#}"))?;
            if now == after { Ok(now) } else { Err(format!("{now:?}, then {after:?}")) }
        })
        .await?;
        self.at_rest = Some(rest);
        Ok(rest)
    }

    async fn look(&self) -> anyhow::Result<AtRest> {
        let scrape = self.get("/metrics").await?.text();
        let in_flight = sum(&scrape, "gco_proxy_in_flight", "");
        ensure!(in_flight == 0.0, "{in_flight} requests in flight");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let tasks = sum(&scrape, "gco_proxy_alive_tasks", "") as u64;
        ensure!(tasks > 0, "no gco_proxy_alive_tasks");
        Ok(AtRest { file_descriptors: self.process.file_descriptors()?, tasks })
    }

    /// Waits until the proxy holds what it held when [`Split::note_rest`] was called, and every engine is idle and alive.
    ///
    /// # Errors
    /// With what it still holds.
    pub async fn rests_as_before(&mut self) -> anyhow::Result<()> {
        let before = self.at_rest.context("nothing was noted")?;
        self.client = LoopbackClient::new();
        wait::until("the proxy to hold what it held before", BOUND, async || {
            let now = self.look().await.map_err(|problem| format!("{problem:#}"))?;
            if now.file_descriptors <= before.file_descriptors && now.tasks <= before.tasks {
                Ok(())
            } else {
                Err(format!("{now:?}, before {before:?}"))
            }
        })
        .await?;
        for engine in self.prefills.iter().chain(&self.decodes) {
            engine.lives()?;
            engine.is_idle(BOUND).await?;
        }
        Ok(())
    }

    /// Lines of the access log.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn access_log(&self) -> anyhow::Result<Vec<Value>> {
        self.process.messages("request")
    }
}

fn backends<'a>(
    prefills: impl IntoIterator<Item = &'a Engine>,
    decodes: impl IntoIterator<Item = &'a Engine>,
) -> Value {
    let prefills = prefills.into_iter().map(|engine| match engine.bootstrap_port() {
        0 => json!({"url": engine.url()}),
        _ => json!({"url": engine.url(), "bootstrap": engine.bootstrap()}),
    });
    let decodes = decodes.into_iter().map(|engine| json!({"url": engine.url()}));
    json!({"prefill": prefills.collect::<Vec<_>>(), "decode": decodes.collect::<Vec<_>>()})
}
