//! Edits of the autoscaling block: on, changed, off.

use super::{Autoscaling, Metric, MetricKind, is_mooncake};
use crate::row::EndpointRow;
use crate::transition::OperationError;
use crate::wire::{Item, Value};

/// Key of the block.
const BLOCK: &str = "autoscaling";
/// Key of the static count.
const REPLICAS: &str = "replicas";

/// A change of who sets the replica count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AutoscalingEdit {
    /// An autoscaler does. What is not given stays as the row has it, or gets its default (contract A.4.1).
    On {
        /// Fewest replicas.
        min_replicas: Option<i64>,
        /// Most replicas.
        max_replicas: Option<i64>,
        /// What it looks at; replaces all metrics of the row.
        metrics: Option<Vec<(MetricKind, i64)>>,
    },
    /// The row does. Bounds and metrics are kept for the next time.
    Off {
        /// The static count. Not given: as many as the region with the most has now, so that nobody loses pods by taking
        /// the autoscaler away.
        replicas: Option<i64>,
    },
}

impl AutoscalingEdit {
    /// Applies it to a row's spec. Whether the result is valid is for the checker to say.
    ///
    /// # Errors
    /// A Mooncake endpoint: its roles have autoscalers of their own.
    pub fn apply(&self, row: &EndpointRow, spec: &mut Item) -> Result<(), OperationError> {
        if is_mooncake(spec) {
            let advice = "its roles are scaled one by one, by 'mooncake.autoscaling' of its spec.";
            return Err(OperationError::State(format!("Endpoint '{}' uses Mooncake; {advice}", row.name)));
        }
        let stored = spec.get(BLOCK).and_then(Value::as_map).cloned();
        match self {
            Self::On { min_replicas, max_replicas, metrics } => {
                let mut block = stored.unwrap_or_default();
                block.insert("enabled".to_owned(), Value::Bool(true));
                for (key, given, default) in [
                    ("min_replicas", min_replicas, Autoscaling::DEFAULT_MIN_REPLICAS),
                    ("max_replicas", max_replicas, Autoscaling::DEFAULT_MAX_REPLICAS),
                ] {
                    match given {
                        Some(count) => block.insert(key.to_owned(), Value::from(*count)),
                        None if is_absent(&block, key) => block.insert(key.to_owned(), Value::from(i64::from(default))),
                        None => None,
                    };
                }
                let Metric { kind, target_percent } = Autoscaling::DEFAULT_METRIC;
                match metrics {
                    Some(metrics) => block.insert("metrics".to_owned(), metrics_value(metrics)),
                    None if is_absent(&block, "metrics") => {
                        block.insert("metrics".to_owned(), metrics_value(&[(kind, target_percent.into())]))
                    }
                    None => None,
                };
                spec.insert(BLOCK.to_owned(), Value::Map(block));
            }
            Self::Off { replicas } => {
                let is_on = |block: &Item| block.get("enabled").is_some_and(|enabled| *enabled != Value::Bool(false));
                let is_on = stored.as_ref().is_some_and(is_on);
                if let Some(mut block) = stored.filter(|_| is_on) {
                    block.insert("enabled".to_owned(), Value::Bool(false));
                    spec.insert(BLOCK.to_owned(), Value::Map(block));
                }
                let stays = || most_replicas_now(row).filter(|_| is_on);
                if let Some(count) = replicas.or_else(stays) {
                    spec.insert(REPLICAS.to_owned(), Value::from(count));
                }
            }
        }
        Ok(())
    }
}

/// `metrics` as the row has it.
#[must_use]
pub fn metrics_value(metrics: &[(MetricKind, i64)]) -> Value {
    let entry = |(kind, target): &(MetricKind, i64)| {
        Value::Map(Item::from([
            ("type".to_owned(), Value::from(kind.word())),
            ("target".to_owned(), Value::from(*target)),
        ]))
    };
    Value::List(metrics.iter().map(entry).collect())
}

fn is_absent(block: &Item, key: &str) -> bool {
    block.get(key).is_none_or(|value| *value == Value::Null)
}

/// The largest count that a target region has now, of this life of the row; none while no region has pods.
fn most_replicas_now(row: &EndpointRow) -> Option<i64> {
    let entries = row.region_status.iter().filter(|(region, entry)| {
        row.is_target(region) && entry.lifecycle_id.is_some() && entry.lifecycle_id == row.lifecycle_id
    });
    entries.map(|(_, entry)| i64::from(entry.replicas_desired)).max().filter(|count| *count > 0)
}
