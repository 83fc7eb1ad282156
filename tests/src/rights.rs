//! What monitors asked of API servers, over all suites, against what their Role grants.
//!
//! With `GCO_RIGHTS_FOLDER` set, every region writes a file there when it ends; the program `compare-rights` compares them
//! all with the Role. A right that no suite ever used is one that the monitor does not need, or that no suite tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, ensure};
use gco_bed::control_plane::AuditEvent;
use gco_local::platform::{FENCE_READER, ROLE, objects};
use gco_runtime::environment::Environment;
use gco_runtime::random::{Randomness as _, SystemRandomness};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::region::Region;

/// The folder of the files.
const FOLDER: &str = "GCO_RIGHTS_FOLDER";

/// One thing that can be granted and asked for: `verb resource[/subresource].group`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Right {
    /// Plural, with the subresource; with the group unless it is the core one.
    pub resource: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` …
    pub verb: String,
}

impl Right {
    fn new(verb: &str, group: &str, resource: &str) -> Self {
        let dot = if group.is_empty() { "" } else { "." };
        Self { resource: format!("{resource}{dot}{group}"), verb: verb.to_owned() }
    }
}

impl std::fmt::Display for Right {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}", self.verb, self.resource)
    }
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// How often each right was used.
    pub used: Vec<(Right, usize)>,
    /// Requests that were refused for lack of a right, in words.
    pub refused: Vec<String>,
}

impl Asked {
    /// Sums requests up. Paths that are no resource (discovery) are everybody's and left out.
    #[must_use]
    pub fn of(requests: &[AuditEvent]) -> Self {
        let mut used: BTreeMap<Right, usize> = BTreeMap::new();
        let mut refused = Vec::new();
        for request in requests.iter().filter(|request| !request.resource.is_empty()) {
            let slash = if request.subresource.is_empty() { "" } else { "/" };
            let resource = format!("{}{slash}{}", request.resource, request.subresource);
            let right = Right::new(&request.verb, &request.api_group, &resource);
            if request.without_right {
                refused.push(format!("{right} at {}: {}", request.received_at, request.uri));
            }
            *used.entry(right).or_default() += 1;
        }
        Self { used: used.into_iter().collect(), refused }
    }
}

/// Every right that the monitor is granted.
///
/// # Errors
/// When a manifest cannot be read.
pub fn granted() -> anyhow::Result<BTreeSet<Right>> {
    let mut granted = BTreeSet::new();
    for object in [objects(ROLE)?, objects(FENCE_READER)?].concat() {
        let texts = |rule: &Value, field: &str| -> Vec<String> {
            let list = rule[field].as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        for rule in object["rules"].as_array().into_iter().flatten() {
            for group in texts(rule, "apiGroups") {
                for resource in texts(rule, "resources") {
                    granted.extend(texts(rule, "verbs").iter().map(|verb| Right::new(verb, &group, &resource)));
                }
            }
        }
    }
    ensure!(granted.len() > 20, "the Role grants next to nothing: {granted:?}");
    Ok(granted)
}

/// Notes what a region's monitors asked for, when a folder is set.
///
/// # Errors
/// When the audit log cannot be read or the file not written.
pub fn record(region: &Region) -> anyhow::Result<()> {
    let environment = Environment::process();
    let Some(folder) = environment.non_empty(FOLDER) else { return Ok(()) };
    let asked = Asked::of(&region.asked_by_monitors()?);
    let path = Path::new(folder).join(format!("{}.json", SystemRandomness.token()));
    std::fs::write(&path, serde_json::to_vec(&asked)?).with_context(|| format!("writing {}", path.display()))
}

/// What the files of a folder come to.
///
/// # Errors
/// When there are none, or one cannot be read.
pub fn recorded(folder: &Path) -> anyhow::Result<(usize, Asked)> {
    let mut used: BTreeMap<Right, usize> = BTreeMap::new();
    let mut refused = Vec::new();
    let mut files = 0;
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let asked: Asked = serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?;
        for (right, count) in asked.used {
            *used.entry(right).or_default() += count;
        }
        refused.extend(asked.refused);
        files += 1;
    }
    ensure!(files > 0, "no region noted anything in {}", folder.display());
    Ok((files, Asked { used: used.into_iter().collect(), refused }))
}

/// What does not fit, in words; empty when the rights that were used are exactly those that are granted, and none was refused.
#[must_use]
pub fn differences(granted: &BTreeSet<Right>, asked: &Asked) -> Vec<String> {
    let used: BTreeSet<Right> = asked.used.iter().map(|(right, _)| right.clone()).collect();
    let unused = granted.difference(&used).map(|right| format!("granted and never used: {right}"));
    let ungranted = used.difference(granted).map(|right| format!("used and not granted: {right}"));
    let refused = asked.refused.iter().map(|words| format!("refused: {words}"));
    unused.chain(ungranted).chain(refused).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(rights: &[&str]) -> BTreeSet<Right> {
        rights.iter().map(|verb| Right::new(verb, "apps", "deployments")).collect()
    }

    fn asked(rights: &[&str], refused: &[&str]) -> Asked {
        Asked {
            used: set(rights).into_iter().map(|right| (right, 1)).collect(),
            refused: refused.iter().map(|words| (*words).to_owned()).collect(),
        }
    }

    #[test]
    fn every_way_of_not_fitting_is_named() {
        let granted = set(&["get", "list"]);
        assert_eq!(differences(&granted, &asked(&["get", "list"], &[])), Vec::<String>::new());
        let found = differences(&granted, &asked(&["get", "watch"], &["watch deployments.apps"]));
        let wanted = [
            "granted and never used: list deployments.apps",
            "used and not granted: watch deployments.apps",
            "refused: watch deployments.apps",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_role_is_read_with_its_groups_and_never_lists_secrets() {
        let granted = granted().unwrap();
        assert!(granted.contains(&Right::new("update", "apps", "deployments")));
        assert!(granted.contains(&Right::new("list", "", "pods")));
        for verb in ["list", "watch", "deletecollection"] {
            assert!(!granted.contains(&Right::new(verb, "", "secrets")), "{verb} secrets");
        }
        for right in granted {
            assert!(!right.resource.contains('/') && !right.resource.contains('*') && right.verb != "*", "{right}");
        }
    }
}
