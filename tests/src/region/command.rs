//! The command line as a process, on a region's table and cluster.

use std::process::Stdio;

use anyhow::Context as _;
use serde_json::Value as Json;

use super::Region;
use super::monitor::program;

/// What one command left.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Exit code.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ran {
    /// Standard output as one JSON document.
    ///
    /// # Errors
    /// When it is none.
    pub fn json(&self) -> anyhow::Result<Json> {
        serde_json::from_str(&self.stdout).with_context(|| format!("{self:?}"))
    }
}

impl Region {
    /// Runs `gco inference …` on this region's table, with a kubeconfig of the monitor's own account.
    ///
    /// # Errors
    /// When the binary is not there or too old, or cannot be started.
    pub async fn gco(&self, arguments: &[&str]) -> anyhow::Result<Ran> {
        let kubeconfig = self.write_kubeconfig("gco", None)?;
        let mut command = tokio::process::Command::new(program("gco", &["cli/src", "monitor/src", "store/src"])?);
        command
            .arg("inference")
            .args(arguments)
            .env_clear()
            .env("KUBECONFIG", kubeconfig)
            .env("INFERENCE_NAMESPACE", self.namespace())
            .stdin(Stdio::null());
        for (name, value) in self.table().environment(None) {
            command.env(name, value);
        }
        let output = command.output().await.context("running gco")?;
        Ok(Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}
