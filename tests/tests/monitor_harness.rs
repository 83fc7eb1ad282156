//! The ground that the monitor's suites stand on: without it their findings would mean nothing.

use gco_store::row::DesiredState;
use gco_tests::region::objects::{is_ready, number};
use gco_tests::region::rows::{IMAGE, fixture, fixture_names, spec};
use gco_tests::region::{BOUND, Region, RegionSettings, TableKind, TestTable};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_in_a_region_gets_pods_that_become_ready() -> anyhow::Result<()> {
    let region = Region::start().await?;
    let deployments: Api<Deployment> = Api::namespaced(region.client().clone(), region.namespace());
    let labels = json!({"app": "chat", "project": "gco", "gco.io/type": "inference"});
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "chat", "labels": labels},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "chat"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": "gco-service-account",
                    "containers": [{
                        "name": "inference", "image": IMAGE,
                        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
                        "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    }],
                },
            },
        },
    }))?;
    deployments.create(&PostParams::default(), &deployment).await?;
    region
        .wait_for("two ready pods", BOUND, |snapshot| {
            let ready = snapshot.pods.values().filter(|pod| is_ready(pod)).count();
            let counted = number(snapshot.deployments.get("chat").ok_or("no Deployment")?, "/status/readyReplicas");
            if (ready, counted) == (2, 2) { Ok(()) } else { Err(format!("{ready} ready pods, {counted} counted")) }
        })
        .await?;
    let objects = region.objects_of("chat").await?;
    assert_eq!((objects.deployments.len(), objects.replica_sets.len(), objects.pods.len()), (1, 1, 2));
    assert!(region.objects_of("other").await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_goes_through_its_states_on_every_kind_of_table() -> anyhow::Result<()> {
    for table in [
        TestTable::embedded().await?,
        TestTable::on_server(TableKind::Ministack).await?,
        TestTable::on_server(TableKind::Dynalite).await?,
    ] {
        let region = Region::start_with(RegionSettings::named("us-east-1"), table).await?;
        let row = region.deploy("chat", spec(1, "0")).await?;
        assert_eq!(row.namespace.as_deref(), Some(region.namespace()));
        assert!(region.deploy("chat", spec(1, "0")).await.is_err());
        region.mark("chat", "1").await?;
        region.scale("chat", 3).await?;
        let row = region.row("chat").await?.unwrap();
        assert_eq!(row.spec.to_plain_json()["env"]["EDIT"], "1");
        assert_eq!(row.spec.to_plain_json()["replicas"], 3);
        assert_eq!(region.stop("chat").await?.desired_state, DesiredState::Stopped);
        assert_eq!(region.start_endpoint("chat").await?.desired_state, DesiredState::Running);
        assert_eq!(region.delete("chat").await?.desired_state, DesiredState::Deleted);
        region.put_row(fixture("classic-minimal")?).await?;
        assert_eq!(region.row("chat-small").await?.unwrap().namespace.as_deref(), Some(region.namespace()));
    }
    assert_eq!(fixture_names()?.len(), 20);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_monitor_account_has_the_rights_of_its_role_and_no_others() -> anyhow::Result<()> {
    let mut region = Region::start().await?;
    region.do_not_record_rights();
    let path = region.write_kubeconfig("probe", None)?;
    let file = kube::config::Kubeconfig::read_from(&path)?;
    let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?;
    let client = kube::Client::try_from(config)?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), region.namespace());
    deployments.list(&kube::api::ListParams::default()).await?;
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(client, region.namespace());
    let refused = secrets.list(&kube::api::ListParams::default()).await;
    assert!(matches!(refused, Err(kube::Error::Api(ref status)) if status.code == 403), "{refused:?}");
    let user = region.monitor_user();
    let asked = region.requests_where(|event| event.user == user)?;
    assert_eq!(asked.len(), 2, "{asked:?}");
    Ok(())
}
