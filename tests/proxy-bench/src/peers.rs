//! What is measured: our proxy, its peers, and the two bases. Who they are and how each is started.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use gco_bed::process::ProcessSettings;

use crate::install::{Installed, library_folder, python};

/// Something that requests are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Contender {
    /// The client asks decode, nothing is between.
    Direct,
    /// The client asks prefill and then decode by itself.
    DirectBoth,
    /// Our proxy with its shipped defaults and the NIXL connector.
    GcoProxy,
    /// nginx: one hop to decode.
    Nginx,
    /// HAProxy: one hop to decode.
    Haproxy,
    /// Envoy: one hop to decode.
    Envoy,
    /// vLLM's router: prefill, then decode.
    VllmRouter,
    /// SGLang's router: both at once.
    SglangRouter,
    /// Its successor: prefill, then decode.
    Smg,
}

impl Contender {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 9] = [
        Self::Direct,
        Self::DirectBoth,
        Self::GcoProxy,
        Self::Nginx,
        Self::Haproxy,
        Self::Envoy,
        Self::VllmRouter,
        Self::SglangRouter,
        Self::Smg,
    ];

    /// Its name in arguments and in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::DirectBoth => "directpd",
            Self::GcoProxy => "gco-proxy",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::VllmRouter => "vllm-router",
            Self::SglangRouter => "sglang-router",
            Self::Smg => "smg",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|contender| contender.name() == name)
    }

    /// Whether it is a client without a proxy.
    #[must_use]
    pub const fn is_base(self) -> bool {
        matches!(self, Self::Direct | Self::DirectBoth)
    }

    /// What its latency is above: the client that does as many hops.
    #[must_use]
    pub const fn base(self) -> Self {
        match self {
            Self::Direct | Self::Nginx | Self::Haproxy | Self::Envoy => Self::Direct,
            Self::DirectBoth | Self::GcoProxy | Self::VllmRouter | Self::SglangRouter | Self::Smg => Self::DirectBoth,
        }
    }
}

/// Where a proxy listens and what is behind it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The port for clients.
    pub port: u16,
    /// Another free port, for those that insist on one for metrics.
    pub metrics_port: u16,
    /// Prefill.
    pub prefill: SocketAddr,
    /// Decode.
    pub decode: SocketAddr,
    /// How many threads it may use, where that has to be said.
    pub threads: usize,
    /// A folder that lasts as long as the proxy.
    pub folder: &'a Path,
}

/// How a proxy is started.
///
/// # Errors
/// When its configuration cannot be written, or it is a base.
pub fn settings(installed: &Installed, place: Place<'_>) -> anyhow::Result<ProcessSettings> {
    let contender = installed.contender;
    let log = place.folder.join("log");
    let Place { port, metrics_port, prefill, decode, .. } = place;
    let (prefill_url, decode_url) = (format!("http://{prefill}"), format!("http://{decode}"));
    let written = |name: &str, text: String| -> anyhow::Result<PathBuf> {
        let path = place.folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    };
    let program = |log: PathBuf| ProcessSettings::new(installed.program.clone(), log).working_dir(place.folder);
    let router = |module: &str, log: PathBuf| {
        // Round robin and few words: what each needs for its best figures. Everything else as its authors ship it.
        python(&installed.folder, log)
            .arguments(["-m", module])
            .working_dir(place.folder)
            .arguments(if module == "smg.cli" { vec!["launch"] } else { vec![] })
            .arguments(["--host", "127.0.0.1", "--policy", "round_robin", "--worker-startup-check-interval", "1"])
            .arguments(["--port", &port.to_string(), "--prometheus-port", &metrics_port.to_string()])
    };
    Ok(match contender {
        Contender::Direct | Contender::DirectBoth => anyhow::bail!("{} is no process", contender.name()),
        Contender::GcoProxy => program(log)
            .without_our_environment()
            .variable("PD_PROXY_HOST", "127.0.0.1")
            .variable("PD_PROXY_PORT", port.to_string())
            .variable("PD_PROXY_PREFILL_URL", prefill_url)
            .variable("PD_PROXY_DECODE_URL", decode_url)
            .variable("GCO_PROXY_CONNECTOR", "nixl"),
        Contender::Nginx => {
            let file = written("nginx.conf", nginx(port, decode, place.threads, place.folder))?;
            program(log)
                .argument("-p")
                .argument(place.folder)
                .argument("-e")
                .argument("error.log")
                .argument("-c")
                .argument(file)
        }
        Contender::Haproxy => {
            let file = written("haproxy.cfg", haproxy(port, decode, place.threads))?;
            program(log)
                .variable("LD_LIBRARY_PATH", library_folder(&installed.folder))
                .arguments(["-db", "-f"])
                .argument(file)
        }
        Contender::Envoy => {
            let file = written("envoy.json", envoy(port, decode).to_string())?;
            program(log)
                .arguments(["--disable-hot-restart", "--log-level", "error", "--concurrency"])
                .argument(place.threads.to_string())
                .argument("-c")
                .argument(file)
        }
        Contender::VllmRouter => router("vllm_router.launch_router", log)
            .arguments(["--vllm-pd-disaggregation", "--log-level", "warning"])
            .arguments(["--prefill", &prefill_url, "--decode", &decode_url]),
        Contender::SglangRouter => router("sglang_router.launch_router", log)
            .arguments(["--pd-disaggregation", "--log-level", "error"])
            .arguments(["--prefill", &prefill_url, "8998", "--decode", &decode_url]),
        Contender::Smg => router("smg.cli", log)
            .arguments(["--pd-disaggregation", "--log-level", "error"])
            .arguments(["--prefill", &prefill_url, "8998", "--decode", &decode_url]),
    })
}

/// One hop to decode without buffering, with connections that are kept.
fn nginx(port: u16, decode: SocketAddr, workers: usize, folder: &Path) -> String {
    let mut text = String::new();
    let temporary = folder.display();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "daemon off;\nmaster_process {};\nworker_processes {workers};\nworker_rlimit_nofile 8192;\npid nginx.pid;\n\
         events {{ worker_connections 4096; }}\nhttp {{\n  access_log off;\n  client_max_body_size 64m;\n  \
         client_body_buffer_size 1m;\n",
        if workers > 1 { "on" } else { "off" },
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(text, "  {kind}_temp_path {temporary}/{kind}_temp;");
    }
    let _ = write!(
        text,
        "  keepalive_requests 1000000000;\n  upstream decode {{\n    server {decode};\n    keepalive 2048;\n    \
         keepalive_requests 1000000000;\n  }}\n  server {{\n    listen 127.0.0.1:{port} backlog=2048;\n    location / {{\n      \
         proxy_pass http://decode;\n      proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      \
         proxy_buffering off;\n      proxy_request_buffering off;\n    }}\n  }}\n}}\n"
    );
    text
}

/// One hop to decode, no waiting for more data before it is sent.
fn haproxy(port: u16, decode: SocketAddr, threads: usize) -> String {
    format!(
        "global\n  maxconn 4096\n  nbthread {threads}\ndefaults\n  mode http\n  option http-no-delay\n  http-reuse always\n  \
         timeout connect 5s\n  timeout client 300s\n  timeout server 300s\nfrontend clients\n  \
         bind 127.0.0.1:{port} backlog 2048\n  default_backend decode\nbackend decode\n  server decode {decode}\n"
    )
}

/// One hop to decode, without limits that 1,000 streams would meet.
fn envoy(port: u16, decode: SocketAddr) -> serde_json::Value {
    let type_of = |name: &str| format!("type.googleapis.com/envoy.extensions.filters.{name}");
    let address = |address: SocketAddr| serde_json::json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}});
    let route = serde_json::json!({
        "virtual_hosts": [{
            "name": "all", "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "decode", "timeout": "0s"}}],
        }],
    });
    let manager = serde_json::json!({
        "name": "http",
        "typed_config": {
            "@type": type_of("network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": "clients",
            // Without this Envoy makes and replaces request ids, which costs it time that no other hop spends here.
            "generate_request_id": false,
            "preserve_external_request_id": true,
            "route_config": route,
            "http_filters": [{"name": "router", "typed_config": {"@type": type_of("http.router.v3.Router")}}],
        },
    });
    let most = 4096;
    serde_json::json!({"static_resources": {
        "listeners": [{
            "name": "clients",
            "address": address(SocketAddr::from(([127, 0, 0, 1], port))),
            "filter_chains": [{"filters": [manager]}],
        }],
        "clusters": [{
            "name": "decode", "type": "STATIC", "connect_timeout": "5s",
            "circuit_breakers": {"thresholds": [
                {"max_connections": most, "max_pending_requests": most, "max_requests": most},
            ]},
            "load_assignment": {
                "cluster_name": "decode",
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(decode)}}]}],
            },
        }],
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_is_found_by_its_name() {
        for contender in Contender::ALL {
            assert_eq!(Contender::named(contender.name()), Some(contender));
            assert!(contender.base().is_base());
        }
        assert_eq!(Contender::named("squid"), None);
    }

    #[test]
    fn one_hop_is_compared_with_one_hop() {
        assert_eq!(Contender::Envoy.base(), Contender::Direct);
        assert_eq!(Contender::GcoProxy.base(), Contender::DirectBoth);
    }
}
