//! Reading values of flags, and naming what is wrong by flag. No message repeats the value of a pair: it may be a secret.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use gco_store::name;
use gco_store::problem::{FieldProblem, QUOTED_VALUE_CHARACTERS, bounded};
use gco_store::spec::{Autoscaling, MOST_REPLICAS, MetricKind};
use gco_store::wire::{Item, Value};

/// Default bound of a wait: as long as a start may take by default.
const DEFAULT_TIME_OUT_SECONDS: u64 = 1800;
/// Longest bound of a wait: a day.
const LONGEST_TIME_OUT_SECONDS: u64 = 86_400;
/// Longest partition key that a table takes.
const LONGEST_KEY_BYTES: usize = 2048;

/// What is wrong with the name of an endpoint that should exist. Rows of the earlier control plane may have any name, so
/// only what no table key can be is refused.
#[must_use]
pub fn endpoint_name(text: &str) -> Vec<FieldProblem> {
    let message = match text {
        "" => "must not be empty",
        long if long.len() > LONGEST_KEY_BYTES => "must be at most 2048 bytes",
        _ => return Vec::new(),
    };
    vec![FieldProblem::new("ENDPOINT_NAME", message)]
}

/// An integer.
///
/// # Errors
/// When the text is none.
pub fn integer(flag: &str, text: &str) -> Result<i64, FieldProblem> {
    let shown = bounded(text, QUOTED_VALUE_CHARACTERS);
    text.trim().parse().map_err(|_| FieldProblem::new(flag, format!("must be an integer, got '{shown}'")))
}

/// A replica count, 1 to 1000.
///
/// # Errors
/// When it is none; zero gets a hint.
pub fn replicas(flag: &str, text: &str) -> Result<i64, FieldProblem> {
    match integer(flag, text)? {
        0 => Err(FieldProblem::new(
            flag,
            format!(
                "must be from 1 to {MOST_REPLICAS}, got 0; to keep an endpoint without pods, use 'gco inference stop'"
            ),
        )),
        number @ 1..=MOST_REPLICAS => Ok(number),
        number => Err(FieldProblem::new(flag, format!("must be from 1 to {MOST_REPLICAS}, got {number}"))),
    }
}

/// `TYPE[:TARGET]` texts of autoscaling metrics; a metric without a target gets the default one.
pub fn metrics(flag: &str, given: &[String], problems: &mut Vec<FieldProblem>) -> Vec<(MetricKind, i64)> {
    let mut read = Vec::new();
    for (index, text) in given.iter().enumerate() {
        let numbered = if given.len() == 1 { flag.to_owned() } else { format!("{flag} (number {})", index + 1) };
        let (word, target) = text.split_once(':').map_or((text.as_str(), None), |(word, target)| (word, Some(target)));
        let Some(kind) = MetricKind::from_word(word) else {
            problems.push(not_a_choice(&numbered, word, &MetricKind::ALL.map(MetricKind::word)));
            continue;
        };
        let largest = i64::from(kind.largest_target_percent());
        let default = i64::from(Autoscaling::DEFAULT_TARGET_PERCENT);
        match target.map_or(Ok(default), |target| integer(&numbered, target)) {
            Ok(target) if (1..=largest).contains(&target) => read.push((kind, target)),
            Ok(target) => problems.push(FieldProblem::new(
                numbered,
                format!("must have a target from 1 to {largest} percent for {word}, got {target}"),
            )),
            Err(problem) => problems.push(problem),
        }
    }
    read
}

/// The bound of a wait; the default when not given or wrong.
pub fn time_out(flag: &str, given: Option<&str>, problems: &mut Vec<FieldProblem>) -> Duration {
    let default = Duration::from_secs(DEFAULT_TIME_OUT_SECONDS);
    let Some(text) = given else { return default };
    let number = text.trim().parse().ok().filter(|seconds| (1..=LONGEST_TIME_OUT_SECONDS).contains(seconds));
    number.map_or_else(
        || {
            let shown = bounded(text, QUOTED_VALUE_CHARACTERS);
            let message = format!("must be whole seconds from 1 to {LONGEST_TIME_OUT_SECONDS}, got '{shown}'");
            problems.push(FieldProblem::new(flag, message));
            default
        },
        Duration::from_secs,
    )
}

/// `KEY=VALUE` texts as a map.
pub fn pairs(flag: &str, given: &[String], problems: &mut Vec<FieldProblem>) -> BTreeMap<String, String> {
    let mut read = BTreeMap::new();
    for (index, text) in given.iter().enumerate() {
        let numbered = format!("{flag} (number {})", index + 1);
        // Without `=` the whole text may be the secret that somebody forgot to name.
        let Some((key, value)) = text.split_once('=') else {
            problems.push(FieldProblem::new(numbered, "must be of the form NAME=VALUE; there is no '=' in it"));
            continue;
        };
        if key.trim().is_empty() {
            problems
                .push(FieldProblem::new(numbered, "must be of the form NAME=VALUE; there is no name before the '='"));
            continue;
        }
        match read.entry(key.to_owned()) {
            Entry::Vacant(place) => {
                place.insert(value.to_owned());
            }
            Entry::Occupied(_) => {
                let shown = bounded(key, QUOTED_VALUE_CHARACTERS);
                problems.push(FieldProblem::new(numbered, format!("names '{shown}' a second time")));
            }
        }
    }
    read
}

/// `VARIABLE=SECRET/KEY` texts as the map of a spec's `env_from_secret`.
pub fn secret_references(flag: &str, given: &[String], problems: &mut Vec<FieldProblem>) -> Item {
    let mut references = Item::new();
    for (variable, text) in pairs(flag, given, problems) {
        let Some((secret, key)) = text.split_once('/') else {
            // Without the slash the text may be the secret itself.
            let message = "must be of the form VARIABLE=SECRET/KEY; there is no '/' after the '='";
            problems.push(FieldProblem::new(format!("{flag} {variable}"), message));
            continue;
        };
        let reference = [("name".to_owned(), Value::from(secret)), ("key".to_owned(), Value::from(key))];
        references.insert(variable, Value::Map(reference.into()));
    }
    references
}

/// Region names, each once, in order.
pub fn regions(flag: &str, given: &[String], problems: &mut Vec<FieldProblem>) -> Vec<String> {
    let mut read: Vec<String> = Vec::new();
    for text in given {
        if !name::is_region(text) {
            let shown = bounded(text, QUOTED_VALUE_CHARACTERS);
            let message =
                format!("must be a region's name, for example us-east-1 (one region per flag), got '{shown}'");
            problems.push(FieldProblem::new(flag, message));
        } else if !read.contains(text) {
            read.push(text.clone());
        }
    }
    read
}

/// The problem of a word that is none of the allowed ones.
#[must_use]
pub fn not_a_choice(flag: &str, word: &str, allowed: &[&str]) -> FieldProblem {
    let quoted: Vec<String> = allowed.iter().map(|word| format!("'{word}'")).collect();
    let shown = bounded(word, QUOTED_VALUE_CHARACTERS);
    FieldProblem::new(flag, format!("must be {}, got '{shown}'", quoted.join(" or ")))
}

/// Which flag writes which place of a row; longer places first where one begins with another.
const FLAG_BY_FIELD: [(&str, &str); 30] = [
    ("spec.region_image_uris", "--image"),
    ("spec.image", "--image"),
    ("spec.port", "--port"),
    ("spec.replicas", "--replicas"),
    ("spec.autoscaling.min_replicas", "--min-replicas"),
    ("spec.autoscaling.max_replicas", "--max-replicas"),
    ("spec.autoscaling.metrics", "--autoscale-metric"),
    ("spec.gpu_count", "--gpu-count"),
    ("spec.gpu_type", "--gpu-type"),
    ("spec.health_check_path", "--health-path"),
    ("spec.model_path", "--model-path"),
    ("spec.model_source", "--model-source"),
    ("spec.env_from_secret", "--env-from-secret"),
    ("spec.image_pull_secrets", "--image-pull-secret"),
    ("spec.env", "--env"),
    ("spec.resources.requests", "--request"),
    ("spec.resources.limits", "--limit"),
    ("spec.command", "--command"),
    ("spec.args", "--extra-args"),
    ("spec.accelerator", "--accelerator"),
    ("spec.node_selector", "--node-selector"),
    ("spec.capacity_type", "--capacity-type"),
    ("spec.framework", "--framework"),
    ("spec.startup_timeout_seconds", "--startup-timeout-seconds"),
    ("spec.drain_seconds", "--drain-seconds"),
    ("spec.max_surge", "--max-surge"),
    ("endpoint_name", "ENDPOINT_NAME"),
    ("target_regions", "--region"),
    ("namespace", "--namespace"),
    ("labels", "--label"),
];

/// A problem of a row's place as a problem of the flag that writes it.
#[must_use]
pub fn named(problem: &FieldProblem) -> FieldProblem {
    for (field, flag) in FLAG_BY_FIELD {
        let Some(rest) = problem.field.strip_prefix(field) else { continue };
        let name = match rest.split_at_checked(1) {
            None => flag.to_owned(),
            Some((".", key)) => format!("{flag} {key}"),
            Some(("[", rest)) => match rest.strip_suffix(']').map(str::parse::<usize>) {
                Some(Ok(index)) => format!("{flag} (number {})", index + 1),
                _ => format!("{flag} {}", rest.trim_end_matches(']').trim_matches('"')),
            },
            // Another place whose name begins alike.
            Some(_) => continue,
        };
        return FieldProblem { field: name, message: problem.message.clone() };
    }
    problem.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_of_a_spec_are_named_by_flag() {
        let flag = |field: &str| named(&FieldProblem::new(field, "is wrong")).field;
        assert_eq!(flag("spec.port"), "--port");
        assert_eq!(flag("spec.env.MODEL"), "--env MODEL");
        assert_eq!(flag("spec.args[2]"), "--extra-args (number 3)");
        assert_eq!(flag("spec.resources.limits.memory"), "--limit memory");
        assert_eq!(flag("spec.node_selector[\"bad key\"]"), "--node-selector bad key");
        assert_eq!(flag("spec.portal"), "spec.portal");
        assert_eq!(flag("endpoint_name"), "ENDPOINT_NAME");
    }

    #[test]
    fn a_pair_without_a_name_is_refused_without_repeating_it() {
        let mut problems = Vec::new();
        let given = ["A=1", "hunter2", "=hunter3", "A=hunter4", "B=x=y"].map(str::to_owned);
        let read = pairs("--env", &given, &mut problems);
        assert_eq!(read, BTreeMap::from([("A".to_owned(), "1".to_owned()), ("B".to_owned(), "x=y".to_owned())]));
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 3);
        assert!(said[0].starts_with("--env (number 2): "));
        assert!(said.iter().all(|line| !line.contains("hunter")), "{said:?}");
    }

    #[test]
    fn metrics_have_a_known_type_and_a_target_that_can_be_reached() {
        let mut problems = Vec::new();
        let given = ["cpu", "memory:250", "gpu:100", "gpu:101", "qps:1", "cpu:0", "cpu:", "gpu_memory:x"];
        let read = metrics("--metric", &given.map(str::to_owned), &mut problems);
        assert_eq!(read, [(MetricKind::Cpu, 70), (MetricKind::Memory, 250), (MetricKind::Gpu, 100)]);
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 5, "{said:?}");
        assert_eq!(said[0], "--metric (number 4): must have a target from 1 to 100 percent for gpu, got 101");
        assert!(said[1].contains("'cpu' or 'memory' or 'gpu' or 'gpu_memory', got 'qps'"), "{}", said[1]);
    }

    #[test]
    fn a_replica_count_of_zero_is_refused_with_a_hint() {
        assert_eq!(replicas("--replicas", "4"), Ok(4));
        assert!(replicas("--replicas", "0").unwrap_err().message.contains("gco inference stop"));
        assert!(replicas("--replicas", "1001").unwrap_err().message.contains("from 1 to 1000"));
        assert!(replicas("--replicas", "two").unwrap_err().message.contains("must be an integer"));
    }
}
