//! Endpoint specs of every shape that a condition of a transition looks at.

use gco_store::wire::Value;
use serde_json::{Value as Json, json};

use super::seed::Seed;

/// What a condition can find in a spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// No autoscaling, no Mooncake.
    Plain,
    /// `autoscaling.enabled` is true.
    Autoscaled,
    /// `autoscaling.enabled` is false.
    AutoscalingOff,
    /// A Mooncake block.
    Mooncake,
    /// A canary block.
    Canary,
}

/// Every shape, with how often the generator takes it.
pub const SHAPES: [(usize, Shape); 5] =
    [(5, Shape::Plain), (3, Shape::Autoscaled), (4, Shape::AutoscalingOff), (6, Shape::Mooncake), (2, Shape::Canary)];

/// A valid spec of a shape; `seed` varies image, replicas and environment.
///
/// # Errors
/// A number that the table cannot keep; none of these has one.
pub fn spec(shape: Shape, seed: &mut Seed) -> anyhow::Result<Value> {
    let mut spec = json!({
        "image": format!("vllm/vllm-openai:v0.{}.0", seed.below(40)),
        "port": 8000,
        "replicas": seed.below(5) + 1,
        "gpu_count": 1,
        "health_check_path": "/health",
        "env": {"MODEL": format!("model-{}", seed.below(1000))},
    });
    let autoscaling = |enabled: bool| json!({"enabled": enabled, "min_replicas": 1, "max_replicas": 4, "metrics": [{"type": "cpu", "target": 70}]});
    match shape {
        Shape::Plain => {}
        Shape::Autoscaled => insert(&mut spec, "autoscaling", autoscaling(true)),
        Shape::AutoscalingOff => insert(&mut spec, "autoscaling", autoscaling(false)),
        Shape::Mooncake => insert(
            &mut spec,
            "mooncake",
            json!({"mode": "disaggregated", "topology": {"prefill": 1, "decode": 2}, "proxy": {"image": "vllm/vllm-openai:v0.1.0"}}),
        ),
        Shape::Canary => {
            insert(&mut spec, "canary", json!({"image": "vllm/vllm-openai:canary", "weight": 10, "replicas": 1}));
        }
    }
    Value::from_plain_json("spec", &spec).map_err(|problem| anyhow::anyhow!("{problem}"))
}

/// A value of every type and every kind of number, as a key that this version does not know.
///
/// # Errors
/// A number that the table cannot keep; none of these is one.
pub fn unknown_key() -> anyhow::Result<Value> {
    let json = json!({
        "nothing": null, "yes": true, "map": {"deeper": {"x": "\u{e4}"}}, "none": [], "text": "",
        "numbers": [0, -1, 0.25, 1e20, 1e-7, 12345678901234567890_u64],
    });
    let mut value = Value::from_plain_json("unknown", &json).map_err(|problem| anyhow::anyhow!("{problem}"))?;
    if let Value::Map(map) = &mut value {
        map.insert("digits".to_owned(), Value::Number("8000.50".to_owned()));
        map.insert("bytes".to_owned(), Value::Binary(vec![0, 1, 255]));
        map.insert("words".to_owned(), Value::StringSet(vec!["a".to_owned(), "b".to_owned()]));
    }
    Ok(value)
}

fn insert(spec: &mut Json, key: &str, value: Json) {
    if let Some(spec) = spec.as_object_mut() {
        spec.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use gco_store::spec::Spec;

    use super::*;

    #[test]
    fn the_store_accepts_a_spec_of_every_shape() {
        for (_, shape) in SHAPES {
            let spec = spec(shape, &mut Seed::new(3)).unwrap();
            assert!(Spec::check(&spec).is_ok(), "{shape:?}: {:?}", Spec::check(&spec));
        }
    }
}
