//! `gco local` as people use it: the real program with the real monitor, started, interrupted, killed and started again.

#![expect(clippy::unwrap_used, reason = "a suite fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gco_bed::table_server::{Kind, TableServer};
use gco_bed::wait::until;
use gco_local::instance::{DataFolder, InstanceState};
use gco_local::loopback::LoopbackClient;
use gco_store::embedded::EmbeddedTable;
use gco_store::operations::Store;
use gco_store::table::Consistency;
use gco_store::transition::CreateRequest;
use gco_store::wire::{Item, Value};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;

/// Longer than anything here takes on a busy machine, the expiry of a killed monitor's Lease included.
const BOUND: Duration = Duration::from_secs(180);

fn local() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_gco-local"))
}

/// The monitor beside our programs, built first when it is absent or cannot read a table's file.
async fn monitor() -> PathBuf {
    static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
    let find = async || {
        let program = local().with_file_name("gco-monitor");
        if !reads_files(&program).await {
            let build = ["build", "--package", "gco-monitor", "--bin", "gco-monitor", "--features", "embedded-table"];
            let built = Command::new(env!("CARGO")).args(build).status().await.unwrap();
            assert!(built.success(), "building the monitor failed");
        }
        program
    };
    BUILT.get_or_init(find).await.clone()
}

/// Its settings are checked all at once, so that a bad port ends it and tells whether the table was bad, too.
async fn reads_files(program: &Path) -> bool {
    let asked = Command::new(program).env("GCO_TABLE", "embedded:/absent").env("METRICS_PORT", "none").output().await;
    asked.is_ok_and(|output| !output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("GCO_TABLE"))
}

/// A running `gco-local up`, and what it has said.
struct Instance {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Instance {
    async fn start(data: &Path, arguments: &[&str]) -> Self {
        let mut command = command(data, "up").await;
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let hear = Arc::clone(&said);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                hear.lock().unwrap().push(line);
            }
        });
        let instance = Self { child, said };
        instance.says("everything is up").await;
        instance
    }

    async fn says(&self, words: &str) {
        until(&format!("the words {words:?}"), BOUND, || {
            let said = self.said.lock().unwrap();
            let heard = said.iter().any(|line| line.contains(words));
            std::future::ready(if heard { Ok(()) } else { Err(format!("{said:#?}")) })
        })
        .await
        .unwrap();
    }

    async fn end(mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.child.id().unwrap().cast_signed()), signal).unwrap();
        tokio::time::timeout(BOUND, self.child.wait()).await.unwrap().unwrap()
    }
}

async fn command(data: &Path, verb: &str) -> Command {
    let mut command = Command::new(local());
    command.arg(verb).arg("--data-dir").arg(data).env("GCO_LOCAL_MONITOR", monitor().await);
    command.env("GCO_ENGINE_TOKEN_MILLISECONDS", "1");
    command
}

async fn run(data: &Path, verb: &str, arguments: &[&str]) -> Output {
    tokio::time::timeout(BOUND, command(data, verb).await.args(arguments).output()).await.unwrap().unwrap()
}

fn words(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// Makes an endpoint as the command line does.
async fn deploy(data: &Path, name: &str, region: &str) {
    let table = EmbeddedTable::open(&DataFolder::open(data).unwrap().table_file()).unwrap();
    let randomness = gco_runtime::random::SystemRandomness;
    let store = Store::new(
        Arc::new(table),
        Arc::new(|| gco_runtime::clock::Clock::wall(&gco_runtime::clock::SystemClock)),
        Arc::new(move || gco_runtime::random::Randomness::token(&randomness)),
    );
    let spec = Item::from([("image".to_owned(), Value::String("vllm/vllm-openai:v0.28.0".to_owned()))]);
    let request = CreateRequest {
        name: name.to_owned(),
        spec: Value::Map(spec),
        target_regions: vec![region.to_owned()],
        namespace: "gco-inference".to_owned(),
        labels: BTreeMap::new(),
        created_by: None,
    };
    store.create(&request).await.unwrap();
    assert!(store.get(name, Consistency::Strong).await.unwrap().is_some());
}

fn state(data: &Path) -> InstanceState {
    DataFolder::open(data).unwrap().state().unwrap()
}

fn port(address: &str) -> u16 {
    address.rsplit(':').next().unwrap().parse().unwrap()
}

/// Waits until the endpoint answers behind the gateway of the first region; returns the gateway's port.
async fn answers(data: &Path, name: &str) -> u16 {
    let gateway = port(&state(data).regions[0].gateway);
    let path = format!("/inference/{name}/v1/models");
    until("an answer of the endpoint", BOUND, || async {
        match LoopbackClient::new().get(gateway, &path, BOUND).await {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(answer.text()),
            Err(problem) => Err(problem.to_string()),
        }
    })
    .await
    .unwrap();
    gateway
}

/// The pods of the first region: names and restarts.
async fn pods(data: &Path) -> Vec<(String, i32)> {
    gco_runtime::tls::install_provider();
    let file = kube::config::Kubeconfig::read_from(&state(data).regions[0].kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await.unwrap();
    let pods: kube::Api<Pod> = kube::Api::namespaced(kube::Client::try_from(config).unwrap(), "gco-inference");
    let pods = pods.list(&ListParams::default()).await.unwrap();
    let restarts = |pod: &Pod| Some(pod.status.as_ref()?.container_statuses.as_ref()?.first()?.restart_count);
    pods.items.iter().map(|pod| (pod.metadata.name.clone().unwrap(), restarts(pod).unwrap_or_default())).collect()
}

/// Processes of this machine that know the data folder: by their command line or their environment.
fn processes_of(data: &Path) -> Vec<String> {
    let needle = data.to_str().unwrap().as_bytes().to_vec();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let (line, variables) = (read("cmdline"), read("environ"));
        let knows = |text: &[u8]| text.windows(needle.len()).any(|part| part == needle);
        let own = entry.file_name().to_str().and_then(|name| name.parse().ok()) == Some(std::process::id());
        if !own && (knows(&line) || knows(&variables)) {
            found.push(words(&line).replace('\0', " "));
        }
    }
    found
}

async fn nothing_is_left(data: &Path) {
    until("all processes to be gone", BOUND, || {
        let left = processes_of(data);
        std::future::ready(if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) })
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_answers_from_every_region_and_then_everything_stops() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let output = run(&data, "up", &["--sample", "--then-stop"]).await;
    let (said, told) = (words(&output.stdout), words(&output.stderr));
    assert!(output.status.success(), "{said}{told}");
    for region in ["us-east-1", "eu-west-1"] {
        assert!(said.contains(&format!("{region} > Region {region}, pod sample-")), "{said}");
        assert!(told.contains(&format!("region {region}: monitor ready")), "{told}");
    }
    nothing_is_left(&data).await;
    assert!(!data.join("local.json").exists(), "nothing runs, so nothing is told");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_may_be_a_server_that_speaks_dynamodb() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let server = TableServer::start(Kind::Ministack).await.unwrap();
    let arguments = ["--region", "us-west-2", "--sample", "--then-stop", "--dynamodb-endpoint", &server.url()];
    let output = run(&data, "up", &arguments).await;
    let (said, told) = (words(&output.stdout), words(&output.stderr));
    assert!(output.status.success(), "{said}{told}");
    assert!(said.contains("us-west-2 > Region us-west-2, pod sample-"), "{said}");
    assert!(!DataFolder::open(&data).unwrap().table_file().exists(), "there is a table file, too");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_objects_and_addresses_survive_an_interruption_and_a_kill() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let region = ["--region", "us-west-2"];
    let instance = Instance::start(&data, &region).await;
    deploy(&data, "chat", "us-west-2").await;
    let gateway = answers(&data, "chat").await;
    let before = pods(&data).await;
    assert_eq!(before.len(), 1);

    assert_eq!(instance.end(Signal::SIGINT).await.code(), Some(0));
    nothing_is_left(&data).await;
    let instance = Instance::start(&data, &region).await;
    assert_eq!(answers(&data, "chat").await, gateway, "the address stays good");
    let after = pods(&data).await;
    assert_eq!((after[0].0.as_str(), after[0].1), (before[0].0.as_str(), before[0].1 + 1));

    let engines: Vec<u16> = {
        let map: BTreeMap<String, String> =
            serde_json::from_slice(&std::fs::read(&state(&data).regions[0].dial_map).unwrap()).unwrap();
        map.values().map(|local| port(local)).collect()
    };
    assert_eq!(engines.len(), 1);
    assert_eq!(instance.end(Signal::SIGKILL).await.code(), None);
    nothing_is_left(&data).await;
    for engine in engines {
        until("the engine to be gone", BOUND, || async {
            let answer = LoopbackClient::without_reuse().get(engine, "/health", BOUND).await;
            answer.map_or(Ok(()), |answer| Err(format!("{answer:?}")))
        })
        .await
        .unwrap();
    }

    let instance = Instance::start(&data, &region).await;
    assert_eq!(answers(&data, "chat").await, gateway);
    let after = pods(&data).await;
    assert_eq!((after[0].0.as_str(), after[0].1), (before[0].0.as_str(), before[0].1 + 2));
    assert_eq!(instance.end(Signal::SIGTERM).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_is_found_kept_running_and_stopped_by_its_folder() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let region = ["--region", "us-west-2"];
    let absent = run(&data, "status", &[]).await;
    assert!(words(&absent.stderr).contains("nothing was started there yet"), "{}", words(&absent.stderr));
    let mut instance = Instance::start(&data, &region).await;

    let second = run(&data, "up", &region).await;
    let pid = instance.child.id().unwrap();
    let said = words(&second.stderr);
    assert_eq!(second.status.code(), Some(1));
    assert!(said.contains(&format!("is in use by process {pid}: stop it with 'gco local down'")), "{said}");
    let refused = run(&data, "reset", &[]).await;
    assert!(words(&refused.stderr).contains("is in use by process"), "{}", words(&refused.stderr));
    let told: InstanceState = serde_json::from_slice(&run(&data, "status", &["--json"]).await.stdout).unwrap();
    assert_eq!((told.pid, told.regions[0].name.as_str()), (pid, "us-west-2"));
    assert_eq!(told.table, format!("embedded:{}", data.join("table.sqlite").display()));

    // A monitor is a process that knows the folder by its environment only.
    let monitors = || -> Vec<i32> {
        let known = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let variables = std::fs::read(entry.path().join("environ")).ok()?;
            let ours = words(&variables).contains(data.to_str()?);
            (ours && words(&line).trim_end_matches('\0').ends_with("gco-monitor") && !words(&line).contains('\n'))
                .then_some(id)
        });
        known.collect()
    };
    let found = monitors();
    assert_eq!(found.len(), 1, "{found:?}");
    kill(Pid::from_raw(found[0]), Signal::SIGKILL).unwrap();
    instance.says("region us-west-2: the monitor ended (signal: 9 (SIGKILL)").await;
    until("another monitor", BOUND, || {
        let now = monitors();
        std::future::ready(if now.len() == 1 && now != found { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .await
    .unwrap();

    assert!(run(&data, "down", &[]).await.status.success());
    assert_eq!(tokio::time::timeout(BOUND, instance.child.wait()).await.unwrap().unwrap().code(), Some(0));
    assert!(run(&data, "reset", &[]).await.status.success());
    assert!(!data.exists());
}
