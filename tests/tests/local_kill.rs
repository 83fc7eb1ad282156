//! kill -9 of `gco local up` at seeded moments of deploy, edit and delete, and a new start. The end is the same as that of an
//! undisturbed run, object by object, and nothing is doubled.

#![expect(clippy::unwrap_used, reason = "a suite fails by panicking")]

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use gco_store::operations::Store;
use gco_store::row::EndpointRow;
use gco_store::table::Consistency;
use gco_store::transition::OperationError;
use gco_store::wire::{Item, Value};
use gco_tests::local::LocalInstance;
use gco_tests::local::ending::ending;
use gco_tests::region::objects::differences;
use gco_tests::size::Size;
use gco_tests::tables::seed::Seed;
use serde_json::{Value as Json, json};
use tokio::time::Instant;

/// Names that nobody else's endpoints have.
const ENDPOINTS: [&str; 3] = ["ember", "flint", "granite"];

/// The kill comes at most this long after an operation began.
const LATEST_MILLISECONDS: usize = 1_500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Deploy,
    Edit,
    Delete,
}

impl Operation {
    /// What an endpoint goes through, again and again.
    const CYCLE: [Self; 3] = [Self::Deploy, Self::Edit, Self::Delete];

    async fn begin(self, instance: &LocalInstance, name: &str) {
        let store = instance.store().await.unwrap();
        match self {
            Self::Deploy => drop(store.create(&instance.request(name, &spec()).unwrap()).await.unwrap()),
            Self::Edit => edit(&store, name).await,
            Self::Delete => drop(store.delete(name, None).await.unwrap()),
        }
    }

    async fn settled(self, instance: &LocalInstance, name: &str) {
        instance.settled(name, self == Self::Delete).await.unwrap_or_else(|problem| panic!("{self:?}: {problem:#}"));
    }
}

fn spec() -> Json {
    json!({
        "image": "vllm/vllm-openai:v0.28.0", "port": 8000, "replicas": 2, "gpu_count": 1, "health_check_path": "/health",
        "env": {"EDIT": "before"}, "drain_seconds": 1,
    })
}

/// A new environment, and one replica less: a roll-out and a change of the count at once.
async fn edit(store: &Store, name: &str) {
    let change = |_: &EndpointRow, spec: &mut Item| -> Result<(), OperationError> {
        spec.insert("env".to_owned(), Value::Map(Item::from([("EDIT".to_owned(), "after".into())])));
        spec.insert("replicas".to_owned(), Value::Number("1".to_owned()));
        Ok(())
    };
    drop(store.update_spec_with(name, change).await.unwrap());
}

async fn end_of(instance: &LocalInstance, name: &str) -> Json {
    let item = instance.table().await.unwrap().get(name, Consistency::Strong).await.unwrap();
    let row = item.map(|item| EndpointRow::parse(item).unwrap());
    let mut objects = BTreeMap::new();
    for region in instance.regions() {
        objects.insert(region.clone(), instance.objects(region, name).await.unwrap());
    }
    ending(name, row.as_ref(), &objects)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_instance_that_is_started_again_comes_to_the_end_of_an_undisturbed_one() {
    let kills = Size::asked().choose(2, 20);
    let regions = Size::asked().choose(&["us-east-1"][..], &["us-east-1", "eu-west-1"][..]);
    let mut instance = LocalInstance::new(regions).unwrap();
    let took = instance.up().await.unwrap();
    println!("{} regions up after {:.1} s", regions.len(), took.as_secs_f64());

    let mut undisturbed = BTreeMap::new();
    for operation in Operation::CYCLE {
        operation.begin(&instance, ENDPOINTS[0]).await;
        operation.settled(&instance, ENDPOINTS[0]).await;
        undisturbed.insert(operation, end_of(&instance, ENDPOINTS[0]).await);
    }
    // Each endpoint is one operation further than the one before it, so that each kill meets all three.
    for (position, name) in ENDPOINTS.iter().enumerate() {
        for operation in &Operation::CYCLE[..position] {
            operation.begin(&instance, name).await;
            operation.settled(&instance, name).await;
        }
    }

    for number in 0..kills {
        let mut seed = Seed::new(u64::try_from(number).unwrap());
        // Milliseconds from the beginning of an operation to the kill; the earliest begins first.
        let mut moments: Vec<(usize, Operation, &str)> = ENDPOINTS
            .iter()
            .enumerate()
            .map(|(position, name)| (seed.below(LATEST_MILLISECONDS), Operation::CYCLE[(number + position) % 3], *name))
            .collect();
        moments.sort_by_key(|(before, ..)| Reverse(*before));
        let began = Instant::now();
        let kill = began + milliseconds(moments[0].0);
        for (before, operation, name) in &moments {
            tokio::time::sleep_until(kill - milliseconds(*before)).await;
            operation.begin(&instance, name).await;
        }
        tokio::time::sleep_until(kill).await;
        instance.kill().await.unwrap();
        let gone = began.elapsed();
        let up = instance.up().await.unwrap();
        for (_, operation, name) in &moments {
            operation.settled(&instance, name).await;
        }
        println!(
            "kill {} of {kills}, seed {number}: {}; everything gone after {:.1} s, up again in {:.1} s, settled after {:.1} s",
            number + 1,
            moments.iter().map(|(ms, operation, _)| format!("{operation:?} + {ms} ms")).collect::<Vec<_>>().join(", "),
            gone.as_secs_f64(),
            up.as_secs_f64(),
            began.elapsed().as_secs_f64(),
        );
        for (_, operation, name) in &moments {
            let found = differences(&undisturbed[operation], &end_of(&instance, name).await);
            assert!(found.is_empty(), "seed {number}: {operation:?} of {name} ended otherwise: {found:#?}");
        }
        assert_no_engine_is_too_many(&instance).await;
    }
    instance.stop().await.unwrap();
}

/// One process for each pod of the endpoints, and no other.
async fn assert_no_engine_is_too_many(instance: &LocalInstance) {
    let mut pods = Vec::new();
    for region in instance.regions() {
        for name in ENDPOINTS {
            pods.extend(instance.objects(region, name).await.unwrap().pods.into_keys());
        }
    }
    pods.sort();
    let engines: Vec<String> = instance.engines().into_iter().flat_map(|(pod, pids)| vec![pod; pids.len()]).collect();
    assert_eq!(engines, pods);
}

fn milliseconds(count: usize) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap())
}
