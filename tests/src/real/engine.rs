//! One vLLM server, which is three processes in one group.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::{Range, Sub};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use gco_bed::wait;
use gco_local::loopback::{Answer, LoopbackClient};
use gco_runtime::environment::Environment;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::proxy::Logged;
use crate::proxy::engine::sum;

/// The variable that names the folder with the installed engine: `environment`, `libraries` and `model`.
pub const FOLDER_VARIABLE: &str = "GCO_REAL_ENGINES_FOLDER";

/// How long an engine may take to start. Alone on two cores it takes half a minute, nearly all of it Python's imports; with
/// other builds on the same cores five minutes were seen.
pub const START_BOUND: Duration = Duration::from_secs(900);

/// For one answer that is not waited for on purpose.
pub const ANSWER_BOUND: Duration = Duration::from_secs(120);

/// `VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT`: short enough that a test can wait for it, longer than a busy machine takes to
/// compute a prompt.
pub const ABORT_SECONDS: u64 = 20;

/// How an engine is started.
#[derive(Clone, Debug)]
pub struct RealEngineSpec {
    name: String,
    transfer: Option<Value>,
    environment: BTreeMap<String, String>,
}

impl RealEngineSpec {
    /// An engine without a connector.
    #[must_use]
    pub fn plain(name: &str) -> Self {
        Self { name: name.to_owned(), transfer: None, environment: BTreeMap::new() }
    }

    /// One side of a Mooncake pair over TCP; `role` is `kv_producer` or `kv_consumer`.
    #[must_use]
    pub fn mooncake(name: &str, role: &str) -> Self {
        let transfer = json!({
            "kv_connector": "MooncakeConnector", "kv_role": role,
            "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
        });
        Self { transfer: Some(transfer), ..Self::plain(name) }
    }

    /// Either side of a NIXL pair, whose transport is UCX over TCP.
    #[must_use]
    pub fn nixl(name: &str) -> Self {
        let transfer = json!({"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"});
        Self { transfer: Some(transfer), ..Self::plain(name) }
    }

    /// Starts the process. It answers after [`RealEngine::is_up`] only.
    ///
    /// # Errors
    /// When it cannot be started, or nothing is installed.
    pub fn start(self) -> anyhow::Result<RealEngine> {
        let ports = Ports { api: free_port()?, side: free_port()? };
        RealEngine::start(self, ports)
    }
}

/// Where an engine listens.
#[derive(Clone, Copy, Debug)]
struct Ports {
    api: u16,
    /// Of the bootstrap server, or of NIXL's side channel.
    side: u16,
}

/// Where engines listen: below the ports that Linux gives to outgoing connections (from 32768 on). A prefill that is started
/// anew finds its port free then; vLLM with NIXL waits for ever when its side channel's port is taken.
const PORTS: Range<u16> = 20_000..32_000;

/// A port that was free a moment ago, and that was not given out before.
fn free_port() -> anyhow::Result<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    // Processes begin at places of their own: 97 is prime to the number of ports.
    let begin = std::process::id() % count * 97;
    for _ in 0..count {
        let number = (begin + GIVEN.fetch_add(1, Ordering::Relaxed)) % count;
        let port = PORTS.start + u16::try_from(number)?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("none of the ports {PORTS:?} is free on loopback")
}

/// Prompt tokens by where their KV came from (`vllm:prompt_tokens_by_source_total`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tokens {
    /// Computed by this engine.
    pub local_compute: f64,
    /// Found in its own cache.
    pub local_cache_hit: f64,
    /// Fetched from another engine.
    pub external: f64,
}

impl Sub for Tokens {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            local_compute: self.local_compute - before.local_compute,
            local_cache_hit: self.local_cache_hit - before.local_cache_hit,
            external: self.external - before.external,
        }
    }
}

/// A server, started.
#[derive(Debug)]
pub struct RealEngine {
    spec: RealEngineSpec,
    process: Logged,
    ports: Ports,
    client: LoopbackClient,
}

impl RealEngine {
    fn start(spec: RealEngineSpec, ports: Ports) -> anyhow::Result<Self> {
        let folder = Environment::process().non_empty(FOLDER_VARIABLE).map(PathBuf::from);
        let folder = folder.with_context(|| format!("{FOLDER_VARIABLE} is not set: run tests/real-engines.sh"))?;
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let python = folder.join("environment/bin/python");
        let model = text(folder.join("model/tiny-llama"));
        let shim = text(Path::new(env!("CARGO_MANIFEST_DIR")).join("real-engines/shim"));
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]
            .map(|part| text(folder.join("libraries").join(part)))
            .join(":");
        let (api, side, abort) = (ports.api.to_string(), ports.side.to_string(), ABORT_SECONDS.to_string());
        let home = text(folder.join("home"));
        let transfer = spec.transfer.as_ref().map(Value::to_string);
        let environment = [
            ("PATH", "/usr/bin:/bin"),
            // Caches of the compiler and of UCX; nothing of the user's own.
            ("HOME", &home),
            ("LD_LIBRARY_PATH", &libraries),
            ("PYTHONPATH", &shim),
            // The shim is in the checkout, which stays as it is.
            ("PYTHONDONTWRITEBYTECODE", "1"),
            ("PYTHONHASHSEED", "0"),
            ("HF_HUB_OFFLINE", "1"),
            ("VLLM_NO_USAGE_STATS", "1"),
            ("DO_NOT_TRACK", "1"),
            ("VLLM_TARGET_DEVICE", "cpu"),
            ("VLLM_HOST_IP", "127.0.0.1"),
            ("VLLM_CPU_KVCACHE_SPACE", "1"),
            // The default binds the threads of every engine of a machine to the same core.
            ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
            ("OMP_NUM_THREADS", "1"),
            ("VLLM_MOONCAKE_BOOTSTRAP_PORT", &side),
            ("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", &abort),
            ("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1"),
            ("VLLM_NIXL_SIDE_CHANNEL_PORT", &side),
            ("VLLM_NIXL_ABORT_REQUEST_TIMEOUT", &abort),
            ("UCX_TLS", "tcp,self,sm"),
            ("UCX_NET_DEVICES", "lo"),
        ];
        let environment =
            environment.into_iter().chain(spec.environment.iter().map(|(name, value)| (&**name, &**value)));
        let mut arguments = vec!["-m", "vllm.entrypoints.openai.api_server", "--model", &model];
        arguments.extend(["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", &api]);
        arguments.extend(["--dtype", "float32", "--max-model-len", "4096", "--max-num-seqs", "8", "--enforce-eager"]);
        // 32 is the smallest block that vLLM takes on a CPU.
        arguments.extend(["--block-size", "32", "--num-gpu-blocks-override", "1024", "--enable-prompt-tokens-details"]);
        if let Some(transfer) = &transfer {
            arguments.extend(["--kv-transfer-config", transfer]);
        }
        let process = Logged::start(&spec.name, python, arguments, environment)?;
        Ok(Self { spec, process, ports, client: LoopbackClient::without_reuse() })
    }

    /// Waits until it answers `/health`, and gives how long that took.
    ///
    /// # Errors
    /// When it ends or does not within [`START_BOUND`].
    pub async fn is_up(&self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let is_up = wait::until(&format!("{} to be up", self.spec.name), START_BOUND, async || {
            if self.process.exited().is_some() || self.process.said().contains("Address already in use") {
                return Ok(false);
            }
            match self.client.get(self.ports.api, "/health", ANSWER_BOUND).await {
                Ok(answer) if answer.status == 200 => Ok(true),
                other => Err(format!("{other:?}; {}", self.process.said())),
            }
        })
        .await?;
        ensure!(is_up, "{} ended, or a port of it is taken: {}", self.spec.name, self.process.said());
        Ok(began.elapsed())
    }

    /// What it is called here.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports.api
    }

    /// Its address as a proxy is told it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.api)
    }

    /// The address of its bootstrap server as decode is told it.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.side)
    }

    /// Its place in a backends file.
    #[must_use]
    pub fn backend(&self) -> Value {
        let is_producer = self.spec.transfer.as_ref().is_some_and(|transfer| transfer["kv_role"] == "kv_producer");
        if is_producer { json!({"url": self.url(), "bootstrap": self.bootstrap()}) } else { json!({"url": self.url()}) }
    }

    /// Its engine id, as its bootstrap server tells it.
    ///
    /// # Errors
    /// When that does not answer, or no engine has registered.
    pub async fn engine_id(&self) -> anyhow::Result<String> {
        let answer = self.client.get(self.ports.side, "/query", ANSWER_BOUND).await?;
        let id = answer.json()["0"]["engine_id"].as_str().map(str::to_owned);
        id.with_context(|| format!("/query answered {}: {}", answer.status, answer.text()))
    }

    /// Sends a signal to all of its processes.
    ///
    /// # Errors
    /// When there is none left.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        ensure!(self.process.exited().is_none(), "{} has ended: {}", self.spec.name, self.process.said());
        let group = Pid::from_raw(self.process.pid());
        if signal == Signal::SIGKILL {
            return killpg(group, signal).with_context(|| format!("killing {}", self.spec.name));
        }
        // The shell that ends the group when this suite is killed must not be frozen with it.
        for process in self.process.members() {
            kill(Pid::from_raw(process), signal).with_context(|| format!("{signal} to {}", self.spec.name))?;
        }
        Ok(())
    }

    /// Kills all of its processes, and waits until it is gone.
    ///
    /// # Errors
    /// When it had ended, or does not.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.process.ended().await.map(|_| ())
    }

    /// Kills it if it runs, and starts it anew at the same ports.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        if self.process.exited().is_none() {
            self.kill().await?;
        }
        *self = Self::start(self.spec.clone(), self.ports)?;
        Ok(())
    }

    /// The process of its API server: its log, and how it ended.
    #[must_use]
    pub fn process(&self) -> &Logged {
        &self.process
    }

    /// Fails when one of its three processes has ended, or it does not answer as healthy.
    ///
    /// # Errors
    /// With the end of its log.
    pub async fn lives(&self) -> anyhow::Result<()> {
        ensure!(self.process.exited().is_none(), "{} ended: {}", self.spec.name, self.process.said());
        let health = self.get("/health").await?.status;
        ensure!(health == 200, "{} is {health}: {}", self.spec.name, self.process.said());
        Ok(())
    }

    /// GET of a path.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        Ok(self.client.get(self.ports.api, path, ANSWER_BOUND).await?)
    }

    /// POST of a JSON value.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        Ok(self.client.post(self.ports.api, path, body, ANSWER_BOUND).await?)
    }

    /// The sum of a family's series whose labels contain a text.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn metric(&self, family: &str, labels: &str) -> anyhow::Result<f64> {
        Ok(sum(&self.get("/metrics").await?.text(), family, labels))
    }

    /// Where the KV of its prompts came from so far, once it has nothing to do: its counters lag behind its answers.
    ///
    /// # Errors
    /// When it does not come to rest.
    pub async fn tokens(&self) -> anyhow::Result<Tokens> {
        let last = Cell::new(None);
        let description = format!("the counters of {} to rest", self.spec.name);
        Ok(wait::until(&description, ANSWER_BOUND, async || {
            let scrape = self.get("/metrics").await.map_err(|problem| format!("{problem:#}"))?.text();
            let busy = sum(&scrape, "vllm:num_requests_running", "") + sum(&scrape, "vllm:num_requests_waiting", "");
            let source =
                |source: &str| sum(&scrape, "vllm:prompt_tokens_by_source_total", &format!("source=\"{source}\""));
            let now = Tokens {
                local_compute: source("local_compute"),
                local_cache_hit: source("local_cache_hit"),
                external: source("external_kv_transfer"),
            };
            let rests = busy == 0.0 && last.replace(Some(now)) == Some(now);
            if rests { Ok(now) } else { Err(format!("{busy} requests, {now:?}")) }
        })
        .await?)
    }

    /// Waits until a metric has at least this value.
    ///
    /// # Errors
    /// With the value that it had last.
    pub async fn reaches(&self, family: &str, labels: &str, least: f64) -> anyhow::Result<()> {
        let description = format!("{} to have {family}{{{labels}}} at least {least}", self.spec.name);
        wait::until(&description, ANSWER_BOUND, async || {
            let now = self.metric(family, labels).await.map_err(|problem| format!("{problem:#}"))?;
            if now >= least { Ok(()) } else { Err(now.to_string()) }
        })
        .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_engines_differ_and_no_outgoing_connection_gets_one() {
        let first = free_port().unwrap();
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        let others: Vec<u16> = (0..4).map(|_| free_port().unwrap()).collect();
        assert!(others.iter().all(|port| PORTS.contains(port) && *port != first), "{first}, {others:?}");
    }
}
