use super::*;
use crate::backends::Role;

/// What the original control plane sets for a split endpoint (contract D.1).
const ORIGINAL: [(&str, &str); 13] = [
    ("PD_PROXY_RESIDENCY_TIMEOUT_SECONDS", "2"),
    ("PD_PROXY_RESIDENCY_CHECK_BLOCKING", "false"),
    ("PD_PROXY_RESIDENCY_MISS_TARGET", "prefill"),
    ("PD_PROXY_DECODE_ROUTING", "ready_only"),
    ("PD_PROXY_NO_DECODE_BACKEND_ACTION", "reject"),
    ("PD_PROXY_NO_DECODE_BACKEND_STATUS", "503"),
    ("PD_PROXY_NO_DECODE_BACKEND_MESSAGE", "no available decode backend"),
    ("PD_PROXY_SCHEDULING", "round_robin"),
    ("PD_PROXY_STORE_ADDRESS", "mooncake-master:50051"),
    ("ADMIN_API_KEY", "a-key"),
    ("PD_PROXY_PORT", "8000"),
    ("PD_PROXY_PREFILL_URL", "http://split-llm-prefill:8000"),
    ("PD_PROXY_DECODE_URL", "http://split-llm-decode:8000"),
];

const DECODE: (&str, &str) = ("PD_PROXY_DECODE_URL", "http://decode:8000");

fn read(pairs: &[(&str, &str)]) -> Result<Settings, EnvironmentError> {
    Settings::read(&Environment::from_pairs(pairs.iter().copied()))
}

/// The names that are refused, sorted.
fn refused(pairs: &[(&str, &str)]) -> Vec<String> {
    let error = read(pairs).unwrap_err();
    let mut names: Vec<String> = error.problems.iter().map(|problem| problem.name.clone()).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_environment_of_the_original_control_plane_is_accepted_as_it_is() {
    let settings = read(&ORIGINAL).unwrap();
    assert_eq!(settings.port, 8_000);
    assert_eq!(settings.fleet.policy, Policy::RoundRobin);
    assert_eq!(settings.no_decode_status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(settings.admin_key, Some(Secret::new("a-key".to_owned())));
    assert!(settings.sources.has_prefill());
    let Source::Fixed(prefill) = settings.sources.of(Role::Prefill) else { panic!("{settings:?}") };
    assert_eq!(prefill[0].authority, "split-llm-prefill:8000");
    assert_eq!(prefill[0].bootstrap.as_ref().unwrap().address, "http://split-llm-prefill:8998");
    assert_eq!(settings.unknown, Vec::<String>::new());
}

#[test]
fn with_a_decode_address_alone_everything_has_its_documented_default() {
    let settings = read(&[DECODE]).unwrap();
    assert_eq!((settings.host.as_str(), settings.port), ("0.0.0.0", 8_000));
    assert_eq!(settings.fleet, FleetSettings::default());
    assert_eq!(settings.fleet.policy, Policy::PowerOfTwo);
    assert_eq!(settings.hand_off_time_out, Duration::from_secs(30));
    assert_eq!(settings.max_body_bytes, 64 << 20);
    assert_eq!(settings.forward_headers, Forwarded::Names(Vec::new()));
    assert_eq!((&settings.admin_key, &settings.tls, &settings.affinity_header), (&None, &None, &None));
    assert!(!settings.sources.has_prefill(), "no prefill address: no priming");
}

#[test]
fn what_waits_for_residency_is_refused_unless_it_is_the_contracts_default() {
    let other = [
        DECODE,
        ("PD_PROXY_RESIDENCY_TIMEOUT_SECONDS", "5"),
        ("PD_PROXY_RESIDENCY_CHECK_BLOCKING", "true"),
        ("PD_PROXY_RESIDENCY_MISS_TARGET", "decode"),
        ("PD_PROXY_STORE_ADDRESS", "elsewhere:50051"),
        ("PD_PROXY_DECODE_ROUTING", "any"),
        ("PD_PROXY_NO_DECODE_BACKEND_ACTION", "queue"),
        ("PD_PROXY_CA_FILE", "/var/run/gco/ca/ca.crt"),
    ];
    let error = read(&other).unwrap_err();
    assert_eq!(error.problems.len(), 7, "{error}");
    assert!(error.to_string().contains("\"5\" is not 2 or unset (there is no residency look-up yet)"), "{error}");
    assert!(error.to_string().contains("plain HTTP to engines"), "{error}");
}

#[test]
fn every_problem_is_named_at_once() {
    let names = refused(&[
        ("PD_PROXY_PORT", "http"),
        ("PD_PROXY_DECODE_URL", "https://decode:8443"),
        ("PD_PROXY_SCHEDULING", "random"),
        ("PD_PROXY_NO_DECODE_BACKEND_STATUS", "200"),
        ("GCO_PROXY_CONNECTOR", "lmcache"),
        ("GCO_PROXY_FALLBACK", "retry"),
        ("GCO_PROXY_MAX_BODY_BYTES", "0"),
        ("GCO_PROXY_FORWARD_HEADERS", "x-tenant, transfer-encoding"),
        ("GCO_PROXY_AFFINITY_HEADER", "not a header"),
        ("GCO_PROXY_ACCESS_LOG_SAMPLE", "2"),
        ("GCO_PROXY_TLS_KEY_FILE", "/tls/tls.key"),
        ("GCO_PROXY_HANDOFF_TIMEOUT_SECONDS", "0"),
        ("GCO_PROXY_NAMESPACE", "Not_A_Name"),
    ]);
    assert_eq!(
        names,
        [
            "GCO_PROXY_ACCESS_LOG_SAMPLE",
            "GCO_PROXY_AFFINITY_HEADER",
            "GCO_PROXY_CONNECTOR",
            "GCO_PROXY_FALLBACK",
            "GCO_PROXY_FORWARD_HEADERS",
            "GCO_PROXY_HANDOFF_TIMEOUT_SECONDS",
            "GCO_PROXY_MAX_BODY_BYTES",
            "GCO_PROXY_NAMESPACE",
            "GCO_PROXY_TLS_CERTIFICATE_FILE",
            "PD_PROXY_DECODE_URL",
            "PD_PROXY_NO_DECODE_BACKEND_STATUS",
            "PD_PROXY_PORT",
            "PD_PROXY_SCHEDULING",
        ]
    );
}

#[test]
fn nobody_serves_without_knowing_where_decode_is() {
    assert_eq!(refused(&[]), ["PD_PROXY_DECODE_URL"]);
    assert!(read(&[("GCO_PROXY_BACKENDS_FILE", "/etc/backends.json")]).is_ok());
    assert!(read(&[("GCO_PROXY_DECODE_SERVICE", "split-llm-decode")]).is_ok());
}

#[test]
fn a_role_has_one_source() {
    let service = ("GCO_PROXY_DECODE_SERVICE", "split-llm-decode");
    assert_eq!(refused(&[DECODE, service]), ["GCO_PROXY_DECODE_SERVICE"]);
    let file = ("GCO_PROXY_BACKENDS_FILE", "/etc/backends.json");
    assert_eq!(refused(&[service, file]), ["GCO_PROXY_DECODE_SERVICE"]);
    assert_eq!(refused(&[DECODE, file]), ["PD_PROXY_DECODE_URL"]);
}

#[test]
fn a_service_may_name_its_port_or_give_its_number() {
    for (text, port) in [
        ("split-llm-decode", PortChoice::Default),
        ("split-llm-decode:http", PortChoice::Name("http".to_owned())),
        ("split-llm-decode:8000", PortChoice::Number(8_000)),
    ] {
        let settings = read(&[("GCO_PROXY_DECODE_SERVICE", text)]).unwrap();
        let expected = ServiceChoice { name: "split-llm-decode".to_owned(), port };
        assert_eq!(settings.sources.decode, Source::Service(expected));
    }
    for wrong in [":8000", "split-llm-decode:0", "split-llm-decode:", "Split", "a/b", "a:b:c"] {
        assert_eq!(refused(&[("GCO_PROXY_DECODE_SERVICE", wrong)]), ["GCO_PROXY_DECODE_SERVICE"], "{wrong}");
    }
}

#[test]
fn connectors_without_bootstrap_servers_ask_none() {
    let pairs =
        |connector| [DECODE, ("PD_PROXY_PREFILL_URL", "http://prefill:8000"), ("GCO_PROXY_CONNECTOR", connector)];
    for (connector, asks) in [("mooncake", true), ("nixl", false), ("plain", false)] {
        let settings = read(&pairs(connector)).unwrap();
        let Source::Fixed(prefill) = &settings.sources.prefill else { panic!("{settings:?}") };
        assert_eq!(prefill[0].bootstrap.is_some(), asks, "{connector}");
    }
}

#[test]
fn headers_are_named_or_all_and_names_are_compared_without_case() {
    let settings = read(&[DECODE, ("GCO_PROXY_FORWARD_HEADERS", "Authorization, X-Tenant,")]).unwrap();
    let named = ["authorization", "x-tenant"].map(HeaderName::from_static);
    assert_eq!(settings.forward_headers, Forwarded::Names(named.into()));
    let settings = read(&[DECODE, ("GCO_PROXY_FORWARD_HEADERS", "*")]).unwrap();
    assert_eq!(settings.forward_headers, Forwarded::All);
    let never = ["connection", "te", "keep-alive", "proxy-authorization", "host", "content-length", "expect"];
    for never in never.into_iter().chain(["x-data-parallel-rank", "x_dp_rank", "bootstrap-room", "X-Admin-Api-Key"]) {
        assert_eq!(refused(&[DECODE, ("GCO_PROXY_FORWARD_HEADERS", never)]), ["GCO_PROXY_FORWARD_HEADERS"]);
    }
}

#[test]
fn a_misspelled_name_is_noticed_and_what_kubernetes_sets_is_not_one() {
    let settings = read(&[
        DECODE,
        ("GCO_PROXY_FALBACK", "fail"),
        ("PD_PROXY_PORTS", "8000"),
        ("PD_PROXY_SERVICE_HOST", "10.0.0.1"),
        ("PD_PROXY_SERVICE_PORT_HTTP", "80"),
        ("PD_PROXY_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("GCO_PROXY_PORT", "tcp://10.0.0.1:80"),
    ])
    .unwrap();
    assert_eq!(settings.unknown, ["GCO_PROXY_FALBACK", "PD_PROXY_PORTS"]);
}

#[test]
fn the_admin_key_is_never_shown() {
    let settings = read(&[DECODE, ("ADMIN_API_KEY", "very-secret-key"), ("PD_PROXY_PORT", "0")]).unwrap();
    assert!(!format!("{settings:?}").contains("very-secret-key"));
    assert_eq!(settings.worker_count(), std::thread::available_parallelism().unwrap().get());
}
