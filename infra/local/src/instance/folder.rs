//! The data folder of an instance: what is where, who holds it, and what is told about it.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use gco_runtime::environment::Environment;
use serde::{Deserialize, Serialize};

/// The folder's name below the place where programs keep their data.
const NAME: &str = "gco-local";

/// A file that says that a folder is one of ours, and may be deleted.
const MARKER: &str = "gco-local-data";
const MARKER_TEXT: &str = "This folder belongs to gco-local. `gco local reset` deletes it.\n";

const LOCK: &str = "lock";
const STATE: &str = "local.json";

/// How long a start waits for the lock: somebody who only asks whether an instance runs holds it for
/// an instant.
const LOCK_BOUND: Duration = Duration::from_secs(2);

/// What a running instance says of itself. The command line reads the table and the regions' names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceState {
    /// The process that holds it.
    pub pid: u32,
    /// `embedded:PATH` or `dynamodb`.
    pub table: String,
    /// The first table's name.
    pub table_name: String,
    /// The table's region, for DynamoDB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_region: Option<String>,
    /// Another server than AWS's, for DynamoDB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_endpoint_url: Option<String>,
    /// One for each region.
    pub regions: Vec<RegionState>,
    /// The prefill-decode proxy that was asked for, `http://127.0.0.1:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
}

/// Where things of a region are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionState {
    /// The region.
    pub name: String,
    /// `https://127.0.0.1:PORT`.
    pub api_server: String,
    /// The administrator's kubeconfig file.
    pub kubeconfig: PathBuf,
    /// `http://127.0.0.1:PORT`.
    pub gateway: String,
    /// Where the monitor tells about itself, `http://127.0.0.1:PORT`.
    pub monitor: String,
    /// The monitor's log.
    pub monitor_log: PathBuf,
    /// The dial map's file.
    pub dial_map: PathBuf,
    /// The folder with the logs of the pods.
    pub pod_logs: PathBuf,
}

/// An instance's folder.
#[derive(Clone, Debug)]
pub struct DataFolder {
    path: PathBuf,
}

/// A folder that this process holds; nobody else can until it is dropped.
#[derive(Debug)]
pub struct HeldFolder {
    folder: DataFolder,
    _lock: File,
}

impl DataFolder {
    /// Where the folder is when nobody says anything: `gco-local` in the user's data folder.
    ///
    /// # Errors
    ///
    /// When the environment names no home.
    pub fn default_path(environment: &Environment) -> anyhow::Result<PathBuf> {
        let data = environment.non_empty("XDG_DATA_HOME").map(PathBuf::from);
        let home = || environment.non_empty("HOME").map(|home| Path::new(home).join(".local/share"));
        let data = data.or_else(home).context("no data folder: give --data-dir, or set XDG_DATA_HOME or HOME")?;
        Ok(data.join(NAME))
    }

    /// Opens the folder, and makes it when it does not exist or is empty.
    ///
    /// # Errors
    ///
    /// When it holds something else, or cannot be written.
    pub fn open_or_create(path: &Path) -> anyhow::Result<Self> {
        let path = std::path::absolute(path).with_context(|| format!("resolving {}", path.display()))?;
        if !path.join(MARKER).is_file() {
            let holds_something = path.read_dir().is_ok_and(|mut entries| entries.next().is_some());
            ensure!(!holds_something, "{} holds something else: choose an empty or a new folder", path.display());
            std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
            std::fs::write(path.join(MARKER), MARKER_TEXT).with_context(|| format!("writing to {}", path.display()))?;
        }
        Ok(Self { path })
    }

    /// Opens a folder that exists.
    ///
    /// # Errors
    ///
    /// When it does not exist or is not one of ours.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let path = std::path::absolute(path).with_context(|| format!("resolving {}", path.display()))?;
        ensure!(path.is_dir(), "there is no {}: nothing was started there yet", path.display());
        ensure!(path.join(MARKER).is_file(), "{} is not a folder of gco-local", path.display());
        Ok(Self { path })
    }

    /// Takes the folder for this process.
    ///
    /// # Errors
    ///
    /// When another process holds it.
    pub async fn hold(self) -> anyhow::Result<HeldFolder> {
        let mut lock = self.lock_file()?;
        let held = gco_bed::wait::until("the data folder's lock", LOCK_BOUND, || {
            std::future::ready(lock.try_lock().map_err(|problem| problem.to_string()))
        });
        if held.await.is_err() {
            let holder = self.holder().map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
            bail!(
                "{} is in use by {holder}: stop it with 'gco local down', or give another --data-dir",
                self.path.display()
            );
        }
        lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id())).context("writing the lock")?;
        Ok(HeldFolder { folder: self, _lock: lock })
    }

    /// The process that holds the folder; `None` when nobody does.
    #[must_use]
    pub fn holder(&self) -> Option<i32> {
        let mut lock = self.lock_file().ok()?;
        if lock.try_lock_shared().is_ok() {
            return None;
        }
        let mut text = String::new();
        lock.rewind().ok()?;
        lock.read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    fn lock_file(&self) -> anyhow::Result<File> {
        let path = self.path.join(LOCK);
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        file.with_context(|| format!("opening {}", path.display()))
    }

    /// What the instance that runs, or that was killed, said of itself.
    ///
    /// # Errors
    ///
    /// When it said nothing that can be read.
    pub fn state(&self) -> anyhow::Result<InstanceState> {
        let path = self.path.join(STATE);
        let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The table's file.
    #[must_use]
    pub fn table_file(&self) -> PathBuf {
        self.path.join("table.sqlite")
    }

    /// Our own log.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        self.path.join("gco-local.log")
    }

    /// What belongs to the prefill-decode proxy and its engines.
    #[must_use]
    pub fn split(&self) -> PathBuf {
        self.path.join("split")
    }

    /// What belongs to one region.
    #[must_use]
    pub fn region(&self, region: &str) -> RegionFolder {
        RegionFolder { path: self.path.join("regions").join(region) }
    }
}

impl HeldFolder {
    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &DataFolder {
        &self.folder
    }

    /// Tells others about the instance.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn tell(&self, state: &InstanceState) -> anyhow::Result<()> {
        let path = self.folder.path.join(STATE);
        let written = crate::kubelet::replace_file(&path, &serde_json::to_vec_pretty(state)?);
        written.with_context(|| format!("writing {}", path.display()))
    }

    /// Takes back what was told: nothing runs any more.
    pub fn tell_nothing(&self) {
        // It is gone, or somebody removed it before.
        let _ = std::fs::remove_file(self.folder.path.join(STATE));
    }

    /// Deletes the folder with everything in it.
    ///
    /// # Errors
    ///
    /// When something in it cannot be deleted.
    pub fn delete(self) -> anyhow::Result<()> {
        let path = &self.folder.path;
        std::fs::remove_dir_all(path).with_context(|| format!("deleting {}", path.display()))
    }
}

/// What belongs to one region.
#[derive(Clone, Debug)]
pub struct RegionFolder {
    path: PathBuf,
}

impl RegionFolder {
    pub(super) fn control_plane(&self) -> PathBuf {
        self.path.join("control-plane")
    }

    pub(super) fn dial_map(&self) -> PathBuf {
        self.path.join("dial-map.json")
    }

    pub(super) fn pod_logs(&self) -> PathBuf {
        self.path.join("pods")
    }

    pub(super) fn monitor_log(&self) -> PathBuf {
        self.path.join("monitor.log")
    }

    pub(super) fn monitor_kubeconfig(&self) -> PathBuf {
        self.path.join("monitor.kubeconfig")
    }

    pub(super) fn monitor_token(&self) -> PathBuf {
        self.path.join("monitor.token")
    }

    pub(super) fn models(&self) -> PathBuf {
        self.path.join("models")
    }

    fn gateway_port_file(&self) -> PathBuf {
        self.path.join("gateway-port")
    }

    /// The port that the gateway had the last time.
    pub(super) fn gateway_port(&self) -> Option<u16> {
        std::fs::read_to_string(self.gateway_port_file()).ok()?.trim().parse().ok()
    }

    /// So that addresses that were handed out stay good.
    pub(super) fn remember_gateway_port(&self, port: u16) -> anyhow::Result<()> {
        std::fs::write(self.gateway_port_file(), port.to_string()).context("writing down the gateway's port")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_holds_something_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("precious"), "").unwrap();
        let refused = DataFolder::open_or_create(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("holds something else"), "{refused}");
        assert!(DataFolder::open(folder.path()).unwrap_err().to_string().contains("is not a folder of gco-local"));
    }

    #[tokio::test]
    async fn only_one_holds_a_folder_and_others_learn_who() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("data");
        let folder = DataFolder::open_or_create(&path).unwrap();
        assert_eq!(folder.holder(), None);
        let held = folder.clone().hold().await.unwrap();
        assert_eq!(folder.holder(), Some(std::process::id().cast_signed()));
        let refused = DataFolder::open_or_create(&path).unwrap().hold().await.unwrap_err().to_string();
        assert!(refused.contains(&format!("is in use by process {}", std::process::id())), "{refused}");
        drop(held);
        assert_eq!(folder.holder(), None);
        DataFolder::open(&path).unwrap().hold().await.unwrap().delete().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn the_folder_is_where_the_command_line_looks_for_it() {
        let of = |pairs: &[(&str, &str)]| DataFolder::default_path(&Environment::from_pairs(pairs.iter().copied()));
        assert_eq!(of(&[("XDG_DATA_HOME", "/d"), ("HOME", "/h")]).unwrap(), Path::new("/d/gco-local"));
        assert_eq!(of(&[("HOME", "/h")]).unwrap(), Path::new("/h/.local/share/gco-local"));
        assert!(of(&[]).is_err());
    }
}
