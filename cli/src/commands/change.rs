//! The verbs that edit the spec field by field or as a whole: `set`, `edit`, `undo`.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;

use gco_store::problem::{FieldProblem, bounded};
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::spec::Spec;
use gco_store::transition::OperationError;
use gco_store::wire::{Item, Value};

use crate::arguments::{EditFlags, NameFlags, SetFlags};
use crate::change::{self, differing_keys, replaces_pods};
use crate::commands::Context;
use crate::commands::edit::{print_row, refuse};
use crate::connect::Connection;
use crate::failure::Failure;
use crate::flags;
use crate::output::{Format, Output};

/// A spec has at most half of a row's 400 KB; its YAML form is at most a few times as long.
const LARGEST_FILE_BYTES: u64 = 2 << 20;

/// Sets single fields.
///
/// # Errors
/// Wrong flags, or what the store refuses.
pub async fn set(given: &SetFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    let mut problems = flags::endpoint_name(name);
    let changes = change::read(given).unwrap_or_else(|found| {
        problems.extend(found);
        Vec::new()
    });
    refuse(problems)?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    if given.dry_run {
        let mut after = before.spec.as_map().cloned().unwrap_or_default();
        change::apply(&changes, &mut after);
        return preview(&before, &after, context.output);
    }
    let edit = |_: &EndpointRow, spec: &mut Item| {
        change::apply(&changes, spec);
        Ok(())
    };
    let row = connection.store.update_spec_with(name, edit).await.map_err(|error| by_flag(&connection, error))?;
    say(&before, &row, "changed", context.output)
}

/// Edits the whole spec: in an editor, or from a file.
///
/// # Errors
/// No editor, a text that is no spec, or what the store refuses.
pub async fn edit(given: &EditFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    refuse(flags::endpoint_name(name))?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    let shown = before.spec.as_map().cloned().unwrap_or_default();
    let text = match &given.file {
        Some(file) => read_text(file, context.output)?,
        None => {
            let program = editor(context)?;
            let yaml = serde_saphyr::to_string(&Value::Map(shown.clone()).to_plain_json())
                .map_err(|error| Failure::refused(format!("the spec cannot be written as YAML: {error}")))?;
            in_editor(&program, name, &yaml)?
        }
    };
    let edited = read_spec(&text)?;
    let keys = differing_keys(&shown, &edited);
    if keys.is_empty() {
        context.output.information(&format!("The spec of endpoint '{name}' is as it was; nothing was written"))?;
        return print_row(&before, context.output);
    }
    // Only what was edited is written: what somebody else changed meanwhile elsewhere in the spec stays.
    let take = |_: &EndpointRow, spec: &mut Item| {
        for key in &keys {
            match edited.get(key) {
                Some(value) => spec.insert(key.clone(), value.clone()),
                None => spec.remove(key),
            };
        }
        Ok(())
    };
    if given.dry_run {
        return preview(&before, &edited, context.output);
    }
    let since = |row: &EndpointRow, spec: &mut Item| -> Result<(), OperationError> {
        let now = row.spec.as_map().cloned().unwrap_or_default();
        if let Some(key) = differing_keys(&shown, &now).iter().find(|key| keys.contains(key)) {
            let shown = bounded(key, 60);
            return Err(OperationError::State(format!(
                "Somebody else has changed '{shown}' of endpoint '{}' meanwhile; nothing was written",
                row.name
            )));
        }
        take(row, spec)
    };
    let row = connection.store.update_spec_with(name, since).await.map_err(|error| connection.refused(error))?;
    say(&before, &row, "changed", context.output)
}

/// Brings back the spec before the last edit.
///
/// # Errors
/// What the store refuses.
pub async fn undo(given: &NameFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    refuse(flags::endpoint_name(name))?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    let row = connection.store.undo(name).await.map_err(|error| connection.refused(error))?;
    say(&before, &row, "set back to what it was before the last edit", context.output)
}

/// A refused spec, its fields named by the flags that set them.
fn by_flag(connection: &Connection, error: gco_store::operations::StoreError) -> Failure {
    match error {
        gco_store::operations::StoreError::Operation(OperationError::Invalid(problems)) => {
            Failure::Usage(problems.iter().map(flags::named).collect())
        }
        other => connection.refused(other),
    }
}

/// What was changed, by name (values may be secrets), and what it means for pods.
fn say(before: &EndpointRow, row: &EndpointRow, done: &str, output: &mut Output<'_, '_>) -> Result<(), Failure> {
    let name = &row.name;
    if row.updated_at == before.updated_at {
        output.information(&format!("Endpoint '{name}' is so already; nothing was written"))?;
        return print_row(row, output);
    }
    let (old, new) = (before.spec.as_map().cloned(), row.spec.as_map().cloned());
    let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
    let fields = differing_keys(&old, &new);
    output.success(&format!("Endpoint '{name}': {} {done}", bounded(&fields.join(", "), 300)))?;
    output.information(&consequence(row, &old, &new))?;
    output.information(&format!("'gco inference undo {name}' brings back what it was before"))?;
    print_row(row, output)
}

fn consequence(row: &EndpointRow, old: &Item, new: &Item) -> String {
    if row.desired_state == DesiredState::Stopped {
        return format!("It is stopped; the change takes effect with 'gco inference start {}'", row.name);
    }
    match replaces_pods(old, new, &row.target_regions) {
        Some(true) => "Its pods are replaced, while the old ones go on serving".to_owned(),
        Some(false) => "No pod is restarted for it".to_owned(),
        None => "The spec cannot be served as it is; 'gco inference explain' says why".to_owned(),
    }
}

fn preview(before: &EndpointRow, after: &Item, output: &mut Output<'_, '_>) -> Result<(), Failure> {
    if let Err(problems) = Spec::check(&Value::Map(after.clone())) {
        return Err(Failure::Usage(problems.iter().map(flags::named).collect()));
    }
    let old = before.spec.as_map().cloned().unwrap_or_default();
    let fields = differing_keys(&old, after);
    let changed = if fields.is_empty() { "nothing".to_owned() } else { bounded(&fields.join(", "), 300) };
    output.information(&format!("Would change: {changed}; nothing was written"))?;
    if !fields.is_empty() {
        output.information(&consequence(before, &old, after))?;
    }
    match output.format() {
        Format::Table => Ok(()),
        Format::Json | Format::Yaml => Ok(output.document(&Value::Map(after.clone()).to_plain_json())?),
    }
}

/// The editor that the user's environment names.
fn editor(context: &Context<'_, '_, '_>) -> Result<String, Failure> {
    let named = ["GCO_EDITOR", "VISUAL", "EDITOR"].iter().find_map(|name| context.environment.non_empty(name));
    named.map(str::to_owned).ok_or_else(|| {
        let message = "no editor: set EDITOR (or VISUAL, GCO_EDITOR), or give the spec with --file";
        Failure::Refused(message.to_owned())
    })
}

/// Opens a text in an editor; returns it as it was saved. The file is only readable by its owner: a spec may hold secrets.
fn in_editor(program: &str, name: &str, yaml: &str) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::refused(format!("the file to edit cannot be written: {error}"));
    let mut file = tempfile::Builder::new().prefix("gco-spec-").suffix(".yaml").tempfile().map_err(failed)?;
    let heading = format!(
        "# The spec of endpoint '{}'. Save to write it; leave it as it is to change nothing.\n",
        bounded(name, 100)
    );
    file.write_all(heading.as_bytes()).and_then(|()| file.write_all(yaml.as_bytes())).map_err(failed)?;
    file.flush().map_err(failed)?;
    // An editor's setting may carry arguments, as in `code --wait`: a shell takes it apart.
    let status = Command::new("sh").arg("-c").arg(format!("{program} \"$1\"")).arg("sh").arg(file.path()).status();
    match status {
        Ok(status) if status.success() => read_file(file.path()),
        Ok(status) => Err(Failure::refused(format!("the editor ended with {status}; nothing was written"))),
        Err(error) => Err(Failure::refused(format!("the editor cannot be started: {error}"))),
    }
}

fn read_text(file: &str, output: &mut Output<'_, '_>) -> Result<String, Failure> {
    if file == "-" {
        return output
            .read_input(LARGEST_FILE_BYTES)
            .map_err(|error| Failure::refused(format!("standard input cannot be read: {error}")));
    }
    read_file(Path::new(file))
}

fn read_file(path: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::usage("--file", format!("cannot be read: {error}"));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(LARGEST_FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Reads YAML (of which JSON is a part) as a spec, and checks it.
fn read_spec(text: &str) -> Result<Item, Failure> {
    let json: serde_json::Value = serde_saphyr::from_str(text).map_err(|error| {
        // The parser's own words may quote a value, which may be a secret.
        let place = error.location().map(|at| format!(", line {} column {}", at.line(), at.column()));
        Failure::usage("spec", format!("is neither YAML nor JSON{}", place.unwrap_or_default()))
    })?;
    let value = Value::from_plain_json("spec", &json).map_err(|problem| Failure::Usage(vec![problem]))?;
    let Value::Map(spec) = value else {
        return Err(Failure::Usage(vec![FieldProblem::new("spec", "must be a map")]));
    };
    Spec::check(&Value::Map(spec.clone())).map_err(Failure::Usage)?;
    Ok(spec)
}
