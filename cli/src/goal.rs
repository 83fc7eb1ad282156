//! What a wait waits for, and how far it is. Pure.

use gco_store::problem::bounded;
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::status::{RegionEntry, State};

use crate::describe::state_word;

/// A state that an endpoint is to reach everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Every target region serves, and routers let traffic through.
    Running,
    /// No target region has pods.
    Stopped,
    /// The row is gone.
    Deleted,
}

impl Goal {
    /// The words that name goals.
    pub const WORDS: [&'static str; 3] = ["running", "stopped", "deleted"];

    /// Reads a goal's word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "running" => Some(Self::Running),
            "stopped" => Some(Self::Stopped),
            "deleted" => Some(Self::Deleted),
            _ => None,
        }
    }

    /// The goal's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Deleted => "deleted",
        }
    }
}

/// How far a goal is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Reached.
    Reached,
    /// Not yet; what is missing, one line each.
    Waiting(Vec<String>),
    /// It cannot be reached without somebody doing something; what.
    Hopeless(String),
}

/// How far `row` (absent: gone) is from `goal`. `lifecycle_id` is the life of the name that the wait began with.
#[must_use]
pub fn progress(goal: Goal, row: Option<&EndpointRow>, lifecycle_id: Option<&str>) -> Progress {
    // A row without a lifecycle gets one from the first monitor that sees it; that is still the same life.
    let same_life = |row: &&EndpointRow| lifecycle_id.is_none() || row.lifecycle_id.as_deref() == lifecycle_id;
    let Some(row) = row.filter(same_life) else {
        return match goal {
            Goal::Deleted => Progress::Reached,
            _ => Progress::Hopeless("the endpoint was deleted meanwhile".to_owned()),
        };
    };
    match (goal, &row.desired_state) {
        (Goal::Running, DesiredState::Deploying | DesiredState::Running) => running(row),
        (Goal::Stopped, DesiredState::Stopped) => everywhere(row, &State::Stopped),
        (Goal::Deleted, DesiredState::Deleted) => deleted(row),
        (_, other) => Progress::Hopeless(format!(
            "the endpoint is asked to be '{}', so it will not become {}",
            bounded(other.as_str(), 40),
            goal.word()
        )),
    }
}

fn running(row: &EndpointRow) -> Progress {
    match everywhere(row, &State::Running) {
        // Routers look at the row's state too.
        Progress::Reached if row.desired_state == DesiredState::Deploying => {
            Progress::Waiting(vec!["every region serves; the row is promoted to running next".to_owned()])
        }
        progress => progress,
    }
}

fn everywhere(row: &EndpointRow, wanted: &State) -> Progress {
    if row.target_regions.is_empty() {
        return Progress::Hopeless("the endpoint has no target regions".to_owned());
    }
    let mut missing = Vec::new();
    for region in &row.target_regions {
        let entry = row.region_status.get(region).filter(|entry| is_of_this_life(row, entry));
        match entry {
            Some(entry) if entry.state == *wanted => {}
            Some(entry) if entry.state == State::Failed => {
                let error = entry.error.as_deref().unwrap_or("it does not say why");
                return Progress::Hopeless(format!(
                    "{region} cannot serve the endpoint as it is: {}",
                    bounded(error, 300)
                ));
            }
            other => missing.push(region_line(region, other)),
        }
    }
    if missing.is_empty() { Progress::Reached } else { Progress::Waiting(missing) }
}

fn deleted(row: &EndpointRow) -> Progress {
    let regions = row.deletion_regions.as_ref().unwrap_or(&row.target_regions);
    let waiting: Vec<String> = regions
        .iter()
        .filter(|region| !row.acknowledged(region))
        .map(|region| region_line(region, row.region_status.get(region)))
        .collect();
    if waiting.is_empty() {
        return Progress::Waiting(vec!["every region has confirmed; the row is removed next".to_owned()]);
    }
    Progress::Waiting(waiting)
}

fn is_of_this_life(row: &EndpointRow, entry: &RegionEntry) -> bool {
    // Entries of the oldest monitors carry no lifecycle.
    entry.lifecycle_id.is_none() || entry.lifecycle_id == row.lifecycle_id
}

/// One region in one line, for progress.
#[must_use]
pub fn region_line(region: &str, entry: Option<&RegionEntry>) -> String {
    let region = bounded(region, 63);
    let Some(entry) = entry else { return format!("{region}: not seen yet") };
    let mut line =
        format!("{region}: {}, {} of {} ready", state_word(&entry.state), entry.replicas_ready, entry.replicas_desired);
    if let Some(pod) = entry.pods.first() {
        line.push_str(&format!(" ({} {})", pod.count, bounded(&pod.reason, 60)));
    }
    if let Some(error) = &entry.error {
        line.push_str(&format!("; {}", bounded(error, 200)));
    }
    line
}

#[cfg(test)]
mod tests {
    use gco_store::wire::{Item, Value};

    use super::*;

    fn row(desired_state: &str, states: &[(&str, &str)]) -> EndpointRow {
        let text = |text: &str| Value::from(text);
        let status = states.iter().map(|(region, state)| {
            let entry = Item::from([
                ("state".to_owned(), text(state)),
                ("lifecycle_id".to_owned(), text("life")),
                ("error".to_owned(), text("ImageInvalid: no such image")),
            ]);
            ((*region).to_owned(), Value::Map(entry))
        });
        let item = Item::from([
            ("endpoint_name".to_owned(), text("chat")),
            ("lifecycle_id".to_owned(), text("life")),
            ("desired_state".to_owned(), text(desired_state)),
            ("target_regions".to_owned(), Value::List(vec![text("us-east-1"), text("eu-west-1")])),
            ("region_status".to_owned(), Value::Map(status.collect())),
        ]);
        EndpointRow::parse(item).unwrap()
    }

    fn waiting(progress: Progress) -> Vec<String> {
        match progress {
            Progress::Waiting(lines) => lines,
            other => panic!("expected waiting, got {other:?}"),
        }
    }

    #[test]
    fn running_needs_every_target_region_and_the_promotion() {
        let both = [("us-east-1", "running"), ("eu-west-1", "running")];
        assert_eq!(progress(Goal::Running, Some(&row("running", &both)), Some("life")), Progress::Reached);
        assert_eq!(waiting(progress(Goal::Running, Some(&row("deploying", &both)), Some("life"))).len(), 1);
        let one = waiting(progress(Goal::Running, Some(&row("running", &both[..1])), Some("life")));
        assert_eq!(one, ["eu-west-1: not seen yet"]);
    }

    #[test]
    fn a_region_that_failed_ends_the_wait() {
        let states = [("us-east-1", "running"), ("eu-west-1", "failed")];
        let ended = progress(Goal::Running, Some(&row("running", &states)), Some("life"));
        let Progress::Hopeless(reason) = ended else { panic!("{ended:?}") };
        assert!(reason.contains("eu-west-1") && reason.contains("no such image"), "{reason}");
    }

    #[test]
    fn a_row_that_is_gone_or_began_anew_is_deleted() {
        assert_eq!(progress(Goal::Deleted, None, Some("life")), Progress::Reached);
        assert_eq!(progress(Goal::Deleted, Some(&row("running", &[])), Some("other")), Progress::Reached);
        assert!(matches!(progress(Goal::Running, None, Some("life")), Progress::Hopeless(_)));
        assert!(matches!(progress(Goal::Stopped, Some(&row("running", &[])), Some("life")), Progress::Hopeless(_)));
    }
}
