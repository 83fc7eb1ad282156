use gco_runtime::environment::Environment;
use http::Request;

use super::*;
use crate::backends::sources::fixed;
use crate::config::Source;

const KEY: (&str, &str) = ("x-admin-api-key", "the-key");

/// Routes before one engine of each role, with the key configured, and these variables besides.
fn admin(more: &[(&'static str, &'static str)]) -> Admin {
    let mut pairs = vec![
        ("PD_PROXY_PREFILL_URL", "http://prefill:8000"),
        ("PD_PROXY_DECODE_URL", "http://decode:8000"),
        ("ADMIN_API_KEY", "the-key"),
    ];
    pairs.extend(more);
    let settings = Settings::read(&Environment::from_pairs(pairs)).unwrap();
    let fleet = Fleet::new(settings.fleet, Instant::now());
    for role in Role::ALL {
        let Source::Fixed(described) = settings.sources.of(role) else { panic!("{settings:?}") };
        fleet.apply(role, &fixed::all_ready(described), Instant::now());
    }
    let metrics = Arc::new(Metrics::new(&fleet, Admin::mode(&settings)).unwrap());
    Admin::new(&settings, fleet, metrics)
}

fn ask(admin: &Admin, method: &str, path: &str, headers: &[(&str, &str)]) -> Option<(u16, String)> {
    let request = Request::builder().method(method).uri(path);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let answer = admin.answer(&request.body(()).unwrap().into_parts().0)?;
    Some((answer.status().as_u16(), String::from_utf8(answer.body().to_vec()).unwrap()))
}

fn status(admin: &Admin, method: &str, path: &str, headers: &[(&str, &str)]) -> Option<u16> {
    ask(admin, method, path, headers).map(|(status, _)| status)
}

#[tokio::test]
async fn health_is_the_processs_and_readiness_the_engines() {
    let admin = admin(&[]);
    let ok = Some((200, r#"{"status":"ok"}"#.to_owned()));
    assert_eq!(ask(&admin, "GET", "/health", &[]), ok);
    assert_eq!(ask(&admin, "HEAD", "/healthz", &[]), ok);
    assert_eq!(status(&admin, "GET", "/readyz", &[]), Some(200));
    admin.fleet.apply(Role::Decode, &[], Instant::now());
    assert_eq!(ask(&admin, "GET", "/healthz", &[]), ok);
    let (code, text) = ask(&admin, "GET", "/readyz", &[]).unwrap();
    assert_eq!((code, text.contains("no decode engine is ready")), (503, true), "{text}");
}

#[tokio::test]
async fn it_is_not_ready_as_soon_as_it_ends() {
    let admin = admin(&[]);
    admin.set_draining();
    assert_eq!(status(&admin, "GET", "/readyz", &[]), Some(503));
    assert_eq!(status(&admin, "GET", "/health", &[]), Some(200));
    assert!(ask(&admin, "GET", "/metrics", &[]).unwrap().1.contains("gco_proxy_draining 1\n"));
}

#[tokio::test]
async fn prefill_is_needed_for_readiness_only_if_the_policy_is_to_fail_without_it() {
    for (policy, code) in [("decode-only", 200), ("fail", 503)] {
        let admin = admin(&[("GCO_PROXY_FALLBACK", policy)]);
        assert_eq!(status(&admin, "GET", "/readyz", &[]), Some(200));
        admin.fleet.apply(Role::Prefill, &[], Instant::now());
        assert_eq!(status(&admin, "GET", "/readyz", &[]), Some(code), "{policy}");
    }
}

#[tokio::test]
async fn adding_an_instance_answers_as_the_contract_says() {
    let forbidden = Some((403, r#"{"error":"forbidden"}"#.to_owned()));
    let ok = Some((200, r#"{"status":"ok"}"#.to_owned()));
    let with = admin(&[]);
    for path in ["/instances/add", "/v1/instances/add"] {
        assert_eq!(ask(&with, "POST", path, &[]), forbidden);
        assert_eq!(ask(&with, "POST", path, &[("x-admin-api-key", "the-kez")]), forbidden);
        assert_eq!(ask(&with, "POST", path, &[("x-admin-api-key", "")]), forbidden);
        assert_eq!(ask(&with, "POST", path, &[KEY]), ok);
        assert_eq!(ask(&with, "POST", path, &[("authorization", "Bearer  the-key ")]), ok);
        // The first header counts, as in the contract.
        assert_eq!(
            ask(&with, "POST", path, &[("x-admin-api-key", "no"), ("authorization", "Bearer the-key")]),
            forbidden
        );
    }
    let without = admin(&[("ADMIN_API_KEY", "")]);
    assert_eq!(ask(&without, "POST", "/instances/add", &[("x-admin-api-key", "")]), forbidden);
    assert_eq!(ask(&without, "POST", "/instances/add", &[("authorization", "Bearer ")]), forbidden);
}

#[tokio::test]
async fn an_engine_is_listed_drained_and_undrained_with_the_key_only() {
    let admin = admin(&[]);
    for (method, path) in [("GET", "/admin/backends"), ("POST", "/admin/drain?backend=decode:8000")] {
        assert_eq!(status(&admin, method, path, &[]), Some(403));
    }
    assert!(admin.fleet.has_ready(Role::Decode));
    assert_eq!(status(&admin, "POST", "/admin/drain?backend=decode:8000", &[KEY]), Some(200));
    assert!(!admin.fleet.has_ready(Role::Decode));
    let (_, text) = ask(&admin, "GET", "/admin/backends", &[KEY]).unwrap();
    let list: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(list["decode"][0]["drained"], true);
    assert_eq!(list["decode"][0]["state"], "ready");
    assert_eq!(list["prefill"][0]["bootstrap"], "http://prefill:8998");
    assert_eq!(list["missing"], json!(["no decode engine is ready"]));
    // By its key, percent-encoded.
    assert_eq!(status(&admin, "POST", "/admin/undrain?backend=http%3A%2F%2Fdecode%3A8000", &[KEY]), Some(200));
    assert!(admin.fleet.has_ready(Role::Decode));
    assert_eq!(status(&admin, "POST", "/admin/drain?backend=nobody", &[KEY]), Some(404));
    assert_eq!(status(&admin, "POST", "/admin/drain", &[KEY]), Some(400));
    assert_eq!(status(&admin, "GET", "/admin/drain?backend=decode:8000", &[KEY]), Some(405));
}

#[tokio::test]
async fn everything_else_is_for_an_engine() {
    let admin = admin(&[]);
    for (method, path) in [
        ("GET", "/v1/models"),
        ("GET", "/"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/instances/add"),
        ("GET", "/administration"),
        ("GET", "/health/deep"),
    ] {
        assert_eq!(status(&admin, method, path, &[]), None, "{method} {path}");
    }
    assert_eq!(status(&admin, "POST", "/health", &[]), Some(405));
}

#[tokio::test]
async fn the_key_is_in_no_answer() {
    let admin = admin(&[]);
    for path in ["/admin/backends", "/metrics", "/readyz"] {
        assert!(!ask(&admin, "GET", path, &[KEY]).unwrap().1.contains("the-key"), "{path}");
    }
    assert!(!format!("{admin:?}").contains("the-key"));
}
