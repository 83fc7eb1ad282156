//! The folder outside the checkout where built and installed programs are kept.
//!
//! `GCO_BED_CACHE` names it; else it is `gco-bed` under `XDG_CACHE_HOME`, else `.cache/gco-bed` under
//! `HOME`. Entries are named after a hash of everything that goes into them, made in a staging folder and
//! moved into place when complete, so an entry that exists is whole. One lock file keeps two processes
//! from making entries at once; the kernel frees it when its holder dies.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_runtime::environment::Environment;
use gco_runtime::random::{Randomness as _, SystemRandomness};
use sha2::{Digest as _, Sha256};

use crate::process::{ProcessSettings, Supervised, tail};

/// How often a long wait says that it still goes on.
const PROGRESS_EVERY: Duration = Duration::from_secs(15);

/// How often a waiting process tries to get the lock.
const LOCK_EVERY: Duration = Duration::from_millis(100);

const STAGING_PREFIX: &str = "staging-";
const RUN_PREFIX: &str = "run-";
const OWNER_LOCK: &str = "owner.lock";

/// The cache folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache folder that the environment names.
    ///
    /// # Errors
    /// When none of the three variables is set.
    pub fn from_environment(environment: &Environment) -> anyhow::Result<Self> {
        let folder = environment
            .non_empty("GCO_BED_CACHE")
            .map(PathBuf::from)
            .or_else(|| environment.non_empty("XDG_CACHE_HOME").map(|base| Path::new(base).join("gco-bed")))
            .or_else(|| environment.non_empty("HOME").map(|home| Path::new(home).join(".cache/gco-bed")))
            .context("no cache folder: set GCO_BED_CACHE, XDG_CACHE_HOME or HOME")?;
        Self::at(&folder)
    }

    /// A cache in this folder, which need not exist yet.
    ///
    /// # Errors
    /// When the current folder is gone, so that a relative path means nothing.
    pub fn at(folder: &Path) -> anyhow::Result<Self> {
        let folder = std::path::absolute(folder).with_context(|| format!("resolving {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Its path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The finished entry of this name, if there is one.
    pub(crate) fn entry(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.join(name)).filter(|folder| folder.is_dir())
    }

    /// Any finished entry whose name starts so.
    #[cfg(any(feature = "servers", test))]
    pub(crate) fn entry_starting_with(&self, prefix: &str) -> Option<PathBuf> {
        let entries = std::fs::read_dir(&self.folder).ok()?.flatten();
        let mut found: Vec<PathBuf> = entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect();
        found.sort();
        found.pop()
    }

    /// Gives the entry of this name, making it first when it is not there.
    ///
    /// `make` fills an empty staging folder and returns which part of it becomes the entry.
    ///
    /// # Errors
    /// What `make` says, or when the folder cannot be written.
    pub async fn entry_or_make<Make, Making>(&self, name: &str, make: Make) -> anyhow::Result<PathBuf>
    where
        Make: FnOnce(PathBuf) -> Making,
        Making: Future<Output = anyhow::Result<PathBuf>>,
    {
        if let Some(entry) = self.entry(name) {
            return Ok(entry);
        }
        std::fs::create_dir_all(&self.folder).with_context(|| format!("creating {}", self.folder.display()))?;
        let _lock = self.lock("another process builds or installs parts of the bed").await?;
        // Whoever held the lock before may have made it.
        if let Some(entry) = self.entry(name) {
            return Ok(entry);
        }
        self.remove_stale_staging();
        let staging = self.folder.join(format!("{STAGING_PREFIX}{}", short_token()));
        std::fs::create_dir_all(&staging).with_context(|| format!("creating {}", staging.display()))?;
        let made = make(staging.clone()).await?;
        let entry = self.folder.join(name);
        std::fs::rename(&made, &entry).with_context(|| format!("moving {} to {}", made.display(), entry.display()))?;
        let _ = std::fs::remove_dir_all(&staging);
        Ok(entry)
    }

    /// Makes a folder for one run. It is removed when dropped, or by a later run when its owner was killed.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn run_folder(&self, label: &str) -> anyhow::Result<RunFolder> {
        let runs = self.folder.join("runs");
        std::fs::create_dir_all(&runs).with_context(|| format!("creating {}", runs.display()))?;
        let _lock = self.lock("another process makes a run folder").await?;
        for stale in std::fs::read_dir(&runs).into_iter().flatten().flatten() {
            let path = stale.path();
            let ours = stale.file_name().to_string_lossy().starts_with(RUN_PREFIX);
            // The owner holds its lock as long as it lives.
            let owner = File::open(path.join(OWNER_LOCK));
            if ours && owner.is_ok_and(|file| file.try_lock().is_ok()) {
                let _ = std::fs::remove_dir_all(&path);
            }
        }
        let path = runs.join(format!("{RUN_PREFIX}{label}-{}", short_token()));
        std::fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        let owner = open_lock(&path.join(OWNER_LOCK))?;
        owner.lock().context("locking a new run folder")?;
        Ok(RunFolder { path, _owner: owner })
    }

    async fn lock(&self, reason_of_waiting: &str) -> anyhow::Result<File> {
        let path = self.folder.join("lock");
        let file = open_lock(&path)?;
        let mut progress = Progress::new(format!("waiting: {reason_of_waiting}"));
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_EVERY).await,
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("locking {}", path.display()));
                }
            }
            progress.tick();
        }
    }

    /// Only the holder of the lock makes staging folders: those that are there were left by the dead.
    fn remove_stale_staging(&self) {
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(STAGING_PREFIX) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// A folder that lasts as long as one run.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    _owner: File,
}

impl RunFolder {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next run.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn open_lock(path: &Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    opened.with_context(|| format!("opening {}", path.display()))
}

fn short_token() -> String {
    SystemRandomness.token().chars().take(12).collect()
}

/// The first 16 hexadecimal digits of a hash over all parts, each with its length.
#[must_use]
pub fn key_of(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Says on standard error that something long still goes on.
pub(crate) struct Progress {
    what: String,
    started: gco_runtime::clock::BootTime,
    said: Duration,
}

impl Progress {
    pub(crate) fn new(what: String) -> Self {
        Self { what, started: SystemClock.boot(), said: Duration::ZERO }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        SystemClock.boot().saturating_duration_since(self.started)
    }

    pub(crate) fn tick(&mut self) {
        let elapsed = self.elapsed();
        if elapsed >= self.said + PROGRESS_EVERY {
            self.said = elapsed;
            eprintln!("gco-bed: {} … {} s so far", self.what, elapsed.as_secs());
        }
    }
}

/// Runs a long command to its end, saying now and then that it goes on.
///
/// # Errors
/// When it does not end well, with the end of what it said.
pub async fn run_long(what: &str, settings: ProcessSettings) -> anyhow::Result<()> {
    eprintln!("gco-bed: {what}");
    let process = Supervised::start(settings)?;
    let mut progress = Progress::new(what.to_owned());
    let status = loop {
        match tokio::time::timeout(Duration::from_secs(1), process.wait()).await {
            Ok(status) => break status,
            Err(_) => progress.tick(),
        }
    };
    ensure!(status.success(), "{what}: {status}; the end of its output:\n{}", tail(process.log_file()));
    eprintln!("gco-bed: {what}: done after {} s", progress.elapsed().as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_comes_from_the_most_specific_variable() {
        let folder = |pairs: &[(&str, &str)]| {
            let environment = Environment::from_pairs(pairs.iter().copied());
            Cache::from_environment(&environment).map(|cache| cache.folder().display().to_string())
        };
        let (own, xdg, home) = (("GCO_BED_CACHE", "/own"), ("XDG_CACHE_HOME", "/xdg"), ("HOME", "/home/a"));
        assert_eq!(folder(&[own, xdg, home]).unwrap(), "/own");
        assert_eq!(folder(&[xdg, home]).unwrap(), "/xdg/gco-bed");
        assert_eq!(folder(&[("XDG_CACHE_HOME", ""), home]).unwrap(), "/home/a/.cache/gco-bed");
        assert!(folder(&[]).unwrap_err().to_string().contains("GCO_BED_CACHE"));
    }

    #[test]
    fn a_key_depends_on_every_part_and_on_where_it_ends() {
        assert_eq!(key_of(&["a", "b"]).len(), 16);
        assert_eq!(key_of(&["a", "b"]), key_of(&["a", "b"]));
        assert_ne!(key_of(&["a", "b"]), key_of(&["ab", ""]));
    }

    #[tokio::test]
    async fn an_entry_is_made_once_although_two_ask_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let made = std::sync::atomic::AtomicU32::new(0);
        let make = async |staging: PathBuf| {
            made.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            tokio::task::yield_now().await;
            std::fs::write(staging.join("file"), "whole").unwrap();
            Ok(staging)
        };
        let (one, two) = tokio::join!(cache.entry_or_make("e", make), cache.entry_or_make("e", make));
        assert_eq!(one.unwrap(), two.unwrap());
        assert_eq!(made.load(std::sync::atomic::Ordering::SeqCst), 1);
        assert_eq!(std::fs::read_to_string(folder.path().join("e/file")).unwrap(), "whole");
        assert_eq!(cache.entry_starting_with("e"), Some(folder.path().join("e")));
    }

    #[tokio::test]
    async fn an_entry_that_failed_is_not_there_and_its_remains_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let fail = async |_| anyhow::bail!("no such compiler");
        let error = cache.entry_or_make("e", fail).await.unwrap_err();
        assert_eq!(error.to_string(), "no such compiler");
        assert_eq!(cache.entry("e"), None);
        cache.entry_or_make("e", async |staging| Ok(staging)).await.unwrap();
        let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[tokio::test]
    async fn the_folder_of_a_run_that_died_is_removed_by_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let living = cache.run_folder("living").await.unwrap();
        let dead = folder.path().join("runs/run-dead");
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join(OWNER_LOCK), "").unwrap();
        let foreign = folder.path().join("runs/other");
        std::fs::create_dir(&foreign).unwrap();
        let next = cache.run_folder("next").await.unwrap();
        assert!(living.path().exists() && next.path().exists() && foreign.exists());
        assert!(!dead.exists());
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());
    }
}
