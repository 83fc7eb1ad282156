//! The spec validator and the hashes of a spec.

use crate::common::{all_rows, row, value};
use gco_store::problem::FieldProblem;
use gco_store::spec::{Accelerator, CapacityType, Framework, Metric, MetricKind, Spec};
use gco_store::wire::Value;
use serde_json::{Value as Json, json};

/// A valid spec with some keys replaced.
fn with(changes: Json) -> Value {
    let mut spec = json!({"image": "vllm/vllm-openai:v0.28.0"});
    for (key, change) in changes.as_object().expect("an object") {
        spec[key] = change.clone();
    }
    value(spec)
}

fn problems(spec: &Value) -> Vec<String> {
    match Spec::check(spec) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn checked(changes: Json) -> Spec {
    let spec = with(changes);
    Spec::check(&spec).unwrap_or_else(|problems| panic!("{problems:?}")).spec
}

fn idle(changes: Json) -> Vec<String> {
    Spec::fields_without_effect(&with(changes)).into_iter().map(|problem| problem.field).collect()
}

#[test]
fn every_fixture_that_the_original_serves_is_accepted() {
    for (name, item) in all_rows() {
        let spec = item.get("spec").expect("a spec");
        let refused = name.contains("/invalid-");
        assert_eq!(Spec::check(spec).is_err(), refused, "{name}: {:?}", problems(spec));
    }
}

#[test]
fn every_bad_field_is_named_at_once_with_what_is_allowed() {
    assert_eq!(
        problems(&row("invalid-many-fields").spec),
        [
            "spec.autoscaling.max_replicas: must be at least min_replicas (9), got 3",
            "spec.autoscaling.metrics[0].target: must be an integer from 1 to 100, got 0",
            "spec.autoscaling.metrics[0].type: must be one of cpu, memory, gpu, gpu_memory, got \"qps\"",
            "spec.gpu_count: must be an integer from 0 to 64, got \"two\"",
            "spec.node_selector.bad key!: is no label key: letters, digits, '-', '_', '.', after an optional DNS prefix and /",
            "spec.port: must be an integer from 1 to 65535, got 70000",
            "spec.replicas: must be an integer from 1 to 1000, got -1",
        ]
    );
}

#[test]
fn the_two_shape_errors_use_the_contracts_words() {
    let not_a_map = row("invalid-spec-not-a-map");
    assert_eq!(problems(&not_a_map.spec), ["spec: endpoint spec must be a mapping"]);
    assert_eq!(problems(&Value::Null), ["spec: endpoint spec must be a mapping"]);
    let both = row("invalid-mooncake-and-canary");
    assert_eq!(problems(&both.spec), ["spec: endpoint spec cannot combine 'mooncake' and 'canary' blocks"]);
}

#[test]
fn absent_fields_have_the_contracts_defaults() {
    let spec = checked(json!({}));
    assert_eq!((spec.port, spec.replicas, spec.gpu_count), (8000, 1, 1));
    assert_eq!(spec.health_check_path, "/health");
    assert_eq!(spec.accelerator, Accelerator::Nvidia);
    assert_eq!((spec.startup_timeout_seconds, spec.drain_seconds, spec.max_surge), (1800, 60, 0));
    assert!(spec.autoscaling.is_none() && spec.canary.is_none() && spec.mooncake.is_none());
    assert!(spec.command.is_none() && spec.args.is_empty() && spec.env.is_empty());
    let autoscaling = checked(json!({"autoscaling": {"enabled": true}})).autoscaling.expect("autoscaling");
    assert_eq!((autoscaling.min_replicas, autoscaling.max_replicas), (1, 10));
    assert_eq!(autoscaling.metrics, [Metric { kind: MetricKind::Cpu, target_percent: 70 }]);
    let canary = checked(json!({"canary": {"image": "x:y"}})).canary.expect("a canary");
    assert_eq!((canary.weight, canary.replicas), (10, 1));
}

#[test]
fn null_and_empty_blocks_count_as_absent() {
    let spec =
        checked(json!({"port": null, "canary": {}, "mooncake": {}, "model_path": "", "command": [], "env": null}));
    assert_eq!(spec, checked(json!({})));
}

#[test]
fn numbers_are_taken_in_every_text_of_an_integral_value() {
    for text in ["9000", "9000.0", "9E3"] {
        let spec = Value::Map(
            [("image".to_owned(), Value::from("x")), ("port".to_owned(), Value::Number(text.to_owned()))].into(),
        );
        assert_eq!(Spec::check(&spec).expect("valid").spec.port, 9000, "{text}");
    }
}

#[test]
fn bad_fields_are_refused_one_by_one() {
    for (changes, field, words) in [
        (json!({"image": null}), "spec.image", "is required"),
        (json!({"image": " "}), "spec.image", "non-empty"),
        (json!({"image": "a b"}), "spec.image", "no blanks"),
        (json!({"image": "a".repeat(513)}), "spec.image", "at most 512"),
        (json!({"image": 5}), "spec.image", "got 5"),
        (json!({"region_image_uris": {"us-east-1": ""}}), "spec.region_image_uris.us-east-1", "non-empty"),
        (json!({"region_image_uris": []}), "spec.region_image_uris", "must be a map, got a list"),
        (json!({"port": 0}), "spec.port", "from 1 to 65535"),
        (json!({"port": "8000"}), "spec.port", "got \"8000\""),
        (json!({"port": 80.5}), "spec.port", "got 80.5"),
        (json!({"port": true}), "spec.port", "got true"),
        (json!({"replicas": 0}), "spec.replicas", "gco inference stop"),
        (json!({"replicas": 1001}), "spec.replicas", "from 1 to 1000"),
        (json!({"gpu_count": 65}), "spec.gpu_count", "from 0 to 64"),
        (json!({"gpu_type": 5}), "spec.gpu_type", "must be a string"),
        (json!({"health_check_path": "health"}), "spec.health_check_path", "start with /"),
        (json!({"health_check_path": "/a b"}), "spec.health_check_path", "no blanks"),
        (json!({"model_source": "s3://"}), "spec.model_source", "bucket"),
        (json!({"model_source": "s3://a b"}), "spec.model_source", "no blanks"),
        (json!({"env": {"A=B": "x"}}), "spec.env.A=B", "printable"),
        (json!({"env": {"": "x"}}), "spec.env", "printable"),
        (json!({"env": {"\u{e4}": "x"}}), "spec.env.\u{e4}", "printable"),
        (json!({"env": {"A": ["x"]}}), "spec.env.A", "got a list"),
        (json!({"env": {"A": null}}), "spec.env.A", "got nothing"),
        (json!({"env": {"A": "a\u{0}b"}}), "spec.env.A", "NUL"),
        (json!({"env": {"A": "x".repeat(131_072)}}), "spec.env", "at most 131072 bytes"),
        (json!({"resources": {"requests": {"cpu": "two"}}}), "spec.resources.requests.cpu", "quantity"),
        (json!({"resources": {"requests": {"cpu": -1}}}), "spec.resources.requests.cpu", "quantity"),
        (json!({"resources": {"limits": {"memory": true}}}), "spec.resources.limits.memory", "got true"),
        (json!({"resources": {"limits": {"me mory": "1"}}}), "spec.resources.limits.me mory", "resource name"),
        (
            json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}}}),
            "spec.resources.requests.cpu",
            "at most the limit \"1500m\"",
        ),
        (
            json!({"gpu_count": 2, "resources": {"limits": {"nvidia.com/gpu": "4"}}}),
            "spec.resources.limits.nvidia.com/gpu",
            "be 2",
        ),
        (
            json!({"resources": {"limits": {"aws.amazon.com/neuron": 1}}}),
            "spec.resources.limits.aws.amazon.com/neuron",
            "be 0",
        ),
        (json!({"command": "run"}), "spec.command", "must be a list"),
        (json!({"args": ["a", 1]}), "spec.args[1]", "must be a string, got 1"),
        (json!({"args": ["a\u{0}"]}), "spec.args[0]", "NUL"),
        (json!({"accelerator": "tpu"}), "spec.accelerator", "nvidia or neuron"),
        (json!({"node_selector": {"a": 1}}), "spec.node_selector.a", "got 1"),
        (json!({"node_selector": {"a": "b c"}}), "spec.node_selector.a", "label value"),
        (json!({"capacity_type": 1}), "spec.capacity_type", "must be a string"),
        (json!({"startup_timeout_seconds": 29}), "spec.startup_timeout_seconds", "from 30 to 21600"),
        (json!({"drain_seconds": 3601}), "spec.drain_seconds", "from 0 to 3600"),
        (json!({"max_surge": 101}), "spec.max_surge", "from 0 to 100"),
        (json!({"autoscaling": {"enabled": "yes"}}), "spec.autoscaling.enabled", "true or false"),
        (json!({"autoscaling": {"min_replicas": 0}}), "spec.autoscaling.min_replicas", "from 1"),
        (json!({"autoscaling": {"max_replicas": 1001}}), "spec.autoscaling.max_replicas", "from 1 to 1000"),
        (json!({"autoscaling": {"min_replicas": 12}}), "spec.autoscaling.max_replicas", "got the default 10"),
        (json!({"autoscaling": {"metrics": [5]}}), "spec.autoscaling.metrics[0]", "must be a map"),
        (json!({"autoscaling": {"metrics": {}}}), "spec.autoscaling.metrics", "must be a list"),
        (json!({"autoscaling": {"metrics": [{"target": 1001}]}}), "spec.autoscaling.metrics[0].target", "1 to 1000"),
        (
            json!({"autoscaling": {"metrics": [{"type": "gpu", "target": 101}]}}),
            "spec.autoscaling.metrics[0].target",
            "1 to 100,",
        ),
        (json!({"canary": {"weight": 10}}), "spec.canary.image", "is required"),
        (json!({"canary": {"image": "x", "weight": 100}}), "spec.canary.weight", "from 1 to 99"),
        (json!({"canary": {"image": "x", "replicas": 0}}), "spec.canary.replicas", "from 1"),
        (json!({"canary": "x"}), "spec.canary", "must be a map"),
        (json!({"mooncake": "store"}), "spec.mooncake", "must be a map"),
    ] {
        let found = Spec::check(&with(changes.clone())).expect_err(&changes.to_string());
        let [FieldProblem { field: found_field, message }] = found.as_slice() else { panic!("{changes}: {found:?}") };
        assert_eq!(found_field, field, "{changes}");
        assert!(message.contains(words), "{changes}: {message}");
    }
}

#[test]
fn a_spec_that_uses_everything_is_read_in_full() {
    let spec = checked(json!({
        "image": "a", "region_image_uris": {"eu-west-1": "b"}, "port": 8080, "replicas": 1000, "gpu_count": 64,
        "gpu_type": "p5", "health_check_path": "/", "model_path": "/x", "model_source": "s3://bucket/key",
        "env": {"A": "x", "B": 5, "C": true, "D": 0.5, "E.f-g": ""}, "command": ["run"], "args": ["--a", ""],
        "resources": {"requests": {"cpu": 2, "memory": "8Gi"}, "limits": {"memory": "8Gi", "aws.amazon.com/neuron": "64"}},
        "accelerator": "neuron", "node_selector": {"topology.kubernetes.io/zone": "a"}, "capacity_type": "spot",
        "framework": "tgi", "startup_timeout_seconds": 21600, "drain_seconds": 0, "max_surge": 100,
        "autoscaling": {"enabled": false, "min_replicas": 2, "max_replicas": 2, "metrics": [{"type": "gpu", "target": 100}]},
        "canary": {"image": "c", "weight": 99, "replicas": 2},
    }));
    let environment: Vec<(&str, &str)> = spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(environment, [("A", "x"), ("B", "5"), ("C", "True"), ("D", "0.5"), ("E.f-g", "")]);
    assert_eq!((spec.image_for("eu-west-1"), spec.image_for("us-east-1")), ("b", "a"));
    assert_eq!((spec.capacity_type, spec.framework), (Some(CapacityType::Spot), Some(Framework::Tgi)));
    assert_eq!(spec.accelerator.resource(), "aws.amazon.com/neuron");
    assert_eq!(spec.resources.requests["cpu"], "2");
}

#[test]
fn fields_that_change_nothing_are_named_and_kept() {
    assert_eq!(
        idle(json!({
            "speculative": {}, "tolerations": [], "gpu_type": "p5", "model_path": "/x", "model_source": "/somewhere",
            "capacity_type": "reserved", "framework": "sglang", "canary": {"image": "x", "colour": 1},
            "autoscaling": {"cooldown": 5, "metrics": [{"window": 1}]}, "resources": {"claims": []},
        })),
        [
            "spec.autoscaling.cooldown",
            "spec.autoscaling.metrics[0].window",
            "spec.canary.colour",
            "spec.capacity_type",
            "spec.framework",
            "spec.gpu_type",
            "spec.model_path",
            "spec.model_source",
            "spec.resources.claims",
            "spec.speculative",
            "spec.tolerations",
        ]
    );
    assert_eq!(idle(json!({"capacity_type": "spot", "framework": "vllm", "model_source": "s3://b"})), [""; 0]);
}

#[test]
fn long_values_of_strangers_do_not_fill_messages() {
    let long = "x".repeat(10_000);
    for changes in [
        json!({"capacity_type": 1, "accelerator": long}),
        json!({"env": {long.clone() + "="  : 1}}),
        json!({"port": long}),
    ] {
        for problem in problems(&with(changes)) {
            assert!(problem.chars().count() < 500, "{}", problem.chars().count());
        }
    }
}

#[test]
fn hashes_do_not_depend_on_how_a_spec_was_written() {
    let one = checked(json!({"port": 8000, "env": {"A": 1, "B": "x"}, "resources": {"limits": {"cpu": "1"}}}));
    let other = checked(json!({"resources": {"limits": {"cpu": "1000m"}}, "env": {"B": "x", "A": "1"}, "unknown": 5}));
    assert_eq!(one.template_input_hash("r"), other.template_input_hash("r"));
    assert_eq!(one.input_hash("r"), other.input_hash("r"));
    assert_eq!(one.spec_hash(), other.spec_hash());
    let block = |text: &str| {
        let port = Value::Number(text.to_owned());
        let transfer = Value::Map([("bootstrap_base_port".to_owned(), port)].into());
        Spec { mooncake: Some([("transfer".to_owned(), transfer)].into()), ..one.clone() }
    };
    assert_eq!(block("8998").input_hash("r"), block("8998.0").input_hash("r"));
    assert_ne!(block("8998").template_input_hash("r"), block("8999").template_input_hash("r"));
}

#[test]
fn every_input_of_the_pod_template_changes_its_hash_and_no_count_does() {
    let base = checked(json!({"region_image_uris": {"r": "b"}}));
    let same = |changes: Json| checked(changes).template_input_hash("r");
    for changes in [
        json!({"port": 1}),
        json!({"gpu_count": 2}),
        json!({"health_check_path": "/x"}),
        json!({"model_path": "/x"}),
        json!({"model_source": "s3://b"}),
        json!({"env": {"A": "1"}}),
        json!({"resources": {"requests": {"cpu": 1}}}),
        json!({"resources": {"limits": {"cpu": 1}}}),
        json!({"command": ["x"]}),
        json!({"args": ["x"]}),
        json!({"accelerator": "neuron"}),
        json!({"node_selector": {"a": "b"}}),
        json!({"capacity_type": "spot"}),
        json!({"framework": "vllm"}),
        json!({"startup_timeout_seconds": 60}),
        json!({"drain_seconds": 61}),
        json!({"mooncake": {"mode": "both"}}),
        json!({"mooncake": {"store": {"global_segment_size": "1"}}}),
        json!({"region_image_uris": {"r": "c"}}),
    ] {
        let mut changes = changes;
        if changes.get("region_image_uris").is_none() {
            changes["region_image_uris"] = json!({"r": "b"});
        }
        assert_ne!(same(changes.clone()), base.template_input_hash("r"), "{changes}");
        assert_ne!(checked(changes.clone()).input_hash("r"), base.input_hash("r"), "{changes}");
        assert_ne!(checked(changes.clone()).spec_hash(), base.spec_hash(), "{changes}");
    }
    for changes in [
        json!({"replicas": 5}),
        json!({"max_surge": 1}),
        json!({"autoscaling": {"enabled": true}}),
        json!({"canary": {"image": "x"}}),
        json!({"mooncake": {"topology": {"prefill": 2}, "proxy": {"image": "x"}, "autoscaling": {"enabled": true}}}),
    ] {
        let mut changes = changes;
        changes["region_image_uris"] = json!({"r": "b"});
        assert_eq!(same(changes.clone()), base.template_input_hash("r"), "{changes}");
        assert_ne!(checked(changes.clone()).input_hash("r"), base.input_hash("r"), "{changes}");
        assert_ne!(checked(changes.clone()).spec_hash(), base.spec_hash(), "{changes}");
    }
    // What the region does not use does not count there; the hash for all regions sees it.
    let elsewhere = checked(json!({"region_image_uris": {"r": "b", "s": "d"}}));
    assert_eq!(elsewhere.input_hash("r"), base.input_hash("r"));
    assert_ne!(elsewhere.spec_hash(), base.spec_hash());
    let unused = checked(json!({"image": "other", "region_image_uris": {"r": "b"}}));
    assert_eq!(unused.template_input_hash("r"), base.template_input_hash("r"));
}

#[test]
fn hashes_stay_what_they_are_for_ever() {
    // Stored in rows and on objects of running clusters: a change here would roll every pod of every fleet.
    let hashes = |name: &str| {
        let spec = Spec::check(&row(name).spec).expect("valid").spec;
        [spec.template_input_hash("us-east-1"), spec.input_hash("us-east-1"), spec.spec_hash()].join(" ")
    };
    assert_eq!(
        hashes("classic-minimal"),
        "dcd8a70288fe0118ab47dff6d74a6bcff591725ff5026f7773f32e7e50503927 92145558f6929037e3459704c8eecde6839ac7c6c017d3f17870eb5e2fe5d7c2 290cc48dfdd50527760133942201b348aebcc224f40cc0440468869a0180d56d"
    );
    assert_eq!(
        hashes("classic-full"),
        "5c803fe3abbbfb53dfbaedf2b212403a9ed7aea2bb784d9a233d8d8907c49970 0eefb727bcf5a818c76f50e27c73b42979dff8b89ceb4e310c83f6ae85a5cc50 1b31cff81d7b5c55d17c70ce66004490f728ce8658ba6a04c104596ece040476"
    );
    assert_eq!(
        hashes("mooncake-both-autoscaled"),
        "28ece85b05872cfcbf5a84dbe8c0299f23d06b3a9f0aee80504e44660fb794e0 e3cca7e829c1d3c4382aafccb9e4a41889a36e19d359c67b2dd0e1f6f1ea7fd9 dbc0ca0d5d6316b857b5752aa55db84d3e00daa9bdf13ee1844ac7340f290b54"
    );
}
