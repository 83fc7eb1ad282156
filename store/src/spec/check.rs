//! The validator: reads every field of a spec and collects every problem.

mod secrets;

use std::collections::{BTreeMap, BTreeSet};

use super::quantity::Quantity;
use super::{Accelerator, Autoscaling, Canary, CapacityType, Framework, Metric, MetricKind, Resources, Spec, label};
use crate::name::is_region;
use crate::problem::{FieldProblem, QUOTED_VALUE_CHARACTERS, bounded};
use crate::wire::{Decimal, Item, Value};

/// Most replicas of one workload in one region.
pub const MOST_REPLICAS: i64 = 1_000;
/// Longest image reference.
const LONGEST_IMAGE: usize = 512;
/// Longest path and model location.
const LONGEST_LOCATION: usize = 1_024;
/// Most bytes of all environment names and values together. Linux refuses to start a program with a single variable of
/// 128 KiB (32 pages of 4 KiB), and the whole row has 400 KB.
const LARGEST_ENVIRONMENT_BYTES: usize = 128 * 1024;
/// Keys of a spec that have a meaning here.
const KNOWN_KEYS: [&str; 25] = [
    "image",
    "region_image_uris",
    "port",
    "replicas",
    "gpu_count",
    "gpu_type",
    "health_check_path",
    "model_path",
    "model_source",
    "env",
    "env_from_secret",
    "image_pull_secrets",
    "resources",
    "command",
    "args",
    "accelerator",
    "node_selector",
    "capacity_type",
    "framework",
    "startup_timeout_seconds",
    "drain_seconds",
    "max_surge",
    "autoscaling",
    "canary",
    "mooncake",
];

/// What a look at a spec found.
pub(super) struct Findings {
    /// The typed spec, right only when there are no problems.
    pub(super) spec: Spec,
    /// Bad fields, sorted by path.
    pub(super) problems: Vec<FieldProblem>,
    /// Fields that change nothing, sorted by path.
    pub(super) without_effect: Vec<FieldProblem>,
}

/// Looks at every field of a spec attribute.
pub(super) fn inspect(value: &Value) -> Findings {
    let empty = Item::new();
    let map = value.as_map();
    let mut root = Fields::new("spec".to_owned(), map.unwrap_or(&empty));
    if map.is_none() {
        root.problem("", "endpoint spec must be a mapping");
    }
    let spec = read_spec(&mut root, map.is_some());
    let Fields { mut problems, mut without_effect, .. } = root;
    problems.sort();
    without_effect.sort();
    Findings { spec, problems, without_effect }
}

fn read_spec(root: &mut Fields<'_>, is_map: bool) -> Spec {
    let image = root.image("image");
    if image.is_none() && is_map && root.get("image").is_none() {
        root.problem("image", "is required");
    }
    if root.get("gpu_type").is_some() {
        root.idle("gpu_type", "is kept, but nothing reads it");
    }
    let model_path = root.text("model_path", LONGEST_LOCATION);
    if model_path.is_some() {
        root.idle("model_path", "only its presence counts: the storage is mounted at /models; its value is not used");
    }
    let gpu_count = root.integer("gpu_count", 0, 64).unwrap_or(1);
    let accelerator = read_accelerator(root);
    let env = read_environment(root);
    let spec = Spec {
        image: image.unwrap_or_default(),
        region_image_uris: read_region_images(root),
        port: root.integer("port", 1, 65_535).unwrap_or(8_000),
        replicas: root.replicas("replicas", MOST_REPLICAS).unwrap_or(1),
        gpu_count,
        gpu_type: root.text("gpu_type", LONGEST_LOCATION),
        health_check_path: read_health_check_path(root),
        model_path,
        model_source: read_model_source(root),
        env_from_secret: secrets::environment(root, &env),
        image_pull_secrets: secrets::pull_secrets(root),
        env,
        resources: read_resources(root, accelerator, gpu_count),
        command: root.texts("command").filter(|command| !command.is_empty()),
        args: root.texts("args").unwrap_or_default(),
        accelerator,
        node_selector: read_node_selector(root),
        capacity_type: root
            .word("capacity_type", &[("spot", CapacityType::Spot), ("on-demand", CapacityType::OnDemand)]),
        framework: root.word("framework", &[("vllm", Framework::Vllm), ("tgi", Framework::Tgi)]),
        startup_timeout_seconds: root.integer("startup_timeout_seconds", 30, 21_600).unwrap_or(1_800),
        drain_seconds: root.integer("drain_seconds", 0, 3_600).unwrap_or(60),
        max_surge: root.integer("max_surge", 0, 100).unwrap_or(0),
        autoscaling: root.nested("autoscaling", read_autoscaling),
        canary: root.nested("canary", read_canary).flatten(),
        mooncake: root.map("mooncake").filter(|block| !block.is_empty()).cloned(),
    };
    let given = |key: &str| root.get(key).is_some_and(|value| value.as_map().is_none_or(|block| !block.is_empty()));
    if given("mooncake") && given("canary") {
        root.problem("", "endpoint spec cannot combine 'mooncake' and 'canary' blocks");
    }
    root.unknown_keys(&KNOWN_KEYS);
    spec
}

fn read_accelerator(root: &mut Fields<'_>) -> Accelerator {
    match root.text("accelerator", LONGEST_LOCATION).as_deref() {
        None | Some("nvidia") => Accelerator::Nvidia,
        Some("neuron") => Accelerator::Neuron,
        Some(other) => {
            root.problem("accelerator", format!("must be nvidia or neuron, got {}", quoted(other)));
            Accelerator::Nvidia
        }
    }
}

fn read_region_images(root: &mut Fields<'_>) -> BTreeMap<String, String> {
    let read = |fields: &mut Fields<'_>| {
        let mut images = BTreeMap::new();
        for region in fields.keys() {
            if !is_region(&region) {
                fields.idle(&region, "is not the name of a region");
            }
            if let Some(image) = fields.image(&region) {
                images.insert(region, image);
            }
        }
        images
    };
    root.nested("region_image_uris", read).unwrap_or_default()
}

fn read_health_check_path(root: &mut Fields<'_>) -> String {
    let path = root.text("health_check_path", LONGEST_LOCATION).unwrap_or_else(|| "/health".to_owned());
    if !path.starts_with('/') || path.chars().any(|character| character.is_whitespace() || character.is_control()) {
        root.problem("health_check_path", format!("must start with / and have no blanks, got {}", quoted(&path)));
    }
    path
}

fn read_model_source(root: &mut Fields<'_>) -> Option<String> {
    let source = root.text("model_source", LONGEST_LOCATION)?;
    if source.chars().any(|character| character.is_whitespace() || character.is_control()) {
        root.problem("model_source", format!("must have no blanks, got {}", quoted(&source)));
    }
    match source.strip_prefix("s3://") {
        Some(location) if location.is_empty() || location.starts_with('/') => {
            root.problem("model_source", format!("must name a bucket after s3://, got {}", quoted(&source)));
        }
        Some(_) => {}
        None => root.idle(
            "model_source",
            "only an s3:// location is synchronised; to mount the storage and nothing else, give model_path",
        ),
    }
    Some(source)
}

fn read_environment(root: &mut Fields<'_>) -> BTreeMap<String, String> {
    let read = |fields: &mut Fields<'_>| {
        let mut environment = BTreeMap::new();
        let mut bytes = 0;
        for (name, value) in fields.map {
            if !is_variable_name(name) {
                fields.problem(name, "is no name of an environment variable: printable ASCII without = is");
                continue;
            }
            // The texts that the original renders: Python's.
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(text) => Decimal::parse(text).map_or_else(|| text.clone(), |decimal| decimal.text()),
                Value::Bool(true) => "True".to_owned(),
                Value::Bool(false) => "False".to_owned(),
                other => {
                    fields.problem(name, format!("must be a string, a number or a boolean, got {}", describe(other)));
                    continue;
                }
            };
            if text.contains('\0') {
                fields.problem(name, "must not contain a NUL character");
            }
            bytes += name.len() + text.len();
            environment.insert(name.clone(), text);
        }
        if bytes > LARGEST_ENVIRONMENT_BYTES {
            fields.problem("", format!("must be at most {LARGEST_ENVIRONMENT_BYTES} bytes in all, got {bytes}"));
        }
        environment
    };
    root.nested("env", read).unwrap_or_default()
}

/// Kubernetes since 1.34: every printable ASCII character but the equals sign.
fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=')
}

fn read_resources(root: &mut Fields<'_>, accelerator: Accelerator, gpu_count: u32) -> Resources {
    let read_quantities = |fields: &mut Fields<'_>| {
        let mut quantities = BTreeMap::new();
        for (name, value) in fields.map {
            if !label::is_key(name) {
                fields.problem(name, "is no resource name, for example memory or nvidia.com/gpu");
                continue;
            }
            let text = match value {
                Value::String(text) | Value::Number(text) => text.clone(),
                other => {
                    fields.problem(name, format!("must be a quantity such as 500m or 8Gi, got {}", describe(other)));
                    continue;
                }
            };
            let Some(quantity) = Quantity::parse(&text) else {
                fields.problem(name, format!("must be a quantity such as 500m or 8Gi, got {}", quoted(&text)));
                continue;
            };
            let expected = if name == accelerator.resource() { gpu_count } else { 0 };
            if Accelerator::RESOURCES.contains(&name.as_str()) && quantity.whole_units() != Some(expected.into()) {
                fields.problem(
                    name,
                    format!(
                        "must be left out or be {expected}, as gpu_count and accelerator say, got {}",
                        quoted(&text)
                    ),
                );
            }
            quantities.insert(name.clone(), text);
        }
        quantities
    };
    let read = |fields: &mut Fields<'_>| {
        let requests = fields.nested("requests", read_quantities).unwrap_or_default();
        let limits = fields.nested("limits", read_quantities).unwrap_or_default();
        for (name, request) in &requests {
            let Some(limit) = limits.get(name) else { continue };
            if Quantity::parse(request) > Quantity::parse(limit) {
                let message = format!("must be at most the limit {}, got {}", quoted(limit), quoted(request));
                fields.problem(&format!("requests.{name}"), message);
            }
        }
        fields.unknown_keys(&["requests", "limits"]);
        Resources { requests, limits }
    };
    root.nested("resources", read).unwrap_or_default()
}

fn read_node_selector(root: &mut Fields<'_>) -> BTreeMap<String, String> {
    let read = |fields: &mut Fields<'_>| {
        let mut selector = BTreeMap::new();
        for (key, value) in fields.map {
            if !label::is_key(key) {
                fields.problem(
                    key,
                    "is no label key: letters, digits, '-', '_', '.', after an optional DNS prefix and /",
                );
            }
            match value.as_str() {
                Some(text) if label::is_value(text) => {
                    selector.insert(key.clone(), text.to_owned());
                }
                _ => fields.problem(
                    key,
                    format!(
                        "must be a label value of at most {} characters, got {}",
                        label::LONGEST_NAME,
                        describe(value)
                    ),
                ),
            }
        }
        selector
    };
    root.nested("node_selector", read).unwrap_or_default()
}

fn read_autoscaling(fields: &mut Fields<'_>) -> Autoscaling {
    let enabled = fields.boolean("enabled").unwrap_or(false);
    let min_replicas = fields.replicas("min_replicas", MOST_REPLICAS);
    let max_replicas = fields.replicas("max_replicas", MOST_REPLICAS);
    let (least, most) = (
        min_replicas.unwrap_or(Autoscaling::DEFAULT_MIN_REPLICAS),
        max_replicas.unwrap_or(Autoscaling::DEFAULT_MAX_REPLICAS),
    );
    // A bound that is itself bad has been named already; comparing its default with the other one would only confuse.
    let readable = |key: &str, read: Option<u32>| read.is_some() || fields.get(key).is_none();
    if most < least && readable("min_replicas", min_replicas) && readable("max_replicas", max_replicas) {
        let given = if max_replicas.is_some() { "" } else { "the default " };
        fields.problem("max_replicas", format!("must be at least min_replicas ({least}), got {given}{most}"));
    }
    let mut metrics = Vec::new();
    for (path, element) in fields.elements("metrics") {
        let Some(map) = element.as_map() else {
            fields.problem(&path, format!("must be a map with type and target, got {}", describe(element)));
            continue;
        };
        let mut metric = Fields::new(format!("{}.{path}", fields.path), map);
        let default = Autoscaling::DEFAULT_METRIC;
        let word = metric.text("type", LONGEST_LOCATION).unwrap_or_else(|| default.kind.word().to_owned());
        let kind = MetricKind::from_word(&word);
        if kind.is_none() {
            let known = MetricKind::ALL.map(MetricKind::word).join(", ");
            metric.problem("type", format!("must be one of {known}, got {}", quoted(&word)));
        }
        let largest = kind.unwrap_or(MetricKind::Gpu).largest_target_percent();
        let target_percent = metric.integer("target", 1, largest.into()).unwrap_or(Autoscaling::DEFAULT_TARGET_PERCENT);
        metric.unknown_keys(&["type", "target"]);
        fields.absorb(metric);
        metrics.push(Metric { kind: kind.unwrap_or(default.kind), target_percent });
    }
    if metrics.is_empty() {
        metrics.push(Autoscaling::DEFAULT_METRIC);
    }
    fields.unknown_keys(&["enabled", "min_replicas", "max_replicas", "metrics"]);
    Autoscaling { enabled, min_replicas: least, max_replicas: most, metrics }
}

fn read_canary(fields: &mut Fields<'_>) -> Option<Canary> {
    if fields.map.is_empty() {
        return None;
    }
    let image = fields.image("image");
    if image.is_none() && fields.get("image").is_none() {
        fields.problem("image", "is required");
    }
    let weight = fields.integer("weight", 1, 99).unwrap_or(10);
    let replicas = fields.replicas("replicas", MOST_REPLICAS).unwrap_or(1);
    fields.unknown_keys(&["image", "weight", "replicas"]);
    Some(Canary { image: image?, weight, replicas })
}

/// A value for a message: short, and telling a string from a number.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(text) => bounded(text, QUOTED_VALUE_CHARACTERS),
        Value::String(text) => quoted(text),
        Value::List(_) => "a list".to_owned(),
        Value::Map(_) => "a map".to_owned(),
        Value::Binary(_) => "binary".to_owned(),
        Value::StringSet(_) | Value::NumberSet(_) | Value::BinarySet(_) => "a set".to_owned(),
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", bounded(text, QUOTED_VALUE_CHARACTERS))
}

/// The fields of one map, and what was found wrong with them.
struct Fields<'a> {
    path: String,
    map: &'a Item,
    problems: Vec<FieldProblem>,
    without_effect: Vec<FieldProblem>,
}

impl<'a> Fields<'a> {
    fn new(path: String, map: &'a Item) -> Self {
        Self { path, map, problems: Vec::new(), without_effect: Vec::new() }
    }

    fn full_path(&self, key: &str) -> String {
        // A key is text of a stranger: it must not fill a message.
        let key = bounded(key, QUOTED_VALUE_CHARACTERS);
        if key.is_empty() { self.path.clone() } else { format!("{}.{key}", self.path) }
    }

    /// Notes a problem of a key; the empty key stands for the map itself.
    fn problem(&mut self, key: &str, message: impl AsRef<str>) {
        self.problems.push(FieldProblem::new(self.full_path(key), message));
    }

    /// Notes that a key has no effect.
    fn idle(&mut self, key: &str, message: impl AsRef<str>) {
        self.without_effect.push(FieldProblem::new(self.full_path(key), message));
    }

    fn absorb(&mut self, other: Fields<'_>) {
        self.problems.extend(other.problems);
        self.without_effect.extend(other.without_effect);
    }

    /// The value of a key; `NULL` counts as absent.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| **value != Value::Null)
    }

    fn keys(&self) -> BTreeSet<String> {
        self.map.keys().cloned().collect()
    }

    fn unknown_keys(&mut self, known: &[&str]) {
        for key in self.map.keys().filter(|key| !known.contains(&key.as_str())) {
            self.without_effect.push(FieldProblem::new(self.full_path(key), "is an unknown key"));
        }
    }

    fn integer<T: TryFrom<i64>>(&mut self, key: &str, least: i64, most: i64) -> Option<T> {
        let value = self.get(key)?;
        let number = value.as_integer().filter(|number| (least..=most).contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        if number.is_none() {
            self.problem(key, format!("must be an integer from {least} to {most}, got {}", describe(value)));
        }
        number
    }

    /// A count of replicas: at least 1, and who wrote 0 is told how an endpoint is stopped.
    fn replicas(&mut self, key: &str, most: i64) -> Option<u32> {
        let value = self.get(key)?;
        if value.as_integer() == Some(0) {
            let hint = "to run no pods, stop the endpoint: gco inference stop";
            self.problem(key, format!("must be an integer from 1 to {most}, got 0 ({hint})"));
            return None;
        }
        self.integer(key, 1, most)
    }

    fn boolean(&mut self, key: &str) -> Option<bool> {
        let value = self.get(key)?;
        if value.as_bool().is_none() {
            self.problem(key, format!("must be true or false, got {}", describe(value)));
        }
        value.as_bool()
    }

    /// A string; the empty one counts as absent.
    fn text(&mut self, key: &str, longest: usize) -> Option<String> {
        let value = self.get(key)?;
        let Some(text) = value.as_str() else {
            self.problem(key, format!("must be a string, got {}", describe(value)));
            return None;
        };
        if text.chars().count() > longest {
            self.problem(key, format!("must be at most {longest} characters, got {}", text.chars().count()));
        }
        Some(text.to_owned()).filter(|text| !text.is_empty())
    }

    /// One of some words; another word has no effect.
    fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(key, LONGEST_LOCATION)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.idle(key, format!("only {} have an effect, got {}", known.join(" and "), quoted(&text)));
        }
        found
    }

    fn image(&mut self, key: &str) -> Option<String> {
        let value = self.get(key)?;
        let image = value.as_str().filter(|text| !text.trim().is_empty());
        let Some(image) = image else {
            self.problem(key, format!("must be a non-empty string, got {}", describe(value)));
            return None;
        };
        if image.chars().any(|character| character.is_whitespace() || character.is_control()) {
            self.problem(key, format!("must have no blanks, got {}", quoted(image)));
        }
        if image.chars().count() > LONGEST_IMAGE {
            self.problem(key, format!("must be at most {LONGEST_IMAGE} characters, got {}", image.chars().count()));
        }
        Some(image.to_owned())
    }

    fn texts(&mut self, key: &str) -> Option<Vec<String>> {
        self.get(key)?;
        let mut texts = Vec::new();
        for (path, element) in self.elements(key) {
            match element.as_str() {
                Some(text) if !text.contains('\0') => texts.push(text.to_owned()),
                Some(_) => self.problem(&path, "must not contain a NUL character"),
                None => self.problem(&path, format!("must be a string, got {}", describe(element))),
            }
        }
        Some(texts)
    }

    /// The elements of a list with their paths below this map; none when it is absent or no list.
    fn elements(&mut self, key: &str) -> Vec<(String, &'a Value)> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let Some(list) = value.as_list() else {
            self.problem(key, format!("must be a list, got {}", describe(value)));
            return Vec::new();
        };
        list.iter().enumerate().map(|(index, element)| (format!("{key}[{index}]"), element)).collect()
    }

    fn map(&mut self, key: &str) -> Option<&'a Item> {
        let value = self.get(key)?;
        if value.as_map().is_none() {
            self.problem(key, format!("must be a map, got {}", describe(value)));
        }
        value.as_map()
    }

    fn nested<T>(&mut self, key: &str, read: impl FnOnce(&mut Fields<'a>) -> T) -> Option<T> {
        let map = self.map(key)?;
        let mut fields = Fields::new(self.full_path(key), map);
        let value = read(&mut fields);
        self.absorb(fields);
        Some(value)
    }
}
