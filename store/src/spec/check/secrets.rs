//! References to Secrets. Only their names are checked: their values are Kubernetes' business, and nothing of ours reads
//! them.

use std::collections::BTreeMap;

use super::super::{SecretKey, label};
use super::{Fields, describe, is_variable_name, quoted};
use crate::wire::Value;

/// Most Secrets with registry credentials of a pod.
const MOST_PULL_SECRETS: usize = 8;
/// Longest key of a Secret's data, as Kubernetes has it.
const LONGEST_KEY: usize = 253;
const NOT_A_NAME: &str =
    "must be the name of a Secret: lower-case letters, digits, '-' and '.', at most 253 characters";

/// `env_from_secret`: variables whose values are keys of Secrets.
pub(super) fn environment(root: &mut Fields<'_>, plain: &BTreeMap<String, String>) -> BTreeMap<String, SecretKey> {
    let read = |fields: &mut Fields<'_>| {
        let mut variables = BTreeMap::new();
        for (variable, value) in fields.map {
            if !is_variable_name(variable) {
                fields.problem(variable, "is no name of an environment variable: printable ASCII without = is");
                continue;
            }
            if plain.contains_key(variable) {
                fields.problem(variable, "is in env, too; it can have one value only");
            }
            let Some(map) = value.as_map() else {
                // Somebody may have written the secret itself here: it is not repeated.
                fields.problem(variable, "must be a map with name (of a Secret) and key (in its data)");
                continue;
            };
            let mut reference = Fields::new(fields.full_path(variable), map);
            let name = reference.text("name", LONGEST_KEY).unwrap_or_default();
            let key = reference.text("key", LONGEST_KEY).unwrap_or_default();
            if !label::is_subdomain(&name) {
                reference.problem("name", format!("{NOT_A_NAME}, got {}", quoted(&name)));
            }
            if !is_data_key(&key) {
                let message = "must be a key of the Secret's data: letters, digits, '-', '_' and '.'";
                reference.problem("key", format!("{message}, got {}", quoted(&key)));
            }
            reference.unknown_keys(&["name", "key"]);
            fields.absorb(reference);
            variables.insert(variable.clone(), SecretKey { name, key });
        }
        variables
    };
    root.nested("env_from_secret", read).unwrap_or_default()
}

/// `image_pull_secrets`: names, each once, in order.
pub(super) fn pull_secrets(root: &mut Fields<'_>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let elements: Vec<(String, &Value)> = root.elements("image_pull_secrets");
    if elements.len() > MOST_PULL_SECRETS {
        root.problem("image_pull_secrets", format!("must be at most {MOST_PULL_SECRETS}, got {}", elements.len()));
    }
    for (path, element) in elements {
        match element.as_str() {
            Some(name) if !label::is_subdomain(name) => {
                root.problem(&path, format!("{NOT_A_NAME}, got {}", quoted(name)));
            }
            Some(name) if names.iter().any(|known| known == name) => {
                root.problem(&path, format!("names {} a second time", quoted(name)));
            }
            Some(name) => names.push(name.to_owned()),
            None => root.problem(&path, format!("{NOT_A_NAME}, got {}", describe(element))),
        }
    }
    names
}

fn is_data_key(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text != "." && text != ".." && text.bytes().all(is_allowed)
}
