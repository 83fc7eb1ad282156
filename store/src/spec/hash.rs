//! Hashes of what a spec asks for, independent of how it was written: key order and number text do not count.
//!
//! **These hashes are stored** on objects of running clusters and in rows, and an object whose hash differs is rolled out
//! again. So the encoding must never change for a spec that exists: a field is encoded only when it differs from its
//! default of version 1, and a field that is added later must do likewise. The golden tests hold this fast.

use sha2::{Digest, Sha256};

use super::quantity::Quantity;
use super::{Accelerator, CapacityType, Framework, Metric, Spec};
use crate::wire::{Decimal, Item, Value};

/// Keys of the mooncake block that model pods are made from, as paths. Counts, autoscaling, the proxy and the shared
/// master are not: changing them restarts no model pod.
const MOONCAKE_TEMPLATE_KEYS: [&[&str]; 8] = [
    &["mode"],
    &["transfer", "protocol"],
    &["transfer", "device_name"],
    &["transfer", "bootstrap_base_port"],
    &["store", "enabled"],
    &["store", "cold_tier_enabled"],
    &["store", "global_segment_size"],
    &["store", "local_buffer_size"],
];

impl Spec {
    /// Hash of everything that the pod template of `region` is made from: 64 hexadecimal digits. Replicas, autoscaling,
    /// the canary and the surge are not part of it: changing them restarts nothing.
    #[must_use]
    pub fn template_input_hash(&self, region: &str) -> String {
        let mut encoding = Encoding::new("gco-spec-template-1");
        self.encode_template(self.image_for(region), &mut encoding);
        if let Some(mooncake) = &self.mooncake {
            let block = Value::Map(mooncake.clone());
            for path in MOONCAKE_TEMPLATE_KEYS {
                if let Some(value) = block.at(path) {
                    encoding.value(&format!("mooncake.{}", path.join(".")), value);
                }
            }
        }
        encoding.finish()
    }

    /// Hash of everything that `region` does for this spec, counts included; other regions' images are not part of it.
    #[must_use]
    pub fn input_hash(&self, region: &str) -> String {
        let mut encoding = Encoding::new("gco-spec-input-1");
        self.encode_template(self.image_for(region), &mut encoding);
        self.encode_counts(&mut encoding);
        encoding.finish()
    }

    /// Hash of the whole spec, the same in all regions: what `observed_spec` of a status holds.
    #[must_use]
    pub fn spec_hash(&self) -> String {
        let mut encoding = Encoding::new("gco-spec-1");
        self.encode_template(&self.image, &mut encoding);
        self.encode_counts(&mut encoding);
        encoding.texts("region_image_uris", self.region_image_uris.iter().flat_map(|(region, image)| [region, image]));
        encoding.text("model_location", self.model_source.as_deref().unwrap_or_default(), "");
        encoding.text("gpu_type", self.gpu_type.as_deref().unwrap_or_default(), "");
        encoding.text("model_path", self.model_path.as_deref().unwrap_or_default(), "");
        encoding.finish()
    }

    fn encode_template(&self, image: &str, encoding: &mut Encoding) {
        // Taken apart without `..`: who adds a field must decide here.
        let Self {
            image: _,
            region_image_uris: _,
            port,
            replicas: _,
            gpu_count,
            gpu_type: _,
            health_check_path,
            model_path,
            model_source,
            env,
            env_from_secret,
            image_pull_secrets,
            resources,
            command,
            args,
            accelerator,
            node_selector,
            capacity_type,
            framework,
            startup_timeout_seconds,
            drain_seconds,
            max_surge: _,
            autoscaling: _,
            canary: _,
            mooncake: _,
        } = self;
        encoding.text("image", image, "");
        encoding.number("port", u32::from(*port), 8_000);
        encoding.number("gpu_count", *gpu_count, 1);
        encoding.text("health_check_path", health_check_path, "/health");
        encoding.number("model_storage", u32::from(model_path.is_some() || model_source.is_some()), 0);
        // Another location than S3 mounts the storage and nothing else.
        let synchronised = model_source.as_deref().filter(|source| source.starts_with("s3://"));
        encoding.text("model_source", synchronised.unwrap_or_default(), "");
        encoding.texts("env", env.iter().flat_map(|(name, value)| [name, value]));
        let references = env_from_secret.iter().flat_map(|(name, secret)| [name, &secret.name, &secret.key]);
        encoding.texts("env_from_secret", references);
        encoding.texts("image_pull_secrets", image_pull_secrets);
        encoding.texts("requests", resources.requests.iter().flat_map(quantity_entry));
        encoding.texts("limits", resources.limits.iter().flat_map(quantity_entry));
        encoding.texts("command", command.iter().flatten());
        encoding.texts("args", args);
        let accelerator = match accelerator {
            Accelerator::Nvidia => "nvidia",
            Accelerator::Neuron => "neuron",
        };
        encoding.text("accelerator", accelerator, "nvidia");
        encoding.texts("node_selector", node_selector.iter().flat_map(|(key, value)| [key, value]));
        let capacity_type = match capacity_type {
            None => "",
            Some(CapacityType::Spot) => "spot",
            Some(CapacityType::OnDemand) => "on-demand",
        };
        encoding.text("capacity_type", capacity_type, "");
        let framework = match framework {
            None => "",
            Some(Framework::Vllm) => "vllm",
            Some(Framework::Tgi) => "tgi",
        };
        encoding.text("framework", framework, "");
        encoding.number("startup_timeout_seconds", *startup_timeout_seconds, 1_800);
        encoding.number("drain_seconds", *drain_seconds, 60);
    }

    fn encode_counts(&self, encoding: &mut Encoding) {
        encoding.number("replicas", self.replicas, 1);
        encoding.number("max_surge", self.max_surge, 0);
        if let Some(autoscaling) = self.autoscaled() {
            encoding.number("autoscaling.min_replicas", autoscaling.min_replicas, 0);
            encoding.number("autoscaling.max_replicas", autoscaling.max_replicas, 0);
            for Metric { kind, target_percent } in &autoscaling.metrics {
                encoding.number(&format!("autoscaling.metrics.{}", kind.word()), *target_percent, 0);
            }
        }
        if let Some(canary) = &self.canary {
            encoding.text("canary.image", &canary.image, "");
            encoding.number("canary.weight", canary.weight, 0);
            encoding.number("canary.replicas", canary.replicas, 0);
        }
        if let Some(mooncake) = &self.mooncake {
            encoding.map("mooncake", mooncake);
        }
    }
}

/// A resource name and its quantity by value: `1` and `1000m` are the same.
fn quantity_entry((name, text): (&String, &String)) -> [String; 2] {
    let value = Quantity::parse(text).map_or_else(|| text.clone(), |quantity| quantity.billionths().to_string());
    [name.clone(), value]
}

/// Bytes that mean one thing only: every name and text is preceded by its length.
struct Encoding(Sha256);

impl Encoding {
    fn new(version: &str) -> Self {
        let mut encoding = Self(Sha256::new());
        encoding.bytes(version.as_bytes());
        encoding
    }

    fn bytes(&mut self, bytes: &[u8]) {
        // A row has at most 400 KB, so that every length fits.
        self.0.update(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.0.update(bytes);
    }

    fn entry(&mut self, name: &str, kind: u8, bytes: &[u8]) {
        self.bytes(name.as_bytes());
        self.0.update([kind]);
        self.bytes(bytes);
    }

    fn text(&mut self, name: &str, text: &str, default: &str) {
        if text != default {
            self.entry(name, b'S', text.as_bytes());
        }
    }

    fn number(&mut self, name: &str, number: u32, default: u32) {
        if number != default {
            self.entry(name, b'N', number.to_string().as_bytes());
        }
    }

    /// Texts in order; left out when there are none.
    fn texts<T: AsRef<str>>(&mut self, name: &str, texts: impl IntoIterator<Item = T>) {
        for text in texts {
            self.entry(name, b'L', text.as_ref().as_bytes());
        }
    }

    fn map(&mut self, name: &str, map: &Item) {
        for (key, value) in map {
            self.value(&format!("{name}.{key}"), value);
        }
    }

    /// Any attribute value; numbers by value.
    fn value(&mut self, name: &str, value: &Value) {
        match value {
            Value::Null => {}
            Value::Bool(value) => self.entry(name, b'B', if *value { b"true" } else { b"false" }),
            Value::Number(text) => {
                let canonical = Decimal::parse(text).map_or_else(|| text.clone(), |decimal| decimal.text());
                self.entry(name, b'N', canonical.as_bytes());
            }
            Value::String(text) => self.entry(name, b'S', text.as_bytes()),
            Value::Map(map) => {
                self.entry(name, b'M', &[]);
                self.map(name, map);
            }
            Value::List(list) => {
                self.entry(name, b'L', &[]);
                for element in list {
                    self.value(&format!("{name}[]"), element);
                }
            }
            Value::Binary(bytes) => self.entry(name, b'b', bytes),
            Value::StringSet(set) | Value::NumberSet(set) => {
                let mut sorted: Vec<&String> = set.iter().collect();
                sorted.sort();
                self.texts(name, sorted);
            }
            Value::BinarySet(set) => {
                let mut sorted: Vec<&Vec<u8>> = set.iter().collect();
                sorted.sort();
                for bytes in sorted {
                    self.entry(name, b'b', bytes);
                }
            }
        }
    }

    fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
