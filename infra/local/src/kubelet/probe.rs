//! Startup, readiness and liveness probes, with a kubelet's clockwork.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::loopback::LoopbackClient;

/// The path that a probe asks and the number of the container's port.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ask {
    Http {
        path: String,
        port: u16,
        headers: Vec<(String, String)>,
    },
    Connect {
        port: u16,
    },
    /// Commands cannot be run in a container that does not exist: they succeed while it runs.
    Command,
    /// What cannot be asked; the text is the failure.
    Impossible(String),
}

/// One probe with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbePlan {
    ask: Ask,
    initial_delay: Duration,
    period: Duration,
    time_out: Duration,
    successes_needed: u32,
    failures_needed: u32,
}

/// What a probe has come to think.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    /// With the words for the event.
    Bad(String),
}

/// How to reach a running container.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    /// Where the ports of the container really listen.
    pub(super) ports: BTreeMap<u16, u16>,
}

impl ProbePlan {
    /// Reads a probe of a container. Times are divided by `pace`.
    pub(super) fn new(probe: &Probe, container: &Container, pace: u32) -> Self {
        let whole =
            |value: Option<i32>, default: u32| value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default);
        let time = |value: Option<i32>, default: u32| Duration::from_secs(whole(value, default).into()) / pace.max(1);
        let ask = if let Some(get) = &probe.http_get {
            http(get, container)
        } else if let Some(connect) = &probe.tcp_socket {
            port_number(&connect.port, container).map_or_else(Ask::Impossible, |port| Ask::Connect { port })
        } else if probe.exec.is_some() {
            Ask::Command
        } else {
            Ask::Impossible("this kind of probe is not simulated".to_owned())
        };
        Self {
            ask,
            initial_delay: time(probe.initial_delay_seconds, 0),
            period: time(probe.period_seconds.filter(|period| *period > 0), 10).max(Duration::from_millis(10)),
            // An answer takes as long as it takes, whatever the pace of the probes is.
            time_out: Duration::from_secs(whole(probe.timeout_seconds.filter(|time| *time > 0), 1).into()),
            successes_needed: whole(probe.success_threshold, 1).max(1),
            failures_needed: whole(probe.failure_threshold, 3).max(1),
        }
    }

    /// Probes for ever and calls `tell` whenever the verdict changes, first of all when there is
    /// one. `on_failure` hears of every single failure.
    pub(super) async fn run(
        self,
        reach: Reach,
        started: Instant,
        mut tell: impl FnMut(Verdict),
        mut on_failure: impl FnMut(&str),
    ) {
        let client = LoopbackClient::without_reuse();
        tokio::time::sleep_until(started + self.initial_delay).await;
        let (mut successes, mut failures, mut told) = (0_u32, 0_u32, None);
        loop {
            let next = Instant::now() + self.period;
            let verdict = match self.look(&client, &reach).await {
                Ok(()) => {
                    (successes, failures) = (successes.saturating_add(1), 0);
                    (successes >= self.successes_needed).then_some(Verdict::Good)
                }
                Err(message) => {
                    (successes, failures) = (0, failures.saturating_add(1));
                    on_failure(&message);
                    (failures >= self.failures_needed).then_some(Verdict::Bad(message))
                }
            };
            if let Some(verdict) = verdict {
                let good = verdict == Verdict::Good;
                if told != Some(good) {
                    told = Some(good);
                    tell(verdict);
                }
            }
            tokio::time::sleep_until(next).await;
        }
    }

    async fn look(&self, client: &LoopbackClient, reach: &Reach) -> Result<(), String> {
        let local = |port: &u16| {
            let local = reach.ports.get(port).copied();
            local.ok_or_else(|| format!("dial tcp: port {port}: connect: connection refused"))
        };
        match &self.ask {
            Ask::Command => Ok(()),
            Ask::Impossible(message) => Err(message.clone()),
            Ask::Connect { port } => {
                let connect = TcpStream::connect(("127.0.0.1", local(port)?));
                match tokio::time::timeout(self.time_out, connect).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(problem)) => Err(format!("dial tcp: port {port}: {problem}")),
                    Err(_) => Err(format!("dial tcp: port {port}: i/o timeout")),
                }
            }
            Ask::Http { path, port, headers } => {
                let mut request = Request::get(path.as_str()).header("user-agent", "kube-probe/1.35");
                for (name, value) in headers {
                    request = request.header(name, value);
                }
                let request = request.body(Body::empty()).map_err(|problem| problem.to_string())?;
                match client.call(local(port)?, request, self.time_out).await {
                    Ok(answer) if (200..400).contains(&answer.status.as_u16()) => Ok(()),
                    Ok(answer) => Err(format!("HTTP probe failed with statuscode: {}", answer.status.as_u16())),
                    Err(problem) => Err(problem.to_string()),
                }
            }
        }
    }
}

fn http(get: &HTTPGetAction, container: &Container) -> Ask {
    if get.scheme.as_deref().is_some_and(|scheme| scheme != "HTTP") {
        return Ask::Impossible("HTTPS probes are not simulated".to_owned());
    }
    let path = get.path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    let headers = get.http_headers.iter().flatten().map(|header| (header.name.clone(), header.value.clone())).collect();
    port_number(&get.port, container).map_or_else(Ask::Impossible, |port| Ask::Http { path, port, headers })
}

/// The number of a port that is given by number or by the name that the container gives it.
pub(super) fn port_number(port: &IntOrString, container: &Container) -> Result<u16, String> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).map_err(|_| format!("{number} is no port")),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|one| one.name.as_deref() == Some(name));
            let number = named.map(|one| one.container_port).or_else(|| name.parse().ok());
            number
                .and_then(|number| u16::try_from(number).ok())
                .ok_or_else(|| format!("couldn't find port {name:?} in the container's ports"))
        }
    }
}

/// How long a container's preStop hook keeps it from getting its SIGTERM; an HTTP hook is called.
pub(super) async fn before_stop(container: &Container, reach: &Reach) {
    let Some(hook) = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref()) else { return };
    if let Some(get) = &hook.http_get {
        if let Ask::Http { path, port, .. } = http(get, container)
            && let Some(local) = reach.ports.get(&port)
        {
            // The pod's grace bounds the hook; what it answers does not matter.
            let _ = LoopbackClient::without_reuse().get(*local, &path, Duration::from_secs(3600)).await;
        }
        return;
    }
    tokio::time::sleep(hook_delay(container)).await;
}

/// The seconds of a preStop hook that sleeps; zero for any other.
pub(super) fn hook_delay(container: &Container) -> Duration {
    let Some(hook) = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref()) else {
        return Duration::ZERO;
    };
    let slept = hook.sleep.as_ref().and_then(|sleep| u64::try_from(sleep.seconds).ok());
    let command = hook.exec.as_ref().and_then(|exec| exec.command.as_deref()).unwrap_or_default();
    let slept = slept.or_else(|| sleep_seconds(command));
    Duration::from_secs(slept.unwrap_or_default())
}

/// The number after the word `sleep`, also inside of a shell's text.
fn sleep_seconds(command: &[String]) -> Option<u64> {
    let words: Vec<&str> = command.iter().flat_map(|part| part.split([' ', ';', '&'])).collect();
    let position = words.iter().position(|word| *word == "sleep" || word.ends_with("/sleep"))?;
    words.get(position + 1)?.trim_end_matches('s').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};

    fn container() -> Container {
        serde_json::from_value(json!({"name": "c", "ports": [{"name": "http", "containerPort": 8000}]})).unwrap()
    }

    fn probe(value: &serde_json::Value) -> ProbePlan {
        ProbePlan::new(&serde_json::from_value(value.clone()).unwrap(), &container(), 1)
    }

    #[test]
    fn defaults_and_named_ports_are_a_kubelets() {
        let plan = probe(&json!({"httpGet": {"path": "health", "port": "http"}}));
        assert_eq!(plan.ask, Ask::Http { path: "/health".to_owned(), port: 8000, headers: Vec::new() });
        assert_eq!((plan.period, plan.time_out), (Duration::from_secs(10), Duration::from_secs(1)));
        assert_eq!((plan.successes_needed, plan.failures_needed), (1, 3));
        let unknown = probe(&json!({"httpGet": {"path": "/", "port": "other"}}));
        assert!(matches!(unknown.ask, Ask::Impossible(_)));
    }

    #[tokio::test]
    async fn the_verdict_changes_only_at_the_thresholds() {
        let healthy = Arc::new(AtomicU32::new(503));
        let answer = {
            let healthy = Arc::clone(&healthy);
            async move || http::StatusCode::from_u16(healthy.load(Ordering::SeqCst).try_into().unwrap()).unwrap()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = axum::Router::new().route("/health", axum::routing::get(answer));
        tokio::spawn(axum::serve(listener, router).into_future());

        let mut plan = probe(&json!({"httpGet": {"path": "/health", "port": 8000}, "failureThreshold": 2}));
        plan.period = Duration::from_millis(10);
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let failures = Arc::new(Mutex::new(0));
        let count = Arc::clone(&failures);
        let reach = Reach { ports: BTreeMap::from([(8000, port)]) };
        let prober = tokio::spawn(plan.run(
            reach,
            Instant::now(),
            move |verdict| tell.send(verdict).unwrap(),
            move |_| *count.lock().unwrap() += 1,
        ));
        let mut next = async || tokio::time::timeout(Duration::from_secs(20), told.recv()).await.unwrap().unwrap();
        assert_eq!(next().await, Verdict::Bad("HTTP probe failed with statuscode: 503".to_owned()));
        assert!(*failures.lock().unwrap() >= 2);
        healthy.store(200, Ordering::SeqCst);
        assert_eq!(next().await, Verdict::Good);
        prober.abort();
    }

    #[test]
    fn sleeping_hooks_are_understood_in_every_spelling() {
        let delay = |hook: serde_json::Value| {
            let mut container = container();
            container.lifecycle = Some(serde_json::from_value(json!({"preStop": hook})).unwrap());
            hook_delay(&container).as_secs()
        };
        assert_eq!(delay(json!({"sleep": {"seconds": 7}})), 7);
        assert_eq!(delay(json!({"exec": {"command": ["sleep", "5"]}})), 5);
        assert_eq!(delay(json!({"exec": {"command": ["/bin/sh", "-c", "sleep 15; true"]}})), 15);
        assert_eq!(delay(json!({"exec": {"command": ["true"]}})), 0);
        assert_eq!(hook_delay(&container()), Duration::ZERO);
    }
}
