//! A prefill-decode proxy in front of engines that were named on the command line: the real proxy, and simulated engines
//! that hand their KV over as real ones do.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures::future::{join_all, try_join_all};
use gco_bed::process::{ProcessSettings, Supervised};
use gco_bed::wait;
use gco_runtime::environment::Environment;
use serde_json::{Value, json};

use super::progress::Progress;
use crate::engine::Connector;

/// How long an engine or the proxy may take to say where it listens.
const LISTEN_BOUND: Duration = Duration::from_secs(30);

/// How long engines and proxy have to finish what they do.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// What is put in front of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitSettings {
    /// One prefill engine for each: its arguments, separated by white space.
    pub prefill: Vec<String>,
    /// One decode engine for each, likewise.
    pub decode: Vec<String>,
    /// How KV moves.
    pub connector: Connector,
    /// Where the proxy listens; 0 for any free port.
    pub proxy_port: u16,
}

/// Engines and proxy that run.
#[derive(Debug)]
pub(super) struct Split {
    engines: Vec<(String, Supervised)>,
    proxy: Supervised,
    /// `http://127.0.0.1:PORT`.
    pub(super) address: String,
    /// Where their logs are.
    pub(super) folder: PathBuf,
}

/// An engine that listens.
struct Started {
    name: String,
    process: Supervised,
    described: Value,
}

impl Split {
    /// Starts the engines, then the proxy.
    ///
    /// # Errors
    ///
    /// When one of them does not come up, with the end of its log.
    pub(super) async fn start(
        settings: &SplitSettings,
        engine: &Path,
        proxy: &Path,
        folder: &Path,
        environment: &Environment,
        progress: Progress,
    ) -> anyhow::Result<Self> {
        ensure!(!settings.decode.is_empty(), "a proxy needs at least one --decode");
        if folder.is_dir() {
            // Ports are read from logs: those of another run would be another run's.
            std::fs::remove_dir_all(folder).with_context(|| format!("emptying {}", folder.display()))?;
        }
        let roles = [("prefill", &settings.prefill), ("decode", &settings.decode)];
        let starting = roles.into_iter().flat_map(|(role, all)| {
            all.iter().enumerate().map(move |(number, arguments)| (role, format!("{role}-{number}"), arguments))
        });
        let started = try_join_all(starting.map(async |(role, name, arguments)| {
            let transfer = transfer_config(settings.connector, role);
            let mut process = ProcessSettings::new(engine, folder.join(format!("{name}.log")))
                .without_our_environment()
                .orphan_grace_seconds(3)
                // The engine's own arguments come last: of a doubled flag the last one counts.
                .arguments(["--port", "0", "--kv-transfer-config", &transfer])
                .arguments(arguments.split_whitespace())
                .variable("POD_NAME", name.as_str())
                .variable("GCO_REGION", "this-machine")
                .variable("VLLM_MOONCAKE_BOOTSTRAP_PORT", "0")
                .variable("VLLM_NIXL_SIDE_CHANNEL_PORT", "0");
            for (variable, value) in starting_with(environment, &["GCO_ENGINE_", "LOG_LEVEL"]) {
                process = process.variable(variable, value);
            }
            let process = Supervised::start(process)?;
            let port = said(&process, "listening", "port").await?;
            let mut described = json!({"url": format!("http://127.0.0.1:{port}")});
            if role == "prefill" && settings.connector == Connector::Mooncake {
                let port = said(&process, "bootstrap listening", "port").await?;
                described["bootstrap"] = json!(format!("http://127.0.0.1:{port}"));
            }
            progress.say(format_args!("{name}: {}", described["url"].as_str().unwrap_or_default()));
            anyhow::Ok(Started { name, process, described })
        }))
        .await?;

        let of = |role: &str| {
            let of_role = started.iter().filter(|engine| engine.name.starts_with(role));
            of_role.map(|engine| engine.described.clone()).collect::<Vec<_>>()
        };
        let backends = folder.join("backends.json");
        let text = serde_json::to_vec_pretty(&json!({"prefill": of("prefill"), "decode": of("decode")}))?;
        std::fs::write(&backends, text).with_context(|| format!("writing {}", backends.display()))?;
        let connector = match settings.connector {
            Connector::Mooncake => "mooncake",
            Connector::Nixl => "nixl",
        };
        let mut process = ProcessSettings::new(proxy, folder.join("proxy.log"))
            .without_our_environment()
            .orphan_grace_seconds(3)
            .variable("PD_PROXY_HOST", "127.0.0.1")
            .variable("PD_PROXY_PORT", settings.proxy_port.to_string())
            .variable("GCO_PROXY_CONNECTOR", connector)
            .variable("GCO_PROXY_BACKENDS_FILE", &backends)
            .variable("GCO_PROXY_ACCESS_LOG_SAMPLE", "1")
            .variable("GCO_PROXY_DRAIN_SECONDS", "5");
        for (variable, value) in starting_with(environment, &["GCO_PROXY_", "PD_PROXY_", "ADMIN_API_KEY", "LOG_LEVEL"])
        {
            process = process.variable(variable, value);
        }
        let proxy = Supervised::start(process)?;
        let address = format!("http://{}", said(&proxy, "listening", "address").await?);
        let engines = started.into_iter().map(|engine| (engine.name, engine.process)).collect();
        progress.say_time(format_args!("proxy: {address}"));
        Ok(Self { engines, proxy, address, folder: folder.to_owned() })
    }

    /// Completes when the proxy ends; engines that end are only told about, since a proxy is there to be tried without them.
    pub(super) async fn failed(&self, progress: Progress) -> String {
        let engines = join_all(self.engines.iter().map(async |(name, process)| {
            let status = process.wait().await;
            progress.say(format_args!("{name} ended ({status}); it is not started again"));
        }));
        tokio::select! {
            status = self.proxy.wait() => format!("the proxy ended ({status}): {}", self.proxy.log_tail()),
            _ = async { engines.await; std::future::pending::<()>().await } => String::new(),
        }
    }

    /// The proxy first, so that what it relays can end.
    pub(super) async fn stop(self) {
        self.proxy.stop(STOP_GRACE).await;
        join_all(self.engines.iter().map(|(_, process)| process.stop(STOP_GRACE))).await;
    }

    /// What to try, to be pasted.
    pub(super) fn hints(&self) -> String {
        let prefill = self.engines.iter().find(|(name, _)| name.starts_with("prefill"));
        let kill = prefill.map(|(name, process)| {
            format!("\n  kill -9 {}   # {name}: the next answer comes from decode alone, and says so", process.pid())
        });
        format!(
            "Prefill-decode proxy (logs: {}):\n  curl -sD - {}/v1/chat/completions -H 'content-type: application/json' \\\n    \
             -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello!\"}}], \"stream\": true}}'   # see x-gco-exchange\n  \
             curl -s {}/metrics | grep gco_proxy_exchanges{}",
            self.folder.display(),
            self.address,
            self.address,
            kill.unwrap_or_default()
        )
    }
}

/// Variables of the person who starts this: they win over ours.
fn starting_with<'a>(environment: &'a Environment, prefixes: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    let names = environment.names().filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    names.filter_map(|name| Some((name, environment.get(name)?)))
}

fn transfer_config(connector: Connector, role: &str) -> String {
    let (connector, role) = match (connector, role) {
        (Connector::Mooncake, "prefill") => ("MooncakeConnector", "kv_producer"),
        (Connector::Mooncake, _) => ("MooncakeConnector", "kv_consumer"),
        (Connector::Nixl, _) => ("NixlConnector", "kv_both"),
    };
    json!({"kv_connector": connector, "kv_role": role}).to_string()
}

/// A member of the first line of a process's log with this message.
async fn said(process: &Supervised, message: &str, member: &str) -> anyhow::Result<String> {
    let description = format!("{} to say {message:?}", process.name());
    let found = wait::until(&description, LISTEN_BOUND, || {
        let text = std::fs::read_to_string(process.log_file()).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let line = lines.into_iter().find(|line| line["message"] == message);
        std::future::ready(match (line, process.exit_status()) {
            (Some(line), _) => Ok(Some(line)),
            (None, Some(_)) => Ok(None),
            (None, None) => Err(process.log_tail()),
        })
    });
    let Some(line) = found.await? else { bail!("{} ended: {}", process.name(), process.log_tail()) };
    Ok(match &line[member] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_gets_the_connector_as_the_engine_reads_it() {
        use crate::engine::{TransferConfig, TransferRole};
        let role = |connector, role| TransferConfig::parse(&transfer_config(connector, role)).unwrap().unwrap().role;
        assert_eq!(role(Connector::Mooncake, "prefill"), TransferRole::Producer);
        assert_eq!(role(Connector::Mooncake, "decode"), TransferRole::Consumer);
        assert_eq!(role(Connector::Nixl, "prefill"), TransferRole::Both);
    }
}
