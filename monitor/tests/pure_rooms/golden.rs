//! Reference files: what every served fixture renders to, in every target region.

use super::support::{CLUSTER, identity_of, row, spec_of, tests_folder};
use gco_monitor::object::Kind;
use gco_monitor::render::{RenderInput, classic};

/// Fixture and region of every reference file.
pub(crate) const CASES: [(&str, &str); 14] = [
    ("classic-minimal", "us-east-1"),
    ("classic-minimal", "eu-west-1"),
    ("classic-hpa", "us-east-1"),
    ("classic-keda-gpu", "us-east-1"),
    ("classic-keda-gpu", "eu-west-1"),
    ("classic-full", "us-east-1"),
    ("classic-full", "eu-west-1"),
    // Rendered as if it were started.
    ("classic-stopped", "us-east-1"),
    ("classic-tgi-neuron", "us-east-1"),
    ("classic-triton-cpu", "us-east-1"),
    ("classic-triton-cpu", "eu-west-1"),
    ("unknown-keys", "us-east-1"),
    // With made-up tokens in place of those that a back-fill would mint.
    ("legacy-no-lifecycle", "us-east-1"),
    // Served as it is while it collides with nothing.
    ("name-with-reserved-suffix", "us-east-1"),
];

/// The same, for rows with a canary: two objects more, whose files say so.
pub(crate) const CANARY_CASES: [(&str, &str); 1] = [("classic-canary", "us-east-1")];

#[test]
fn every_served_fixture_renders_to_its_reference_files() {
    let update = should_update();
    let folder = tests_folder().join("golden");
    let mut different = Vec::new();
    for (fixture, region) in CASES.into_iter().chain(CANARY_CASES) {
        let row = row(fixture);
        let identity = identity_of(&row, region);
        let spec = spec_of(&row);
        let set = classic(&RenderInput {
            name: &row.name,
            namespace: row.namespace.as_deref().unwrap(),
            region,
            cluster_name: CLUSTER,
            identity: &identity,
            spec: &spec,
        });
        let kinds: Vec<Kind> = set.objects.iter().map(|one| one.key.kind).collect();
        let count = if CANARY_CASES.contains(&(fixture, region)) { 2 } else { 1 };
        assert_eq!(kinds, kinds_of(fixture).repeat(count));
        for object in &set.objects {
            let word = object.key.kind.word();
            let word = if object.key.name == row.name { word.to_owned() } else { format!("canary-{word}") };
            let path = folder.join(format!("{fixture}.{region}.{word}.json"));
            let text = format!("{}\n", serde_json::to_string_pretty(&sorted(&object.body)).unwrap());
            if update {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &text).unwrap();
            } else if std::fs::read_to_string(&path).ok().as_deref() != Some(&text) {
                different.push(path.display().to_string());
            }
        }
    }
    assert!(
        different.is_empty(),
        "rendered differently: {different:#?}; run with UPDATE_GOLDEN=1, read the difference, and raise RENDERER_VERSION if a pod template changed"
    );
}

/// The kinds that a fixture renders to, in apply order.
pub(crate) fn kinds_of(fixture: &str) -> Vec<Kind> {
    let autoscaler = match fixture {
        "classic-hpa" => Some(Kind::HorizontalPodAutoscaler),
        "classic-keda-gpu" => Some(Kind::ScaledObject),
        _ => None,
    };
    [Kind::Deployment, Kind::Service].into_iter().chain(autoscaler).collect()
}

/// The one place of these tests that reads the environment.
#[expect(clippy::disallowed_methods, reason = "a switch for people at the command line")]
pub(crate) fn should_update() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1")
}

/// Keys in order, whatever map the JSON library was built with.
pub(crate) fn sorted(value: &serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Object(map) => {
            let ordered: std::collections::BTreeMap<_, _> = map.iter().collect();
            ordered.into_iter().map(|(name, value)| (name.clone(), sorted(value))).collect()
        }
        serde_json::Value::Array(list) => list.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

/// What a real API server answered when the reference file was posted to it.
fn served(fixture: &str, region: &str, kind: Kind) -> (serde_json::Value, serde_json::Value) {
    let folder = tests_folder().join("golden");
    let file = format!("{fixture}.{region}.{}.json", kind.word());
    let read = |path: std::path::PathBuf| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    (read(folder.join(&file)), read(folder.join("served").join(&file)))
}

#[test]
fn what_a_real_server_adds_is_no_difference_and_what_it_drops_is_none_either() {
    for (fixture, region) in CASES {
        for kind in kinds_of(fixture) {
            let (sent, answered) = served(fixture, region, kind);
            let found = gco_monitor::plan::compare::differences(kind, &sent, &answered);
            assert_eq!(found, [], "{fixture} in {region}");
        }
    }
}

#[test]
fn the_small_server_of_these_tests_stores_what_a_real_one_does() {
    for (fixture, region) in CASES {
        for kind in kinds_of(fixture) {
            let (sent, mut answered) = served(fixture, region, kind);
            let mut server = super::server::Server::new();
            let key = server.post(sent);
            let mut stored = server.objects[&key]["spec"].clone();
            for spec in [&mut stored, &mut answered["spec"]] {
                if kind == Kind::Service {
                    spec["clusterIP"] = "allocated".into();
                    spec["clusterIPs"] = "allocated".into();
                } else if let Some(metadata) = spec.pointer_mut("/template/metadata").and_then(|it| it.as_object_mut())
                {
                    // Older servers write `null` here, newer ones nothing.
                    metadata.remove("creationTimestamp");
                }
            }
            assert_eq!(stored, answered["spec"], "{fixture} in {region}");
        }
    }
}
