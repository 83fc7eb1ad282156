//! From the flags of `set` to changes of a spec: every bad flag at once. Pure.

use std::collections::BTreeSet;

use gco_store::problem::FieldProblem;
use gco_store::spec::Spec;
use gco_store::wire::{Item, Value};

use crate::arguments::SetFlags;
use crate::flags;

/// One change of a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecChange {
    /// Sets a key.
    Set(String, Value),
    /// Removes a key.
    Remove(String),
    /// Sets a key of a map, which is made when it is absent.
    SetIn(Vec<String>, Value),
    /// Removes a key of a map.
    RemoveIn(Vec<String>),
}

/// Reads the flags.
///
/// # Errors
/// Every bad flag, named as the user wrote it; no flag at all.
pub fn read(given: &SetFlags) -> Result<Vec<SpecChange>, Vec<FieldProblem>> {
    let mut reader = Reader { changes: Vec::new(), problems: Vec::new(), named: BTreeSet::new() };
    for (key, flag, text) in [
        ("port", "--port", &given.port),
        ("gpu_count", "--gpu-count", &given.gpu_count),
        ("startup_timeout_seconds", "--startup-timeout-seconds", &given.startup_timeout_seconds),
        ("drain_seconds", "--drain-seconds", &given.drain_seconds),
        ("max_surge", "--max-surge", &given.max_surge),
    ] {
        if let Some(text) = text {
            match flags::integer(flag, text) {
                Ok(number) => reader.changes.push(SpecChange::Set(key.to_owned(), Value::from(number))),
                Err(problem) => reader.problems.push(problem),
            }
        }
    }
    for (key, text) in [
        ("health_check_path", &given.health_path),
        ("model_source", &given.model_source),
        ("capacity_type", &given.capacity_type),
        ("framework", &given.framework),
        ("accelerator", &given.accelerator),
    ] {
        if let Some(text) = text {
            // An empty text takes the key away: its default counts again.
            reader.changes.push(match text.trim() {
                "" => SpecChange::Remove(key.to_owned()),
                word => SpecChange::Set(key.to_owned(), Value::from(word)),
            });
        }
    }
    reader.pairs(&["env"], "--env", &given.env);
    reader.secret_pairs(&given.env_from_secret);
    reader.pairs(&["node_selector"], "--node-selector", &given.node_selectors);
    reader.pairs(&["resources", "requests"], "--request", &given.requests);
    reader.pairs(&["resources", "limits"], "--limit", &given.limits);
    reader.removals(&["env"], "--unset-env", &given.unset_env);
    reader.removals(&["env_from_secret"], "--unset-env", &given.unset_env);
    reader.removals(&["node_selector"], "--unset-node-selector", &given.unset_node_selectors);
    reader.removals(&["resources", "requests"], "--unset-request", &given.unset_requests);
    reader.removals(&["resources", "limits"], "--unset-limit", &given.unset_limits);
    reader.list("args", "--extra-args", &given.extra_args, given.clear_extra_args, "--clear-extra-args");
    reader.list("command", "--command", &given.command, given.clear_command, "--clear-command");
    let clear = given.clear_image_pull_secrets;
    let pull = &given.image_pull_secrets;
    reader.list("image_pull_secrets", "--image-pull-secret", pull, clear, "--clear-image-pull-secrets");
    let Reader { changes, mut problems, named: _ } = reader;
    if changes.is_empty() && problems.is_empty() {
        problems.push(FieldProblem::new("set", "nothing to set: give at least one flag, see --help"));
    }
    if problems.is_empty() { Ok(changes) } else { Err(problems) }
}

struct Reader {
    changes: Vec<SpecChange>,
    problems: Vec<FieldProblem>,
    /// Places that a flag sets, to refuse one that another flag takes away.
    named: BTreeSet<Vec<String>>,
}

fn place(path: &[&str], key: &str) -> Vec<String> {
    path.iter().copied().chain([key]).map(str::to_owned).collect()
}

impl Reader {
    fn pairs(&mut self, path: &[&str], flag: &str, given: &[String]) {
        for (key, text) in flags::pairs(flag, given, &mut self.problems) {
            let place = place(path, &key);
            self.named.insert(place.clone());
            self.changes.push(SpecChange::SetIn(place, Value::from(text)));
            if path == ["env"] {
                // A variable has one value: a plain one replaces a reference, and the other way round.
                self.changes.push(SpecChange::RemoveIn(self::place(&["env_from_secret"], &key)));
            }
        }
    }

    fn secret_pairs(&mut self, given: &[String]) {
        for (variable, reference) in flags::secret_references("--env-from-secret", given, &mut self.problems) {
            let place = place(&["env_from_secret"], &variable);
            self.named.insert(place.clone());
            self.changes.push(SpecChange::SetIn(place, reference));
            self.changes.push(SpecChange::RemoveIn(self::place(&["env"], &variable)));
        }
    }

    fn removals(&mut self, path: &[&str], flag: &str, given: &[String]) {
        for key in given {
            let place = place(path, key);
            if self.named.contains(&place) {
                self.problems.push(FieldProblem::new(format!("{flag} {key}"), "is set by another flag"));
            }
            self.changes.push(SpecChange::RemoveIn(place));
        }
    }

    fn list(&mut self, key: &str, flag: &str, given: &[String], clear: bool, clear_flag: &str) {
        match (given.is_empty(), clear) {
            (true, false) => {}
            (true, true) => self.changes.push(SpecChange::Remove(key.to_owned())),
            (false, false) => {
                let words = given.iter().map(|word| Value::from(word.as_str())).collect();
                self.changes.push(SpecChange::Set(key.to_owned(), Value::List(words)));
            }
            (false, true) => {
                self.problems.push(FieldProblem::new(clear_flag, format!("cannot be used with {flag}")));
            }
        }
    }
}

/// Applies changes to a spec. Maps that become empty go.
pub fn apply(changes: &[SpecChange], spec: &mut Item) {
    for change in changes {
        match change {
            SpecChange::Set(key, value) => {
                spec.insert(key.clone(), value.clone());
            }
            SpecChange::Remove(key) => {
                spec.remove(key);
            }
            SpecChange::SetIn(path, value) => set_in(spec, path, Some(value)),
            SpecChange::RemoveIn(path) => set_in(spec, path, None),
        }
    }
}

fn set_in(map: &mut Item, path: &[String], value: Option<&Value>) {
    match path {
        [] => {}
        [key] => {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        [key, rest @ ..] => {
            let mut below = match map.get(key) {
                Some(Value::Map(below)) => below.clone(),
                // Something that is no map: the write's check names it, unless the whole of it is replaced.
                Some(_) if value.is_none() => return,
                _ => Item::new(),
            };
            set_in(&mut below, rest, value);
            if below.is_empty() {
                map.remove(key);
            } else {
                map.insert(key.clone(), Value::Map(below));
            }
        }
    }
}

/// Top-level keys in which two specs differ, sorted.
#[must_use]
pub fn differing_keys(before: &Item, after: &Item) -> Vec<String> {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let same = |key: &&&String| match (before.get(**key), after.get(**key)) {
        (Some(before), Some(after)) => before.same_as(after),
        (before, after) => before.is_none() && after.is_none(),
    };
    keys.iter().filter(|key| !same(key)).map(|key| (*key).clone()).collect()
}

/// Whether pods are replaced when a spec becomes another one; `None` when one of them cannot be served as it is.
#[must_use]
pub fn replaces_pods(before: &Item, after: &Item, regions: &[String]) -> Option<bool> {
    let read = |spec: &Item| Spec::check(&Value::Map(spec.clone())).ok().map(|checked| checked.spec);
    let (before, after) = (read(before)?, read(after)?);
    Some(regions.iter().any(|region| before.template_input_hash(region) != after.template_input_hash(region)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: serde_json::Value) -> Item {
        match Value::from_plain_json("spec", &json) {
            Ok(Value::Map(map)) => map,
            other => panic!("{other:?}"),
        }
    }

    fn after(given: &SetFlags, before: serde_json::Value) -> Item {
        let mut spec = spec(before);
        apply(&read(given).unwrap(), &mut spec);
        spec
    }

    #[test]
    fn maps_are_merged_lists_are_replaced_and_what_becomes_empty_goes() {
        let given = SetFlags {
            env: vec!["A=2".to_owned(), "C=3".to_owned()],
            unset_env: vec!["B".to_owned()],
            unset_requests: vec!["cpu".to_owned()],
            extra_args: vec!["--x".to_owned()],
            port: Some("9000".to_owned()),
            capacity_type: Some(String::new()),
            ..SetFlags::default()
        };
        let before = serde_json::json!({
            "image": "a:1", "port": 8000, "env": {"A": "1", "B": "1"}, "args": ["--y", "--z"],
            "resources": {"requests": {"cpu": "1"}}, "capacity_type": "spot", "ours": 1,
        });
        let wanted = serde_json::json!({
            "image": "a:1", "port": 9000, "env": {"A": "2", "C": "3"}, "args": ["--x"], "ours": 1,
        });
        assert_eq!(after(&given, before), spec(wanted));
    }

    #[test]
    fn a_variable_is_plain_or_a_reference_and_never_both() {
        let reference = SetFlags { env_from_secret: vec!["A=hf/token".to_owned()], ..SetFlags::default() };
        let referred = serde_json::json!({"image": "a:1", "env_from_secret": {"A": {"name": "hf", "key": "token"}}});
        let plain = serde_json::json!({"image": "a:1", "env": {"A": "1"}});
        assert_eq!(after(&reference, plain.clone()), spec(referred.clone()));
        let back = SetFlags { env: vec!["A=1".to_owned()], ..SetFlags::default() };
        assert_eq!(after(&back, referred), spec(plain));
    }

    #[test]
    fn every_bad_flag_is_named_at_once_and_no_value_is_repeated() {
        let given = SetFlags {
            env: vec!["hunter2".to_owned(), "A=1".to_owned()],
            unset_env: vec!["A".to_owned()],
            env_from_secret: vec!["B=hunter3".to_owned()],
            port: Some("many".to_owned()),
            extra_args: vec!["--x".to_owned()],
            clear_extra_args: true,
            ..SetFlags::default()
        };
        let problems = read(&given).unwrap_err();
        let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(
            fields,
            ["--port", "--env (number 1)", "--env-from-secret B", "--unset-env A", "--clear-extra-args"]
        );
        assert!(problems.iter().all(|problem| !problem.message.contains("hunter")), "{problems:?}");
        assert_eq!(read(&SetFlags::default()).unwrap_err()[0].field, "set");
    }

    #[test]
    fn what_replaces_pods_is_told_by_the_hash_that_the_monitors_use() {
        let before = spec(serde_json::json!({"image": "a:1", "replicas": 1}));
        let told = |after: serde_json::Value| replaces_pods(&before, &spec(after), &["us-east-1".to_owned()]);
        assert_eq!(told(serde_json::json!({"image": "a:1", "replicas": 3})), Some(false));
        assert_eq!(told(serde_json::json!({"image": "a:2", "replicas": 1})), Some(true));
        assert_eq!(told(serde_json::json!({"image": "a:1", "port": 0})), None);
    }
}
