//! References to Secrets: rendered as references, in a reference file of their own, which a real server accepts strictly.

use super::golden::{should_update, sorted};
use super::support::{identity_of, row, tests_folder};
use gco_monitor::object::Kind;
use gco_monitor::render::{RenderInput, classic};
use gco_store::spec::Spec;
use gco_store::wire::Value;
use serde_json::{Value as Json, json};

fn spec_with(more: Json) -> Spec {
    let mut json = row("classic-minimal").spec.to_plain_json();
    json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Spec::check(&Value::from_plain_json("spec", &json).unwrap()).unwrap().spec
}

fn deployment(spec: &Spec) -> Json {
    let row = row("classic-minimal");
    let identity = identity_of(&row, "us-east-1");
    let set = classic(&RenderInput {
        name: "classic-secrets",
        namespace: row.namespace.as_deref().unwrap(),
        region: "us-east-1",
        cluster_name: "cluster",
        identity: &identity,
        spec,
    });
    set.objects.into_iter().find(|one| one.key.kind == Kind::Deployment).unwrap().body
}

fn references() -> Json {
    json!({
        "env": {"MODEL": "/models/chat"},
        "env_from_secret": {
            "HF_TOKEN": {"name": "hugging-face", "key": "token"},
            "PYTHONHASHSEED": {"name": "seeds", "key": "hash.seed"},
        },
        "image_pull_secrets": ["registry-b", "registry-a"],
    })
}

#[test]
fn references_to_secrets_render_to_their_reference_file() {
    let body = deployment(&spec_with(references()));
    let path = tests_folder().join("golden/classic-secrets.us-east-1.deployment.json");
    let text = format!("{}\n", serde_json::to_string_pretty(&sorted(&body)).unwrap());
    if should_update() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), text, "run with UPDATE_GOLDEN=1");
}

#[test]
fn a_secret_is_named_and_never_copied_and_the_order_of_registries_is_kept() {
    let body = deployment(&spec_with(references()));
    let pod = &body["spec"]["template"]["spec"];
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry-b"}, {"name": "registry-a"}]));
    let env = pod["containers"][0]["env"].as_array().unwrap();
    let of = |name: &str| env.iter().filter(|one| one["name"] == name).collect::<Vec<_>>();
    let reference = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
    assert_eq!(of("HF_TOKEN").len(), 1);
    assert_eq!(of("HF_TOKEN")[0]["valueFrom"], reference("hugging-face", "token"));
    // The seed that every pod gets gives way to a reference of that name: a doubled variable would have two values.
    assert_eq!(of("PYTHONHASHSEED").len(), 1);
    assert_eq!(of("PYTHONHASHSEED")[0]["valueFrom"], reference("seeds", "hash.seed"));
    assert_eq!(of("MODEL")[0]["value"], "/models/chat");
}

#[test]
fn without_references_nothing_is_rendered_of_them_and_no_hash_changes() {
    let plain = spec_with(json!({}));
    let empty = spec_with(json!({"env_from_secret": {}, "image_pull_secrets": []}));
    assert_eq!(plain.spec_hash(), empty.spec_hash());
    assert_eq!(plain.template_input_hash("us-east-1"), empty.template_input_hash("us-east-1"));
    assert!(deployment(&plain)["spec"]["template"]["spec"].get("imagePullSecrets").is_none());
    let other = spec_with(json!({"env_from_secret": {"HF_TOKEN": {"name": "a", "key": "b"}}}));
    assert_ne!(plain.template_input_hash("us-east-1"), other.template_input_hash("us-east-1"));
}

#[test]
fn bad_references_are_named_by_field_and_a_secret_that_was_written_in_place_of_one_is_not_repeated() {
    let bad = json!({
        "image": "a:1",
        "env": {"HF_TOKEN": "x"},
        "env_from_secret": {
            "HF_TOKEN": {"name": "ok", "key": "ok"},
            "PLAIN": "hunter2",
            "NAMELESS": {"key": "k"},
            "BADKEY": {"name": "ok", "key": "a/b"},
            "A=B": {"name": "ok", "key": "ok"},
        },
        "image_pull_secrets": ["ok", "ok", "Not_A_Name", 7],
    });
    let problems = Spec::check(&Value::from_plain_json("spec", &bad).unwrap()).unwrap_err();
    let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.env_from_secret.A=B",
            "spec.env_from_secret.BADKEY.key",
            "spec.env_from_secret.HF_TOKEN",
            "spec.env_from_secret.NAMELESS.name",
            "spec.env_from_secret.PLAIN",
            "spec.image_pull_secrets[1]",
            "spec.image_pull_secrets[2]",
            "spec.image_pull_secrets[3]",
        ]
    );
    assert!(problems.iter().all(|problem| !problem.message.contains("hunter2")), "{problems:?}");
}
