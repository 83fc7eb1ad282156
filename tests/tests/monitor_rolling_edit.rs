//! An edit of image, environment and port of an endpoint that two regions serve, under load: routers go on sending requests
//! to both regions the whole time, and no request to a ready address fails.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_store::row::EndpointRow;
use gco_tests::region::load::Load;
use gco_tests::region::objects::{model_container, number, text, variable};
use gco_tests::region::rows::spec;
use gco_tests::region::{History, Monitor, Pods, Region, RegionSettings, TableKind, TestTable};
use gco_tests::size::Size;

const ENDPOINT: &str = "chat";

/// How often a router looks at the row.
const ROUTER_LOOKS: Duration = Duration::from_millis(100);

async fn region(name: &str, plane: usize, namespace: Option<String>, table: TestTable) -> anyhow::Result<Region> {
    let settings = RegionSettings { name: name.to_owned(), plane, namespace, pods: Pods::Engines };
    Region::start_with(settings, table).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_under_load_fails_no_request_and_never_ends_routing() -> anyhow::Result<()> {
    let table = TestTable::on_server(TableKind::Ministack).await?;
    let east = region("us-east-1", 0, None, table.clone()).await?;
    let west = region("eu-west-1", 1, Some(east.namespace().to_owned()), table).await?;
    let monitors = [Monitor::leading(&east).await?, Monitor::leading(&west).await?];
    let mut first = spec(2, "0");
    // A pod that is being replaced ends what it has begun; nobody sends it anything new meanwhile.
    first["drain_seconds"] = 3.into();
    east.deploy_to(ENDPOINT, first, &["us-east-1", "eu-west-1"]).await?;
    let described = || format!("{}\n{}", monitors[0].described(), monitors[1].described());
    tokio::try_join!(east.settled(ENDPOINT), west.settled(ENDPOINT)).with_context(described)?;

    let regions = [&east, &west];
    let histories =
        regions.map(|region| History::start(region.table().store().clone(), ENDPOINT, region.name(), ROUTER_LOOKS));
    let loads = [Load::start(&east, ENDPOINT).await?, Load::start(&west, ENDPOINT).await?];
    for round in 1..=Size::asked().choose(1, 5) {
        let port = 8000 + round;
        let edited: EndpointRow = east
            .edit(ENDPOINT, |spec| {
                spec["image"] = format!("vllm/vllm-openai:v0.{}.0", 28 + round).into();
                spec["env"]["EDIT"] = round.to_string().into();
                spec["port"] = port.into();
            })
            .await?;
        ensure!(edited.desired_state.as_str() == "running", "{:?}", edited.desired_state);
        let ended = tokio::try_join!(east.settled(ENDPOINT), west.settled(ENDPOINT)).with_context(described)?;
        for objects in [ended.0, ended.1] {
            let container = model_container(&objects.deployments[ENDPOINT]);
            assert_eq!(variable(&container, "EDIT"), Some(round.to_string().as_str()));
            assert_eq!(number(&container, "/ports/0/containerPort"), port);
            assert!(text(&container, "/image").is_some_and(|image| image.ends_with(&format!("v0.{}.0", 28 + round))));
        }
    }
    for ((region, load), history) in regions.into_iter().zip(loads).zip(&histories) {
        let result = load.stop(Duration::from_secs(60)).await?;
        println!("{}: {result}; {} different looks at the row", region.name(), history.looks().len());
        ensure!(result.sent >= 50 && result.streams >= 10, "{result}: too few requests to mean anything");
        assert_eq!((result.failed, result.nowhere), (0, 0), "{}: {result}", region.name());
        assert_eq!(history.unroutable(), [], "{}: {:?}", region.name(), history.looks());
    }
    Ok(())
}
