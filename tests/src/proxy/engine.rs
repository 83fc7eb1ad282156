//! Simulated engines.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use axum::body::Body;
use gco_bed::wait;
use gco_local::engine::{Accounts, Orders, RecordedRequest};
use gco_local::loopback::{Answer, LoopbackClient};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::process::port_in;
use super::{BOUND, Logged};
use crate::region::monitor::program;

/// How an engine is started.
#[derive(Clone, Debug)]
pub struct EngineSpec {
    name: String,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
}

impl EngineSpec {
    /// An engine without a connector.
    #[must_use]
    pub fn plain(name: &str) -> Self {
        let arguments = ["--model", "demo/model", "--max-num-seqs", "4096"].map(str::to_owned).to_vec();
        let environment = [
            ("GCO_REGION", "us-east-1"),
            ("POD_NAME", name),
            ("GCO_ENGINE_TOKEN_MILLISECONDS", "0"),
            ("VLLM_MOONCAKE_BOOTSTRAP_PORT", "0"),
            ("VLLM_NIXL_SIDE_CHANNEL_PORT", "0"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Self { name: name.to_owned(), arguments, environment }
    }

    /// An engine with this `--kv-transfer-config`.
    #[must_use]
    pub fn with_transfer(name: &str, connector: &str, role: &str) -> Self {
        let config = json!({"kv_connector": connector, "kv_role": role});
        Self::plain(name).argument("--kv-transfer-config").argument(&config.to_string())
    }

    /// Prefill of a Mooncake pair.
    #[must_use]
    pub fn prefill(name: &str) -> Self {
        Self::with_transfer(name, "MooncakeConnector", "kv_producer")
    }

    /// Decode of a Mooncake pair.
    #[must_use]
    pub fn decode(name: &str) -> Self {
        Self::with_transfer(name, "MooncakeConnector", "kv_consumer")
    }

    /// Either side of a NIXL pair.
    #[must_use]
    pub fn nixl(name: &str) -> Self {
        Self::with_transfer(name, "NixlConnector", "kv_both")
    }

    /// With one more argument.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// With a variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Starts it and waits until its model is loaded.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(self) -> anyhow::Result<Engine> {
        Engine::start(self, 0, 0).await
    }
}

/// A running engine.
#[derive(Debug)]
pub struct Engine {
    spec: EngineSpec,
    process: Logged,
    port: u16,
    bootstrap_port: u16,
    client: LoopbackClient,
}

impl Engine {
    async fn start(spec: EngineSpec, port: u16, bootstrap_port: u16) -> anyhow::Result<Self> {
        let (asked_port, asked_bootstrap_port) = (port.to_string(), bootstrap_port.to_string());
        let arguments = spec.arguments.iter().map(String::as_str).chain(["--port", &asked_port]);
        let environment = spec.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        // Of two values of one variable the later one holds.
        let again = (bootstrap_port != 0).then_some(("VLLM_MOONCAKE_BOOTSTRAP_PORT", asked_bootstrap_port.as_str()));
        let engine = program("gco-engine", &["infra/local/src/engine"])?;
        let process = Logged::start(&spec.name, engine, arguments, environment.chain(again))?;
        let port = process.port().await?;
        process.line("the model is loaded").await?;
        let bootstrap_port = process.messages("bootstrap listening")?.first().and_then(port_in).unwrap_or_default();
        Ok(Self { spec, process, port, bootstrap_port, client: LoopbackClient::without_reuse() })
    }

    /// What it calls itself: its answers say it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its bootstrap server listens; 0 without one.
    #[must_use]
    pub fn bootstrap_port(&self) -> u16 {
        self.bootstrap_port
    }

    /// Its address as a proxy is told it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The address of its bootstrap server as decode is told it.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        format!("http://127.0.0.1:{}", self.bootstrap_port)
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Logged {
        &self.process
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.process.kill().await
    }

    /// Sends it a signal, while something else goes on with it.
    ///
    /// # Errors
    /// When it has ended already.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        self.process.signal(signal)
    }

    /// Waits until it ends by itself, as engines do that were given parameters which they cannot bear.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ended(&self) -> anyhow::Result<ExitStatus> {
        self.process.ended().await
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// With the end of its log.
    pub fn lives(&self) -> anyhow::Result<()> {
        let ended = self.process.exited();
        ensure!(ended.is_none(), "{} ended with {ended:?}: {}", self.spec.name, self.process.said());
        Ok(())
    }

    /// Starts it again at the same ports, killing it first if it runs: a new process, with new engine ids.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        if self.process.exited().is_none() {
            self.process.kill().await?;
        }
        *self = Self::start(self.spec.clone(), self.port, self.bootstrap_port).await?;
        Ok(())
    }

    /// Tells it what to do wrong from now on.
    ///
    /// # Errors
    /// When it does not take it.
    pub async fn order(&self, orders: &Orders) -> anyhow::Result<()> {
        let body = Body::from(serde_json::to_string(orders)?);
        let request = http::Request::put("/simulated/orders").body(body)?;
        let answer = self.client.call(self.port, request, BOUND).await?;
        ensure!(answer.status.is_success(), "{}", answer.text());
        Ok(())
    }

    /// Its account of the KV that it gave and got.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn accounts(&self) -> anyhow::Result<Accounts> {
        let answer = self.get("/simulated/accounts").await?;
        serde_json::from_slice(&answer.body).context("reading accounts")
    }

    /// Its account from now on.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn clear_accounts(&self) -> anyhow::Result<()> {
        let request = http::Request::delete("/simulated/accounts").body(Body::empty())?;
        self.client.call(self.port, request, BOUND).await?;
        Ok(())
    }

    /// The last requests that came in, when it was started with `GCO_ENGINE_RECORDED_REQUESTS`.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn requests(&self) -> anyhow::Result<Vec<RecordedRequest>> {
        let answer = self.get("/simulated/requests").await?;
        serde_json::from_slice(&answer.body).context("reading requests")
    }

    /// GET of a path.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        Ok(self.client.get(self.port, path, BOUND).await?)
    }

    /// POST of a JSON value.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        Ok(self.client.post(self.port, path, body, BOUND).await?)
    }

    /// Waits until it has no request, and gives how long that took.
    ///
    /// # Errors
    /// When it still has one after the bound.
    pub async fn is_idle(&self, bound: Duration) -> anyhow::Result<Duration> {
        let began = Instant::now();
        wait::until(&format!("{} to be idle", self.spec.name), bound, async || {
            let scrape = self.get("/metrics").await.map_err(|problem| format!("{problem:#}"))?.text();
            let (running, waiting) =
                (sum(&scrape, "vllm:num_requests_running", ""), sum(&scrape, "vllm:num_requests_waiting", ""));
            if running + waiting == 0.0 { Ok(()) } else { Err(format!("{running} running, {waiting} waiting")) }
        })
        .await?;
        Ok(began.elapsed())
    }

    /// Waits until it has a request, running or waiting for KV.
    ///
    /// # Errors
    /// When it has none after the bound.
    pub async fn is_busy(&self) -> anyhow::Result<()> {
        wait::until(&format!("{} to have a request", self.spec.name), BOUND, async || {
            let scrape = self.get("/metrics").await.map_err(|problem| format!("{problem:#}"))?.text();
            let busy = sum(&scrape, "vllm:num_requests_running", "") + sum(&scrape, "vllm:num_requests_waiting", "");
            if busy > 0.0 { Ok(()) } else { Err("it is idle".to_owned()) }
        })
        .await?;
        Ok(())
    }

    /// The sum of a family's series whose labels contain a text.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn metric(&self, family: &str, labels: &str) -> anyhow::Result<f64> {
        let text = self.get("/metrics").await?.text();
        Ok(sum(&text, family, labels))
    }
}

/// The sum of a family's series whose labels contain a text, in the text of a scrape.
#[must_use]
pub fn sum(scrape: &str, family: &str, labels: &str) -> f64 {
    let series = scrape.lines().filter(|line| {
        let rest = line.strip_prefix(family).unwrap_or_default();
        (rest.starts_with('{') || rest.starts_with(' ')) && rest.contains(labels)
    });
    series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
