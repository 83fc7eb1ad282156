//! etcd and the three Kubernetes programs: found, or built once from their Go modules.
//!
//! `GCO_BED_BINARIES` names a folder that holds all four. Without it they are built into the [`Cache`],
//! with versions pinned by the module files that are part of this crate.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use gco_runtime::environment::Environment;

use crate::cache::{Cache, key_of, run_long};
use crate::process::{ProcessSettings, find_in_path};

/// The version of Kubernetes that is built.
pub const KUBERNETES_VERSION: &str = "1.35.0";

const ETCD: &str = "etcd";
const KUBERNETES_PROGRAMS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// The Go module of one build: everything that decides what comes out, but the compiler.
struct Module {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    linker_flags: String,
    packages: Vec<String>,
    takes: &'static str,
}

fn etcd_module() -> Module {
    Module {
        name: ETCD,
        files: &[
            ("go.mod", include_str!("../go/etcd/go.mod")),
            ("go.sum", include_str!("../go/etcd/go.sum")),
            ("main.go", include_str!("../go/etcd/main.go")),
        ],
        linker_flags: "-s -w".to_owned(),
        packages: vec![".".to_owned()],
        takes: "about a minute",
    }
}

fn kubernetes_module() -> Module {
    // Without a version the server calls itself by a placeholder, which clients refuse to read.
    let (major, rest) = KUBERNETES_VERSION.split_once('.').unwrap_or((KUBERNETES_VERSION, "0"));
    let minor = rest.split('.').next().unwrap_or_default();
    let set = |name: &str, value: &str| format!(" -X k8s.io/component-base/version.{name}={value}");
    let linker_flags = format!(
        "-s -w{}{}{}{}",
        set("gitVersion", &format!("v{KUBERNETES_VERSION}")),
        set("gitMajor", major),
        set("gitMinor", minor),
        set("gitTreeState", "clean")
    );
    Module {
        name: "kubernetes",
        files: &[
            ("go.mod", include_str!("../go/kubernetes/go.mod")),
            ("go.sum", include_str!("../go/kubernetes/go.sum")),
        ],
        linker_flags,
        packages: KUBERNETES_PROGRAMS.iter().map(|program| format!("k8s.io/kubernetes/cmd/{program}")).collect(),
        takes: "5 to 15 minutes",
    }
}

impl Module {
    /// What decides the result, but the compiler's version.
    fn key(&self) -> String {
        let mut parts = vec![self.linker_flags.as_str()];
        parts.extend(self.files.iter().flat_map(|(name, text)| [*name, *text]));
        parts.extend(self.packages.iter().map(String::as_str));
        key_of(&parts)
    }

    /// The folder with the built programs, built first when it is not cached.
    async fn built(&self, cache: &Cache) -> anyhow::Result<PathBuf> {
        let prefix = format!("{}-{}-", self.name, self.key());
        let Some(go) = find_in_path("go".as_ref()) else {
            // The compiler's version is part of the name; without a compiler any will do.
            return cache.entry_starting_with(&prefix).with_context(|| {
                format!(
                    "there is no `go` in PATH to build {}: install Go 1.25 or later, or set GCO_BED_BINARIES to a \
                     folder with etcd {} (Kubernetes {KUBERNETES_VERSION})",
                    self.name,
                    KUBERNETES_PROGRAMS.join(" ")
                )
            });
        };
        let version = go_version(&go).await?;
        let entry = format!("{prefix}{version}");
        cache.entry_or_make(&entry, async |staging| self.build(&go, &staging).await).await
    }

    async fn build(&self, go: &Path, staging: &Path) -> anyhow::Result<PathBuf> {
        let source = staging.join("source");
        let programs = staging.join("programs");
        for folder in [&source, &programs] {
            std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        for (name, text) in self.files {
            std::fs::write(source.join(name), text).with_context(|| format!("writing {name}"))?;
        }
        let output = match self.packages.as_slice() {
            [_] => programs.join(self.name).into_os_string(),
            // A trailing slash makes it a folder for several programs.
            _ => programs.join("").into_os_string(),
        };
        let settings = ProcessSettings::new(go, staging.join("build.log"))
            .arguments(["build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags"])
            .argument(&self.linker_flags)
            .argument("-o")
            .argument(output)
            .arguments(&self.packages)
            .variable("CGO_ENABLED", "0")
            .variable("GOFLAGS", "")
            .variable("GOWORK", "off")
            .working_dir(&source);
        run_long(&format!("building {} (once, takes {})", self.name, self.takes), settings).await?;
        Ok(programs)
    }
}

async fn go_version(go: &Path) -> anyhow::Result<String> {
    let output = tokio::process::Command::new(go)
        .args(["env", "GOVERSION"])
        .env("GOFLAGS", "")
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("asking {} for its version", go.display()))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let readable = version.starts_with("go") && version.len() < 40 && !version.contains(['/', ' ', '\n']);
    ensure!(output.status.success() && readable, "{} does not tell its version", go.display());
    Ok(version)
}

/// Where the four programs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    /// etcd.
    pub etcd: PathBuf,
    /// kube-apiserver.
    pub kube_apiserver: PathBuf,
    /// kube-controller-manager.
    pub kube_controller_manager: PathBuf,
    /// kube-scheduler.
    pub kube_scheduler: PathBuf,
}

impl Binaries {
    /// Finds the programs, or builds them: minutes the first time, milliseconds later.
    ///
    /// # Errors
    /// When the named folder lacks one, there is no Go to build them, or the build fails.
    pub async fn ready() -> anyhow::Result<Self> {
        let environment = Environment::process();
        if let Some(folder) = environment.non_empty("GCO_BED_BINARIES") {
            return Self::in_folder(Path::new(folder)).context("GCO_BED_BINARIES");
        }
        Self::cached(&Cache::from_environment(&environment)?).await
    }

    /// The programs of this cache, built when they are not there.
    ///
    /// # Errors
    /// When there is no Go to build them, or the build fails.
    pub async fn cached(cache: &Cache) -> anyhow::Result<Self> {
        let etcd = etcd_module().built(cache).await?;
        let kubernetes = kubernetes_module().built(cache).await?;
        Self::in_folders(&etcd, &kubernetes)
    }

    /// The programs of a folder that holds all four.
    ///
    /// # Errors
    /// When one is missing.
    pub fn in_folder(folder: &Path) -> anyhow::Result<Self> {
        let folder = std::path::absolute(folder).with_context(|| format!("resolving {}", folder.display()))?;
        Self::in_folders(&folder, &folder)
    }

    fn in_folders(etcd: &Path, kubernetes: &Path) -> anyhow::Result<Self> {
        let [api_server, controller_manager, scheduler] = KUBERNETES_PROGRAMS;
        Ok(Self {
            etcd: program(etcd, ETCD)?,
            kube_apiserver: program(kubernetes, api_server)?,
            kube_controller_manager: program(kubernetes, controller_manager)?,
            kube_scheduler: program(kubernetes, scheduler)?,
        })
    }
}

fn program(folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join(name);
    if !path.is_file() {
        bail!("there is no {name} in {}", folder.display());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_must_hold_all_four_programs() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["etcd", "kube-apiserver", "kube-controller-manager"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let error = Binaries::in_folder(folder.path()).unwrap_err();
        assert!(error.to_string().starts_with("there is no kube-scheduler in "), "{error}");
        std::fs::write(folder.path().join("kube-scheduler"), "").unwrap();
        let binaries = Binaries::in_folder(folder.path()).unwrap();
        assert_eq!(binaries.etcd, folder.path().join("etcd"));
    }

    #[test]
    fn the_module_pins_the_version_that_the_programs_report() {
        let module = kubernetes_module();
        let required = format!("k8s.io/kubernetes v{KUBERNETES_VERSION}");
        assert!(module.files[0].1.contains(&required));
        assert!(module.linker_flags.contains("version.gitVersion=v1.35.0 "), "{}", module.linker_flags);
        assert!(module.linker_flags.contains("version.gitMajor=1 "));
        assert!(module.linker_flags.contains("version.gitMinor=35 "));
        assert_ne!(module.key(), etcd_module().key());
    }
}
