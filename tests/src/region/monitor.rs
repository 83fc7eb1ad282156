//! Monitors as processes: the real binary, told everything by its environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail, ensure};
use gco_bed::process::{ProcessSettings, Supervised};
use gco_bed::wait;
use gco_local::loopback::{Answer, LoopbackClient};
use serde_json::Value as Json;

use super::{BOUND, Region};
use crate::log::lines_of;

/// How long one question to a monitor's own port may take.
const ASK: Duration = Duration::from_secs(5);

/// Counts passes over single endpoints.
const PASSES: &str = "gco_monitor_passes_total";

/// Settings that make minutes of a production monitor seconds of a suite's. Relations between them stay.
const QUICK: [(&str, &str); 14] = [
    ("RECONCILE_INTERVAL_SECONDS", "0.3"),
    ("FULL_PASS_INTERVAL_SECONDS", "5"),
    ("HEARTBEAT_INTERVAL_SECONDS", "2"),
    ("ABSENCE_GAP_SECONDS", "0.5"),
    ("LEASE_DURATION_SECONDS", "4"),
    ("LEASE_RENEW_INTERVAL_SECONDS", "0.5"),
    ("LEASE_RENEW_TIMEOUT_SECONDS", "1.5"),
    ("LEASE_MARGIN_SECONDS", "0.5"),
    ("CLAIM_MINIMUM_SECONDS", "0.5"),
    ("OPTIONAL_KINDS_INTERVAL_SECONDS", "0.5"),
    ("METRICS_HOST", "127.0.0.1"),
    ("METRICS_PORT", "0"),
    ("GCO_ALLOW_FORCED_PASS", "true"),
    ("LOG_FORMAT", "json"),
];

/// How one monitor differs from the usual one of its region.
#[derive(Clone, Debug)]
pub struct MonitorSettings {
    /// What its holder in the Lease begins with; unique in its region.
    pub name: String,
    /// Further environment variables; these win.
    pub variables: BTreeMap<String, String>,
    /// The API server's address, when not the server itself.
    pub api_url: Option<String>,
    /// The table server's address, when not the server itself.
    pub table_url: Option<String>,
}

impl MonitorSettings {
    /// The usual monitor under this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), variables: BTreeMap::new(), api_url: None, table_url: None }
    }

    /// With one more environment variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.insert(name.to_owned(), value.to_string());
        self
    }

    /// Through this address to the API server.
    #[must_use]
    pub fn api_through(mut self, url: impl Into<String>) -> Self {
        self.api_url = Some(url.into());
        self
    }

    /// Through this address to the table server.
    #[must_use]
    pub fn table_through(mut self, url: impl Into<String>) -> Self {
        self.table_url = Some(url.into());
        self
    }
}

/// A monitor that was started. Dropping it kills it.
#[derive(Debug)]
pub struct Monitor {
    name: String,
    process: Supervised,
    port: u16,
    client: LoopbackClient,
}

impl Monitor {
    /// Starts the region's usual monitor and waits until it is ready and leads.
    ///
    /// # Errors
    /// When it does not start or does not lead within the bound.
    pub async fn leading(region: &Region) -> anyhow::Result<Self> {
        Self::leading_with(region, MonitorSettings::named("m1")).await
    }

    /// The same with other settings.
    ///
    /// # Errors
    /// As [`Monitor::leading`].
    pub async fn leading_with(region: &Region, settings: MonitorSettings) -> anyhow::Result<Self> {
        let name = settings.name.clone();
        let monitor = Self::start(region, settings).await?;
        region.wait_for_leader(&name).await.with_context(|| monitor.described())?;
        monitor.ready().await?;
        Ok(monitor)
    }

    /// Starts a monitor and waits until its own port is open.
    ///
    /// # Errors
    /// When the binary is not there or too old, or does not start.
    pub async fn start(region: &Region, settings: MonitorSettings) -> anyhow::Result<Self> {
        let log = region.folder().join(format!("{}.log", settings.name));
        // A monitor that is started again under its name writes a log of its own.
        let log = (0..).map(|number| log.with_extension(format!("{number}.log"))).find(|path| !path.exists());
        let log = log.context("no free name for a log")?;
        let kubeconfig = region.write_kubeconfig(&settings.name, settings.api_url.as_deref())?;
        let mut process = ProcessSettings::new(binary()?, &log)
            .without_our_environment()
            .variable("KUBECONFIG", kubeconfig)
            .variable("HOSTNAME", &settings.name)
            .variable("CLUSTER_NAME", format!("suite-{}", region.name()))
            .variable("REGION", region.name())
            .variable("INFERENCE_NAMESPACE", region.namespace());
        for (name, value) in QUICK {
            process = process.variable(name, value);
        }
        for (name, value) in region.table().environment(settings.table_url.as_deref()) {
            process = process.variable(name, value);
        }
        for (name, value) in &settings.variables {
            process = process.variable(name, value);
        }
        let process = Supervised::start(process)?;
        let port = wait::until("a monitor to open its port", BOUND, || {
            let ended = process.exit_status().map(|status| format!("it ended: {status}; {}", process.log_tail()));
            let port = port_in(&log);
            async move {
                match (port, ended) {
                    (Some(port), _) => Ok(Ok(port)),
                    (None, Some(ended)) => Ok(Err(ended)),
                    (None, None) => Err("no line of its log names the port".to_owned()),
                }
            }
        });
        let port = port.await.with_context(|| process.log_tail())?;
        let port = port.map_err(|ended| anyhow::anyhow!("{ended}"))?;
        Ok(Self { name: settings.name, process, port, client: LoopbackClient::new() })
    }

    /// What its holder in the Lease begins with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process, to signal it.
    #[must_use]
    pub fn process(&self) -> &Supervised {
        &self.process
    }

    /// Its own port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Name and end of the log, for messages.
    #[must_use]
    pub fn described(&self) -> String {
        format!("monitor {}; the end of its log:\n{}", self.name, self.process.log_tail())
    }

    /// Asks its own port.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        Ok(self.client.get(self.port, path, ASK).await?)
    }

    /// Waits until `/readyz` says yes.
    ///
    /// # Errors
    /// When it does not within the bound.
    pub async fn ready(&self) -> anyhow::Result<()> {
        self.answers("/readyz", 200).await
    }

    /// Waits until a path of its port answers with this status.
    ///
    /// # Errors
    /// When it does not within the bound.
    pub async fn answers(&self, path: &str, status: u16) -> anyhow::Result<()> {
        wait::until(&format!("{path} of {} to answer {status}", self.name), BOUND, || async {
            match self.get(path).await {
                Ok(answer) if answer.status.as_u16() == status => Ok(()),
                Ok(answer) => Err(format!("{}: {}", answer.status, answer.text())),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await
        .with_context(|| self.described())
    }

    /// Makes it plan every endpoint anew and waits until it has: a pass over each row that it knows, and none waiting.
    ///
    /// # Errors
    /// When it refuses, or does not get there within the bound.
    pub async fn full_pass(&self) -> anyhow::Result<()> {
        let before = self.passes().await?;
        let rows = self.metric("gco_monitor_rows", &[]).await?.unwrap_or_default();
        let answer = self.client.post(self.port, "/full-pass", &Json::Null, ASK).await?;
        ensure!(answer.status.is_success(), "POST /full-pass answered {}: {}", answer.status, answer.text());
        wait::until(&format!("a pass of {} over {rows} rows", self.name), BOUND, || async {
            let looked = async {
                let text = self.get("/metrics").await?.text();
                let value = |name| metric_in(&text, name, &[]).unwrap_or_default();
                let waiting = value("gco_monitor_queue_depth") + value("gco_monitor_queue_running");
                anyhow::Ok((value(PASSES) - before, waiting))
            };
            match looked.await {
                Ok((passes, waiting)) if passes >= rows && waiting < 1.0 => Ok(()),
                Ok((passes, waiting)) => Err(format!("{passes} passes done, {waiting} waiting or running")),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await
        .with_context(|| self.described())
    }

    /// Passes over single endpoints since it started.
    async fn passes(&self) -> anyhow::Result<f64> {
        Ok(self.metric(PASSES, &[]).await?.unwrap_or_default())
    }

    /// The sum of a metric's series that have all of these labels; `None` when there is none.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> anyhow::Result<Option<f64>> {
        let answer = self.get("/metrics").await?;
        Ok(metric_in(&answer.text(), name, labels))
    }

    /// Every complete line of its log.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> anyhow::Result<Vec<Json>> {
        let path = self.process.log_file();
        lines_of(path).with_context(|| format!("reading {}", path.display()))
    }

    /// Lines of its log that are warnings or errors and for which `wanted` holds.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn complaints(&self, wanted: impl Fn(&Json) -> bool) -> anyhow::Result<Vec<Json>> {
        let serious = |line: &Json| matches!(line["level"].as_str(), Some("WARNING" | "ERROR"));
        Ok(self.log()?.into_iter().filter(|line| serious(line) && wanted(line)).collect())
    }

    /// SIGTERM, and how long it took to end in order.
    ///
    /// # Errors
    /// When it had to be killed after `grace`.
    pub async fn terminate(self, grace: Duration) -> anyhow::Result<Duration> {
        let before = tokio::time::Instant::now();
        let status = self.process.stop(grace).await;
        let took = before.elapsed();
        ensure!(status.success(), "SIGTERM ended it with {status} after {took:?}; {}", self.described());
        Ok(took)
    }

    /// SIGKILL.
    pub async fn kill(self) {
        self.process.kill().await;
    }

    /// SIGSTOP.
    ///
    /// # Errors
    /// When it is not there any more.
    pub fn freeze(&self) -> anyhow::Result<()> {
        ensure!(self.process.pause()?, "there is no process to freeze; {}", self.described());
        Ok(())
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// When it is not there any more.
    pub fn thaw(&self) -> anyhow::Result<()> {
        ensure!(self.process.resume()?, "there is no process to resume; {}", self.described());
        Ok(())
    }
}

/// The sum of the series of `name` in the Prometheus text format that have all of these labels.
fn metric_in(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let mut sum = None;
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(name) else { continue };
        let (series, value) = match rest.rsplit_once(' ') {
            Some((series, value)) if series.is_empty() || series.starts_with('{') => (series, value),
            _ => continue,
        };
        let has = |(label, value): &(&str, &str)| series.contains(&format!("{label}=\"{value}\""));
        if labels.iter().all(has) {
            sum = Some(sum.unwrap_or_default() + value.parse::<f64>().ok()?);
        }
    }
    sum
}

/// The port that a monitor's log names.
fn port_in(log: &Path) -> Option<u16> {
    let lines = lines_of(log).ok()?;
    let listening = lines.iter().find(|line| line["message"] == "listening for health and metrics")?;
    u16::try_from(listening.get("port")?.as_u64()?).ok()
}

/// A program of the workspace: beside the folder that the running test is in.
///
/// # Errors
/// When the running test is nowhere.
pub(super) fn beside_this_test(name: &str) -> anyhow::Result<PathBuf> {
    let running = std::env::current_exe().context("finding the running test")?;
    let folder = running.parent().context("the running test has no folder")?;
    // Tests and benches are one folder below the programs; suites that are programs are beside them.
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    Ok(folder.join(name))
}

/// The monitor's binary, no older than its sources.
fn binary() -> anyhow::Result<PathBuf> {
    program("gco-monitor", &["monitor/src", "store/src", "infra/runtime/src"])
}

/// One of our programs, no older than its sources.
///
/// # Errors
/// When it is not there, or older.
pub fn program(name: &str, sources: &[&str]) -> anyhow::Result<PathBuf> {
    let path = beside_this_test(name)?;
    let advice = "build it with `cargo build --workspace`, which also turns on the monitor's feature embedded-table";
    let Ok(built) = std::fs::metadata(&path).and_then(|metadata| metadata.modified()) else {
        bail!("there is no {}: {advice}", path.display());
    };
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate is outside a workspace")?;
    for source in sources {
        if let Some(newer) = newer_file(&workspace.join(source), built) {
            bail!("{} is older than {}: {advice}", path.display(), newer.display());
        }
    }
    Ok(path)
}

/// A Rust source below `folder` that was changed after `moment`.
fn newer_file(folder: &Path, moment: SystemTime) -> Option<PathBuf> {
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(newer) = newer_file(&path, moment) {
                return Some(newer);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && entry.metadata().and_then(|metadata| metadata.modified()).is_ok_and(|modified| modified > moment)
        {
            return Some(path);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_over_the_series_that_have_the_labels() {
        let text = "# HELP a_total x\na_total{k=\"1\",l=\"x\"} 2\na_total{k=\"2\",l=\"x\"} 3\na_total_more 9\nb 4.5\n";
        assert_eq!(metric_in(text, "a_total", &[]), Some(5.0));
        assert_eq!(metric_in(text, "a_total", &[("k", "2")]), Some(3.0));
        assert_eq!(metric_in(text, "a_total", &[("k", "3")]), None);
        assert_eq!(metric_in(text, "b", &[]), Some(4.5));
        assert_eq!(metric_in(text, "a", &[]), None);
    }
}
