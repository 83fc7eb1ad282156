//! Where backends come from.

pub mod ask;
mod dial_map;
mod file;
pub mod fixed;
mod slices;

use std::pin::pin;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backend::{Bootstrap, Dial, Role};
use super::fleet::Fleet;
use crate::config::{ServiceChoice, Source, Sources};
use dial_map::{DialMap, WatchedFile};

/// How often files are looked at.
const LOOKS_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// How long a connection to the API server may take to come up.
const CONNECT_TIME_OUT: Duration = Duration::from_secs(5);

/// Starts every source. What is known at once (fixed lists, the file) is in the fleet when this returns; the rest follows.
///
/// # Errors
/// When the backends file cannot be used, or there is no Kubernetes configuration for EndpointSlices.
pub async fn start(sources: &Sources, fleet: &Fleet, stop: &CancellationToken) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let mut tasks = Vec::new();
    let mut client: Option<(Client, String)> = None;
    for role in Role::ALL {
        match sources.of(role) {
            Source::None => fleet.apply(role, &[], Instant::now()),
            Source::Fixed(described) => fleet.apply(role, &fixed::all_ready(described), Instant::now()),
            Source::File => {}
            Source::Service(service) => {
                let (client, namespace) = match &client {
                    Some(known) => known.clone(),
                    None => client.insert(kubernetes(sources.namespace.as_deref()).await?).clone(),
                };
                let watch = SliceWatch {
                    role,
                    slices: Api::namespaced(client, &namespace),
                    service: service.clone(),
                    bootstrap_port: sources.bootstrap_port,
                    dial_map: sources.dial_map.clone().map(|path| (WatchedFile::new(path), DialMap::new())),
                    fleet: fleet.clone(),
                };
                tasks.push(until(stop, watch.run()));
            }
        }
    }
    if let Some(path) = &sources.file {
        let mut file = WatchedFile::new(path.clone());
        let text = file.changed().await.with_context(|| format!("reading {}", path.display()))?.unwrap_or_default();
        let named = file::parse(text).map_err(|wrong| anyhow::anyhow!("{}: {wrong}", path.display()))?;
        apply_file(fleet, &named);
        tasks.push(until(stop, watch_file(file, fleet.clone())));
    }
    Ok(tasks)
}

/// A task that does `work` until the process stops.
fn until(stop: &CancellationToken, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let stop = stop.clone();
    tokio::spawn(async move {
        stop.run_until_cancelled(work).await;
    })
}

/// A client and the namespace of the Services.
async fn kubernetes(namespace: Option<&str>) -> anyhow::Result<(Client, String)> {
    let mut config = kube::Config::infer().await.context("no Kubernetes configuration")?;
    config.connect_timeout = Some(CONNECT_TIME_OUT);
    let namespace = namespace.unwrap_or(&config.default_namespace).to_owned();
    Ok((Client::try_from(config).context("no Kubernetes client")?, namespace))
}

fn apply_file(fleet: &Fleet, named: &file::Named) {
    for role in Role::ALL {
        fleet.apply(role, &named[role.index()], Instant::now());
    }
}

/// Takes in every change of the backends file. What cannot be used is said once and changes nothing.
async fn watch_file(mut file: WatchedFile, fleet: Fleet) {
    let path = file.path().display().to_string();
    let mut said = String::new();
    loop {
        tokio::time::sleep(LOOKS_AGAIN_AFTER).await;
        let wrong = match file.changed().await {
            Ok(None) => continue,
            Ok(Some(text)) => match file::parse(text) {
                Ok(named) => {
                    apply_file(&fleet, &named);
                    String::new()
                }
                Err(wrong) => wrong,
            },
            Err(error) => error.to_string(),
        };
        if !wrong.is_empty() {
            for role in Role::ALL {
                fleet.count_source_error(role);
            }
            if wrong != said {
                tracing::warn!(path, error = wrong, "the backends file cannot be used; the last good one counts");
            }
        }
        said = wrong;
    }
}

/// The watch of one Service's EndpointSlices.
struct SliceWatch {
    role: Role,
    slices: Api<EndpointSlice>,
    service: ServiceChoice,
    bootstrap_port: Option<u16>,
    dial_map: Option<(WatchedFile, DialMap)>,
    fleet: Fleet,
}

impl SliceWatch {
    async fn run(mut self) {
        let config = watcher::Config::default().labels(&format!("kubernetes.io/service-name={}", self.service.name));
        let mut events = pin!(watcher(self.slices.clone(), config).default_backoff());
        let mut known = slices::Slices::default();
        let mut is_complete = false;
        let mut looks = tokio::time::interval(LOOKS_AGAIN_AFTER);
        loop {
            let changed = tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => known.take(event),
                    Some(Err(error)) => {
                        self.fleet.count_source_error(self.role);
                        let (role, service) = (self.role.word(), &self.service.name);
                        // Without it, what was known last goes on being used; breakers take out what is gone.
                        tracing::warn!(role, service, error = %error, "EndpointSlices cannot be watched now");
                        false
                    }
                    // The stream of a watcher does not end by itself.
                    None => return,
                },
                // Only a region on one machine has a dial map.
                _ = looks.tick(), if self.dial_map.is_some() => false,
            };
            is_complete |= changed;
            let mapped = self.read_dial_map().await;
            if is_complete && (changed || mapped) {
                self.apply(&known);
            }
        }
    }

    /// Reads the dial map, if there is one; says whether it changed.
    async fn read_dial_map(&mut self) -> bool {
        let Some((file, map)) = &mut self.dial_map else { return false };
        let path = file.path().display().to_string();
        let read = match file.changed().await {
            Ok(None) => return false,
            Ok(Some(text)) => dial_map::parse(text).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(read) => {
                *map = read;
                true
            }
            Err(error) => {
                tracing::warn!(path, error, "the dial map cannot be used; the last good one counts");
                false
            }
        }
    }

    fn apply(&self, known: &slices::Slices) {
        let described = slices::backends(self.role, known.all(), &self.service.port, self.bootstrap_port);
        let described = match &self.dial_map {
            None => described,
            Some((_, map)) => described.into_iter().map(|one| dial_map::mapped(map, one)).collect(),
        };
        self.fleet.apply(self.role, &described, Instant::now());
    }
}

/// An address of the form `host:port` or `[v6]:port`, taken apart; `None` when it is not one.
#[must_use]
pub fn dial_of(authority: &str) -> Option<Dial> {
    let parsed: http::uri::Authority = authority.parse().ok()?;
    if authority.contains('@') {
        return None;
    }
    let port = parsed.port_u16().filter(|port| *port != 0)?;
    let host = parsed.host().trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return None;
    }
    Some(match host.parse() {
        Ok(address) => Dial::Address(std::net::SocketAddr::new(address, port)),
        Err(_) => Dial::Name { host: host.to_owned(), port },
    })
}

/// `host:port` with brackets around an IPv6 host.
#[must_use]
pub fn authority(host: &str, port: u16) -> String {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.contains(':') { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") }
}

/// The bootstrap server at a port of a host that is dialled under its own name.
pub(crate) fn bootstrap_at(host: &str, port: u16) -> Option<Bootstrap> {
    let authority = authority(host, port);
    Some(Bootstrap { dial: dial_of(&authority)?, address: format!("http://{authority}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_backends_file_is_followed_and_a_bad_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("backends.json");
        std::fs::write(&path, r#"{"decode": [{"url": "http://127.0.0.1:1"}]}"#).unwrap();
        let sources = Sources {
            prefill: Source::File,
            decode: Source::File,
            file: Some(path.clone()),
            dial_map: None,
            namespace: None,
            bootstrap_port: None,
        };
        let fleet = Fleet::new(super::super::FleetSettings::default(), Instant::now());
        let stop = CancellationToken::new();
        let tasks = start(&sources, &fleet, &stop).await.unwrap();
        assert!(fleet.has_ready(Role::Decode) && !fleet.has_ready(Role::Prefill) && fleet.is_known(Role::Prefill));
        let seen = async |wanted: &dyn Fn(&Fleet) -> bool| {
            let wait = async {
                while !wanted(&fleet) {
                    tokio::task::yield_now().await;
                }
            };
            let bound = Duration::from_secs(20);
            assert!(tokio::time::timeout(bound, wait).await.is_ok(), "last seen: {fleet:?}");
        };
        std::fs::write(&path, r#"{"decode": [{"url": "http://127.0.0.1:1"}, {"url": "http://127.0.0.1:2"}]}"#).unwrap();
        seen(&|fleet| fleet.backends(Role::Decode).len() == 2).await;
        std::fs::write(&path, "{").unwrap();
        seen(&|fleet| fleet.source_errors(Role::Decode) > 0).await;
        assert_eq!(fleet.backends(Role::Decode).len(), 2);
        std::fs::write(&path, "{}").unwrap();
        seen(&|fleet| fleet.backends(Role::Decode).is_empty()).await;
        stop.cancel();
        for task in tasks {
            task.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_backends_file_that_is_not_there_or_wrong_at_the_start_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("backends.json");
        let sources = Sources {
            prefill: Source::None,
            decode: Source::File,
            file: Some(path.clone()),
            dial_map: None,
            namespace: None,
            bootstrap_port: None,
        };
        let fleet = Fleet::new(super::super::FleetSettings::default(), Instant::now());
        let error = start(&sources, &fleet, &CancellationToken::new()).await.unwrap_err();
        assert!(format!("{error:#}").contains("backends.json"), "{error:#}");
        std::fs::write(&path, r#"{"decode": [{}]}"#).unwrap();
        let error = start(&sources, &fleet, &CancellationToken::new()).await.unwrap_err();
        assert!(format!("{error:#}").contains("decode[0]: url"), "{error:#}");
    }

    #[test]
    fn hosts_ports_and_brackets_are_understood() {
        assert_eq!(dial_of("192.0.2.7:8000"), Some(Dial::Address(([192, 0, 2, 7], 8_000).into())));
        assert_eq!(dial_of("[2001:db8::7]:80"), Some(Dial::Address("[2001:db8::7]:80".parse().unwrap())));
        assert_eq!(dial_of("decode.svc:8000"), Some(Dial::Name { host: "decode.svc".to_owned(), port: 8_000 }));
        for wrong in ["", "decode", "decode:", "decode:0", "decode:70000", ":80", "user@decode:80", "a b:80", "x/y:80"]
        {
            assert_eq!(dial_of(wrong), None, "{wrong}");
        }
        assert_eq!(authority("2001:db8::7", 80), "[2001:db8::7]:80");
        assert_eq!(authority("[2001:db8::7]", 80), "[2001:db8::7]:80");
        assert_eq!(authority("decode", 80), "decode:80");
    }
}
