//! What the monitor, models and proxies may do, as it is installed, and whether that is what the monitor does.
//!
//! That all suites together use every right of the Role is compared at the end of `tests/run.sh`, by `compare-rights`.

use anyhow::{Context as _, ensure};
use gco_bed::wait;
use gco_local::platform::{MODEL_ACCOUNT, MONITOR_ACCOUNT, PROXY_ACCOUNT, SYSTEM_NAMESPACE};
use gco_tests::fence::NAMESPACE;
use gco_tests::fence::calls::Caller;
use gco_tests::fence::kinds::{Target, make_optional_kinds};
use gco_tests::region::rows::spec;
use gco_tests::region::{BOUND, Monitor, MonitorSettings, Region, RegionSettings, TestTable};
use gco_tests::rights::{Asked, granted};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use kube::client::Body;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_life_of_endpoints_asks_for_nothing_that_is_not_granted() -> anyhow::Result<()> {
    let region = Region::start().await?;
    let first = Monitor::leading(&region).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    region.mark("chat", "1").await?;
    region.settled("chat").await?;
    region.stop("chat").await?;
    region.settled("chat").await?;
    let second = Monitor::start(&region, MonitorSettings::named("m2")).await?;
    first.terminate(std::time::Duration::from_secs(20)).await?;
    region.wait_for_leader("m2").await?;
    region.delete("chat").await?;
    region.purged("chat").await.with_context(|| second.described())?;
    let asked = Asked::of(&region.asked_by_monitors()?);
    let granted = granted()?;
    let beyond: Vec<String> =
        asked.used.iter().filter(|(right, _)| !granted.contains(right)).map(|(right, _)| right.to_string()).collect();
    println!("{} of {} rights used, {} requests refused", asked.used.len(), granted.len(), asked.refused.len());
    ensure!(beyond.is_empty() && asked.refused.is_empty(), "{beyond:?} {:?}", asked.refused);
    ensure!(asked.used.len() >= 15, "{:?}", asked.used);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d46_models_have_no_right_on_the_cluster_and_proxies_only_see_addresses() -> anyhow::Result<()> {
    let region = Region::start().await?;
    let reviews: Api<SubjectAccessReview> = Api::all(region.client().clone());
    let resources = [
        ("", "pods"),
        ("", "services"),
        ("", "secrets"),
        ("", "configmaps"),
        ("apps", "deployments"),
        ("coordination.k8s.io", "leases"),
        ("discovery.k8s.io", "endpointslices"),
        ("autoscaling", "horizontalpodautoscalers"),
        ("rbac.authorization.k8s.io", "roles"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ];
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    let accounts: Api<ServiceAccount> = Api::namespaced(region.client().clone(), region.namespace());
    for account in [MODEL_ACCOUNT, PROXY_ACCOUNT] {
        let stored = accounts.get(account).await.with_context(|| account.to_owned())?;
        ensure!(stored.automount_service_account_token == Some(false), "{account} mounts a token by default");
        // An IAM role is what would let it write the table.
        ensure!(stored.metadata.annotations.unwrap_or_default().is_empty(), "{account} is given a role");
        for (group, resource) in resources {
            for verb in verbs {
                let attributes = ResourceAttributes {
                    namespace: Some(region.namespace().to_owned()),
                    verb: Some(verb.to_owned()),
                    group: Some(group.to_owned()),
                    resource: Some(resource.to_owned()),
                    ..Default::default()
                };
                let spec = SubjectAccessReviewSpec {
                    user: Some(format!("system:serviceaccount:{}:{account}", region.namespace())),
                    groups: Some(vec!["system:serviceaccounts".to_owned(), "system:authenticated".to_owned()]),
                    resource_attributes: Some(attributes),
                    ..Default::default()
                };
                let review = SubjectAccessReview { spec, ..Default::default() };
                let granted = account == PROXY_ACCOUNT
                    && resource == "endpointslices"
                    && ["get", "list", "watch"].contains(&verb);
                let allowed = async || -> anyhow::Result<bool> {
                    let answer = reviews.create(&PostParams::default(), &review).await?;
                    Ok(answer.status.is_some_and(|status| status.allowed))
                };
                if granted {
                    // The API server follows its Roles with a delay.
                    wait::until(&format!("{account} may {verb} {resource}"), BOUND, async || match allowed().await {
                        Ok(true) => Ok(()),
                        other => Err(format!("{other:?}")),
                    })
                    .await?;
                } else {
                    ensure!(!allowed().await?, "{account} may {verb} {resource}");
                }
            }
        }
    }
    // And a model's pod, made by the real controllers from what the real monitor rendered, has none.
    let _monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(1, "0")).await?;
    let objects = region.settled("chat").await?;
    let pod = objects.pods.values().next().context("no pod")?;
    ensure!(pod["spec"]["serviceAccountName"] == MODEL_ACCOUNT, "{}", pod["spec"]);
    let volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    let token = |volume: &Value| volume["projected"]["sources"].to_string().contains("serviceAccountToken");
    ensure!(!volumes.iter().any(token), "{volumes:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_about_the_lease_go_where_the_control_planes_own_elections_go() -> anyhow::Result<()> {
    // The flow schema is about the namespace that is installed.
    let settings = RegionSettings { namespace: Some(NAMESPACE.to_owned()), ..RegionSettings::named("us-east-1") };
    let mut region = Region::start_with(settings, TestTable::embedded().await?).await?;
    region.do_not_record_rights();
    let control_plane = region.plane().control_plane();
    let schema: Value = region
        .client()
        .request(
            http::Request::get("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/gco-inference-monitor-lease")
                .body(Vec::new())?,
        )
        .await?;
    let wanted = schema["metadata"]["uid"].as_str().context("the flow schema has no uid")?.to_owned();
    ensure!(schema["spec"]["priorityLevelConfiguration"]["name"] == "leader-election", "{schema}");
    let client = control_plane.client_with_token(&control_plane.url(), region.monitor_token())?;
    let schema_of = |path: &'static str| {
        let client = client.clone();
        async move {
            let answer = client.send(http::Request::get(path).body(Body::empty())?).await?;
            let header = answer.headers().get("x-kubernetes-pf-flowschema-uid");
            anyhow::Ok(header.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned())
        }
    };
    let lease = "/apis/coordination.k8s.io/v1/namespaces/gco-inference/leases/inference-monitor-leader";
    wait::until(&format!("{MONITOR_ACCOUNT} of {SYSTEM_NAMESPACE} to be put first"), BOUND, || async {
        let found = schema_of(lease).await.map_err(|error| format!("{error:#}"))?;
        if found == wanted { Ok(()) } else { Err(found) }
    })
    .await?;
    let others = schema_of("/api/v1/namespaces/gco-inference/pods").await?;
    ensure!(others != wanted, "everything of the monitor's goes there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_an_earlier_control_plane_left_goes_with_its_endpoint() -> anyhow::Result<()> {
    let settings = RegionSettings { namespace: Some(NAMESPACE.to_owned()), ..RegionSettings::named("us-east-1") };
    let region = Region::start_with(settings, TestTable::embedded().await?).await?;
    make_optional_kinds(region.client()).await?;
    let monitor = Monitor::leading(&region).await?;
    region.deploy("left", spec(1, "0")).await?;
    region.settled("left").await?;
    let row = region.row("left").await?.context("no row")?;
    let lifecycle = row.lifecycle_id.clone().context("no lifecycle")?;
    let generation = row.region_generation("us-east-1").context("no generation")?.to_owned();
    let admin = Caller::new(region.client().clone());
    let left = [
        ("configmaps", "left-mooncake"),
        ("secrets", "left-admin"),
        ("ingresses.networking.k8s.io", "left"),
        ("httproutes.gateway.networking.k8s.io", "left"),
        ("horizontalpodautoscalers.autoscaling", "left-prefill"),
        ("scaledobjects.keda.sh", "left-decode"),
    ];
    for (resource, name) in left {
        let target = Target::named(resource)?;
        let mut object = target.object(name, 0, "left");
        // The mark tells whoever judges the monitor's writes that this one is ours.
        object["metadata"]["annotations"] = json!({
            "gco.io/lifecycle-id": lifecycle, "gco.io/region-generation": generation, "gco.io/leader-epoch": "earlier",
            "suite/mark": "left",
        });
        let reply = admin.create(&target, &object, "").await?;
        ensure!(reply.is_success(), "making {resource} {name}: {}", reply.body);
    }
    region.delete("left").await?;
    region.purged("left").await.with_context(|| monitor.described())?;
    for (resource, name) in left {
        let reply = admin.get(&Target::named(resource)?, name).await?;
        ensure!(reply.status == 404, "{resource} {name} is left: {}", reply.body);
    }
    let asked = Asked::of(&region.asked_by_monitors()?);
    ensure!(asked.refused.is_empty(), "{:?}", asked.refused);
    Ok(())
}
