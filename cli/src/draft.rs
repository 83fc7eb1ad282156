//! From the flags of `deploy` to the spec of a row: every bad flag at once. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gco_store::problem::FieldProblem;
use gco_store::spec::{Autoscaling, Spec, metrics_value};
use gco_store::transition::{self, CreateRequest, NAMESPACE, OperationError};
use gco_store::wire::{Item, Value};
use jiff::Timestamp;

use crate::arguments::DeployFlags;
use crate::flags;
use crate::image;

/// What `deploy` was asked for, checked as far as it can be without the regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Name of the endpoint.
    pub name: String,
    /// The spec, without images by region.
    pub spec: Item,
    /// The regions asked for; empty: all known ones.
    pub regions: Vec<String>,
    /// Labels of the row.
    pub labels: BTreeMap<String, String>,
    /// Whether each region pulls an ECR image from its own registry.
    pub rewrites_image: bool,
    /// Bound of `--wait`; `None` without it.
    pub wait: Option<Duration>,
    /// What is kept but changes nothing, by flag.
    pub without_effect: Vec<FieldProblem>,
}

impl Draft {
    /// The request for a row in these regions.
    #[must_use]
    pub fn request(&self, regions: &[String]) -> CreateRequest {
        let mut spec = self.spec.clone();
        let image = spec.get("image").and_then(Value::as_str).unwrap_or_default();
        if let Some(images) = image::by_region(image, regions).filter(|_| self.rewrites_image) {
            spec.insert("region_image_uris".to_owned(), map_of(images));
        }
        CreateRequest {
            name: self.name.clone(),
            spec: Value::Map(spec),
            target_regions: regions.to_vec(),
            namespace: NAMESPACE.to_owned(),
            labels: self.labels.clone(),
            created_by: None,
        }
    }
}

/// Reads the flags.
///
/// # Errors
/// Every bad flag, named as the user wrote it.
pub fn read(given: &DeployFlags) -> Result<Draft, Vec<FieldProblem>> {
    let mut problems = Vec::new();
    let mut reader = SpecReader { spec: Item::new(), problems: &mut problems };
    reader.text("image", "--image", given.image.as_deref());
    reader.integer("port", "--port", Some(given.port.as_deref().unwrap_or("8000")));
    reader.integer("replicas", "--replicas", Some(given.replicas.as_deref().unwrap_or("1")));
    reader.integer("gpu_count", "--gpu-count", Some(given.gpu_count.as_deref().unwrap_or("1")));
    reader.text("health_check_path", "--health-path", Some(given.health_path.as_deref().unwrap_or("/health")));
    reader.text("gpu_type", "--gpu-type", given.gpu_type.as_deref());
    reader.text("model_path", "--model-path", given.model_path.as_deref());
    reader.text("model_source", "--model-source", given.model_source.as_deref());
    reader.pairs("env", "--env", &given.env);
    let references = flags::secret_references("--env-from-secret", &given.env_from_secret, reader.problems);
    if !references.is_empty() {
        reader.put("env_from_secret", Value::Map(references));
    }
    reader.list("image_pull_secrets", &given.image_pull_secrets);
    reader.list("args", &given.extra_args);
    reader.list("command", &given.command);
    // The default is not written: rows of the original have the key only for the other family.
    let accelerator = given.accelerator.as_deref().filter(|family| *family != "nvidia");
    reader.choice("accelerator", "--accelerator", accelerator, &["nvidia", "neuron"]);
    reader.choice("framework", "--framework", given.framework.as_deref(), &["vllm", "tgi"]);
    reader.pairs("node_selector", "--node-selector", &given.node_selectors);
    reader.choice("capacity_type", "--capacity-type", given.capacity_type.as_deref(), &["on-demand", "spot"]);
    reader.resources(&given.requests, &given.limits);
    let seconds = given.startup_timeout_seconds.as_deref();
    reader.integer("startup_timeout_seconds", "--startup-timeout-seconds", seconds);
    reader.integer("drain_seconds", "--drain-seconds", given.drain_seconds.as_deref());
    reader.integer("max_surge", "--max-surge", given.max_surge.as_deref());
    reader.autoscaling(given);
    let spec = reader.spec;

    let draft = Draft {
        name: given.endpoint_name.clone(),
        labels: flags::pairs("--label", &given.labels, &mut problems),
        regions: flags::regions("--region", &given.regions, &mut problems),
        rewrites_image: !given.no_rewrite_image,
        wait: read_wait(given, &mut problems),
        without_effect: Spec::fields_without_effect(&Value::Map(spec.clone())).iter().map(flags::named).collect(),
        spec,
    };
    check(&draft, given.namespace.as_deref().unwrap_or(NAMESPACE), &mut problems);
    if problems.is_empty() { Ok(draft) } else { Err(problems) }
}

/// Runs the checks that the write runs too, and names their findings by flag.
fn check(draft: &Draft, namespace: &str, problems: &mut Vec<FieldProblem>) {
    // Regions that are not known yet are checked with the write; any good name stands for them here.
    let stand_in = ["us-east-1".to_owned()];
    let regions = if draft.regions.is_empty() { &stand_in[..] } else { &draft.regions };
    let request = CreateRequest { namespace: namespace.to_owned(), ..draft.request(regions) };
    let Err(OperationError::Invalid(found)) = transition::create(&request, Timestamp::UNIX_EPOCH, &mut String::new)
    else {
        return;
    };
    // A flag that could not be read is not also missing.
    let already: BTreeSet<String> = problems.iter().map(|problem| problem.field.clone()).collect();
    problems.extend(found.iter().map(flags::named).filter(|problem| !already.contains(&problem.field)));
}

fn read_wait(given: &DeployFlags, problems: &mut Vec<FieldProblem>) -> Option<Duration> {
    if given.wait && given.dry_run {
        problems.push(FieldProblem::new("--wait", "cannot be used with --dry-run: there is nothing to wait for"));
    }
    if given.timeout_seconds.is_some() && !given.wait {
        problems.push(FieldProblem::new("--timeout-seconds", "needs --wait"));
    }
    let bound = flags::time_out("--timeout-seconds", given.timeout_seconds.as_deref(), problems);
    given.wait.then_some(bound)
}

/// Puts flags into a spec and collects what is wrong with them.
struct SpecReader<'a> {
    spec: Item,
    problems: &'a mut Vec<FieldProblem>,
}

impl SpecReader<'_> {
    fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.spec.insert(key.to_owned(), value.into());
    }

    fn text(&mut self, key: &str, flag: &str, given: Option<&str>) {
        match given {
            None => {}
            Some(text) if text.trim().is_empty() => {
                self.problems.push(FieldProblem::new(flag, "must not be empty"));
            }
            Some(text) => self.put(key, text),
        }
    }

    fn integer(&mut self, key: &str, flag: &str, given: Option<&str>) {
        match given.map(|text| flags::integer(flag, text)) {
            None => {}
            Some(Ok(number)) => self.put(key, number),
            Some(Err(problem)) => self.problems.push(problem),
        }
    }

    fn choice(&mut self, key: &str, flag: &str, given: Option<&str>, allowed: &[&str]) {
        match given {
            None => {}
            Some(word) if allowed.contains(&word) => self.put(key, word),
            Some(word) => self.problems.push(flags::not_a_choice(flag, word, allowed)),
        }
    }

    fn list(&mut self, key: &str, given: &[String]) {
        if !given.is_empty() {
            let words = given.iter().map(|word| Value::from(word.as_str())).collect();
            self.put(key, Value::List(words));
        }
    }

    fn pairs(&mut self, key: &str, flag: &str, given: &[String]) {
        let pairs = flags::pairs(flag, given, self.problems);
        if !pairs.is_empty() {
            self.put(key, map_of(pairs));
        }
    }

    /// The block as the original writes it: bounds and metrics spelled out. Bounds without a metric would be kept and
    /// change nothing, so they are refused (D-34).
    fn autoscaling(&mut self, given: &DeployFlags) {
        let bounds = [("--min-replicas", &given.min_replicas), ("--max-replicas", &given.max_replicas)];
        if given.autoscale_metrics.is_empty() {
            for (flag, _) in bounds.iter().filter(|(_, text)| text.is_some()) {
                let message = "needs --autoscale-metric, for example --autoscale-metric cpu:70";
                self.problems.push(FieldProblem::new(*flag, message));
            }
            return;
        }
        let mut bound = |flag: &str, text: &Option<String>, default: u32| {
            let read = text.as_deref().map_or(Ok(i64::from(default)), |text| flags::replicas(flag, text));
            read.unwrap_or_else(|problem| {
                self.problems.push(problem);
                i64::from(default)
            })
        };
        let least = bound("--min-replicas", &given.min_replicas, Autoscaling::DEFAULT_MIN_REPLICAS);
        let most = bound("--max-replicas", &given.max_replicas, Autoscaling::DEFAULT_MAX_REPLICAS);
        let metrics = flags::metrics("--autoscale-metric", &given.autoscale_metrics, self.problems);
        let block = Item::from([
            ("enabled".to_owned(), Value::Bool(true)),
            ("min_replicas".to_owned(), Value::from(least)),
            ("max_replicas".to_owned(), Value::from(most)),
            ("metrics".to_owned(), metrics_value(&metrics)),
        ]);
        self.put("autoscaling", Value::Map(block));
    }

    fn resources(&mut self, requests: &[String], limits: &[String]) {
        let mut resources = Item::new();
        for (key, flag, given) in [("requests", "--request", requests), ("limits", "--limit", limits)] {
            let pairs = flags::pairs(flag, given, self.problems);
            if !pairs.is_empty() {
                resources.insert(key.to_owned(), map_of(pairs));
            }
        }
        if !resources.is_empty() {
            self.put("resources", Value::Map(resources));
        }
    }
}

fn map_of(pairs: BTreeMap<String, String>) -> Value {
    Value::Map(pairs.into_iter().map(|(key, text)| (key, Value::from(text))).collect())
}
