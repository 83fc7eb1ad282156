//! DynamoDB protocol servers: ministack, dynalite and moto, installed once at pinned versions.
//!
//! | | ministack | dynalite | moto |
//! |---|---|---|---|
//! | atomic conditional writes | yes | yes | yes, with one thread |
//! | `ALL_OLD` on a failed condition, transactions, streams | yes | no | yes |
//! | an index is added to a table that exists | yes | no | yes |
//! | exact capacity units | no | yes | no |
//!
//! None throttles, fails or lags: a [`RewritingProxy`](crate::rewriting_proxy::RewritingProxy) in front does.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gco_runtime::environment::Environment;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::cache::{Cache, RunFolder, key_of, run_long};
use crate::ports::{free_ports, loopback, lost_port};
use crate::process::{ProcessSettings, Supervised, find_in_path};
use crate::rewriting_proxy::Upstream;
use crate::wait;

/// How long a server may take to answer. Generous: others may keep the machine busy.
const START_BOUND: Duration = Duration::from_secs(60);

/// How long one try to get an answer may take.
const PROBE_BOUND: Duration = Duration::from_secs(5);

const STOP_GRACE: Duration = Duration::from_secs(5);
const PORT_TRIES: usize = 5;

/// The services of ministack that are switched on.
const MINISTACK_SERVICES: &str = "dynamodb,ssm,iam,sts,cloudformation";

const MINISTACK_REQUIREMENTS: &str = include_str!("../ministack/requirements.txt");
const MOTO_REQUIREMENTS: &str = include_str!("../moto/requirements.txt");
const MOTO_SERVER: &str = include_str!("../moto/serve.py");
const DYNALITE_PACKAGE: &str = include_str!("../dynalite/package.json");
const DYNALITE_LOCK: &str = include_str!("../dynalite/package-lock.json");

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ministack 1.5.33, from PyPI; needs `python3` (3.10 or later) with pip.
    Ministack,
    /// dynalite 4.0.0, from npm; needs `node` (18 or later) with npm.
    Dynalite,
    /// moto 5.2.5 with one thread, from PyPI; needs what ministack needs. One request at a time, about 20 ms each.
    Moto,
}

impl Kind {
    /// Every server.
    pub const ALL: [Self; 3] = [Self::Ministack, Self::Dynalite, Self::Moto];

    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ministack => "ministack",
            Self::Dynalite => "dynalite",
            Self::Moto => "moto",
        }
    }

    /// The programs that install and run it.
    fn needed(self) -> (&'static str, &'static str) {
        match self {
            Self::Ministack | Self::Moto => ("python3", "install Python 3.10 or later with pip"),
            Self::Dynalite => ("node", "install Node.js 18 or later with npm"),
        }
    }

    /// Installs it into the cache when it is not there yet; returns its folder.
    ///
    /// # Errors
    /// When its interpreter is missing or the installation fails.
    pub async fn prepare(self, cache: &Cache) -> anyhow::Result<PathBuf> {
        let (program, remedy) = self.needed();
        if find_in_path(program.as_ref()).is_none() {
            bail!("there is no `{program}` in PATH for the table server {}: {remedy}", self.name());
        }
        let key = match self {
            Self::Ministack => key_of(&[MINISTACK_REQUIREMENTS]),
            Self::Moto => key_of(&[MOTO_REQUIREMENTS, MOTO_SERVER]),
            Self::Dynalite => key_of(&[DYNALITE_PACKAGE, DYNALITE_LOCK]),
        };
        let entry = format!("{}-{key}", self.name());
        cache.entry_or_make(&entry, async |staging| self.install(&staging).await).await
    }

    async fn install(self, staging: &Path) -> anyhow::Result<PathBuf> {
        let folder = staging.join("installed");
        std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let write = |path: PathBuf, text: &str| {
            std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
        };
        let log = staging.join("install.log");
        let settings = match self {
            Self::Ministack | Self::Moto => {
                let requirements = staging.join("requirements.txt");
                let text = if self == Self::Moto { MOTO_REQUIREMENTS } else { MINISTACK_REQUIREMENTS };
                write(requirements.clone(), text)?;
                let mut settings = ProcessSettings::new("python3", log).arguments([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--no-input",
                    "--disable-pip-version-check",
                ]);
                if self == Self::Moto {
                    write(folder.join("serve.py"), MOTO_SERVER)?;
                    // Its server's own list holds a hundred packages for other services.
                    settings = settings.argument("--no-deps");
                }
                // A folder of packages, unlike a virtual environment, can be moved when it is complete.
                settings.argument("--target").argument(&folder).argument("--requirement").argument(requirements)
            }
            Self::Dynalite => {
                write(folder.join("package.json"), DYNALITE_PACKAGE)?;
                write(folder.join("package-lock.json"), DYNALITE_LOCK)?;
                ProcessSettings::new("npm", log)
                    .arguments(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
                    .working_dir(&folder)
            }
        };
        run_long(&format!("installing {} (once, takes about half a minute)", self.name()), settings).await?;
        Ok(folder)
    }

    fn process(self, installed: &Path, run: &Path, port: u16) -> ProcessSettings {
        let log = run.join(format!("{}.log", self.name()));
        match self {
            Self::Ministack => ProcessSettings::new("python3", log)
                .arguments(["-m", "ministack"])
                .variable("PYTHONPATH", installed)
                // Nothing from the user's own packages, nothing written into the cache.
                .variable("PYTHONNOUSERSITE", "1")
                .variable("PYTHONDONTWRITEBYTECODE", "1")
                .variable("BIND_HOST", "127.0.0.1")
                .variable("GATEWAY_PORT", port.to_string())
                .variable("SERVICES", MINISTACK_SERVICES)
                // Each would listen on every interface, or look for a container runtime.
                .variable("IOT_MTLS_ENABLED", "0")
                .variable("SFTP_ENABLED", "0")
                .variable("DOCKER_HOST", "unix:///nonexistent")
                .variable("TMPDIR", run)
                .working_dir(run),
            Self::Moto => ProcessSettings::new("python3", log)
                .argument(installed.join("serve.py"))
                .arguments([OsString::from("127.0.0.1"), port.to_string().into()])
                .variable("PYTHONPATH", installed)
                .variable("PYTHONNOUSERSITE", "1")
                .variable("PYTHONDONTWRITEBYTECODE", "1")
                // It would look for a container runtime.
                .variable("DOCKER_HOST", "unix:///nonexistent")
                .variable("TMPDIR", run)
                .working_dir(run),
            Self::Dynalite => ProcessSettings::new("node", log)
                .argument(installed.join("node_modules/dynalite/cli.js"))
                .arguments(["--host", "127.0.0.1", "--createTableMs", "0", "--deleteTableMs", "0"])
                .arguments([OsString::from("--port"), port.to_string().into()])
                .working_dir(run),
        }
    }
}

/// A running table server with empty tables. Dropping it kills it.
#[derive(Debug)]
pub struct TableServer {
    kind: Kind,
    address: SocketAddr,
    // Before the folder that it writes into.
    process: Supervised,
    _folder: RunFolder,
}

impl TableServer {
    /// Starts a server and returns when it answers.
    ///
    /// # Errors
    /// When it cannot be installed or does not start; then with the end of its log.
    pub async fn start(kind: Kind) -> anyhow::Result<Self> {
        Self::start_with(kind, &[]).await
    }

    /// The same with further environment variables for the server, such as ministack's `AUTH=true`, which
    /// makes it enforce IAM policies.
    ///
    /// # Errors
    /// As [`TableServer::start`].
    pub async fn start_with(kind: Kind, variables: &[(&str, &str)]) -> anyhow::Result<Self> {
        let cache = Cache::from_environment(&Environment::process())?;
        let installed = kind.prepare(&cache).await?;
        let mut tries = 1;
        loop {
            let folder = cache.run_folder(kind.name()).await?;
            let port = free_ports(1).context("picking a free port")?.first().copied().context("no free port")?;
            let mut settings = kind.process(&installed, folder.path(), port);
            for (name, value) in variables {
                settings = settings.variable(*name, *value);
            }
            let process = Supervised::start(settings)?;
            let address = loopback(port);
            match answering(kind, address, &process).await {
                Ok(()) => return Ok(Self { kind, address, process, _folder: folder }),
                Err(error) if tries < PORT_TRIES && lost_port(&format!("{error:#}")) => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Which server it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens, as `http://127.0.0.1:<port>`. Any credentials and any region will do.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What a rewriting proxy needs to stand before it.
    pub fn upstream(&self) -> Upstream {
        Upstream::Http { address: self.address }
    }

    /// The server's process, to pause or kill it.
    pub fn process(&self) -> &Supervised {
        &self.process
    }

    /// Ends the server; its tables are gone.
    pub async fn stop(self) {
        self.process.stop(STOP_GRACE).await;
    }
}

/// Waits until the server answers in its protocol, or has ended.
async fn answering(kind: Kind, address: SocketAddr, process: &Supervised) -> anyhow::Result<()> {
    let what = format!("{} to answer", kind.name());
    let outcome = wait::until(&what, START_BOUND, || async {
        if let Some(status) = process.exit_status() {
            let tail = process.log_tail();
            return Ok(Err(anyhow::anyhow!("{} ended ({status}); the end of its log:\n{tail}", kind.name())));
        }
        match tokio::time::timeout(PROBE_BOUND, list_tables(address)).await {
            Ok(Ok(())) => Ok(Ok(())),
            Ok(Err(error)) => Err(error),
            Err(_) => Err("no answer".to_owned()),
        }
    });
    outcome.await?
}

/// Asks for the list of tables. The signature is not checked by either server, but must look like one.
async fn list_tables(address: SocketAddr) -> Result<(), String> {
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/x-amz-json-1.0\r\n\
         x-amz-target: DynamoDB_20120810.ListTables\r\nx-amz-date: 20250101T000000Z\r\n\
         authorization: AWS4-HMAC-SHA256 Credential=bed/20250101/us-east-1/dynamodb/aws4_request, \
         SignedHeaders=host, Signature=0\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(4096).read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = ask.await.map_err(|error| error.to_string())?;
    // moto answers in HTTP/1.0: one request per connection, as one thread needs it.
    let status = answer.split(' ').nth(1).unwrap_or_default();
    let listed = status == "200" && answer.contains("TableNames");
    // A server that was told to enforce permissions refuses us, which is an answer too.
    let refused = status.starts_with('4') && answer.contains("__type");
    if listed || refused {
        return Ok(());
    }
    Err(gco_runtime::text::bounded(&answer, 300))
}
