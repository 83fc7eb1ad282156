//! The `gco local` that runs on this machine, as its state file tells.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gco_runtime::environment::Environment;
use gco_store::problem::{QUOTED_VALUE_CHARACTERS, bounded};
use serde_json::Value as Json;

use crate::connect::{self, Backend};
use crate::failure::Failure;

/// Name of the state file in the data folder of `gco local`.
const STATE_FILE: &str = "local.json";
/// Folder of `gco local` below the place where programs keep their data.
const FOLDER: &str = "gco-local";
/// A state file of a few regions has a few hundred bytes; anything much larger is something else.
const LARGEST_STATE_FILE_BYTES: u64 = 1 << 20;

/// What a local instance says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalInstance {
    /// Its table.
    pub backend: Backend,
    /// Its regions.
    pub regions: Vec<String>,
    /// Administrators' kubeconfig files by region.
    pub kubeconfigs: BTreeMap<String, PathBuf>,
    /// Its state file.
    pub state_file: PathBuf,
}

/// Finds the local instance that was asked for by `asked`, a flag or a variable.
///
/// `variable` (`GCO_LOCAL`) is a switch (`1`, `true` …), or the data folder of the instance. `None`: switched off.
///
/// # Errors
/// No or an unreadable state file, or no place to look for one.
pub fn find(
    asked: &str,
    by_flag: bool,
    variable: Option<&str>,
    environment: &Environment,
) -> Result<Option<LocalInstance>, Failure> {
    let folder = match variable {
        Some(folder) if folder.contains('/') => PathBuf::from(folder),
        Some(word) if is_off(word) && !by_flag => return Ok(None),
        Some(word) if !is_on(word) && !is_off(word) => {
            let shown = bounded(word, QUOTED_VALUE_CHARACTERS);
            return Err(Failure::usage(
                "GCO_LOCAL",
                format!("must be true, false or a folder with a '/', got '{shown}'"),
            ));
        }
        _ => default_folder(asked, environment)?,
    };
    let state_file = folder.join(STATE_FILE);
    if !state_file.is_file() {
        let message =
            format!("no local instance: there is no {} (start one with 'gco local up')", state_file.display());
        return Err(Failure::refused(format!("{asked}: {message}")));
    }
    read(&state_file)
        .map(Some)
        .map_err(|reason| Failure::refused(format!("{asked}: {} {reason}", state_file.display())))
}

fn is_on(word: &str) -> bool {
    ["1", "true", "yes", "on"].contains(&word.to_ascii_lowercase().as_str())
}

fn is_off(word: &str) -> bool {
    ["0", "false", "no", "off"].contains(&word.to_ascii_lowercase().as_str())
}

fn default_folder(asked: &str, environment: &Environment) -> Result<PathBuf, Failure> {
    let data = environment
        .non_empty("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(|| environment.non_empty("HOME").map(|home| Path::new(home).join(".local/share")));
    data.map(|data| data.join(FOLDER)).ok_or_else(|| {
        Failure::refused(format!("{asked}: no data folder to look in: set GCO_LOCAL, XDG_DATA_HOME or HOME"))
    })
}

fn read(file: &Path) -> Result<LocalInstance, String> {
    let length = file.metadata().map_err(|error| format!("cannot be read: {error}"))?.len();
    if length > LARGEST_STATE_FILE_BYTES {
        return Err("is too large to be a state file".to_owned());
    }
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot be read: {error}"))?;
    let state: Json = serde_json::from_str(&text).map_err(|error| format!("is no JSON: {error}"))?;
    let regions = state.get("regions").and_then(Json::as_array).ok_or("names no regions")?;
    let name = |region: &Json| region.as_str().or_else(|| region.get("name")?.as_str()).map(str::to_owned);
    let kubeconfig = |region: &Json| Some((name(region)?, PathBuf::from(region.get("kubeconfig")?.as_str()?)));
    let kubeconfigs = regions.iter().filter_map(kubeconfig).collect();
    let regions = regions.iter().map(name).collect::<Option<Vec<String>>>().ok_or("names a region without a name")?;
    let table = state.get("table").and_then(Json::as_str).ok_or("names no table")?;
    // The instance says everything about its table; the caller's environment has no part in it.
    let of_instance = |variable: &str, key: &str| Some((variable.to_owned(), state.get(key)?.as_str()?.to_owned()));
    let variables = [
        of_instance("INFERENCE_ENDPOINTS_TABLE_NAME", "table_name"),
        of_instance("DYNAMODB_REGION", "table_region"),
        of_instance("DYNAMODB_ENDPOINT_URL", "table_endpoint_url"),
    ];
    let environment = Environment::from_pairs(variables.into_iter().flatten());
    let backend = connect::backend(table, &environment)
        .map_err(|problems| format!("names a table that is none: {}", gco_store::problem::joined(&problems)))?;
    Ok(LocalInstance { backend, regions, kubeconfigs, state_file: file.to_owned() })
}
