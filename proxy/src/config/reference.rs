//! Every setting with its default and meaning: the source of `docs/proxy-configuration.md`.

/// One variable: name, default as one would write it (empty: none), meaning.
pub type Setting = (&'static str, &'static str, &'static str);

/// All of them, in the page's order.
pub const SETTINGS: [Setting; 50] = [
    ("PD_PROXY_HOST", "0.0.0.0", "address on which it listens"),
    ("PD_PROXY_PORT", "8000", "its port; 0 takes a free one, which the log line `listening` names"),
    (
        "PD_PROXY_PREFILL_URL",
        "",
        "prefill engines: `http://host:port`, several with commas, each one engine; none: every request is served whole by decode",
    ),
    ("PD_PROXY_DECODE_URL", "", "decode engines, likewise; needed unless another source names them"),
    (
        "GCO_PROXY_PREFILL_SERVICE",
        "",
        "prefill engines from the EndpointSlices of this Service: `name`, `name:port` with a port's name or number; without a port the only one, or the one called `http`",
    ),
    ("GCO_PROXY_DECODE_SERVICE", "", "decode engines, likewise"),
    ("GCO_PROXY_NAMESPACE", "", "namespace of these Services; none: the pod's own"),
    (
        "GCO_PROXY_BACKENDS_FILE",
        "",
        "a file that names the engines of both roles and is watched ([form](proxy.md#the-backends-file))",
    ),
    (
        "GCO_PROXY_DIAL_MAP_FILE",
        "",
        "for a region on one machine: where an address of an EndpointSlice really listens, `{\"192.0.2.7:8000\": \"127.0.0.1:23001\"}`, watched; an engine that it does not name is not ready",
    ),
    (
        "GCO_PROXY_CONNECTOR",
        "mooncake",
        "how the KV cache moves: `mooncake`, `nixl`, or `plain` (prefill primes a store that engines share)",
    ),
    ("GCO_PROXY_BOOTSTRAP_PORT", "8998", "port of a prefill engine's bootstrap server (`mooncake`)"),
    ("GCO_PROXY_BOOTSTRAP_TIMEOUT_SECONDS", "5", "for the answer of a bootstrap server"),
    (
        "GCO_PROXY_FALLBACK",
        "decode-only",
        "what happens when the KV cache cannot be moved: `decode-only` (decode computes the prompt) or `fail` (502 or 503)",
    ),
    ("GCO_PROXY_PREFILL_TIMEOUT_SECONDS", "120", "for prefill's answer"),
    (
        "GCO_PROXY_HANDOFF_TIMEOUT_SECONDS",
        "30",
        "from prefill's answer to decode's first event; far below the engine's own 480 s",
    ),
    ("GCO_PROXY_CONNECT_TIMEOUT_SECONDS", "5", "for a connection to an engine"),
    ("GCO_PROXY_IDLE_TIMEOUT_SECONDS", "300", "longest silence of an engine in the middle of an answer"),
    (
        "GCO_PROXY_ANSWER_TIMEOUT_SECONDS",
        "900",
        "for the first byte of decode's answer when nothing is handed over; an answer that is not a stream says nothing before its end",
    ),
    (
        "GCO_PROXY_POOL_IDLE_SECONDS",
        "4",
        "how long an unused connection to an engine is kept; less than the engine keeps it (vLLM: 5 s)",
    ),
    (
        "PD_PROXY_SCHEDULING",
        "power_of_two",
        "how an engine is chosen: `round_robin`, `least_loaded`, `power_of_two` (the less loaded of two at random)",
    ),
    (
        "GCO_PROXY_AFFINITY_HEADER",
        "",
        "requests with the same value of this header go to the same engine while that can be used and has at most a quarter more than the mean load",
    ),
    (
        "GCO_PROXY_SLOW_START_SECONDS",
        "10",
        "how long the share of an engine grows that has become ready, from a tenth to a whole one; 0: at once",
    ),
    ("GCO_PROXY_MAX_IN_FLIGHT_PER_BACKEND", "4096", "requests that one engine has at the same time, 1 to 1,000,000"),
    (
        "GCO_PROXY_QUEUE_LENGTH",
        "1024",
        "requests that may wait for a place per role, 0 to 1,000,000; more are answered 429 with `Retry-After`",
    ),
    ("GCO_PROXY_QUEUE_TIMEOUT_SECONDS", "10", "how long one may wait"),
    (
        "GCO_PROXY_BREAKER_FAILURES",
        "3",
        "failures in a row after which an engine gets no requests for a while; a refused connection or a 503 is enough while another engine can be used",
    ),
    (
        "GCO_PROXY_BREAKER_OPEN_SECONDS",
        "1",
        "how long that is the first time; then one request probes, and each failed probe doubles the time",
    ),
    ("GCO_PROXY_BREAKER_LONGEST_OPEN_SECONDS", "30", "how long it is at most"),
    ("PD_PROXY_NO_DECODE_BACKEND_STATUS", "503", "status of the answer when no decode engine can be used, 400 to 599"),
    ("PD_PROXY_NO_DECODE_BACKEND_MESSAGE", "no available decode backend", "its message"),
    (
        "GCO_PROXY_MAX_BODY_BYTES",
        "67108864",
        "largest body of a request (64 MiB), at most 1 GiB; larger ones are answered 413",
    ),
    ("GCO_PROXY_MAX_HEADER_BYTES", "65536", "largest head of a request, 8 KiB to 1 MiB"),
    ("GCO_PROXY_MAX_CONNECTIONS", "16384", "connections of clients at the same time"),
    ("GCO_PROXY_HEADER_TIMEOUT_SECONDS", "10", "for the head of a request"),
    (
        "GCO_PROXY_CLIENT_TIMEOUT_SECONDS",
        "300",
        "longest silence of a client in the middle of its body, and for a client that takes nothing of the answer",
    ),
    ("GCO_PROXY_KEEP_ALIVE_SECONDS", "75", "how long a client's connection may be unused"),
    (
        "GCO_PROXY_FORWARD_HEADERS",
        "",
        "request headers that go to engines besides the usual ones ([list](proxy.md#headers)), with commas; `*`: all end-to-end headers, `authorization` included",
    ),
    ("GCO_PROXY_TLS_CERTIFICATE_FILE", "", "certificate chain (PEM) of the listening port; none: plain HTTP"),
    ("GCO_PROXY_TLS_KEY_FILE", "", "its private key (PEM)"),
    (
        "GCO_PROXY_TLS_RELOAD_SECONDS",
        "10",
        "how often both files are looked at; new connections get a changed certificate, old ones stay",
    ),
    ("ADMIN_API_KEY", "", "key of the admin routes; none: they answer 403"),
    (
        "GCO_PROXY_DRAIN_SECONDS",
        "3600",
        "how long requests may go on after SIGTERM; the pod's `terminationGracePeriodSeconds` must be longer",
    ),
    ("GCO_PROXY_ACCESS_LOG_SAMPLE", "0", "share of requests that are logged, 0 to 1"),
    ("GCO_PROXY_WORKERS", "0", "threads that serve connections; 0: one per core"),
    ("LOG_FORMAT", "json", "`json` (one object per line) or `text`"),
    ("LOG_LEVEL", "INFO", "`DEBUG`, `INFO`, `WARNING`, `ERROR`"),
    ("CLUSTER_NAME", "unknown-cluster", "`cluster_id` of log lines"),
    ("REGION", "unknown-region", "`region` of log lines"),
    ("KUBECONFIG", "", "used outside of a cluster for EndpointSlices, as kubectl does"),
    ("PD_PROXY_CA_FILE", "", "refused when set: this version speaks plain HTTP to engines"),
];

/// Variables of existing manifests that are accepted with one value only: name, value, why.
pub const ONE_VALUE: [Setting; 6] = [
    ("PD_PROXY_RESIDENCY_TIMEOUT_SECONDS", "2", "there is no residency look-up yet"),
    ("PD_PROXY_RESIDENCY_CHECK_BLOCKING", "false", "there is no residency look-up yet"),
    ("PD_PROXY_RESIDENCY_MISS_TARGET", "prefill", "there is no residency look-up yet"),
    ("PD_PROXY_STORE_ADDRESS", "mooncake-master:50051", "there is no residency look-up yet"),
    ("PD_PROXY_DECODE_ROUTING", "ready_only", "engines that are not ready never get requests"),
    ("PD_PROXY_NO_DECODE_BACKEND_ACTION", "reject", "without a decode engine a request is refused"),
];

/// The page, in Markdown.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "# Configuration of the prefill-decode proxy\n\nGenerated from `proxy/src/config/reference.rs`; do not edit.\n\nEverything is \
         read from the environment and checked before a port opens; every problem is named at once. An empty value is as \
         none. Times are seconds, from 0.01 to a day; fractions are allowed. Backends of a role come from one source. What \
         begins like these names and is not one of them is named in a warning at the start.\n\n\
         | Variable | Default | Meaning |\n|---|---|---|\n",
    );
    for (name, default, meaning) in SETTINGS {
        let shown = if default.is_empty() { String::new() } else { format!("`{default}`") };
        page.push_str(&format!("| `{name}` | {shown} | {meaning} |\n"));
    }
    page.push_str(
        "\n## Accepted with one value\n\nManifests of the original control plane set these. Each is accepted with the value \
         below, and refused with another.\n\n| Variable | Value | Why no other |\n|---|---|---|\n",
    );
    for (name, value, why) in ONE_VALUE {
        page.push_str(&format!("| `{name}` | `{value}` | {why} |\n"));
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gco_runtime::environment::{Environment, EnvironmentError};

    use super::*;
    use crate::config::Settings;

    const DECODE: (&str, &str) = ("PD_PROXY_DECODE_URL", "http://decode:8000");

    fn with(name: &str, value: &str) -> Result<Settings, EnvironmentError> {
        Settings::read(&Environment::from_pairs([DECODE, (name, value)]))
    }

    #[test]
    fn a_default_that_is_written_out_is_the_default() {
        let nothing = Settings::read(&Environment::from_pairs([DECODE])).unwrap();
        for (name, default, _) in SETTINGS.iter().chain(&ONE_VALUE).filter(|(_, default, _)| !default.is_empty()) {
            assert_eq!(with(name, default).unwrap(), nothing, "{name}={default}");
        }
    }

    #[test]
    fn what_is_accepted_with_one_value_is_refused_with_another() {
        for (name, ..) in ONE_VALUE {
            assert_eq!(with(name, "something else").unwrap_err().problems[0].name, name);
        }
        assert!(with("PD_PROXY_CA_FILE", "/ca.crt").is_err());
    }

    #[test]
    fn every_variable_that_the_configuration_reads_is_on_the_page() {
        let known: BTreeSet<&str> = SETTINGS.iter().chain(&ONE_VALUE).map(|(name, ..)| *name).collect();
        let prefixes = ["GCO_PROXY_", "PD_PROXY_", "ADMIN_", "CLUSTER_", "REGION"];
        let is_name = |text: &&str| {
            let letters = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
            text.bytes().all(letters)
                && prefixes.iter().any(|prefix| text.starts_with(prefix) && !text.ends_with('_'))
                // Kubernetes sets it for a Service that is called so.
                && *text != "GCO_PROXY_PORT"
        };
        let sources = [include_str!("mod.rs"), include_str!("sources.rs")];
        let quoted = sources.iter().flat_map(|source| source.split('"').skip(1).step_by(2));
        let read: BTreeSet<&str> = quoted.filter(is_name).collect();
        assert!(read.len() > 40, "{read:?}");
        assert_eq!(read.difference(&known).collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}
