//! A canary on an endpoint: given, promoted, rolled back (contract F.2). All three are edits of the spec (B.7): they keep the
//! desired state, and are made again after a lost race unless somebody else changed the canary or the image meanwhile.

use super::{Store, StoreError};
use crate::problem::{QUOTED_VALUE_CHARACTERS, bounded};
use crate::row::{DesiredState, EndpointRow};
use crate::spec::{Canary, MOST_REPLICAS, is_mooncake};
use crate::transition::OperationError;
use crate::wire::{Item, Value};

/// Percentages of requests that a canary can have (contract A.4.2).
const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=99;

impl Store {
    /// Gives the endpoint a canary, or changes the one that it has.
    ///
    /// # Errors
    /// The contract's words for a bad image, weight or count, for an endpoint that is neither deploying nor running, and for
    /// a Mooncake endpoint; an absent or deleted row, a conflict, a failed call.
    pub async fn set_canary(&self, name: &str, canary: &Canary) -> Result<EndpointRow, StoreError> {
        let Canary { image, weight, replicas } = canary;
        let problem = if image.trim().is_empty() {
            Some("Canary image must be a non-empty string")
        } else if !WEIGHTS.contains(weight) {
            Some("Canary weight must be an integer between 1 and 99")
        } else if !(1..=MOST_REPLICAS).contains(&i64::from(*replicas)) {
            Some("Canary replicas must be a positive integer")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(state(problem));
        }
        let block = Item::from([
            ("image".to_owned(), Value::from(image.as_str())),
            ("weight".to_owned(), Value::from(i64::from(*weight))),
            ("replicas".to_owned(), Value::from(i64::from(*replicas))),
        ]);
        let edit = move |row: &EndpointRow, spec: &mut Item| {
            if !matches!(row.desired_state, DesiredState::Deploying | DesiredState::Running) {
                let word = bounded(row.desired_state.as_str(), QUOTED_VALUE_CHARACTERS);
                let message =
                    format!("Cannot canary an endpoint in '{word}' state. Endpoint must be running or deploying.");
                return Err(OperationError::State(message));
            }
            if is_mooncake(spec) {
                let message = "Canary deployments are not supported for Mooncake endpoints";
                return Err(OperationError::State(message.to_owned()));
            }
            spec.insert("canary".to_owned(), Value::Map(block.clone()));
            Ok(())
        };
        self.update_spec_as(name, "given a canary", edit).await
    }

    /// Makes the canary's image the endpoint's: drops the canary, and the images by region that were made from the image
    /// before. With `seen`, only if the canary still has this image: nobody promotes what they have not looked at.
    ///
    /// # Errors
    /// The contract's words for an endpoint without a canary, with a broken one, or of the Mooncake kind; another image; an
    /// absent or deleted row, a conflict, a failed call.
    pub async fn promote_canary(&self, name: &str, seen: Option<&str>) -> Result<EndpointRow, StoreError> {
        let edit = |row: &EndpointRow, spec: &mut Item| {
            let refused = |message: String| Err(OperationError::State(message));
            if is_mooncake(spec) {
                return refused("Canary promotion is not supported for Mooncake endpoints".to_owned());
            }
            let Some(canary) = block(spec) else { return refused(no_canary(&row.name)) };
            let image = match canary.get("image") {
                Some(Value::String(image)) if !image.trim().is_empty() => image.clone(),
                None | Some(Value::Null) => {
                    return refused(format!("Canary deployment for '{}' is missing the 'image' field", row.name));
                }
                Some(_) => {
                    return refused(format!("Canary deployment for '{}' has an invalid 'image' field", row.name));
                }
            };
            if let Some(seen) = seen.filter(|seen| *seen != image) {
                let (now, seen) = (bounded(&image, IMAGE_CHARACTERS), bounded(seen, IMAGE_CHARACTERS));
                return refused(format!(
                    "The canary of endpoint '{}' is {now} by now, not {seen}; nothing was promoted",
                    row.name
                ));
            }
            spec.insert("image".to_owned(), Value::from(image));
            spec.remove("canary");
            spec.remove("region_image_uris");
            Ok(())
        };
        self.update_spec_as(name, "promoted", edit).await
    }

    /// Drops the canary; the endpoint itself stays as it is.
    ///
    /// # Errors
    /// An endpoint without a canary, an absent or deleted row, a conflict, a failed call.
    pub async fn roll_back_canary(&self, name: &str) -> Result<EndpointRow, StoreError> {
        let edit = |row: &EndpointRow, spec: &mut Item| {
            if block(spec).is_none() {
                return Err(OperationError::State(no_canary(&row.name)));
            }
            spec.remove("canary");
            Ok(())
        };
        self.update_spec_as(name, "rolled back", edit).await
    }
}

/// Longest image that a message repeats, in characters.
const IMAGE_CHARACTERS: usize = 300;

fn state(message: &str) -> StoreError {
    OperationError::State(message.to_owned()).into()
}

fn no_canary(name: &str) -> String {
    format!("Endpoint '{name}' has no active canary deployment")
}

/// The canary block, if there is one with something in it.
fn block(spec: &Item) -> Option<&Item> {
    spec.get("canary")?.as_map().filter(|block| !block.is_empty())
}
