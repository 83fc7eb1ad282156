//! `gco local up` with a prefill-decode proxy in front of engines that the command line names.

use std::collections::BTreeSet;
use std::process::Stdio;

use gco_bed::wait::until;
use gco_local::instance::DataFolder;
use gco_local::loopback::{LoopbackClient, json_request};
use gco_tests::proxy::{BOUND, Reply};
use gco_tests::region::monitor::program;
use serde_json::json;
use tokio::process::Command;

#[tokio::test]
async fn a_proxy_in_front_of_a_prefill_and_two_decode_engines_runs_without_any_region() {
    let place = tempfile::Builder::new().prefix("gco-suite-split-").tempdir().unwrap();
    let data = place.path().join("data");
    let local = program("gco-local", &["infra/local/src", "infra/bed/src"]).unwrap();
    let mut up = Command::new(&local);
    up.arg("up").arg("--data-dir").arg(&data).args(["--only-proxy", "--prefill", "--model demo/model"]);
    up.args(["--decode", "--model demo/model", "--decode", "--model demo/model"]);
    let log = std::fs::File::create(place.path().join("log")).unwrap();
    up.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
    let mut up = up.spawn().unwrap();
    let address = until("the proxy to be told", BOUND, || {
        let state = DataFolder::open(&data).and_then(|folder| folder.state());
        let said = std::fs::read_to_string(place.path().join("log")).unwrap_or_default();
        std::future::ready(state.ok().and_then(|state| state.proxy).ok_or(said))
    })
    .await
    .unwrap();
    let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
    let client = LoopbackClient::new();
    let mut answered = BTreeSet::new();
    // The less loaded of two at random: twenty in a row at one of them are one in a million.
    for _ in 0..20 {
        let request = json_request("/v1/completions", &json!({"prompt": "hello", "max_tokens": 40})).unwrap();
        let reply = Reply::to(&client, port, request).await.unwrap();
        assert_eq!(reply.exchange(), "transferred");
        let said = reply.said().unwrap();
        answered.extend(["decode-0", "decode-1"].into_iter().filter(|name| said.contains(&format!("pod {name},"))));
    }
    assert_eq!(answered.len(), 2, "{answered:?}");
    let run = async |verb: &str| {
        let ran = Command::new(&local).arg(verb).arg("--data-dir").arg(&data).output().await.unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    let status = run("status").await;
    assert!(status.contains(&format!("proxy     {address}")), "{status}");
    run("down").await;
    assert!(tokio::time::timeout(BOUND, up.wait()).await.unwrap().unwrap().success());
    assert!(client.get(port, "/health", BOUND).await.is_err(), "the proxy outlives what started it");
}

#[tokio::test]
async fn a_prefill_engine_without_a_decode_engine_is_refused() {
    let local = program("gco-local", &["infra/local/src", "infra/bed/src"]).unwrap();
    let refused = Command::new(local).args(["up", "--prefill", "--model demo/model"]).output().await.unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--decode"), "{said}");
}
